//! The self-check: a recording is compared with itself before it is believed.
//!
//! Where a recording has what happened (whether the idler halted, its windows, KVM's own counters), the
//! setting that was in force is replayed over it, and polls, successful polls, halts and polled time are
//! compared with what was recorded. If they differ, a prediction of another setting from the same recording
//! is wrong as well.
//!
//! # The figures
//! Halts are compared with the recorded column. Polls, successful polls and polled time are compared with
//! KVM's counters where the metadata has them, else with the [`accounting`] of the episodes, if it is known
//! of nearly all of them whether they were polled. A difference is relative to the larger of the two numbers,
//! but to no less than a twentieth of the episodes (counts), or a two-hundredth of the time recorded (polled
//! time): below that no advice depends on it.
//!
//! # One pass of KVM's loop
//! KVM looks for other tasks at the end of a pass of its polling loop, so that a poll takes at least one pass (about
//! 0.2 us). Where other tasks are runnable most of the time this is all that is polled. From the counters of such a
//! recording follows how long a pass takes ([`SelfCheck::poll_pass`]); it is at most [`LONGEST_PASS`].
//!
//! # Limits
//! A replay begins with a window of zero, the idler may be in the middle of its life. Of a setting that
//! changed while it was recorded, the first is replayed.

use crate::causal::with_maximum;
use crate::rule::{Player, Rule};
use crate::source::{RecordingSource, Run, Source};
use crate::{Counts, ReplayError, Versions};
use dwell_policy::param::{self, Setting};
use dwell_policy::version::Version;
use dwell_policy::{Layer, Nanos, Owner};
use dwell_recording::accounting::{
    self, Account, KvmCounted, LONGEST_POLL_END_NS, Outcome, are_many, lost_in_poll_ns, poll_went_on,
};
use dwell_recording::{Chunk, Columns, Metadata, ReadError, Reader, SettingValue, SettingsChange};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;

/// Up to this difference a replay agrees with its recording.
pub const AGREES: f64 = 0.05;

/// Above this difference a replay contradicts its recording: no advice is given from it.
pub const CONTRADICTS: f64 = 0.2;

/// The fewest episodes whose end is known that can be compared.
pub const FEWEST: u64 = 100;

/// The longest that one pass of KVM's polling loop is taken to last \[ns\].
pub const LONGEST_PASS: u64 = 1_000;

/// What the self-check found.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "result", rename_all = "snake_case")]
pub enum SelfCheck {
    /// The setting in force was replayed.
    Checked(Checked),
    /// There is nothing to compare.
    NotPossible { why: NotPossible },
}

dwell_policy::named! {
    /// Why a recording cannot be compared with itself.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
    #[serde(rename_all = "snake_case")]
    pub enum NotPossible {
        /// The recording has no settings of its layer.
        NoSettings = "the recording does not contain the setting that was in force",
        /// The same, and it contradicts the default.
        NotDefault = "the recording does not contain the setting that was in force, which was not the default",
        /// It has not, of enough episodes, whether the idler halted.
        NoOutcomes = "the recording does not contain which episodes halted",
        /// The rule of the release is not known, or not that of the layer.
        NoRule = "the rule that was in force is not known",
    }

    /// The same in a sentence.
    pub fn words
}

/// A replay of the setting in force beside what was recorded.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Checked {
    /// The setting that was replayed.
    pub setting: BTreeMap<&'static str, i64>,
    /// Episodes in the recording.
    pub episodes: u64,
    pub figures: Vec<Figure>,
    pub worst: f64,
    /// What follows from it.
    pub verdict: Agreement,
    /// One pass of KVM's polling loop \[ns\]; 0 where the recording does not show it.
    pub poll_pass_ns: u64,
    /// What the recording shows of the reasons for a difference.
    pub causes: Vec<Cause>,
}

/// One number, recorded and replayed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Figure {
    /// What it is: `polls`, `polls_succeeded`, `halts` or `polled_ns`.
    pub figure: &'static str,
    pub recorded: f64,
    pub replayed: f64,
    /// How far apart they are, as a share; see the [module](self).
    pub difference: f64,
}

impl Figure {
    fn new(figure: &'static str, recorded: f64, replayed: f64, least: f64) -> Figure {
        let difference = (recorded - replayed).abs() / recorded.max(replayed).max(least).max(1.0);
        Figure { figure, recorded, replayed, difference }
    }

    /// Its name in a sentence.
    pub fn words(&self) -> &'static str {
        match self.figure {
            "polls_succeeded" => "successful polls",
            "polled_ns" => "polled time",
            other => other,
        }
    }
}

/// What follows from the largest difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Agreement {
    /// At most [`AGREES`].
    Agrees,
    /// More than that: predictions are off by as much.
    Differs,
    /// More than [`CONTRADICTS`]: predictions are wrong.
    Contradicts,
}

/// What a recording shows of why its replay differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "cause", rename_all = "snake_case")]
pub enum Cause {
    /// Idlers halted though the event came within their window, and the time alone is not known.
    Contention {
        /// In how many episodes.
        episodes: u64,
    },
    /// Successful polls that ended long after their events: others had the CPU, or they went on after an interrupt that woke no task.
    PollsWentOn { episodes: u64 },
    /// Others had the guest's CPU during polls, for `lost_ns` in all.
    PreemptedPolls { episodes: u64, lost_ns: u64 },
    /// KVM polled in no halt.
    HostPollingOff,
    /// Trace events were lost.
    Losses { events: u64 },
    /// The setting was changed while it was recorded.
    SettingsChanged,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cause::Contention { episodes } => write!(
                f,
                "in {episodes} episodes another task ended the poll, and the recording does not contain when (column \
                 alone_ns); record again with dwell record host"
            ),
            Cause::PollsWentOn { episodes } => write!(
                f,
                "{episodes} successful polls have a wakeup latency of more than {} us, which a poll does not take: others had \
                 the CPU, or they end at interrupts that woke no task, as earlier releases recorded them (record again)",
                LONGEST_POLL_END_NS / 1_000
            ),
            Cause::PreemptedPolls { episodes, lost_ns } => write!(
                f,
                "in {episodes} polls others had the CPU, for {} ms in all: this guest shares its cores",
                lost_ns / 1_000_000
            ),
            Cause::HostPollingOff => f.write_str(
                "KVM polled in no halt: the guest has switched host polling off, as haltpoll does, or the VM's own maximum \
                 is 0 (KVM_CAP_HALT_POLL)",
            ),
            Cause::Losses { events } => write!(f, "{events} trace events were lost"),
            Cause::SettingsChanged => f.write_str("the setting was changed during the recording"),
        }
    }
}

impl SelfCheck {
    /// Whether predictions from the recording are wrong, as far as the recording shows.
    pub fn contradicts(&self) -> bool {
        self.checked().is_some_and(|checked| checked.verdict == Agreement::Contradicts)
    }

    /// The comparison, if there is one.
    pub fn checked(&self) -> Option<&Checked> {
        match self {
            SelfCheck::Checked(checked) => Some(checked),
            SelfCheck::NotPossible { .. } => None,
        }
    }

    /// The result as a note, if anything was compared.
    pub fn note(&self) -> Option<String> {
        let checked = self.checked()?;
        Some(match checked.verdict {
            Agreement::Agrees => format!("self-check: {checked}"),
            Agreement::Differs => format!("self-check: {checked}. Predictions may be off by as much"),
            Agreement::Contradicts => {
                format!("self-check: {checked}. Predictions from this recording are wrong")
            }
        })
    }

    /// One pass of KVM's polling loop, for [`RecordingSource::with_poll_pass`]; zero where the recording does
    /// not show it.
    pub fn poll_pass(&self) -> Nanos {
        Nanos(self.checked().map_or(0, |checked| checked.poll_pass_ns))
    }
}

/// One line, without a full stop.
impl fmt::Display for SelfCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SelfCheck::Checked(checked) => checked.fmt(f),
            SelfCheck::NotPossible { why } => write!(f, "not possible: {}", why.words()),
        }
    }
}

impl fmt::Display for Checked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut by_difference: Vec<&Figure> = self.figures.iter().collect();
        by_difference.sort_by(|a, b| b.difference.total_cmp(&a.difference));
        if self.verdict == Agreement::Agrees {
            let names: Vec<&str> = self.figures.iter().map(Figure::words).collect();
            let (last, rest) = names.split_last().unwrap_or((&"", &[]));
            let names =
                if rest.is_empty() { (*last).to_owned() } else { format!("{} and {last}", rest.join(", ")) };
            return write!(
                f,
                "replaying the setting in force gives the recorded {names} within {:.1} %",
                // Rounded up: "within" has to hold.
                (self.worst * 1000.0).ceil() / 10.0
            );
        }
        let differs = |figure: &&&Figure| figure.difference > AGREES;
        let text = |figure: &&Figure| {
            let (recorded, replayed) = if figure.figure == "polled_ns" {
                (format!("{:.1} ms", figure.recorded / 1e6), format!("{:.1} ms", figure.replayed / 1e6))
            } else {
                (format!("{:.0}", figure.recorded), format!("{:.0}", figure.replayed))
            };
            format!("{} {replayed} for {recorded}", figure.words())
        };
        let texts: Vec<String> = by_difference.iter().filter(differs).map(text).collect();
        write!(f, "replaying the setting in force does not give what was recorded: {}", texts.join(", "))?;
        for cause in &self.causes {
            write!(f, "; {cause}")?;
        }
        Ok(())
    }
}

/// The setting of a layer, or of timers, after these changes, over the defaults of the release; `None` if there
/// is none of it. Values that the release does not have are passed over.
pub fn setting_of<'a, O: Copy + Into<Owner>>(
    owner: O,
    version: Version,
    changes: impl IntoIterator<Item = &'a SettingsChange>,
) -> Option<Setting<O>> {
    let mut setting = Setting::defaults(owner, version);
    let mut any = false;
    for change in changes.into_iter().filter(|change| change.owner == owner.into()) {
        for (name, value) in &change.values {
            let value = match value {
                SettingValue::Flag(flag) => Some(i64::from(*flag)),
                SettingValue::Number(number) => i64::try_from(*number).ok(),
                SettingValue::Negative(number) => Some(*number),
                SettingValue::Text(text) => param::table(owner)
                    .iter()
                    .find(|param| param.name == name)
                    .and_then(|param| param.parse_name(text)),
            };
            any |= value.is_some_and(|value| setting.set(name, value).is_ok());
        }
    }
    any.then_some(setting)
}

/// The setting of a layer that was in force while this was recorded, the last one where it was changed; `None` where it was not
/// recorded. A guest in which haltpoll [decided nothing](Metadata::decided_in_place_of_haltpoll) is taken for one that never
/// polls, whatever its parameters were.
pub fn in_force(layer: Layer, version: Version, metadata: &Metadata) -> Option<Setting> {
    effective(setting_of(layer, version, &metadata.settings), layer, version, metadata)
}

fn effective(
    recorded: Option<Setting>,
    layer: Layer,
    version: Version,
    metadata: &Metadata,
) -> Option<Setting> {
    if layer != Layer::Guest || metadata.decided_in_place_of_haltpoll().is_none() {
        return recorded;
    }
    Some(with_maximum(recorded.unwrap_or_else(|| Setting::defaults(layer, version)), 0))
}

/// The layer whose rule was in force: that of the recording, but for guests under the idle driver dwell_idle.
pub fn layer_in_force(metadata: &Metadata) -> Layer {
    let has_driver = metadata.settings.iter().any(|change| change.owner == Layer::Driver);
    if metadata.layer == Layer::Guest && has_driver { Layer::Driver } else { metadata.layer }
}

/// Replays the setting that was in force over a recording, and compares.
///
/// # Errors
/// [`ReplayError`] if the recording cannot be read.
pub fn self_check(source: &RecordingSource) -> Result<SelfCheck, ReplayError> {
    let source = &source.as_recorded();
    let metadata = source.reader().metadata();
    let layer = layer_in_force(metadata);
    let not = |why| Ok(SelfCheck::NotPossible { why });
    let changes = || metadata.settings.iter().filter(|change| change.owner == layer);
    if Versions::unknown(metadata, layer).is_some() {
        return not(NotPossible::NoRule);
    }
    let version = Versions::of_recording(metadata).of(layer);
    let recorded = setting_of(layer, version, changes().take_while(|change| change.at_ns.is_none()));
    let in_force = effective(recorded, layer, version, metadata);
    // I/O threads whose QEMU is not known may follow another rule.
    if in_force.is_none() && layer == Layer::Iothread {
        return not(NotPossible::NoSettings);
    }
    let setting = in_force.unwrap_or_else(|| Setting::defaults(layer, version));
    let seen = Seen::of(source.reader())?;
    if seen.account.ends_known < FEWEST.max(seen.account.episodes / 2) {
        return not(in_force.map_or(NotPossible::NoSettings, |_| NotPossible::NoOutcomes));
    }
    let Some(replayed) = Replayed::of(source, setting)? else { return not(NotPossible::NoRule) };
    let checked = compare(metadata, setting, &seen, &replayed);
    // Where nothing ever polled, a small difference is one.
    let never_polled = seen.account.halts == seen.account.ends_known;
    match (in_force, checked.verdict) {
        (Some(_), _) => Ok(SelfCheck::Checked(checked)),
        (None, Agreement::Contradicts) => not(NotPossible::NotDefault),
        (None, Agreement::Differs) if never_polled => not(NotPossible::NotDefault),
        (None, _) => not(NotPossible::NoSettings),
    }
}

#[derive(Default)]
struct Seen {
    account: Account,
    /// Episodes that halted though the event came within the window, without a known time alone.
    cut_short: u64,
    /// Polls that went on after their event.
    went_on: u64,
    /// Polls in which others had the CPU.
    preempted: u64,
    /// For how long \[ns\].
    lost_ns: u64,
}

impl Seen {
    fn of(reader: &Reader) -> Result<Seen, ReadError> {
        let mut seen = Seen::default();
        let mut chunk = Chunk::default();
        for row_group in 0..reader.row_groups() {
            reader.read(row_group, accounting::COLUMNS | Columns::WAKE_LATENCY_NS, &mut chunk)?;
            for row in 0..chunk.rows {
                let (halted, latency_ns) = (chunk.halted[row], chunk.wake_latency_ns[row]);
                seen.went_on += u64::from(poll_went_on(reader.metadata().layer, halted, latency_ns));
                if let Some(lost_ns) = lost_in_poll_ns(&chunk, row, reader.metadata().layer) {
                    seen.preempted += 1;
                    seen.lost_ns = seen.lost_ns.saturating_add(lost_ns);
                }
                seen.account.add(Outcome::of_row(&chunk, row));
                let within = chunk.window_ns[row].is_some_and(|window| chunk.idle_ns[row] <= window);
                seen.cut_short +=
                    u64::from(within && chunk.halted[row] == Some(true) && chunk.alone_ns[row].is_none());
            }
        }
        Ok(seen)
    }
}

/// What the setting in force did in the replay.
#[derive(Default)]
struct Replayed {
    counts: Counts,
    /// Polls that another task ended within the longest pass of the loop, and the sum of their times \[ns\].
    ended_at_once: u64,
    ended_at_once_ns: u128,
}

impl Replayed {
    fn of(source: &RecordingSource, setting: Setting) -> Result<Option<Replayed>, ReplayError> {
        let reader = source.reader();
        let mut players: Vec<Player> = vec![];
        for idler in &reader.contents().idlers {
            let rule = Rule::Layer(with_own_maximum(setting, reader.metadata(), &idler.name));
            let Ok(player) = rule.start(source.handlers()) else { return Ok(None) };
            players.push(player);
        }
        let mut replayed = Replayed::default();
        let mut windows = vec![];
        source.visit(0..u64::MAX, &mut |batch| {
            for run in batch.runs() {
                windows.clear();
                let counts = players[run.idler].follow(run, |seen| windows.push(seen.window.get()));
                replayed.counts += counts;
                replayed.count_ended_at_once(run, &windows);
            }
        })?;
        Ok(Some(replayed))
    }

    fn count_ended_at_once(&mut self, run: &Run, windows: &[u64]) {
        for ((idle, alone), &window) in run.idle_and_alone().zip(windows) {
            if alone < LONGEST_PASS && alone < idle && alone < window {
                self.ended_at_once += 1;
                self.ended_at_once_ns += u128::from(alone);
            }
        }
    }

    /// One pass of the loop, if most polls took no longer, so that the counted time is theirs \[ns\].
    fn poll_pass_ns(&self, counted_ns: u64) -> u64 {
        if self.ended_at_once == 0 || 2 * self.ended_at_once < self.counts.polls {
            return 0;
        }
        let others_ns = self.counts.polled_ns - self.ended_at_once_ns;
        let pass = u128::from(counted_ns).saturating_sub(others_ns) / u128::from(self.ended_at_once);
        u64::try_from(pass).unwrap_or(u64::MAX).min(LONGEST_PASS)
    }

    /// The polled time, no poll shorter than a pass \[ns\].
    fn polled_with(&self, pass_ns: u64) -> u128 {
        let at_once_ns = (u128::from(self.ended_at_once) * u128::from(pass_ns)).max(self.ended_at_once_ns);
        self.counts.polled_ns - self.ended_at_once_ns + at_once_ns
    }
}

/// The setting with the maximum of the vCPU's own VM (`KVM_CAP_HALT_POLL`), where the recorder has seen it.
fn with_own_maximum(mut setting: Setting, metadata: &Metadata, idler: &str) -> Setting {
    let notes = metadata.other.get("dwell.vcpus").and_then(|vcpus| vcpus.get(idler));
    let own = notes.and_then(|notes| notes.get("max_ns")?.as_i64());
    if let Some(max_ns) = own.filter(|_| setting.layer() == Layer::Host) {
        // A maximum has 32 bits, as the parameter.
        let _ = setting.set("halt_poll_ns", max_ns);
    }
    setting
}

fn compare(metadata: &Metadata, setting: Setting, seen: &Seen, replayed: &Replayed) -> Checked {
    let Seen { account, cut_short, went_on, preempted, lost_ns } = seen;
    let counted = (metadata.layer == Layer::Host).then(|| KvmCounted::of(metadata)).flatten();
    let pass_ns = counted.and_then(|kvm| kvm.polled_ns).map_or(0, |ns| replayed.poll_pass_ns(ns));
    let episodes = account.episodes as f64;
    let least = episodes / 20.0;
    // What is known of a part of the episodes is taken to hold for all.
    let of_all = |number: f64, known: u64| number * episodes / known as f64;
    // Where only some windows are known, they are those of halts in which the window changed: no fair sample.
    let polls_known = account.polls_known >= FEWEST && account.polls_known * 20 >= account.episodes * 19;
    let [polls, succeeded, polled] = match counted {
        Some(kvm) => {
            [Some(kvm.polls as f64), Some(kvm.polls_succeeded as f64), kvm.polled_ns.map(|ns| ns as f64)]
        }
        None => [account.polls as f64, account.polls_succeeded as f64, account.polled_ns as f64]
            .map(|sum| polls_known.then(|| of_all(sum, account.polls_known))),
    };
    let halts = Some(of_all(account.halts as f64, account.ends_known));
    let Counts { polls: did_poll, polls_succeeded, halts: did_halt, .. } = replayed.counts;
    let (did_poll_ns, least_ns) = (replayed.polled_with(pass_ns) as f64, account.idle_ns as f64 / 200.0);
    let both = [
        ("polls", polls, did_poll as f64, least),
        ("polls_succeeded", succeeded, polls_succeeded as f64, least),
        ("halts", halts, did_halt as f64, least),
        ("polled_ns", polled, did_poll_ns, least_ns),
    ];
    let figure = |(name, recorded, replayed, least): (_, Option<f64>, _, _)| {
        Some(Figure::new(name, recorded?, replayed, least))
    };
    let figures: Vec<Figure> = both.into_iter().filter_map(figure).collect();
    let worst = figures.iter().map(|figure| figure.difference).fold(0.0, f64::max);
    let verdict = match worst {
        worst if worst <= AGREES => Agreement::Agrees,
        worst if worst <= CONTRADICTS => Agreement::Differs,
        _ => Agreement::Contradicts,
    };
    let is_host = metadata.layer == Layer::Host;
    let lost = metadata.lost.events.unwrap_or(0);
    let changes = &metadata.settings;
    let changed = changes.iter().any(|change| change.owner == setting.layer() && change.at_ns.is_some());
    let possible = [
        (*cut_short * 100 >= account.episodes, Cause::Contention { episodes: *cut_short }),
        (are_many(*went_on, account.episodes), Cause::PollsWentOn { episodes: *went_on }),
        (
            are_many(*preempted, account.episodes),
            Cause::PreemptedPolls { episodes: *preempted, lost_ns: *lost_ns },
        ),
        (is_host && polls == Some(0.0) && did_poll > 0, Cause::HostPollingOff),
        (lost > 0, Cause::Losses { events: lost }),
        (changed, Cause::SettingsChanged),
    ];
    let seen = possible.into_iter().filter(|(is_seen, _)| *is_seen && verdict != Agreement::Agrees);
    let causes = seen.map(|(_, cause)| cause).collect();
    let setting = setting.iter().map(|(param, value)| (param.name, value)).collect();
    Checked { setting, episodes: account.episodes, figures, worst, verdict, poll_pass_ns: pass_ns, causes }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dwell_policy::host::{Knobs, Params, Revision, Vcpu};
    use dwell_recording::{Episode, Packing, SettingsChange, Writer};
    use dwell_stats::SplitMix64;

    /// A host's recording, made by KVM's rule: `alone` of every second episode is 0 if `contended`, and in the file if
    /// `known`.
    fn recording(contended: bool, known: bool, with: impl FnOnce(&mut Metadata)) -> RecordingSource {
        let revision = Revision::of(Version::new(6, 18)).unwrap();
        let params = Params::default_for(revision);
        let mut metadata = Metadata::new(Layer::Host);
        metadata.kernel = Some("6.18.0".to_owned());
        metadata.lost.events = Some(0);
        let value = SettingValue::Number(params.halt_poll_ns.into());
        metadata.settings.push(SettingsChange {
            at_ns: None,
            owner: Layer::Host.into(),
            values: BTreeMap::from([("halt_poll_ns".to_owned(), value)]),
        });
        with(&mut metadata);
        let mut writer = Writer::new(Vec::new(), metadata, Packing::default()).unwrap();
        let (mut vcpu, mut random, mut now) = (Vcpu::new(revision), SplitMix64::new(3), 0);
        for number in 0..4_000u64 {
            let idle = random.below(300_000);
            let window = u64::from(vcpu.enter(&Knobs::of(params)));
            vcpu.decide(&Knobs::of(params), idle, true);
            let alone = if contended && number % 2 == 0 { 0 } else { idle };
            let episode = Episode {
                window_ns: Some(window),
                halted: Some(idle > window.min(alone)),
                alone_ns: known.then_some(alone),
                ..Episode::new("vcpu0", now, idle)
            };
            writer.push(&episode).unwrap();
            now += idle + 5_000;
        }
        RecordingSource::new(Reader::from_bytes("m", writer.close().unwrap().1).unwrap(), false)
    }

    fn checked(source: &RecordingSource) -> Checked {
        self_check(source).unwrap().checked().unwrap().clone()
    }

    #[test]
    fn a_recording_agrees_with_itself() {
        for contended in [false, true] {
            let check = checked(&recording(contended, true, |_| ()));
            assert_eq!((check.worst, check.verdict), (0.0, Agreement::Agrees), "{check}");
            let line = "replaying the setting in force gives the recorded polls, successful polls, halts and polled time \
                        within 0.0 %";
            assert_eq!(check.to_string(), line);
        }
    }

    #[test]
    fn a_guest_in_which_haltpoll_decides_nothing_never_polls() {
        let recorded = |driver: Option<&str>, governor: &str, has_parameters: bool| {
            let mut metadata = Metadata::new(Layer::Guest);
            metadata.kernel = Some("6.18.0".to_owned());
            let cpuidle = serde_json::json!({ "driver": driver, "governor": governor });
            metadata.other.insert(dwell_recording::CPUIDLE.to_owned(), cpuidle);
            let values = [("guest_halt_poll_ns".to_owned(), SettingValue::Number(200_000))].into();
            if has_parameters {
                metadata.settings.push(SettingsChange { at_ns: None, owner: Layer::Guest.into(), values });
            }
            metadata
        };
        let maximum = |metadata: &Metadata| {
            let setting = in_force(Layer::Guest, Version::new(6, 18), metadata)?;
            setting.get("guest_halt_poll_ns")
        };
        for (driver, governor) in
            [(None, "menu"), (None, "haltpoll"), (Some("haltpoll"), "menu"), (Some("intel_idle"), "teo")]
        {
            for has_parameters in [true, false] {
                assert_eq!(
                    maximum(&recorded(driver, governor, has_parameters)),
                    Some(0),
                    "{driver:?} {governor}"
                );
            }
        }
        for driver in ["haltpoll", "acpi_idle"] {
            assert_eq!(maximum(&recorded(Some(driver), "haltpoll", true)), Some(200_000));
            assert_eq!(maximum(&recorded(Some(driver), "haltpoll", false)), None);
        }
        assert_eq!(maximum(&recorded(Some("dwell_idle"), "menu", false)), None);
        // Idle times that haltpoll would have polled through.
        let mut writer = Writer::new(Vec::new(), recorded(None, "menu", true), Packing::default()).unwrap();
        for number in 0..4_000 {
            let episode = Episode::new("cpu0", number * 30_000, 10_000);
            writer.push(&Episode { halted: Some(true), ..episode }).unwrap();
        }
        let reader = Reader::from_bytes("m", writer.close().unwrap().1).unwrap();
        let check = self_check(&RecordingSource::new(reader, false)).unwrap();
        let checked = check.checked().unwrap();
        assert_eq!((checked.verdict, checked.setting["guest_halt_poll_ns"]), (Agreement::Agrees, 0));
    }

    #[test]
    fn a_recording_under_the_idle_driver_agrees_with_the_drivers_policy() {
        let mut metadata = Metadata::new(Layer::Guest);
        metadata.kernel = Some("6.18.0".to_owned());
        let number = |name: &str, value| (name.to_owned(), SettingValue::Number(value));
        let policy = ("policy".to_owned(), SettingValue::Text("savings".to_owned()));
        let values = [number("halt_cost_ns", 20_000), number("max_window_ns", 15_000), policy];
        metadata.settings.push(SettingsChange {
            at_ns: None,
            owner: Layer::Driver.into(),
            values: values.into(),
        });
        assert_eq!(layer_in_force(&metadata), Layer::Driver);
        let setting = setting_of(Layer::Driver, Version::new(6, 18), &metadata.settings).unwrap();
        assert_eq!((setting.get("policy"), setting.get("max_window_ns")), (Some(1), Some(15_000)));
        let mut cpu = Rule::Layer(setting).policy().unwrap();
        let mut writer = Writer::new(Vec::new(), metadata, Packing::default()).unwrap();
        let (mut random, mut now) = (SplitMix64::new(3), 0);
        for _ in 0..4_000 {
            let idle = random.below(25_000);
            let window = dwell_policy::Policy::window(&mut cpu).get();
            dwell_policy::Policy::observe(&mut cpu, dwell_policy::Outcome::of(Nanos(idle)));
            let (window_ns, halted) = (Some(window), Some(idle > window));
            writer.push(&Episode { window_ns, halted, ..Episode::new("cpu0", now, idle) }).unwrap();
            now += idle + 5_000;
        }
        let reader = Reader::from_bytes("m", writer.close().unwrap().1).unwrap();
        let check = checked(&RecordingSource::new(reader, false));
        assert_eq!((check.worst, check.verdict), (0.0, Agreement::Agrees), "{check}");
        assert!(
            check.figures.iter().any(|figure| figure.figure == "polls" && figure.recorded > 100.0),
            "{check}"
        );
    }

    #[test]
    fn contention_that_is_not_recorded_is_found_and_named() {
        let check = checked(&recording(true, false, |_| ()));
        assert_eq!(check.verdict, Agreement::Contradicts);
        let [Cause::Contention { episodes }] = check.causes[..] else { panic!("{check:?}") };
        assert!(episodes > 500, "{episodes}");
        let line = check.to_string();
        assert!(line.contains("halts ") && line.contains("(column alone_ns); record again"), "{line}");
    }

    /// A guest's recording of 400 polls in windows of 100 us that a replay with a maximum of 20 us contradicts.
    fn of_polls(idle_ns: u64, wake_latency_ns: u64) -> Checked {
        let mut metadata = Metadata::new(Layer::Guest);
        metadata.kernel = Some("6.18.0".to_owned());
        let value = SettingValue::Number(20_000);
        let values = BTreeMap::from([("guest_halt_poll_ns".to_owned(), value)]);
        metadata.settings.push(SettingsChange { at_ns: None, owner: Layer::Guest.into(), values });
        let mut writer = Writer::new(Vec::new(), metadata, Packing::default()).unwrap();
        for start in (0..400).map(|number| number * 10_000_000) {
            let (window_ns, halted, wake_latency_ns) = (Some(100_000), Some(false), Some(wake_latency_ns));
            let episode = Episode::new("cpu1", start, idle_ns);
            writer.push(&Episode { window_ns, halted, wake_latency_ns, ..episode }).unwrap();
        }
        let reader = Reader::from_bytes("m", writer.close().unwrap().1).unwrap();
        checked(&RecordingSource::new(reader, false))
    }

    /// fio with the disk's interrupt on another CPU, as recorders made it: each poll of 100 us ends at 33 us.
    #[test]
    fn polls_that_end_at_an_interrupt_that_woke_nobody_are_found_and_named() {
        let check = of_polls(33_000, 67_000);
        assert_eq!(check.verdict, Agreement::Contradicts);
        assert_eq!(check.causes, [Cause::PollsWentOn { episodes: 400 }]);
        assert!(
            check.to_string().contains("400 successful polls have a wakeup latency of more than 20 us"),
            "{check}"
        );
    }

    #[test]
    fn polls_in_which_others_had_the_cpu_are_found_and_named() {
        let check = of_polls(3_100_000, 5_000);
        assert_eq!(check.causes, [Cause::PreemptedPolls { episodes: 400, lost_ns: 400 * 3_005_000 }]);
        assert!(check.to_string().contains("in 400 polls others had the CPU, for 1202 ms in all"), "{check}");
    }

    #[test]
    fn wrong_settings_losses_and_changes_are_causes() {
        let check = checked(&recording(false, true, |metadata| {
            metadata.lost.events = Some(7);
            metadata.settings[0].values.insert("halt_poll_ns".to_owned(), SettingValue::Number(20_000));
            let later = SettingsChange { at_ns: Some(5), ..metadata.settings[0].clone() };
            metadata.settings.push(later);
        }));
        assert_eq!(check.verdict, Agreement::Contradicts);
        assert_eq!(check.causes, [Cause::Losses { events: 7 }, Cause::SettingsChanged]);
        assert_eq!(check.setting["halt_poll_ns"], 20_000);
    }

    #[test]
    fn where_nothing_can_be_compared_the_reason_is_given() {
        let why = |source: &RecordingSource| match self_check(source).unwrap() {
            SelfCheck::NotPossible { why } => why,
            SelfCheck::Checked(checked) => panic!("{checked}"),
        };
        assert_eq!(why(&recording(false, true, |m| m.settings.clear())), NotPossible::NoSettings);
        assert_eq!(why(&recording(false, true, |m| m.kernel = Some("4.4".to_owned()))), NotPossible::NoRule);
        let mut metadata = recording(false, true, |_| ()).reader().metadata().clone();
        metadata.lost.events = None;
        let mut writer = Writer::new(Vec::new(), metadata, Packing::default()).unwrap();
        (0..500).for_each(|start| writer.push(&Episode::new("vcpu0", start, 10)).unwrap());
        let unknown =
            RecordingSource::new(Reader::from_bytes("m", writer.close().unwrap().1).unwrap(), false);
        assert_eq!(why(&unknown), NotPossible::NoOutcomes);
    }

    #[test]
    fn counters_come_before_the_accounting_and_show_the_pass_of_the_loop() {
        // 4,000 halts, of which the counters say that each polled for 210 ns more than the replay knows.
        let plain = recording(true, true, |_| ());
        let replayed = Replayed::of(
            &plain,
            setting_of(Layer::Host, Version::new(6, 18), &plain.reader().metadata().settings).unwrap(),
        );
        let replayed = replayed.unwrap().unwrap();
        assert!(replayed.ended_at_once > 1_500);
        let counted = u64::try_from(replayed.counts.polled_ns).unwrap() + 210 * replayed.ended_at_once;
        let counters = |polls: u64, succeeded: u64| {
            let vm = |polls: u64, succeeded: u64, ns: u64| {
                serde_json::json!({ "halt_attempted_poll": polls, "halt_successful_poll": succeeded,
                    "halt_poll_success_ns": ns, "halt_poll_fail_ns": 0 })
            };
            serde_json::json!({ "start": { "at_ns": 0, "vms": { "1-2": vm(10, 10, 10) } },
                "end": { "at_ns": 9, "vms": { "1-2": vm(10 + polls, 10 + succeeded, 10 + counted) } } })
        };
        let with = |polls, succeeded| {
            let counters = counters(polls, succeeded);
            checked(&recording(true, true, |metadata| {
                metadata.other.insert(accounting::KVM_COUNTERS.to_owned(), counters);
            }))
        };
        let check = with(replayed.counts.polls, replayed.counts.polls_succeeded);
        assert_eq!(check.verdict, Agreement::Agrees, "{check}");
        let enough = 2 * replayed.ended_at_once >= replayed.counts.polls;
        assert_eq!(check.poll_pass_ns, if enough { 210 } else { 0 });
        let off = with(0, 0);
        assert_eq!(
            (off.verdict, &off.causes[..]),
            (Agreement::Contradicts, &[Cause::HostPollingOff][..]),
            "{off}"
        );
    }
}
