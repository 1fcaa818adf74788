//! Decisions over time, as JSON: what a running controller keeps in a file and a replay prints. `dwell
//! report` draws them.
//!
//! One or several JSON objects. Each is a part of what was decided for one layer or I/O thread; one that has
//! the originals begins a run of the controller, the ones after it go on with that. A replay is one object
//! with everything.

use super::config::is_of_this_user;
use super::notes::Notes;
use crate::core::{Cause, Change, Seen, writes};
use anyhow::{Context, bail, ensure};
use dwell_knobs::lease::Subject;
use dwell_policy::Nanos;
use dwell_policy::param::Setting;
use dwell_recording::regular;
use dwell_replay::Values;
use serde::{Deserialize, Serialize};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// A longer file is put aside, and one that is longer than both is not read \[bytes\].
const LONGEST: u64 = 32 << 20;
/// The shortest time that has a line of costs of its own \[ns\].
const SLICE_NS: u64 = 1_000_000_000;
/// The most slices of costs that are kept of a run; more are put together.
const MOST_SLICES: usize = 2_000;
/// The changes that are kept of a run, the last.
const MOST_CHANGES: usize = 1_000;
/// The runs that are kept of a file, the last.
const MOST_RUNS: usize = 8;

/// What was decided, or a part of it.
#[derive(Debug, Default, Deserialize, Serialize)]
struct Part {
    layer: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    qmp: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    iothread: Option<String>,
    /// Absent for a replay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    mode: Option<String>,
    /// When control began \[ms since 1970\].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    began_unix_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    halt_cost_ns: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    originals: Option<Values>,
    /// The setting in force at first, if it is not the originals.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    present: Option<Values>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    changes: Vec<ChangeRead>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    costs: Vec<Slice>,
}

/// What idlers cost from one time to another: polling CPU plus halts at their cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize, Serialize)]
pub struct Slice {
    /// Since control began.
    pub from_ns: u64,
    pub to_ns: u64,
    pub measured_ns: f64,
    pub originals_ns: f64,
    pub optimum_ns: f64,
}

/// A change, as written.
#[derive(Serialize)]
pub struct ChangeWritten {
    /// Since control began.
    pub at_ns: u64,
    from: Values,
    pub to: Values,
    pub writes: usize,
    #[serde(flatten)]
    cause: WhyWritten,
    /// The same in words.
    pub reason: String,
}

#[derive(Serialize)]
#[serde(untagged)]
enum WhyWritten {
    Decided(Cause),
    Ended { cause: &'static str },
}

impl ChangeWritten {
    pub fn of(change: &Change, began_ns: u64, reason: String) -> ChangeWritten {
        ChangeWritten {
            at_ns: change.at_ns.saturating_sub(began_ns),
            from: Values::from(&change.from),
            to: Values::from(&change.to),
            writes: change.writes(),
            cause: WhyWritten::Decided(change.cause),
            reason,
        }
    }
}

/// A change, as read.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct ChangeRead {
    /// Since control began.
    pub at_ns: u64,
    pub from: Values,
    pub to: Values,
    pub cause: String,
    pub reason: String,
}

/// Equal times put together, so that there are not more than `MOST_SLICES`.
pub fn fewer(costs: Vec<Slice>) -> Vec<Slice> {
    let together = costs.len().div_ceil(MOST_SLICES).max(1);
    let put_together = |some: &[Slice]| {
        let first = some[0];
        some.iter().skip(1).fold(first, |sum, next| Slice {
            from_ns: sum.from_ns,
            to_ns: next.to_ns,
            measured_ns: sum.measured_ns + next.measured_ns,
            originals_ns: sum.originals_ns + next.originals_ns,
            optimum_ns: sum.optimum_ns + next.optimum_ns,
        })
    };
    costs.chunks(together).map(put_together).collect()
}

/// The file in which a running controller keeps its decisions.
pub(super) struct Log<'a> {
    notes: Notes<'a>,
    path: PathBuf,
    file: File,
    bytes: u64,
    runs: Vec<RunWritten>,
    /// Whether it was said that it cannot be written.
    failed: bool,
}

struct RunWritten {
    subject: Subject,
    began_ns: u64,
    head: Part,
    slice: Slice,
}

impl<'a> Log<'a> {
    /// Goes on with a file, or makes it.
    pub(super) fn open(path: &Path, notes: Notes<'a>) -> anyhow::Result<Log<'a>> {
        let open = || -> io::Result<(File, u64)> {
            // What is written next to a file of another user goes where that user wants.
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            is_of_this_user(&fs::metadata(folder.unwrap_or(Path::new(".")))?, "its folder")?;
            if path.exists() {
                is_of_this_user(&regular::open(path)?.metadata()?, "it")?;
            }
            let mut options = OpenOptions::new();
            options
                .read(true)
                .append(true)
                .create(true)
                .custom_flags(rustix::fs::OFlags::NOFOLLOW.bits().cast_signed());
            let mut file = options.open(path)?;
            is_log(&mut file)?;
            let whole = whole_lines(&mut file)?;
            file.set_len(whole)?;
            Ok((file, whole))
        };
        let (file, bytes) =
            open().with_context(|| format!("cannot write the log of decisions {}", path.display()))?;
        Ok(Log { notes, path: path.to_owned(), file, bytes, runs: vec![], failed: false })
    }

    /// Goes on with the file that has its name now: the one from before may have been put aside.
    pub(super) fn open_again(&mut self) -> anyhow::Result<()> {
        let Log { file, bytes, .. } = Log::open(&self.path, self.notes)?;
        let id = |file: &File| file.metadata().map(|found| (found.dev(), found.ino()));
        let is_the_same = id(&file)? == id(&self.file)?;
        (self.file, self.bytes) = (file, bytes);
        if is_the_same {
            return Ok(());
        }
        let heads: Result<Vec<String>, _> =
            self.runs.iter().map(|run| serde_json::to_string(&run.head)).collect();
        heads?.into_iter().try_for_each(|head| Ok(self.append(&(head + "\n"))?))
    }

    /// Control of a layer or I/O thread begins.
    pub(super) fn began(
        &mut self,
        subject: &Subject,
        now_ns: u64,
        mode: &str,
        halt_cost: Nanos,
        originals: &Setting,
        present: &Setting,
    ) {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let head = Part {
            mode: Some(mode.to_owned()),
            began_unix_ms: u64::try_from(unix.as_millis()).ok(),
            halt_cost_ns: Some(halt_cost.get()),
            originals: Some(Values::from(originals)),
            present: Some(Values::from(present)),
            ..Part::of(subject)
        };
        self.write(&head);
        self.runs.retain(|run| run.subject != *subject);
        self.runs.push(RunWritten {
            subject: subject.clone(),
            began_ns: now_ns,
            head,
            slice: Slice::default(),
        });
    }

    fn run(&mut self, subject: &Subject) -> Option<&mut RunWritten> {
        self.runs.iter_mut().find(|run| run.subject == *subject)
    }

    /// A period is over.
    pub(super) fn saw(&mut self, subject: &Subject, now_ns: u64, seen: &[Seen]) {
        let Some(run) = self.run(subject) else { return };
        let now_ns = now_ns.saturating_sub(run.began_ns);
        for Seen { share, costs, .. } in seen {
            let Some(costs) = costs else { continue };
            run.slice.measured_ns += costs.measured / share;
            run.slice.originals_ns += costs.originals / share;
            run.slice.optimum_ns += costs.optimum / share;
        }
        if now_ns.saturating_sub(run.slice.from_ns) < SLICE_NS {
            return;
        }
        let slice = Slice { to_ns: now_ns, ..run.slice };
        run.slice = Slice { from_ns: now_ns, ..Slice::default() };
        // What was not seen has no cost, not one of 0.
        if slice.measured_ns > 0.0 || slice.originals_ns > 0.0 {
            self.write(&Part { costs: vec![slice], ..Part::of(subject) });
        }
    }

    /// Another setting is in force, or is advised, for this reason.
    pub(super) fn changed(&mut self, subject: &Subject, change: &Change, reason: &str) {
        if let Some(began_ns) = self.run(subject).map(|run| run.began_ns) {
            self.write_change(subject, ChangeWritten::of(change, began_ns, reason.to_owned()));
        }
    }

    /// Control ends, and the originals are restored.
    pub(super) fn ended(
        &mut self,
        subject: &Subject,
        now_ns: u64,
        from: &Setting,
        to: &Setting,
        cause: &'static str,
        reason: &str,
    ) {
        let Some(began_ns) = self.run(subject).map(|run| run.began_ns) else { return };
        let change = ChangeWritten {
            at_ns: now_ns.saturating_sub(began_ns),
            from: Values::from(from),
            to: Values::from(to),
            writes: writes(from, to),
            cause: WhyWritten::Ended { cause },
            reason: reason.to_owned(),
        };
        self.write_change(subject, change);
    }

    fn write_change(&mut self, subject: &Subject, change: ChangeWritten) {
        #[derive(Serialize)]
        struct OfChange {
            #[serde(flatten)]
            part: Part,
            changes: [ChangeWritten; 1],
        }
        let present = change.to.clone();
        self.write(&OfChange { part: Part::of(subject), changes: [change] });
        if let Some(run) = self.run(subject) {
            run.head.present = Some(present);
        }
    }

    /// A log that cannot be written does not end control: it is said once.
    fn write(&mut self, part: &impl Serialize) {
        match self.try_to_write(part) {
            Ok(()) => self.failed = false,
            Err(error) => {
                if !self.failed {
                    let path = self.path.display();
                    self.notes.warn(&format!(
                        "dwell: cannot write the log of decisions {path}: {error}; control goes on without"
                    ));
                }
                self.failed = true;
            }
        }
    }

    fn try_to_write(&mut self, part: &impl Serialize) -> io::Result<()> {
        let mut line = serde_json::to_string(part)?;
        line.push('\n');
        if self.bytes + line.len() as u64 > LONGEST {
            let mut aside = self.path.clone().into_os_string();
            aside.push(".old");
            if let Ok(mut old) = File::open(&aside) {
                is_log(&mut old)?;
            }
            fs::rename(&self.path, aside)?;
            self.open_again().map_err(io::Error::other)?;
        }
        self.append(&line)
    }

    fn append(&mut self, line: &str) -> io::Result<()> {
        let written = self.file.write_all(line.as_bytes());
        if written.is_err() {
            // Half a line would make the rest unreadable.
            self.file.set_len(self.bytes)?;
        } else {
            self.bytes += line.len() as u64;
        }
        written
    }
}

/// The beginning of each line.
const BEGIN: &[u8] = b"{\"layer\":";

/// Refuses a file that is not a log: it would be cut after its last line, and written to.
fn is_log(file: &mut File) -> io::Result<()> {
    let found = file.metadata()?;
    let mut begin = vec![];
    file.seek(SeekFrom::Start(0))?;
    file.take(BEGIN.len() as u64).read_to_end(&mut begin)?;
    let refused = |why: &str| Err(io::Error::new(io::ErrorKind::InvalidData, why));
    match BEGIN.starts_with(&begin) && found.nlink() <= 1 {
        true => Ok(()),
        false if found.nlink() > 1 => refused("it has several names (hard links); give another file"),
        false => refused("it is not a log of decisions; give another file"),
    }
}

/// How much of a file ends with a whole line: a controller may have been killed while it wrote.
fn whole_lines(file: &mut File) -> io::Result<u64> {
    const TAIL: u64 = 1 << 16;
    let length = file.metadata()?.len();
    let from = length.saturating_sub(TAIL);
    file.seek(SeekFrom::Start(from))?;
    let mut tail = vec![];
    file.take(TAIL).read_to_end(&mut tail)?;
    let kept = tail.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at as u64 + 1);
    match from > 0 && kept == 0 {
        true => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "it has no lines, so it is no such log; give another file",
        )),
        false => Ok(from + kept),
    }
}

impl Part {
    fn of(subject: &Subject) -> Part {
        let target = subject.iothread();
        Part {
            layer: subject.layer().name().to_owned(),
            qmp: target.map(|target| target.socket.clone()),
            iothread: target.map(|target| target.id.to_string()),
            ..Part::default()
        }
    }

    fn name(&self) -> String {
        match (&self.iothread, &self.qmp) {
            (Some(id), Some(socket)) => format!("{} {id} of {socket}", self.layer),
            _ => self.layer.clone(),
        }
    }

    /// Whether it is about anything that control could have done.
    fn check(&self, before: Option<&Run>) -> anyhow::Result<()> {
        let of_run = before.map(|run| (run.changes.last(), run.costs.last()));
        let (mut changed, mut costed) = of_run.map_or((0, 0), |(change, slice)| {
            (change.map_or(0, |change| change.at_ns), slice.map_or(0, |slice| slice.to_ns))
        });
        for (number, change) in self.changes.iter().enumerate() {
            let number = number + 1;
            ensure!(
                change.at_ns >= changed,
                "change {number}: it is before the one before it (at_ns is {})",
                change.at_ns
            );
            changed = change.at_ns;
        }
        for (number, slice) in self.costs.iter().enumerate() {
            let number = number + 1;
            let Slice { from_ns, to_ns, measured_ns, originals_ns, optimum_ns } = *slice;
            ensure!(
                from_ns >= costed && to_ns > from_ns,
                "costs {number}: {from_ns} to {to_ns} ns is no time after {costed} ns"
            );
            ensure!(
                [measured_ns, originals_ns, optimum_ns].iter().all(|cost| (0.0..=1e18).contains(cost)),
                "costs {number}: not from 0 to 1e18 ns"
            );
            costed = to_ns;
        }
        Ok(())
    }
}

/// What was decided for one layer or I/O thread, from the start of a controller to its end.
#[derive(Debug, Serialize)]
pub struct Run {
    pub name: String,
    /// `advise`, `active`; none for a replay.
    pub mode: Option<String>,
    pub began_unix_ms: Option<u64>,
    pub halt_cost_ns: Option<u64>,
    pub originals: Values,
    /// In force at first.
    pub present: Values,
    pub changes: Vec<ChangeRead>,
    pub changes_left_out: usize,
    pub costs: Vec<Slice>,
}

/// A file of decisions.
#[derive(Debug, Serialize)]
pub struct Decisions {
    pub file: String,
    /// The last ones.
    pub runs: Vec<Run>,
    pub runs_left_out: usize,
}

impl Decisions {
    /// Reads a log, or what a replay has printed as JSON.
    pub fn read(path: &Path) -> anyhow::Result<Decisions> {
        let file = path.display().to_string();
        let text = regular::read_text(path, 2 * LONGEST).with_context(|| format!("cannot read {file}"))?;
        let mut runs = parse(&text).with_context(|| {
            format!("cannot read {file}: not the log of `dwell control --log` nor the output of `dwell control --replay --format json`")
        })?;
        ensure!(!runs.is_empty(), "cannot use {file}: it has no decisions");
        let runs_left_out = runs.len().saturating_sub(MOST_RUNS);
        runs.drain(..runs_left_out);
        for run in &mut runs {
            run.changes_left_out = run.changes.len().saturating_sub(MOST_CHANGES);
            if run.changes_left_out > 0 {
                run.present = run.changes[run.changes_left_out].from.clone();
                run.changes.drain(..run.changes_left_out);
            }
            run.costs = fewer(std::mem::take(&mut run.costs));
        }
        Ok(Decisions { file, runs, runs_left_out })
    }
}

fn parse(text: &str) -> anyhow::Result<Vec<Run>> {
    let mut runs: Vec<Run> = vec![];
    let mut parts = serde_json::Deserializer::from_str(text).into_iter::<Part>();
    loop {
        let line = 1
            + text[..parts.byte_offset()].matches('\n').count()
            + usize::from(text[parts.byte_offset()..].starts_with('\n'));
        let part = match parts.next() {
            None => return Ok(runs),
            // A controller that was killed, or that writes now.
            Some(Err(error)) if error.is_eof() && !runs.is_empty() => return Ok(runs),
            Some(part) => part?,
        };
        let name = part.name();
        let run = runs.iter_mut().rev().find(|run| run.name == name);
        part.check(run.as_deref().filter(|_| part.originals.is_none()))
            .with_context(|| format!("line {line}"))?;
        match (part.originals, run) {
            (Some(originals), _) => runs.push(Run {
                name,
                mode: part.mode,
                began_unix_ms: part.began_unix_ms,
                halt_cost_ns: part.halt_cost_ns,
                present: part.present.unwrap_or_else(|| originals.clone()),
                originals,
                changes: part.changes,
                changes_left_out: 0,
                costs: part.costs,
            }),
            (None, Some(run)) => {
                run.changes.extend(part.changes);
                run.costs.extend(part.costs);
            }
            (None, None) => bail!("line {line}: {name} has no originals before its changes and costs"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::Costs;
    use dwell_policy::Layer;
    use dwell_policy::version::Version;
    use dwell_replay::Counts;
    use std::os::unix::fs::PermissionsExt as _;

    fn seen(cost: f64) -> Seen {
        let costs = Costs { measured: cost, predicted: cost, originals: 2.0 * cost, optimum: cost / 2.0 };
        Seen { idler: 1, share: 0.5, counted: Counts::default(), costs: Some(costs) }
    }

    /// KVM's defaults, and others.
    fn settings() -> (Setting, Setting) {
        let originals = Setting::defaults(Layer::Host, Version::new(6, 18));
        let mut other = originals;
        other.set("halt_poll_ns", 7_500).unwrap();
        (originals, other)
    }

    #[test]
    fn what_is_kept_is_read_again_and_a_torn_line_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let subject = Subject::Layer(Layer::Host);
        let (originals, other) = settings();
        let cause =
            Cause::Gain { episodes: 70, present_ns: 9e3, chosen_ns: 5e3, originals_ns: 9e3, optimum_ns: 4e3 };
        for _ in 0..2 {
            let mut log = Log::open(&path, Notes::SILENT).unwrap();
            log.began(&subject, 500, "active", Nanos(20_000), &originals, &originals);
            log.saw(&subject, 500 + SLICE_NS / 2, &[seen(1e6)]);
            log.saw(&subject, 500 + SLICE_NS, &[seen(1e6)]);
            let change = Change { at_ns: SLICE_NS, from: originals, to: other, cause };
            log.changed(&subject, &change, &super::super::words::line(&change, &|_| unreachable!()));
            // Nothing was seen.
            log.saw(&subject, 500 + 2 * SLICE_NS, &[]);
            log.ended(&subject, 3 * SLICE_NS, &other, &originals, "foreign", "somebody wrote");
            fs::write(&path, fs::read_to_string(&path).unwrap() + "{\"layer\": \"ho").unwrap();
        }
        let read = Decisions::read(&path).unwrap();
        assert_eq!((read.runs.len(), read.runs_left_out), (2, 0));
        for run in &read.runs {
            assert_eq!((run.name.as_str(), run.halt_cost_ns), ("host", Some(20_000)));
            assert_eq!(run.present, Values::from(&originals));
            let slice =
                Slice { from_ns: 0, to_ns: SLICE_NS, measured_ns: 4e6, originals_ns: 8e6, optimum_ns: 2e6 };
            assert_eq!(run.costs, [slice]);
            let [gain, foreign] = run.changes.as_slice() else { panic!("{:?}", run.changes) };
            assert_eq!((gain.at_ns, gain.cause.as_str()), (SLICE_NS - 500, "gain"));
            assert!(
                gain.reason.contains("200000 -> 7500") && gain.reason.contains("70 episodes"),
                "{}",
                gain.reason
            );
            assert_eq!((&foreign.from, &foreign.to), (&Values::from(&other), &Values::from(&originals)));
            assert_eq!(foreign.cause, "foreign");
        }
    }

    #[test]
    fn a_file_that_is_no_log_is_not_touched() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let refused = || format!("{:#}", Log::open(&path, Notes::SILENT).err().expect("it is no log"));
        let [first, all] = ["AKIA-very-secret-token", "root:x:0:0\nlast:x:2:2"];
        for text in [first, all, "{\"lay out\"", "mode = \"active\"\n", "\n", &"\0".repeat(100_000)] {
            fs::write(&path, text).unwrap();
            assert!(refused().contains("it is not a log of decisions"), "{}", refused());
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
        // An empty file, and one that was cut in its first line.
        for text in ["", "{\"lay", "{\"layer\":\"ho"] {
            fs::write(&path, text).unwrap();
            Log::open(&path, Notes::SILENT).unwrap();
        }
        fs::hard_link(&path, folder.path().join("other")).unwrap();
        assert!(refused().contains("several names"), "{}", refused());
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
        assert!(refused().contains("its folder can be changed by other users"), "{}", refused());
    }

    #[test]
    fn a_long_log_is_put_aside_and_the_new_one_begins_with_what_is_in_force() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let subject = Subject::Layer(Layer::Host);
        let (originals, other) = settings();
        let mut log = Log::open(&path, Notes::SILENT).unwrap();
        log.began(&subject, 0, "active", Nanos(20_000), &originals, &originals);
        log.ended(&subject, 1, &originals, &other, "gain", "better");
        log.bytes = LONGEST;
        log.ended(&subject, 2, &other, &originals, "loss", "worse");
        assert_eq!(Decisions::read(&folder.path().join("log.old")).unwrap().runs[0].changes.len(), 1);
        let read = Decisions::read(&path).unwrap();
        assert_eq!((&read.runs[0].present, read.runs[0].changes.len()), (&Values::from(&other), 1));
    }

    #[test]
    fn slices_are_put_together_and_lose_nothing() {
        let slice =
            |n: u64| Slice { from_ns: n, to_ns: n + 1, measured_ns: 1.0, originals_ns: 2.0, optimum_ns: 0.5 };
        let few = fewer((0..5_001).map(slice).collect());
        assert_eq!((few.len(), few[1].from_ns, few.last().unwrap().to_ns), (1_667, 3, 5_001));
        assert_eq!(few.iter().map(|slice| slice.measured_ns).sum::<f64>(), 5_001.0);
        assert_eq!(fewer(vec![]), []);
    }

    #[test]
    fn what_is_wrong_has_its_position() {
        let error = |text: &str| format!("{:#}", parse(text).unwrap_err());
        let head = r#"{"layer": "host", "originals": {"halt_poll_ns": 200000}}"#;
        assert!(error("{}").contains("layer") && error("{}").contains("line 1 column 2"), "{}", error("{}"));
        assert!(error("[1]").contains("line 1 column"), "{}", error("[1]"));
        let two = |part: &str| error(&format!("{head}\n{part}\n"));
        let change = r#"{"layer": "host", "changes": [{"at_ns": 5, "from": {}, "to": {}, "cause": "gain", "reason": ""}, {"at_ns": 4, "from": {}, "to": {}, "cause": "gain", "reason": ""}]}"#;
        assert_eq!(two(change), "line 2: change 2: it is before the one before it (at_ns is 4)");
        let costs = |costs: &str| two(&format!(r#"{{"layer": "host", "costs": [{costs}]}}"#));
        assert_eq!(
            costs(r#"{"from_ns": 3, "to_ns": 3, "measured_ns": 1, "originals_ns": 1, "optimum_ns": 1}"#),
            "line 2: costs 1: 3 to 3 ns is no time after 0 ns"
        );
        assert!(
            costs(r#"{"from_ns": 3, "to_ns": 4, "measured_ns": -1, "originals_ns": 1, "optimum_ns": 1}"#)
                .contains("not from 0")
        );
        assert!(costs(r#"{"from_ns": 3, "to_ns": 4, "measured_ns": 1e999}"#).contains("line 2 column"));
        assert_eq!(
            two(r#"{"layer": "guest", "costs": []}"#),
            "line 2: guest has no originals before its changes and costs"
        );
        assert!(two(r#"{"layer": 7}"#).contains("line 2 column"));
        assert!(parse("").unwrap().is_empty());
    }
}
