//! A sketch: what every setting of a grid costs a recording, and how its idle times are distributed, in kilobytes.
//!
//! # The idea
//! The cost of a setting is its polling CPU plus its halts times the halt cost. So a sketch has, for each setting of
//! [`grid::coarse`], the halts and the polling CPU that the exact replay of the recording gave: two integers,
//! from which the cost follows *at any halt cost, with no error*. A rule's window depends on all that an
//! idler did before. A histogram of lengths by the length before, from which costs could be computed for
//! settings outside of the grid, loses that history, and no useful bound of its error follows from it: there
//! is none in a sketch.
//!
//! # What is in it
//! * for each rule (the recording's own layer, and the host's for a recording of a guest): the halts and the
//!   polling CPU of each setting, and of the setting in force;
//! * idle times in bins, each with their number and sum; the same for the times alone of those that another
//!   task cut short;
//! * time recorded, losses, releases, labels of the metadata, and how many recordings were merged.
//!
//! # Error
//! Costs of the grid and of the setting in force: none. The offline optimum is computed from the bins: exact
//! where the halt cost is an end of a bin ([`is_edge`]), as all preferred numbers are (10 us, 12.5 us, 16 us,
//! 20 us, …), else at most [`OPTIMUM_ERROR`] too high for halt costs of at least 100 ns.
//! [`Sketch::optimum_ns`] returns the bound for the sketch at hand.
//!
//! # Merging
//! All of it are sums, maxima and intersections of integers and texts, so that sketches can be merged in any
//! order. The merged sketch is that of the recordings each replayed by itself: windows begin at zero in each
//! part, as they do where `dwell fleet` reads the parts.

use crate::alike::FirstLengths;
use crate::costs::{Unusable, Usable, fits, label_of, possible};
use dwell_policy::param::{Setting, known_version};
use dwell_policy::version::Version;
use dwell_policy::{Layer, Nanos, guest, host};
use dwell_recording::table::{Field, Kind, TableError, TableWriter, Value, field};
use dwell_recording::{
    Cells, FORMAT_KEY, Metadata, OpenError, Reader, SKETCH_FORMAT, TableReadError, TableReader,
};
use dwell_replay::bound::OptimumBound;
use dwell_replay::{Bank, Counts, ReplayError, Rule, Source, Values, Versions, check, grid};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::sync::LazyLock;

/// By how much the optimum may be too high, as a share, at a halt cost within a bin.
pub const OPTIMUM_ERROR: f64 = 0.01;

/// The most rows of a sketch that are read.
const MOST_ROWS: u64 = 1 << 20;
const HEADER_KEY: &str = "dwell.sketch";

/// Bins in the step from one preferred number to the next.
const STEPS: u64 = 8;
/// Decades of preferred numbers, in units of 1 ns: from 100 ns to 1,000 s.
const DECADES: u32 = 10;

/// The ends of the bins, in order; the last is the longest length there is.
static EDGES: LazyLock<Vec<u64>> = LazyLock::new(|| {
    let decade = |decade: u32| grid::R10.iter().map(move |m| m.cast_unsigned() * 10u64.pow(decade));
    let preferred: Vec<u64> = (0..DECADES).flat_map(decade).collect();
    let between = |ends: &[u64]| {
        let (from, to) = (ends[0], ends[1]);
        (0..STEPS).map(move |step| from + (to - from) * step / STEPS)
    };
    let mut edges: Vec<u64> = std::iter::once(0).chain(preferred.windows(2).flat_map(between)).collect();
    edges.extend(preferred.last());
    edges.push(u64::MAX);
    edges
});

/// The end of the bin that a length is in: lengths above the end before, up to this one.
fn bin(length: u64) -> u64 {
    EDGES[EDGES.partition_point(|&edge| edge < length).min(EDGES.len() - 1)]
}

/// Whether lengths up to this one are whole bins, so that the optimum at this halt cost is exact.
pub fn is_edge(halt_cost: Nanos) -> bool {
    EDGES.binary_search(&halt_cost.get()).is_ok()
}

/// What a setting did over a recording.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Did {
    pub halts: u64,
    /// Polling CPU \[ns\].
    pub polled_ns: u64,
}

impl Did {
    fn of(counts: &Counts) -> Result<Did, Unusable> {
        Ok(Did { halts: counts.halts, polled_ns: fits(counts.polled_ns)? })
    }

    /// Polling CPU plus halts at their cost \[ns\].
    pub fn cost_ns(&self, halt_cost: Nanos) -> u128 {
        u128::from(self.polled_ns) + u128::from(self.halts) * u128::from(halt_cost.get())
    }

    fn plus(self, other: Did) -> Option<Did> {
        let halts = self.halts.checked_add(other.halts)?;
        Some(Did { halts, polled_ns: self.polled_ns.checked_add(other.polled_ns)? })
    }
}

/// Idle times of a bin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bin {
    pub episodes: u64,
    /// Their sum \[ns\].
    pub sum_ns: u64,
}

impl Bin {
    fn plus(self, other: Bin) -> Option<Bin> {
        let episodes = self.episodes.checked_add(other.episodes)?;
        Some(Bin { episodes, sum_ns: self.sum_ns.checked_add(other.sum_ns)? })
    }
}

/// What a rule did: the release it is of, each setting, and the setting in force.
#[derive(Clone, Debug, PartialEq, Eq)]
struct RuleCosts {
    version: Version,
    settings: BTreeMap<String, Did>,
    /// By the setting in force as text; empty where it is not known and the default took its place. With the
    /// episodes of each.
    today: BTreeMap<String, (Did, u64)>,
}

/// What a recording says of itself, as far as a fleet has a use for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    pub layer: String,
    /// The release of each rule.
    pub rules: BTreeMap<String, String>,
    /// The latency of all halts, if one was given in place of the recorded ones.
    pub wakeup_latency_ns: Option<u64>,
    /// Recordings without a wakeup latency: their rules learned from idle times alone.
    pub latency_unknown: u64,
    pub recordings: u64,
    pub episodes: u64,
    /// The most of any recording.
    pub idlers: u64,
    /// The time recorded, summed up over the recordings \[ns\].
    pub span_ns: u64,
    /// When the last of the recordings ended, by the time of day \[ns since 1970\]; `None`: no recording says it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_unix_ns: Option<i64>,
    pub resolution_ns: u64,
    /// Trace events.
    pub lost_events: u64,
    /// Whether more may have been lost, or losses were not counted.
    pub lost_at_least: bool,
    pub incomplete_episodes: u64,
    /// Texts of the metadata that all recordings have alike.
    pub labels: BTreeMap<String, String>,
}

/// The sketch of a recording, or of several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sketch {
    name: String,
    layer: Layer,
    header: Header,
    rules: BTreeMap<&'static str, RuleCosts>,
    /// Idle times that no other task cut short, by the ends of the bins.
    lengths: BTreeMap<u64, Bin>,
    /// Those that another task cut short, by the times alone.
    cut_short: BTreeMap<u64, Bin>,
}

/// Why a sketch cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SketchError {
    /// It is no sketch, or a damaged one.
    #[error(transparent)]
    Read(#[from] TableReadError),
    /// What it has contradicts itself.
    #[error("{name}: {what}; the sketch is damaged or was changed by another program")]
    Damaged { name: String, what: String },
    /// Its costs are of other rules than the one that is asked for.
    #[error(
        "{name}: a sketch of the rules {has}, and the rule of {wanted} is asked for; choose what it has with --layer, --kernel \
         or --qemu, or make it anew with dwell sketch"
    )]
    OtherRule { name: String, has: String, wanted: String },
    /// Its rules learned from another wakeup latency than the one that is asked for.
    #[error("{name}: a sketch with {has}, and {wanted} is asked for")]
    OtherLatency { name: String, has: String, wanted: String },
    /// A setting is not in it.
    #[error(
        "{name}: a sketch, which does not have the setting {setting}; use the coarse grid, or recordings"
    )]
    NoSetting { name: String, setting: String },
    /// Two sketches are of different things, or something is too large.
    #[error("cannot merge the sketches {name} and {other}: {what}")]
    CannotMerge { name: String, other: String, what: String },
}

impl From<OpenError> for SketchError {
    fn from(error: OpenError) -> SketchError {
        TableReadError::from(error).into()
    }
}

impl SketchError {
    pub(crate) fn damaged(sketch: &Sketch, what: impl Into<String>) -> SketchError {
        SketchError::Damaged { name: sketch.name.clone(), what: what.into() }
    }
}

/// A recording or its sketch.
pub enum Input {
    Recording(Box<Reader>),
    Sketch(Box<Sketch>),
}

impl From<Reader> for Input {
    fn from(reader: Reader) -> Input {
        Input::Recording(Box::new(reader))
    }
}

impl From<Sketch> for Input {
    fn from(sketch: Sketch) -> Input {
        Input::Sketch(Box::new(sketch))
    }
}

impl Input {
    /// Opens a file of either kind.
    ///
    /// # Errors
    /// [`Unusable`] where it is neither.
    pub fn open(path: &Path) -> Result<Input, Unusable> {
        match Reader::open(path) {
            Err(OpenError::Sketch { .. }) => Ok(Sketch::open(path)?.into()),
            opened => Ok(opened?.into()),
        }
    }

    /// The same, in memory; errors call it by `name`.
    ///
    /// # Errors
    /// [`Unusable`] where it is neither.
    pub fn from_bytes(name: &str, bytes: &[u8]) -> Result<Input, Unusable> {
        match Reader::from_bytes(name, bytes.to_vec()) {
            Err(OpenError::Sketch { .. }) => Ok(Sketch::from_bytes(name, bytes.to_vec())?.into()),
            opened => Ok(opened?.into()),
        }
    }
}

/// Whether two releases have one rule for a layer.
pub(crate) fn same_rule(layer: Layer, a: Version, b: Version) -> bool {
    match layer {
        Layer::Host => host::Revision::of(a).is_ok_and(|of| host::Revision::of(b) == Ok(of)),
        Layer::Guest | Layer::Driver => {
            guest::Revision::of(a).is_ok_and(|of| guest::Revision::of(b) == Ok(of))
        }
        Layer::Iothread => (a.major, a.minor) == (b.major, b.minor),
    }
}

/// The layers whose rules a sketch of a recording of this layer has.
fn rules_of(layer: Layer) -> &'static [Layer] {
    match layer {
        Layer::Guest => &[Layer::Guest, Layer::Host],
        Layer::Host => &[Layer::Host],
        Layer::Iothread => &[Layer::Iothread],
        Layer::Driver => &[],
    }
}

/// What is sketched as the episodes pass by.
#[derive(Default)]
struct Histograms {
    lengths: BTreeMap<u64, Bin>,
    cut_short: BTreeMap<u64, Bin>,
    overflow: bool,
}

impl Histograms {
    fn push(&mut self, idle_ns: u64, alone_ns: u64) {
        let (bins, length) = match idle_ns <= alone_ns {
            true => (&mut self.lengths, idle_ns),
            false => (&mut self.cut_short, alone_ns),
        };
        let bin_of = bins.entry(bin(length)).or_default();
        match bin_of.plus(Bin { episodes: 1, sum_ns: length }) {
            Some(more) => *bin_of = more,
            None => self.overflow = true,
        }
    }
}

impl Sketch {
    /// The sketch of a recording, under the rules of these releases, with this wakeup latency of all halts if one
    /// is given.
    ///
    /// # Errors
    /// [`Unusable`], as for the costs of the recording.
    pub fn of(reader: Reader, versions: Versions, wakeup_latency: Option<Nanos>) -> Result<Sketch, Unusable> {
        let metadata = reader.metadata().clone();
        let name = reader.name();
        let layer = metadata.layer;
        let usable = Usable::new(reader, layer == Layer::Iothread, wakeup_latency)?;
        let mut asked: Vec<(Layer, Vec<Setting>, Option<Setting>)> = vec![];
        for &layer in rules_of(layer) {
            let version = versions.of(layer);
            // A guest of an architecture without haltpoll has its host's rule alone.
            if known_version(layer, version).is_err() {
                continue;
            }
            let today = check::in_force(layer, version, &metadata);
            asked.push((layer, grid::coarse(layer, version), today));
        }
        let rules: Vec<Rule> = asked
            .iter()
            .flat_map(|(layer, settings, today)| {
                let present = today.unwrap_or_else(|| Setting::defaults(*layer, versions.of(*layer)));
                settings.iter().copied().chain([present])
            })
            .map(Rule::Layer)
            .collect();
        let mut bank = Bank::new(&rules, usable.source.handlers()).map_err(ReplayError::from)?;
        let (mut all, mut found) = (OptimumBound::new(Nanos::ZERO), Histograms::default());
        usable.source.visit(0..u64::MAX, &mut |batch| {
            bank.feed(batch);
            all.feed(batch);
            for run in batch.runs() {
                let alone = run.alone_ns();
                for (at, &idle_ns) in run.idle_ns.iter().enumerate() {
                    found.push(idle_ns, alone.map_or(u64::MAX, |alone| alone[at]));
                }
            }
        })?;
        let all = all.counts();
        let (idlers, span_ns, resolution_ns) = (usable.idlers(), usable.span_ns, usable.resolution_ns);
        possible(all.idle_ns, idlers, span_ns, resolution_ns, all.episodes, 1)?;
        if found.overflow {
            return Err(Unusable::TooExpensive { cost_ns: all.idle_ns });
        }
        let mut counts = bank.take().into_iter();
        let mut costs = BTreeMap::new();
        for (layer, settings, today) in &asked {
            let mut of_rule =
                RuleCosts { version: versions.of(*layer), settings: BTreeMap::new(), today: BTreeMap::new() };
            for (setting, counts) in settings.iter().zip(&mut counts) {
                of_rule.settings.insert(setting.to_string(), Did::of(&counts)?);
            }
            let present = counts.next().unwrap_or_default();
            let text = today.as_ref().map_or_else(String::new, |today| Values::from(today).to_string());
            of_rule.today.insert(text, (Did::of(&present)?, all.episodes));
            costs.insert(layer.name(), of_rule);
        }
        let latency_known = usable.source.knows_latency()?;
        let header = Header {
            layer: layer.name().to_owned(),
            rules: releases(&costs),
            wakeup_latency_ns: wakeup_latency.map(Nanos::get),
            latency_unknown: u64::from(!latency_known),
            recordings: 1,
            episodes: all.episodes,
            idlers,
            span_ns,
            ended_unix_ns: metadata.ended_unix_ns(),
            resolution_ns,
            lost_events: metadata.lost.events.unwrap_or(0),
            lost_at_least: metadata.lost.at_least || metadata.lost.events.is_none(),
            incomplete_episodes: metadata.lost.incomplete_episodes,
            labels: labels(&metadata),
        };
        let Histograms { lengths, cut_short, .. } = found;
        Ok(Sketch { name, layer, header, rules: costs, lengths, cut_short })
    }

    /// Whose idle times they are.
    pub fn layer(&self) -> Layer {
        self.layer
    }

    /// What it says of the recordings that it is of.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Its idle times as the first ones of a recording, which a sketch has not: those of all that it is of.
    pub(crate) fn first_lengths(&self) -> FirstLengths {
        let mut all = FirstLengths::default();
        self.lengths.iter().chain(&self.cut_short).for_each(|(_, bin)| {
            all.add(bin.sum_ns / bin.episodes.max(1), bin.episodes);
        });
        all
    }

    /// Idle times that another task cut short.
    pub fn cut_short(&self) -> u64 {
        self.cut_short.values().map(|bin| bin.episodes).sum()
    }

    /// The layers whose rules it has, with their releases and the number of their settings.
    pub fn rules(&self) -> impl Iterator<Item = (&'static str, Version, usize)> {
        self.rules.iter().map(|(layer, rule)| (*layer, rule.version, rule.settings.len()))
    }

    /// Refuses a question about another rule or another latency.
    pub(crate) fn fits(
        &self,
        layer: Layer,
        version: Version,
        latency: Option<Nanos>,
    ) -> Result<(), SketchError> {
        let name = || self.name.clone();
        if !self.rules.get(layer.name()).is_some_and(|rule| same_rule(layer, rule.version, version)) {
            let has: Vec<String> =
                self.rules.iter().map(|(layer, rule)| format!("{layer} {}", rule.version)).collect();
            let wanted = format!("{} {version}", layer.name());
            return Err(SketchError::OtherRule { name: name(), has: has.join(" and "), wanted });
        }
        let (has, wanted) = (self.header.wakeup_latency_ns, latency.map(Nanos::get));
        if has != wanted {
            let words = |ns: Option<u64>| match ns {
                Some(ns) => format!("a wakeup latency of {ns} ns"),
                None => "the wakeup latencies of its recordings".to_owned(),
            };
            return Err(SketchError::OtherLatency { name: name(), has: words(has), wanted: words(wanted) });
        }
        Ok(())
    }

    /// What a setting did.
    ///
    /// # Errors
    /// [`SketchError::NoSetting`] for one that is not of the grid.
    pub fn did(&self, layer: Layer, setting: &Setting) -> Result<&Did, SketchError> {
        let text = setting.to_string();
        let found = self.rules.get(layer.name()).and_then(|rule| rule.settings.get(&text));
        found.ok_or(SketchError::NoSetting { name: self.name.clone(), setting: text })
    }

    /// What the settings in force did together, and the one that was in force for most episodes; `None` where
    /// it is not known, and the default took its place.
    ///
    /// # Errors
    /// [`SketchError`] where the numbers are too large.
    pub fn today(&self, layer: Layer) -> Result<(Option<&str>, Did), SketchError> {
        let today = self.rules.get(layer.name()).map(|rule| &rule.today);
        let each = || today.into_iter().flatten();
        let most = each().max_by_key(|(text, (_, episodes))| (*episodes, std::cmp::Reverse(*text)));
        let sum = each().try_fold(Did::default(), |sum, (_, (did, _))| sum.plus(*did));
        let sum = sum.ok_or_else(|| SketchError::damaged(self, "numbers are too large"))?;
        let unknown = each().any(|(text, _)| text.is_empty());
        Ok((most.map(|(text, _)| text.as_str()).filter(|_| !unknown), sum))
    }

    /// Whether its recordings have several settings in force, or some have none.
    pub(crate) fn today_changed(&self, layer: Layer) -> bool {
        self.rules.get(layer.name()).is_some_and(|rule| rule.today.len() > 1)
    }

    /// What the offline optimum costs \[ns\], and by how much this may be too high \[ns\].
    pub fn optimum_ns(&self, halt_cost: Nanos) -> (u128, u128) {
        let halt_ns = u128::from(halt_cost.get());
        let mut optimum = halt_ns * self.cut_short.values().map(|bin| u128::from(bin.episodes)).sum::<u128>();
        let mut bound = 0;
        for (&up_to, bin) in &self.lengths {
            let at = EDGES.partition_point(|&edge| edge < up_to);
            let from = u128::from(if at == 0 { 0 } else { EDGES[at - 1] });
            let (number, sum, up_to) = (u128::from(bin.episodes), u128::from(bin.sum_ns), u128::from(up_to));
            if up_to <= halt_ns {
                optimum += sum;
            } else if from >= halt_ns {
                optimum += number * halt_ns;
            } else {
                // The lesser of a length and the halt cost is concave in the length: at most that of the
                // mean, and at least what the straight line between the ends of the bin gives.
                let most = sum.min(number * halt_ns);
                let rise = sum.saturating_sub(number * from);
                let least = number * from + mul_div(rise, halt_ns - from, up_to - from);
                optimum += most;
                bound += most.saturating_sub(least);
            }
        }
        (optimum, bound)
    }

    /// Why the sums of both would have no meaning.
    fn differs_from(&self, other: &Sketch) -> Option<String> {
        if self.layer != other.layer {
            return Some(format!("they are of the layers {} and {}", self.layer.name(), other.layer.name()));
        }
        if !self.rules.keys().eq(other.rules.keys()) {
            let names = |sketch: &Sketch| sketch.rules.keys().copied().collect::<Vec<_>>().join(" and ");
            return Some(format!("the first has the rules {}, the other {}", names(self), names(other)));
        }
        for ((name, a), b) in self.rules.iter().zip(other.rules.values()) {
            if Layer::from_name(name).is_none_or(|layer| !same_rule(layer, a.version, b.version)) {
                return Some(format!(
                    "they are of the releases {} and {}, whose {name} rules differ; choose one with {}",
                    a.version,
                    b.version,
                    if *name == Layer::Iothread.name() { "--qemu" } else { "--kernel" }
                ));
            }
            if !a.settings.keys().eq(b.settings.keys()) {
                return Some(format!(
                    "their grids of the {name} rule differ, of {} and {} settings",
                    a.settings.len(),
                    b.settings.len()
                ));
            }
        }
        let latencies = [self, other].map(|sketch| sketch.header.wakeup_latency_ns);
        (latencies[0] != latencies[1]).then(|| "their wakeup latencies differ".to_owned())
    }

    /// Both together.
    ///
    /// # Errors
    /// [`SketchError::CannotMerge`] for sketches of different layers, rules, grids or latencies, and for
    /// numbers of more than 64 bits.
    pub fn merge(&self, other: &Sketch) -> Result<Sketch, SketchError> {
        let cannot =
            |what| SketchError::CannotMerge { name: self.name.clone(), other: other.name.clone(), what };
        if let Some(what) = self.differs_from(other) {
            return Err(cannot(what));
        }
        let (a, b) = (&self.header, &other.header);
        let merged = || -> Option<Sketch> {
            let mut rules = BTreeMap::new();
            for (layer, a) in &self.rules {
                let b = other.rules.get(layer)?;
                let today = |(a, n): (Did, u64), (b, m): (Did, u64)| Some((a.plus(b)?, n.checked_add(m)?));
                rules.insert(
                    *layer,
                    RuleCosts {
                        version: a.version.min(b.version),
                        settings: joined(&a.settings, &b.settings, Did::plus)?,
                        today: joined(&a.today, &b.today, today)?,
                    },
                );
            }
            let add = |a: u64, b: u64| a.checked_add(b);
            let alike = |(key, text): &(&String, &String)| b.labels.get(*key) == Some(*text);
            let header = Header {
                layer: a.layer.clone(),
                rules: releases(&rules),
                wakeup_latency_ns: a.wakeup_latency_ns,
                latency_unknown: add(a.latency_unknown, b.latency_unknown)?,
                recordings: add(a.recordings, b.recordings)?,
                episodes: add(a.episodes, b.episodes)?,
                idlers: a.idlers.max(b.idlers),
                span_ns: add(a.span_ns, b.span_ns)?,
                ended_unix_ns: a.ended_unix_ns.max(b.ended_unix_ns),
                resolution_ns: a.resolution_ns.max(b.resolution_ns),
                lost_events: add(a.lost_events, b.lost_events)?,
                lost_at_least: a.lost_at_least || b.lost_at_least,
                incomplete_episodes: add(a.incomplete_episodes, b.incomplete_episodes)?,
                labels: a.labels.iter().filter(alike).map(|(k, v)| (k.clone(), v.clone())).collect(),
            };
            Some(Sketch {
                name: self.name.clone().min(other.name.clone()),
                layer: self.layer,
                header,
                rules,
                lengths: joined(&self.lengths, &other.lengths, Bin::plus)?,
                cut_short: joined(&self.cut_short, &other.cut_short, Bin::plus)?,
            })
        };
        merged().ok_or_else(|| cannot("their sums have more than 64 bits".to_owned()))
    }
}

/// The release of each rule, as the header has it.
fn releases(rules: &BTreeMap<&'static str, RuleCosts>) -> BTreeMap<String, String> {
    rules.iter().map(|(layer, rule)| ((*layer).to_owned(), rule.version.to_string())).collect()
}

/// `number` times `factor` over `divisor`, in parts so that it fits.
fn mul_div(number: u128, factor: u128, divisor: u128) -> u128 {
    let divisor = divisor.max(1);
    (number / divisor) * factor + (number % divisor) * factor / divisor
}

fn joined<K: Ord + Clone, V: Copy>(
    a: &BTreeMap<K, V>,
    b: &BTreeMap<K, V>,
    plus: impl Fn(V, V) -> Option<V>,
) -> Option<BTreeMap<K, V>> {
    let mut all = a.clone();
    for (key, value) in b {
        let sum = match all.get(key) {
            Some(there) => plus(*there, *value)?,
            None => *value,
        };
        all.insert(key.clone(), sum);
    }
    Some(all)
}

/// What a class can be named after.
fn labels(metadata: &Metadata) -> BTreeMap<String, String> {
    let known = ["kernel", "qemu", "cpu_model", "machine"].into_iter().map(str::to_owned);
    let other = metadata.other.iter().filter(|(_, value)| !value.is_object() && !value.is_array());
    let keys = known.chain(other.map(|(key, _)| key.clone()));
    keys.filter_map(|key| Some((key.clone(), label_of(metadata, &key)?))).collect()
}

/// The columns of the file. `part` is `setting`, `today`, `length` or `cut_short`, and decides which others have a
/// value.
pub const FIELDS: [Field; 8] = [
    field("part", Kind::Text, true),
    field("layer", Kind::Text, false),
    field("setting", Kind::Text, false),
    field("halts", Kind::Unsigned, false),
    field("polled_ns", Kind::Unsigned, false),
    field("up_to_ns", Kind::Unsigned, false),
    field("episodes", Kind::Unsigned, false),
    field("sum_ns", Kind::Unsigned, false),
];

/// A row of the file.
#[derive(Clone, Copy, Default)]
struct Line<'a> {
    part: &'static str,
    layer: Option<&'a str>,
    setting: Option<&'a str>,
    numbers: [Option<u64>; 5],
}

impl Sketch {
    fn lines(&self) -> Vec<Line<'_>> {
        let mut lines = vec![];
        for (layer, rule) in &self.rules {
            let of = |part, did: &Did, episodes| Line {
                part,
                layer: Some(*layer),
                setting: None,
                numbers: [Some(did.halts), Some(did.polled_ns), None, episodes, None],
            };
            for (setting, did) in &rule.settings {
                lines.push(Line { setting: Some(setting), ..of("setting", did, None) });
            }
            for (setting, (did, episodes)) in &rule.today {
                lines.push(Line { setting: Some(setting), ..of("today", did, Some(*episodes)) });
            }
        }
        for (part, bins) in [("length", &self.lengths), ("cut_short", &self.cut_short)] {
            for (up_to, bin) in bins {
                let numbers = [None, None, Some(*up_to), Some(bin.episodes), Some(bin.sum_ns)];
                lines.push(Line { part, numbers, ..Line::default() });
            }
        }
        lines
    }

    /// Writes it as Parquet: its metadata `dwell.format` is [`SKETCH_FORMAT`].
    ///
    /// # Errors
    /// What writing fails with.
    pub fn write<W: Write + Send>(&self, out: W) -> Result<W, TableError> {
        let created_by = concat!("dwell-fleet ", env!("CARGO_PKG_VERSION"));
        let mut table = TableWriter::new(out, "sketch", &FIELDS, 9, created_by)?;
        let lines = self.lines();
        table.row_group(
            &lines,
            [
                &|line| Some(line.part.into()),
                &|line| line.layer.map(Value::from),
                &|line| line.setting.map(Value::from),
                &|line| line.numbers[0].map(Value::from),
                &|line| line.numbers[1].map(Value::from),
                &|line| line.numbers[2].map(Value::from),
                &|line| line.numbers[3].map(Value::from),
                &|line| line.numbers[4].map(Value::from),
            ],
        )?;
        table.metadata(FORMAT_KEY, SKETCH_FORMAT.to_owned());
        table.metadata(HEADER_KEY, serde_json::json!(self.header).to_string());
        table.finish()
    }

    /// Reads a sketch from a file.
    ///
    /// # Errors
    /// [`SketchError`] where it is none, or contradicts itself.
    pub fn open(path: &Path) -> Result<Sketch, SketchError> {
        Sketch::read(&TableReader::open(path)?)
    }

    /// The same from memory; errors call it by `name`.
    ///
    /// # Errors
    /// [`SketchError`] where it is none, or contradicts itself.
    pub fn from_bytes(name: &str, bytes: Vec<u8>) -> Result<Sketch, SketchError> {
        Sketch::read(&TableReader::from_bytes(name, bytes)?)
    }

    fn read(table: &TableReader) -> Result<Sketch, SketchError> {
        let name = table.path().display().to_string();
        let format = table.text(FORMAT_KEY)?;
        if format != SKETCH_FORMAT {
            let (path, found) = (table.path().to_owned(), format.to_owned());
            return Err(OpenError::UnknownFormat { path, found }.into());
        }
        let header: Header = table.json(HEADER_KEY)?;
        let cells = table.read(&FIELDS, MOST_ROWS)?;
        let parsed = Sketch::parse(name.clone(), header, &cells);
        parsed.map_err(|what| SketchError::Damaged { name, what })
    }

    fn parse(name: String, header: Header, cells: &[Cells]) -> Result<Sketch, String> {
        let layer_of = |text: &str| {
            Layer::from_name(text).ok_or_else(|| format!("`{}` is no layer", text.escape_debug()))
        };
        let layer = layer_of(&header.layer)?;
        let mut rules: BTreeMap<&'static str, RuleCosts> = BTreeMap::new();
        for (text, version) in &header.rules {
            let version = Version::parse(version)
                .ok_or_else(|| format!("`{}` is no release", version.escape_debug()))?;
            let (settings, today) = (BTreeMap::new(), BTreeMap::new());
            rules.insert(layer_of(text)?.name(), RuleCosts { version, settings, today });
        }
        let (mut lengths, mut cut_short) = (BTreeMap::new(), BTreeMap::new());
        for row in 0..cells[0].rows() {
            let text =
                |at: usize| cells[at].text(row).ok_or_else(|| format!("row {row}: no `{}`", FIELDS[at].name));
            let number = |at: usize| {
                cells[at].number(row).ok_or_else(|| format!("row {row}: no `{}`", FIELDS[at].name))
            };
            let new = match text(0)? {
                part @ ("setting" | "today") => {
                    let rule = rules
                        .get_mut(text(1)?)
                        .ok_or_else(|| format!("row {row}: a rule without a release"))?;
                    let did = Did { halts: number(3)?, polled_ns: number(4)? };
                    let setting = text(2)?.to_owned();
                    match part {
                        "setting" => rule.settings.insert(setting, did).is_none(),
                        _ => rule.today.insert(setting, (did, number(6)?)).is_none(),
                    }
                }
                part @ ("length" | "cut_short") => {
                    let bins = if part == "length" { &mut lengths } else { &mut cut_short };
                    bins.insert(number(5)?, Bin { episodes: number(6)?, sum_ns: number(7)? }).is_none()
                }
                // Idle times by the one before: sketches of 0.1.0 have them, and nothing is computed from them.
                "pair" => true,
                other => return Err(format!("row {row}: `{}` is no part of a sketch", other.escape_debug())),
            };
            if !new {
                return Err(format!("row {row} is there twice"));
            }
        }
        let sketch = Sketch { name, layer, header, rules, lengths, cut_short };
        sketch.check()?;
        Ok(sketch)
    }

    /// Compares its parts with each other.
    fn check(&self) -> Result<(), String> {
        let both = || self.lengths.iter().chain(&self.cut_short);
        for (&up_to, bin) in both() {
            let Ok(at) = EDGES.binary_search(&up_to) else {
                return Err(format!("no bin ends at {up_to} ns"));
            };
            let from = if at == 0 { 0 } else { EDGES[at - 1].saturating_add(1) };
            let (number, sum) = (u128::from(bin.episodes), u128::from(bin.sum_ns));
            if sum < number * u128::from(from) || sum > number * u128::from(up_to) {
                return Err(format!("the idle times of the bin up to {up_to} ns cannot add up to {sum} ns"));
            }
        }
        let episodes: u128 = both().map(|(_, bin)| u128::from(bin.episodes)).sum();
        if episodes != u128::from(self.header.episodes) {
            return Err(format!("{episodes} episodes are in bins, and there are {}", self.header.episodes));
        }
        for (layer, rule) in &self.rules {
            let all = rule.settings.values().chain(rule.today.values().map(|(did, _)| did));
            if let Some(did) = all.clone().find(|did| did.halts > self.header.episodes) {
                return Err(format!("{} halts of the {layer} rule in {episodes} episodes", did.halts));
            }
        }
        let idle_ns: u128 = both().map(|(_, bin)| u128::from(bin.sum_ns)).sum();
        let Header { idlers, span_ns, resolution_ns, episodes, recordings, .. } = self.header;
        possible(idle_ns, idlers, span_ns, resolution_ns, episodes, recordings)
            .map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Fineness, Question};
    use dwell_recording::{Episode, Packing, Writer};
    use dwell_stats::SplitMix64;
    use dwell_testing::say;
    use proptest::prelude::*;

    fn recordings() -> std::path::PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../recordings")
    }

    /// A recording of two idlers of a host; one in eight idle times is cut short by another task.
    fn recording(seed: u64, episodes: u64) -> Vec<u8> {
        let mut random = SplitMix64::new(seed);
        let mut metadata = Metadata::new(Layer::Host);
        metadata.other.insert("tenant".to_owned(), ["blue", "red"][(seed % 2) as usize].into());
        metadata.other.insert("rack".to_owned(), 7.into());
        let mut writer = Writer::new(vec![], metadata, Packing::default()).unwrap();
        let mut now = [0, 500];
        for _ in 0..episodes {
            let idler = usize::from(random.below(2) == 1);
            let idle_ns = 1 << random.below(24) | random.below(1 << 10);
            let mut episode = Episode::new(["a", "b"][idler], now[idler], idle_ns);
            episode.alone_ns = (random.below(8) == 0).then_some(idle_ns / 3);
            writer.push(&episode).unwrap();
            now[idler] += idle_ns + 1_000;
        }
        writer.close().unwrap().1
    }

    fn sketch(seed: u64, episodes: u64) -> Sketch {
        let reader = Reader::from_bytes("r", recording(seed, episodes)).unwrap();
        Sketch::of(reader, Versions::NEWEST, None).unwrap()
    }

    fn again(sketch: &Sketch) -> Sketch {
        let bytes = sketch.write(vec![]).unwrap();
        Sketch::from_bytes(&sketch.name, bytes).unwrap()
    }

    fn question(halt_cost: u64) -> Question {
        Question {
            label: Some("tenant".to_owned()),
            ..Question::new(Layer::Host, Versions::NEWEST.kernel, Nanos(halt_cost), Fineness::Coarse)
        }
    }

    #[test]
    fn a_sketch_written_and_read_is_the_same() {
        let sketch = sketch(3, 2_000);
        assert_eq!(again(&sketch), sketch);
        assert!(sketch.cut_short() > 100 && sketch.lengths.len() > 50);
        assert_eq!(
            (sketch.header.recordings, sketch.header.lost_events, sketch.header.lost_at_least),
            (1, 0, true)
        );
    }

    #[test]
    fn costs_of_a_sketch_are_those_of_the_recording() {
        let sketch = again(&sketch(4, 3_000));
        for halt_cost in [5_000, 20_000, 33_333, 1_000_000] {
            let exact =
                question(halt_cost).costs(Reader::from_bytes("r", recording(4, 3_000)).unwrap()).unwrap();
            let found = question(halt_cost).costs(sketch.clone()).unwrap();
            let (optimum, bound) = sketch.optimum_ns(Nanos(halt_cost));
            assert_eq!(u128::from(found.optimum_ns), optimum);
            assert!(optimum >= u128::from(exact.optimum_ns));
            assert!(
                optimum - bound <= u128::from(exact.optimum_ns),
                "{optimum} {bound} {}",
                exact.optimum_ns
            );
            assert!(found.optimum_ns as f64 <= exact.optimum_ns as f64 * (1.0 + OPTIMUM_ERROR));
            assert_eq!(is_edge(Nanos(halt_cost)), bound == 0, "{halt_cost}");
            assert!(found.of_sketch && !found.today_changed);
            let found =
                crate::Costs { optimum_ns: exact.optimum_ns, first: exact.first, of_sketch: false, ..found };
            assert_eq!(found, exact);
        }
    }

    #[test]
    fn a_merged_sketch_costs_what_its_parts_cost() {
        let parts = [sketch(1, 500), sketch(3, 700)];
        let mut dated = parts[0].clone();
        dated.header.ended_unix_ns = Some(5);
        let merged = dated.merge(&parts[1]).unwrap();
        assert_eq!((merged.header.ended_unix_ns, parts[1].header.ended_unix_ns), (Some(5), None));
        let cost = |sketch: &Sketch| question(20_000).costs(sketch.clone()).unwrap();
        let [whole, a, b] = [&merged, &parts[0], &parts[1]].map(cost);
        assert!((0..whole.cost_ns.len()).all(|at| whole.cost_ns[at] == a.cost_ns[at] + b.cost_ns[at]));
        assert_eq!((whole.episodes, whole.today_ns), (a.episodes + b.episodes, a.today_ns + b.today_ns));
        assert_eq!(whole.class.as_deref(), Some("red"));
        let other = parts[0].merge(&sketch(2, 10)).unwrap();
        assert_eq!((cost(&other).class, other.header.labels["rack"].as_str()), (None, "7"));
    }

    #[test]
    fn what_is_not_in_a_sketch_is_refused_by_name() {
        let sketch = sketch(1, 200);
        let error = |question: Question| question.costs(sketch.clone()).unwrap_err().to_string();
        let new = |layer, version, fineness| Question::new(layer, version, Nanos(20_000), fineness);
        let newest = Versions::NEWEST.kernel;
        assert!(error(new(Layer::Host, newest, Fineness::Fine)).contains("does not have the setting"));
        assert!(error(new(Layer::Guest, newest, Fineness::Coarse)).contains("the rule of guest 7.3"));
        assert!(error(new(Layer::Host, Version::new(5, 4), Fineness::Coarse)).contains("host 5.4"));
        assert!(
            error(Question { wakeup_latency: Some(Nanos(7)), ..question(20_000) })
                .contains("7 ns is asked for")
        );
        // A release with the same rule.
        let same = new(Layer::Host, Version::new(6, 18), Fineness::Coarse);
        assert!(same.costs(sketch.clone()).is_ok());
        let guest = Reader::open(&recordings().join("guest-redis_c1.parquet")).unwrap();
        let guest = Sketch::of(guest, Versions::NEWEST, None).unwrap();
        let error = sketch.merge(&guest).unwrap_err().to_string();
        assert!(error.contains("guest-redis_c1.parquet") && error.contains("host and guest"), "{error}");
    }

    #[test]
    fn sketches_that_contradict_themselves_are_refused() {
        let good = sketch(1, 200);
        let refused = |change: &dyn Fn(&mut Sketch)| {
            let mut bad = good.clone();
            change(&mut bad);
            Sketch::from_bytes("bad", bad.write(vec![]).unwrap()).unwrap_err().to_string()
        };
        assert!(refused(&|bad| bad.header.episodes += 1).contains("are in bins"));
        assert!(refused(&|bad| bad.header.span_ns = 1).contains("add up to"));
        assert!(refused(&|bad| bad.header.span_ns = u64::MAX).contains("more than a year"));
        assert!(refused(&|bad| bad.header.layer = "attic".to_owned()).contains("no layer"));
        let long = Bin { episodes: 1, sum_ns: 1 };
        assert!(refused(&|bad| _ = bad.lengths.insert(EDGES[90], long)).contains("cannot add up"));
        assert!(refused(&|bad| _ = bad.lengths.insert(EDGES[90] + 1, long)).contains("no bin ends"));
        // A year is the limit of one recording, and not of 400 that were merged.
        let mut merged = good.clone();
        merged.header.span_ns = 400 * 86_400_000_000_000;
        assert!(refused(&|bad| *bad = merged.clone()).contains("more than a year"));
        merged.header.recordings = 400;
        assert!(Sketch::from_bytes("merged", merged.write(vec![]).unwrap()).is_ok());
        let rule = |bad: &mut Sketch| {
            bad.rules.get_mut("host").unwrap().settings.values_mut().next().unwrap().halts = 999
        };
        assert!(refused(&rule).contains("999 halts"));
    }

    /// The bound that is stated: no error for the settings, and for the optimum that of its bin.
    #[test]
    fn all_bundled_recordings_are_exact_for_more_than_a_thousand_settings() {
        let (mut settings, mut files, mut bytes, mut optimum_error) = (0, 0, 0, 0.0f64);
        let mut paths: Vec<_> =
            std::fs::read_dir(recordings()).unwrap().map(|entry| entry.unwrap().path()).collect();
        paths.retain(|path| path.extension().is_some_and(|extension| extension == "parquet"));
        for path in &paths {
            let sketch = Sketch::of(Reader::open(path).unwrap(), Versions::NEWEST, None).unwrap();
            let written = sketch.write(vec![]).unwrap();
            bytes = bytes.max(written.len());
            let sketch = Sketch::from_bytes("s", written).unwrap();
            let mut of_file = 0;
            for &layer in rules_of(sketch.layer()) {
                for halt_cost in [20_000, 33_333] {
                    let version = Versions::NEWEST.of(layer);
                    let question = Question::new(layer, version, Nanos(halt_cost), Fineness::Coarse);
                    let exact = question.costs(Reader::open(path).unwrap()).unwrap();
                    let found = question.costs(sketch.clone()).unwrap();
                    assert_eq!(
                        (&found.cost_ns, found.today_ns),
                        (&exact.cost_ns, exact.today_ns),
                        "{path:?}"
                    );
                    let error = found.optimum_ns as f64 / exact.optimum_ns as f64 - 1.0;
                    assert!((0.0..=OPTIMUM_ERROR).contains(&error), "{path:?} {error}");
                    optimum_error = optimum_error.max(error);
                    if halt_cost == 20_000 {
                        of_file += found.cost_ns.len();
                    }
                }
            }
            files += 1;
            settings = settings.max(of_file);
        }
        say!(
            "{files} recordings, up to {settings} settings: error 0; optimum at most {optimum_error:.5} too high; at most {bytes} bytes"
        );
        assert!(files >= 13 && settings >= 1_000, "{files} {settings}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn merging_is_associative_and_commutative(seeds in prop::array::uniform3((0u64..6, 1u64..60))) {
            let [a, b, c] = seeds.map(|(seed, episodes)| sketch(seed, episodes));
            prop_assert_eq!(a.merge(&b).unwrap(), b.merge(&a).unwrap());
            prop_assert_eq!(a.merge(&b).unwrap().merge(&c).unwrap(), a.merge(&b.merge(&c).unwrap()).unwrap());
        }
    }
}
