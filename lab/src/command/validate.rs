//! `dwell-lab validate`

use super::calibrate::{Intervals, vcpu};
use super::campaign::{BLOCK, CampaignArgs, STOPPED_EARLY, Session, given_or};
use super::wake::{mean, open};
use anyhow::{Context, bail, ensure};
use dwell_cli::failure::Outcome;
use dwell_cli::output::{self, Format, FormatArg};
use dwell_lab::experiment::Rig;
use dwell_lab::experiment::validate::{
    FIGURES, Others, Prediction, RARE, block, figures, median_error, predictions, recorder,
};
use dwell_lab::experiment::wake::wakes_of_a_block;
use dwell_lab::gaps::GapSpec;
use dwell_lab::host::thread::Contenders;
use dwell_lab::idle::{Halts, Idle};
use dwell_machine::{Sysroot, cpu, kernel};
use dwell_policy::Layer;
use dwell_recording::Metadata;
use dwell_replay::calibration::{Calibration, HaltCosts};
use dwell_report::measured::{self, Measured};
use dwell_report::{Cell, Column, Table};
use dwell_stats::{Arms, Campaign, Warning};
use serde::Serialize;

/// Compare predictions for host polling with measurements
///
/// A vCPU is recorded, as by `record host`, under one setting. From that recording and the calibrated cost of a halt,
/// polls, successful polls, time polled, halts and CPU time are predicted for the other settings. Then these settings
/// are run with the same gaps. Every row is printed.
#[derive(clap::Args)]
#[command(after_help = "Needs root, for the recorder. Examples:\n  dwell-lab validate\n  \
                        dwell-lab validate --gaps recording:recordings/guest-mix.parquet --idle host:50us --idle host:200us")]
pub(crate) struct ValidateArgs {
    /// Lengths of idle periods, such as exponential:100us; can be repeated
    ///
    /// constant:TIME, exponential:MEAN, bimodal:TIME,TIME,SHARE, recording:FILE or recording:FILE@IDLER. [default:
    /// exponential:100us, bimodal:30us,300us,0.7, exponential:40us]
    #[arg(long, value_name = "GAPS")]
    gaps: Vec<GapSpec>,
    /// Setting under which the vCPU is recorded, host:TIME
    ///
    /// Under a long window nearly every idle period ends while the vCPU polls. Under a short window many end in a
    /// halt, and their lengths have to be corrected by the time that a halt takes to wake up.
    #[arg(long, value_name = "IDLE", default_value = "host:1ms")]
    under: Idle,
    /// Setting to predict and run, host:TIME; can be repeated
    ///
    /// [default: 0, 20us, 50us, 100us, 200us and 400us]
    #[arg(long, value_name = "IDLE")]
    idle: Vec<Idle>,
    /// Number of CPU-bound tasks on the vCPU's core, usually 1 or 2
    ///
    /// KVM ends a poll when another task is runnable on the core. From 0 to 16; without a number, 1. The tasks have
    /// ordinary priority. The cost of a halt is measured without them, before the first block.
    #[arg(long, value_name = "TASKS", num_args = 0..=1, default_value_t = 0, default_missing_value = "1")]
    #[arg(value_parser = clap::value_parser!(u8).range(0..=16))]
    contended: u8,
    /// Measure the cost of a halt again, instead of using the stored one
    #[arg(long)]
    calibrate: bool,
    #[command(flatten)]
    campaign: CampaignArgs,
    #[command(flatten)]
    format: FormatArg,
}

#[derive(Serialize)]
struct Validated {
    recorded_under: String,
    contending_tasks: u8,
    seed: u64,
    calibration: HaltCosts,
    notes: Vec<String>,
    distributions: Vec<GapsResult>,
    median_absolute_errors: Vec<MedianError>,
    /// All of them, for `dwell report --measured`.
    predicted_and_measured: Measured,
}

#[derive(Serialize)]
struct GapsResult {
    gaps: String,
    rounds: u32,
    blocks_repeated: u64,
    wakes_per_block: usize,
    warnings: Vec<Warning>,
    #[serde(rename = "verdicts")]
    predictions: Vec<Prediction>,
}

#[derive(Serialize)]
struct MedianError {
    figure: &'static str,
    error: Option<f64>,
    rows: usize,
}

pub(crate) fn run(args: ValidateArgs) -> Outcome {
    let specs = given_or(args.gaps, &["exponential:100us", "bimodal:30us,300us,0.7", "exponential:40us"])?;
    let idles =
        given_or(args.idle, &["host:0", "host:20us", "host:50us", "host:100us", "host:200us", "host:400us"])?;
    for idle in idles.iter().chain([&args.under]) {
        if !matches!(idle, Idle { halts: Halts::InKernel(_), guest: None, poll_control: None }) {
            bail!("`{idle}`: only host polling is predicted here; write host:TIME");
        }
    }
    let gaps = specs.into_iter().map(open).collect::<Result<Vec<_>, _>>()?;
    let rig = Rig::open(1)?;
    let mut session = Session::open(&rig)?;
    drop(recorder(args.contended > 0).context("cannot record the vCPU")?);
    let calibration = match (args.calibrate, stored()?) {
        (false, Some(calibration)) => calibration,
        _ => vcpu(&rig, &mut session, &args.campaign, Intervals::Optional)?,
    };
    let others: Vec<(String, Idle)> = idles.into_iter().map(|idle| (idle.to_string(), idle)).collect();
    let share = gaps.len();
    let seed = args.campaign.seed();
    let notes = rig.notes();
    let mut distributions = vec![];
    let _contenders = Contenders::on(rig.cores().vcpus.first().copied(), args.contended.into())?;
    for gaps in &gaps {
        session.about(gaps.spec().to_string());
        let wakes = wakes_of_a_block(mean(gaps, seed), BLOCK);
        let recorded = format!("{}, recorded", args.under);
        let arms = others.iter().fold(Arms::new(&recorded, args.under.clone()), |arms, (name, idle)| {
            arms.arm(name, idle.clone())
        });
        let campaign = Campaign::new("validate", arms, figures(), args.campaign.options(share))?;
        let measured = session.run(|load, stop, progress| {
            campaign.run(load, stop, progress, |turn| {
                let all =
                    Others { settings: &others, calibration: &calibration, contended: args.contended > 0 };
                let predict = (turn.arm == 0).then_some(all);
                block(&rig, gaps, wakes, seed, turn, predict, stop)
            })
        })?;
        let Some(record) = measured else { break };
        args.campaign.keep(&record, distributions.len(), &gaps.spec().to_string(), &notes);
        distributions.push(GapsResult {
            gaps: gaps.spec().to_string(),
            rounds: record.rounds,
            blocks_repeated: record.gating.rejected,
            wakes_per_block: wakes,
            warnings: record.results().warnings,
            predictions: predictions(&record, &others),
        });
        if session.stopped() {
            break;
        }
    }
    ensure!(!distributions.is_empty(), STOPPED_EARLY);
    let all: Vec<Prediction> = distributions.iter().flat_map(|of| of.predictions.clone()).collect();
    let medians = FIGURES.map(|figure| MedianError {
        figure,
        error: median_error(&all, figure),
        rows: all.iter().filter(|prediction| prediction.figure == figure).count(),
    });
    let rows = distributions.iter().flat_map(measured_rows).collect();
    let validated = Validated {
        recorded_under: args.under.to_string(),
        contending_tasks: args.contended,
        seed,
        calibration,
        notes,
        distributions,
        median_absolute_errors: medians.into(),
        predicted_and_measured: Measured { source: "dwell-lab validate".into(), verdict: None, rows },
    };
    print(&validated, args.format.format)?;
    args.campaign.end()
}

fn measured_rows(of: &GapsResult) -> impl Iterator<Item = measured::Row> {
    of.predictions.iter().map(|prediction| measured::Row {
        subject: format!("{}, {}", of.gaps, prediction.arm),
        figure: prediction.figure.clone(),
        predicted: prediction.predicted,
        measured: prediction.measured,
        error: prediction.error,
    })
}

/// What was stored of vCPUs' halts on this host.
fn stored() -> anyhow::Result<Option<HaltCosts>> {
    let machine = Sysroot::of_this_machine();
    let here = Metadata {
        cpu_model: cpu::model(&machine),
        kernel: kernel::release(&machine),
        ..Metadata::new(Layer::Host)
    };
    Calibration::load_for(&here).context("cannot use the stored calibration")
}

fn print(validated: &Validated, format: Format) -> anyhow::Result<()> {
    match format {
        Format::Json => return output::json(validated),
        Format::Csv => return output::csv(&rows(validated, false)),
        Format::Table => {}
    }
    let title = format!(
        "Predicted from a recording under {}, and measured, per wakeup{}",
        validated.recorded_under,
        match validated.contending_tasks {
            0 => String::new(),
            1 => "; one CPU-bound task on the same core".to_owned(),
            tasks => format!("; {tasks} CPU-bound tasks on the same core"),
        }
    );
    let mut text = format!(
        "{}\n{}\nMedian absolute error over all rows:\n",
        output::wrapped(&title),
        output::fitted(&rows(validated, true))
    );
    for MedianError { figure, error, rows } in &validated.median_absolute_errors {
        let error = error.map_or_else(|| "-".to_owned(), dwell_report::percent);
        text += &format!("  {figure:<16} {error:>8}  ({rows} rows)\n");
    }
    output::text(&text)?;
    for of in &validated.distributions {
        output::remark(&format!(
            "{}: {} of {} wakeups per block, {} repeated because other programs used CPU time",
            of.gaps,
            dwell_report::number_of(of.rounds.into(), "round"),
            of.wakes_per_block,
            dwell_report::number_of(of.blocks_repeated.into(), "block")
        ));
        for warning in &of.warnings {
            output::remark(&format!("warning: {}: {warning}", of.gaps));
        }
    }
    output::remark(&format!(
        "note: for counts below {} of the wakeups, the error is the difference as a share of all wakeups",
        dwell_report::percent(RARE)
    ));
    for note in &validated.notes {
        output::remark(&format!("note: {note}"));
    }
    Ok(())
}

fn rows(validated: &Validated, for_people: bool) -> Table {
    let mut columns = vec![
        Column::text("gaps", "gaps"),
        Column::text("setting", "setting"),
        Column::text("figure", "figure"),
        Column::number("predicted", "predicted_per_wakeup"),
        Column::number("measured", "measured_per_wakeup"),
        Column::number("error", "error"),
    ];
    if for_people {
        columns.push(Column::text("95 % interval", "interval").rank(2));
    } else {
        columns.extend([Column::number("low", "error_low"), Column::number("high", "error_high")]);
    }
    columns.push(Column::number("median block", "median_error").rank(1));
    let mut table = Table::new(columns);
    for GapsResult { gaps, predictions, .. } in &validated.distributions {
        for Prediction { arm, figure, predicted, measured, error, median_error, .. } in predictions {
            let value =
                |value: f64| if figure.ends_with("_ns") { Cell::Nanos(value) } else { Cell::Ratio(value) };
            let text = |text: &str| Cell::Text(text.to_owned());
            let cells = [text(gaps), text(arm), text(figure), value(*predicted), value(*measured)];
            let percent = |share: f64| format!("{:+.1} %", share * 100.0);
            let spread = if for_people {
                vec![
                    Cell::Text(percent(error.value)),
                    error.limits().map_or(Cell::Missing, |limits| {
                        let [low, high] = limits.map(percent);
                        Cell::Text(format!("[{low}, {high}]"))
                    }),
                ]
            } else {
                [error.value, error.low, error.high].map(Cell::Ratio).into()
            };
            let median = match for_people {
                true => median_error.map_or(Cell::Missing, |error| Cell::Text(percent(error))),
                false => median_error.map_or(Cell::Missing, Cell::Ratio),
            };
            table.push(cells.into_iter().chain(spread).chain([median]));
        }
    }
    table
}
