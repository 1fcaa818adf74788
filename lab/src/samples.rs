//! Every sample of a campaign, in a file that pandas, polars and DuckDB open as it is.
//!
//! Parquet, compressed with zstd. One row a sample, and one row a figure of a block:
//!
//! | column | type | |
//! |---|---|---|
//! | `experiment` | string | |
//! | `arm`, `role` | string | role: baseline, tried, control |
//! | `round`, `pass` | uint64 | from 0; pass 0 is in order, 1 in reverse |
//! | `complete` | boolean | whether its round was completed; others are not evaluated |
//! | `block`, `attempt` | uint64 | number of the block in order of time; attempts before it at the same place |
//! | `verdict` | string | kept, kept_disturbed, rejected |
//! | `figure` | string | `sample`, or the name of a figure of the block |
//! | `sample` | uint64 or null | number of the sample in its block, from 0 |
//! | `value_ns` | uint64 or null | the sample |
//! | `value` | double or null | the figure |
//!
//! In addition to the block's own figures there are `block_ns`, its length including preparation, `foreign`
//! and `steal`, the CPU time of other programs and of other VMs as shares of one CPU, and `sequence`, the
//! number of its sequence of gaps. The key `dwell.lab` holds JSON about the machine, the plan and how it was
//! asked for; `dwell.lab.format` is `1`.
//!
//! ```text
//! df = pandas.read_parquet("wake.parquet").query("complete and verdict != 'rejected'")
//! df[df.figure == "sample"].groupby("arm").value_ns.quantile([0.5, 0.99])
//! df[df.figure != "sample"].groupby(["figure", "arm"]).value.mean()
//! ```

use dwell_machine::{Sysroot, cpu, kernel};
use dwell_recording::table::{Field, Kind, TableError, TableWriter, Value, field};
use dwell_recording::{NewFile, NewFileError};
use dwell_stats::{BlockStatus, MeasuredBlock, Measurements, Role};
use serde_json::json;
use std::io::Write;
use std::path::Path;

/// Value of `dwell.lab.format` in what is written.
pub const FORMAT: &str = "1";

/// Rows of a row group: 10 MB of memory, as of a recording.
const ROWS_PER_GROUP: usize = 1 << 18;
/// zstd's own default.
const ZSTD_LEVEL: i32 = 3;

const FIELDS: [Field; 13] = [
    field("experiment", Kind::Text, true),
    field("arm", Kind::Text, true),
    field("role", Kind::Text, true),
    field("round", Kind::Unsigned, true),
    field("pass", Kind::Unsigned, true),
    field("complete", Kind::Flag, true),
    field("block", Kind::Unsigned, true),
    field("attempt", Kind::Unsigned, true),
    field("verdict", Kind::Text, true),
    field("figure", Kind::Text, true),
    field("sample", Kind::Unsigned, false),
    field("value_ns", Kind::Unsigned, false),
    field("value", Kind::Real, false),
];

/// Facts about a campaign that its measurements do not contain.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct About {
    /// The command line, as it was typed.
    pub command: String,
    /// The distribution of the gaps.
    pub gaps: Option<String>,
    /// Start time \[s since 1970\].
    pub begun_s: Option<u64>,
    /// Anything else: the settings of the arms, the kind of KVM.
    pub notes: serde_json::Map<String, serde_json::Value>,
}

/// Why samples could not be written.
#[derive(Debug, thiserror::Error)]
pub enum SamplesError {
    /// The file could not be made, or not be put in its place.
    #[error(transparent)]
    File(#[from] NewFileError),
    /// Writing or compressing failed.
    #[error("cannot write samples")]
    Table(#[from] TableError),
}

/// Writes all that was measured to the file `path`, which is there only once it is complete.
///
/// # Errors
/// If the file cannot be written.
pub fn write(path: &Path, measurements: &Measurements, about: &About) -> Result<(), SamplesError> {
    write_to(NewFile::create(path)?, measurements, about, ROWS_PER_GROUP)?.keep()?;
    Ok(())
}

/// Returns what it was written to.
fn write_to<W: Write + Send>(
    out: W,
    measurements: &Measurements,
    about: &About,
    rows_per_group: usize,
) -> Result<W, TableError> {
    let created_by = concat!("dwell-lab ", env!("CARGO_PKG_VERSION"));
    let mut table = TableWriter::new(out, "dwell_lab", &FIELDS, ZSTD_LEVEL, created_by)?;
    let mut waiting = vec![];
    for (number, measured) in measurements.blocks.iter().enumerate() {
        waiting.extend(rows(number, measured));
        if waiting.len() >= rows_per_group {
            flush(&waiting, measurements, &mut table)?;
            waiting.clear();
        }
    }
    flush(&waiting, measurements, &mut table)?;
    table.metadata("dwell.lab.format", FORMAT.to_owned());
    table.metadata("dwell.lab", describe(measurements, about).to_string());
    table.finish()
}

fn describe(measurements: &Measurements, about: &About) -> serde_json::Value {
    let machine = Sysroot::of_this_machine();
    json!({
        "experiment": measurements.name,
        "command": about.command,
        "gaps": about.gaps,
        "begun_s": about.begun_s,
        "notes": about.notes,
        "machine": {
            "kernel": kernel::release(&machine),
            "cpu_model": cpu::model(&machine),
            "cpus": cpu::online(&machine),
        },
        "tool_version": concat!("dwell ", env!("CARGO_PKG_VERSION")),
        "plan": measurements.options,
        "arms": measurements.arms,
        "figures": measurements.figures,
        "rounds": measurements.rounds,
        "gating": measurements.gating,
        "ended": measurements.ended,
        "elapsed_s": measurements.elapsed.as_secs_f64(),
    })
}

/// A row: the place of its block, its figure, and either which sample of the block it is and its value, or the figure's value.
struct Row<'a> {
    block: usize,
    figure: &'a str,
    sample: Option<(u64, u64)>,
    value: Option<f64>,
}

fn rows(block: usize, measured: &MeasuredBlock) -> impl Iterator<Item = Row<'_>> {
    let samples = (0u64..).zip(measured.block.samples_ns.iter().copied());
    let samples =
        samples.map(move |sample| Row { block, figure: "sample", sample: Some(sample), value: None });
    let own = measured.block.figures.iter().map(|(name, value)| (name.as_ref(), *value));
    let others = measured.load.into_iter().flat_map(|d| [("foreign", d.foreign), ("steal", d.steal)]);
    let block_ns = ("block_ns", measured.elapsed.as_nanos() as f64);
    let figures = own.chain(others).chain([block_ns, ("sequence", measured.sequence as f64)]);
    samples.chain(figures.map(move |(figure, value)| Row { block, figure, sample: None, value: Some(value) }))
}

const fn role(role: Role) -> &'static str {
    match role {
        Role::Baseline => "baseline",
        Role::Tried => "tried",
        Role::Control => "control",
    }
}

const fn status(status: BlockStatus) -> &'static str {
    match status {
        BlockStatus::Kept => "kept",
        BlockStatus::KeptDisturbed => "kept_disturbed",
        BlockStatus::Rejected => "rejected",
    }
}

fn flush<W: Write + Send>(
    rows: &[Row<'_>],
    measurements: &Measurements,
    table: &mut TableWriter<W>,
) -> Result<(), TableError> {
    if rows.is_empty() {
        return Ok(());
    }
    let block = |row: &Row<'_>| &measurements.blocks[row.block];
    let arm = |row: &Row<'_>| &measurements.arms[block(row).arm];
    table.row_group(
        rows,
        [
            &|_| Some(measurements.name.as_str().into()),
            &|row| Some(arm(row).name.as_str().into()),
            &|row| Some(role(arm(row).role).into()),
            &|row| Some(block(row).round.into()),
            &|row| Some(u32::from(block(row).pass).into()),
            &|row| Some(Value::Flag(block(row).round < measurements.rounds)),
            &|row| Some((row.block as u64).into()),
            &|row| Some(block(row).attempt.into()),
            &|row| Some(status(block(row).status).into()),
            &|row| Some(row.figure.into()),
            &|row| Some(row.sample?.0.into()),
            &|row| Some(row.sample?.1.into()),
            &|row| row.value.map(Value::Real),
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use dwell_stats::{Arms, Block, Campaign, CampaignOptions, Figure, Unit};
    use dwell_testing::environment::FakeEnvironment;
    use parquet::file::reader::{FileReader, SerializedFileReader};
    use parquet::record::Field as Value;
    use std::collections::BTreeMap;
    use std::convert::Infallible;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// Two rounds, the second not completed, and a block that was repeated.
    fn measurements() -> Measurements {
        let plan = CampaignOptions { warm_up: false, max_rounds: 2, ..CampaignOptions::default() };
        let figures = [Figure::of_block("cost", Unit::Nanos)];
        let campaign = Campaign::new("test", Arms::new("a", 1u64).arm("b", 2), figures, plan).unwrap();
        let (stop, mut blocks) = (AtomicBool::new(false), 0u64);
        let run = campaign.run(&mut FakeEnvironment::disturbed([0.0, 0.5]), &stop, &mut |_| (), |turn| {
            blocks += 1;
            stop.store(blocks == 10, Ordering::Relaxed);
            let samples = vec![u64::MAX - blocks; usize::from(turn.name == "b") * 2 + 1];
            Ok::<_, Infallible>(Block::new(samples).figure("cost", 0.5 * blocks as f64))
        });
        run.unwrap()
    }

    fn rows(bytes: Vec<u8>) -> (BTreeMap<String, String>, Vec<BTreeMap<String, Value>>) {
        let reader = SerializedFileReader::new(bytes::Bytes::from(bytes)).unwrap();
        let pairs = reader.metadata().file_metadata().key_value_metadata().unwrap();
        let pairs = pairs.iter().map(|pair| (pair.key.clone(), pair.value.clone().unwrap())).collect();
        let row = |row: parquet::record::Row| {
            row.get_column_iter().map(|(name, value)| (name.clone(), value.clone())).collect()
        };
        (pairs, reader.get_row_iter(None).unwrap().map(|found| row(found.unwrap())).collect())
    }

    /// Every row that there should be, written out from the measurements one by one.
    fn expected(measurements: &Measurements) -> Vec<BTreeMap<String, Value>> {
        let mut all = vec![];
        for (number, block) in measurements.blocks.iter().enumerate() {
            let text = |text: &str| Value::Str(text.to_owned());
            let common = |figure: &str| {
                BTreeMap::from(
                    [
                        ("experiment", text("test")),
                        ("arm", text(["a", "b", "a (A/A)"][block.arm])),
                        ("role", text(["baseline", "tried", "control"][block.arm])),
                        ("round", Value::ULong(block.round.into())),
                        ("pass", Value::ULong(block.pass.into())),
                        ("complete", Value::Bool(block.round == 0)),
                        ("block", Value::ULong(number as u64)),
                        ("attempt", Value::ULong(block.attempt.into())),
                        ("verdict", text(if number == 1 { "rejected" } else { "kept" })),
                        ("figure", text(figure)),
                        ("sample", Value::Null),
                        ("value_ns", Value::Null),
                        ("value", Value::Null),
                    ]
                    .map(|(name, value)| (name.to_owned(), value)),
                )
            };
            for (place, value_ns) in (0..).zip(&block.block.samples_ns) {
                let mut row = common("sample");
                row.insert("sample".to_owned(), Value::ULong(place));
                row.insert("value_ns".to_owned(), Value::ULong(*value_ns));
                all.push(row);
            }
            let foreign = block.load.unwrap().foreign;
            let figures = [
                ("cost", block.block.figures["cost"]),
                ("foreign", foreign),
                ("steal", 0.0),
                ("block_ns", 0.0),
            ];
            for (name, value) in figures.into_iter().chain([("sequence", block.sequence as f64)]) {
                let mut row = common(name);
                row.insert("value".to_owned(), Value::Double(value));
                all.push(row);
            }
        }
        all
    }

    #[test]
    fn every_sample_and_figure_is_read_back() {
        let measurements = measurements();
        assert_eq!((measurements.rounds, measurements.blocks.len()), (1, 10));
        for rows_per_group in [ROWS_PER_GROUP, 20, 1] {
            let (_, rows) = rows(write_to(vec![], &measurements, &About::default(), rows_per_group).unwrap());
            assert_eq!(rows, expected(&measurements));
        }
    }

    #[test]
    fn the_file_says_where_it_comes_from() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.parquet");
        let about = About {
            command: "dwell-lab test".to_owned(),
            gaps: Some("constant:1us".to_owned()),
            ..About::default()
        };
        write(&path, &measurements(), &about).unwrap();
        let (pairs, _) = rows(std::fs::read(&path).unwrap());
        assert_eq!(pairs["dwell.lab.format"], "1");
        let json: serde_json::Value = serde_json::from_str(&pairs["dwell.lab"]).unwrap();
        assert_eq!(json["command"], "dwell-lab test");
        assert_eq!(json["gaps"], "constant:1us");
        assert_eq!(json["plan"]["budget_s"], 60.0);
        assert_eq!(json["gating"]["rejected"], 1);
        assert_eq!(json["ended"], "stopped");
        assert!(json["machine"]["kernel"].is_string());
        assert!(write(&dir.path().join("none/a.parquet"), &measurements(), &about).is_err());
    }

    #[test]
    fn a_record_of_nothing_is_a_file_without_rows() {
        let nothing = Measurements { blocks: vec![], ..measurements() };
        assert!(rows(write_to(vec![], &nothing, &About::default(), 1).unwrap()).1.is_empty());
    }
}
