//! Map: one recording through every setting.

use crate::alike::{FIRST, FirstLengths};
use crate::sketch::{Did, Input, Sketch, SketchError};
use dwell_policy::param::Setting;
use dwell_policy::version::Version;
use dwell_policy::{Layer, Nanos};
use dwell_recording::{LONGEST_TIME_NS, OpenError, ReadError, Reader};
use dwell_replay::check::{self, self_check};
use dwell_replay::number::{duration, number_of};
use dwell_replay::{
    Batch, Counts, RecordingSource, ReplayError, Replayed, Rule, Source, Values, grid, longest_idle_ns,
    replay_and_see,
};

/// What is asked of every recording.
#[derive(Clone, Debug)]
pub struct Question {
    pub layer: Layer,
    pub version: Version,
    pub halt_cost: Nanos,
    /// That of all halts, in place of those of the recordings, see [`dwell_replay::latency`].
    pub wakeup_latency: Option<Nanos>,
    /// With the longest wakeup latency that may be ([`RecordingSource::upper_latency`]) for recordings of which none is
    /// known. Sketches have no other end: what they have is without it.
    pub at_other_end: bool,
    /// The class of a recording is this of its metadata: `kernel`, `qemu`, `cpu_model`, `machine`, or a key that whoever
    /// recorded added.
    pub label: Option<String>,
    /// In the order of [`Costs::cost_ns`].
    pub settings: Vec<Setting>,
}

dwell_policy::named! {
    /// How many settings of a rule are tried.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum Fineness {
        /// Several hundred, as [`grid::coarse`].
        #[default]
        Coarse = "coarse",
        /// All that `dwell tune` tries, as [`grid::settings`].
        Fine = "fine",
    }

    pub fn name
}

impl Fineness {
    /// The settings of a layer's rule in a version; the first is "do not poll".
    pub fn settings(self, layer: Layer, version: Version) -> Vec<Setting> {
        match self {
            Fineness::Coarse => grid::coarse(layer, version),
            Fineness::Fine => grid::settings(layer, version),
        }
    }
}

/// What every setting would have cost one recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Costs {
    /// Of which layer the idle times are; the rule that is replayed may be another layer's.
    pub layer: Layer,
    /// Value of the label that was asked for, where the recording has it.
    pub class: Option<String>,
    pub episodes: u64,
    pub idlers: u64,
    /// The time recorded, else from the first start of an episode to the last end \[ns\].
    pub span_ns: u64,
    /// When it ended, of several the last one, by the time of day \[ns since 1970\]; `None`: not known.
    pub ended_unix_ns: Option<i64>,
    /// What the offline optimum costs \[ns\].
    pub optimum_ns: u64,
    /// What the setting in force costs \[ns\]; of a recording without it, the default of the version.
    pub today_ns: u64,
    /// The setting in force; `None` where the recording does not have it for this layer.
    pub today: Option<Values>,
    /// Whether the wakeup latency of its halts is known; else its rules learned from idle times alone.
    pub latency_known: bool,
    /// Whether it is a sketch, which cannot be replayed with another wakeup latency.
    pub of_sketch: bool,
    /// Whether it is a sketch of recordings under several settings: `today` is that of most episodes, and which of them is
    /// the newest is not known.
    pub today_changed: bool,
    /// The first idle times, which tell VMs apart that have no class; `None` where they are not known.
    pub first: Option<FirstLengths>,
    /// What each setting of the question costs, in its order \[ns\]: polling CPU plus halts at their cost.
    pub cost_ns: Vec<u64>,
}

/// Why a recording does not count.
#[derive(Debug, thiserror::Error)]
pub enum Unusable {
    /// It cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// It cannot be read to its end.
    #[error(transparent)]
    Read(#[from] ReplayError),
    /// It has no episodes.
    #[error("it has no episodes")]
    NoEpisodes,
    /// Its idle times were not measured.
    #[error("it has only lower bounds of idle times")]
    LeastLengths,
    /// The time recorded cannot be.
    #[error(
        "absurd: it claims {} from its first start to its last end, which is more than a year",
        duration(*.span_ns as f64)
    )]
    TooLong { span_ns: u64 },
    /// Idlers cannot idle longer than they were recorded.
    #[error(
        "absurd: its idle times add up to {}, and it has {} recorded for {} each",
        duration(*.idle_ns as f64),
        number_of((*.idlers).into(), "idler"),
        duration(*.span_ns as f64)
    )]
    TooIdle {
        /// The sum of all idle times.
        idle_ns: u128,
        idlers: u64,
        span_ns: u64,
    },
    /// A cost has more than 63 bits.
    #[error("absurd: a setting would have cost {cost_ns} ns")]
    TooExpensive { cost_ns: u128 },
    /// The setting in force does not give what was recorded.
    #[error("the self-check fails: {0}")]
    SelfCheck(String),
    /// A sketch cannot be used.
    #[error(transparent)]
    Sketch(#[from] SketchError),
}

impl From<ReadError> for Unusable {
    fn from(error: ReadError) -> Unusable {
        Unusable::Read(error.into())
    }
}

impl Question {
    /// About the settings of a layer's rule in a version, at this halt cost.
    pub fn new(layer: Layer, version: Version, halt_cost: Nanos, fineness: Fineness) -> Question {
        let settings = fineness.settings(layer, version);
        Question {
            layer,
            version,
            halt_cost,
            wakeup_latency: None,
            at_other_end: false,
            label: None,
            settings,
        }
    }

    /// The default of the version.
    pub fn default_setting(&self) -> Setting {
        Setting::defaults(self.layer, self.version)
    }

    /// What every setting would have cost a recording, or what its sketch has of it.
    ///
    /// # Errors
    /// [`Unusable`] for a recording that cannot be read, has nothing to replay, contradicts itself, or is
    /// absurd, and for a sketch that does not have these settings.
    pub fn costs(&self, input: impl Into<Input>) -> Result<Costs, Unusable> {
        match input.into() {
            Input::Recording(reader) => self.costs_of_recording(*reader),
            Input::Sketch(sketch) => self.costs_of_sketch(&sketch),
        }
    }

    fn costs_of_recording(&self, reader: Reader) -> Result<Costs, Unusable> {
        let metadata = reader.metadata();
        let layer = metadata.layer;
        let class = self.label.as_deref().and_then(|label| label_of(metadata, label));
        let ended_unix_ns = metadata.ended_unix_ns();
        let today = check::in_force(self.layer, self.version, metadata);
        let mut usable = Usable::new(reader, self.layer == Layer::Iothread, self.wakeup_latency)?;
        let latency_known = usable.source.knows_latency()?;
        if self.at_other_end && !latency_known {
            let upper = usable.source.upper_latency()?;
            usable.source = usable.source.at_latency(upper);
        }
        let present = today.unwrap_or_else(|| self.default_setting());
        let rules: Vec<Rule> = self.settings.iter().copied().chain([present]).map(Rule::Layer).collect();
        let mut first = First::new(usable.idlers());
        let Replayed { counts, optimum, .. } =
            replay_and_see(&usable.source, &rules, self.halt_cost, &mut |batch| first.see(batch))?;
        let (idlers, span_ns) = (usable.idlers(), usable.span_ns);
        possible(optimum.idle_ns, idlers, span_ns, usable.resolution_ns, optimum.episodes, 1)?;
        let cost = |counts: &Counts| fits(counts.cost_ns(self.halt_cost));
        let mut cost_ns = counts.iter().map(cost).collect::<Result<Vec<u64>, _>>()?;
        let today_ns = cost_ns.pop().unwrap_or(0);
        let (episodes, optimum_ns) = (optimum.episodes, cost(&optimum)?);

        let today = today.as_ref().map(Values::from);
        let first = Some(first.found);
        Ok(Costs {
            layer,
            class,
            episodes,
            idlers,
            span_ns,
            ended_unix_ns,
            optimum_ns,
            today_ns,
            today,
            latency_known,
            of_sketch: false,
            today_changed: false,
            first,
            cost_ns,
        })
    }

    fn costs_of_sketch(&self, sketch: &Sketch) -> Result<Costs, Unusable> {
        sketch.fits(self.layer, self.version, self.wakeup_latency)?;
        let cost = |did: &Did| fits(did.cost_ns(self.halt_cost));
        let of_setting = |setting: &Setting| cost(sketch.did(self.layer, setting)?);
        let cost_ns = self.settings.iter().map(of_setting).collect::<Result<Vec<u64>, _>>()?;
        let (today, did) = sketch.today(self.layer)?;
        let today = today
            .map(|text| text.parse())
            .transpose()
            .map_err(|_| SketchError::damaged(sketch, "a setting in force cannot be read"))?;
        let header = sketch.header();
        Ok(Costs {
            layer: sketch.layer(),
            class: self.label.as_ref().and_then(|label| header.labels.get(label)).cloned(),
            episodes: header.episodes,
            idlers: header.idlers,
            span_ns: header.span_ns,
            ended_unix_ns: header.ended_unix_ns,
            optimum_ns: fits(sketch.optimum_ns(self.halt_cost).0)?,
            today_ns: cost(&did)?,
            today,
            latency_known: header.latency_unknown == 0,
            of_sketch: true,
            today_changed: sketch.today_changed(self.layer),
            first: Some(sketch.first_lengths()),
            cost_ns,
        })
    }
}

/// The first idle times, as they pass by.
struct First {
    /// How many are counted of each idler.
    most: u64,
    seen: Vec<u64>,
    found: FirstLengths,
}

impl First {
    fn new(idlers: u64) -> First {
        First { most: FIRST.div_ceil(idlers.max(1)), seen: vec![], found: FirstLengths::default() }
    }

    fn see(&mut self, batch: &Batch) {
        for run in batch.runs() {
            if self.seen.len() <= run.idler {
                self.seen.resize(run.idler + 1, 0);
            }
            let seen = &mut self.seen[run.idler];
            for &idle_ns in &run.idle_ns {
                if *seen >= self.most {
                    break;
                }
                *seen += 1;
                self.found.add(idle_ns, 1);
            }
        }
    }
}

/// A recording that can be replayed.
pub(crate) struct Usable {
    pub(crate) source: RecordingSource,
    pub(crate) span_ns: u64,
    pub(crate) resolution_ns: u64,
}

impl Usable {
    /// Refuses one that has nothing to replay, contradicts itself, or is absurd as far as its metadata shows.
    pub(crate) fn new(
        reader: Reader,
        with_handlers: bool,
        wakeup_latency: Option<Nanos>,
    ) -> Result<Usable, Unusable> {
        let metadata = reader.metadata();
        if reader.episodes() == 0 {
            return Err(Unusable::NoEpisodes);
        }
        if metadata.has_least_lengths() {
            return Err(Unusable::LeastLengths);
        }
        let span_ns = reader.span_ns();
        if span_ns > LONGEST_TIME_NS {
            return Err(Unusable::TooLong { span_ns });
        }
        let resolution_ns = metadata.resolution_ns.unwrap_or(0);
        let source = RecordingSource::new(reader, with_handlers).with_latency(wakeup_latency, None);
        let checked = self_check(&source)?;
        if checked.contradicts() {
            return Err(Unusable::SelfCheck(checked.to_string()));
        }
        let source = source.with_poll_pass(checked.poll_pass());
        Ok(Usable { source, span_ns, resolution_ns })
    }

    pub(crate) fn idlers(&self) -> u64 {
        self.source.idlers() as u64
    }
}

/// Refuses idle times that add up to more than the time recorded, in one recording or in several together.
pub(crate) fn possible(
    idle_ns: u128,
    idlers: u64,
    span_ns: u64,
    resolution_ns: u64,
    episodes: u64,
    recordings: u64,
) -> Result<(), Unusable> {
    if u128::from(span_ns) > u128::from(LONGEST_TIME_NS) * u128::from(recordings.max(1)) {
        return Err(Unusable::TooLong { span_ns });
    }
    if idle_ns > longest_idle_ns(span_ns, idlers, resolution_ns, episodes) {
        Err(Unusable::TooIdle { idle_ns, idlers, span_ns })
    } else {
        Ok(())
    }
}

/// A cost in 63 bits, so that any engine has a type for it.
pub(crate) fn fits(cost_ns: u128) -> Result<u64, Unusable> {
    let signed = i64::try_from(cost_ns).map(i64::cast_unsigned);
    signed.map_err(|_| Unusable::TooExpensive { cost_ns })
}

/// The value of a label in the metadata of a recording.
pub(crate) fn label_of(metadata: &dwell_recording::Metadata, label: &str) -> Option<String> {
    match label {
        "kernel" => metadata.kernel.clone(),
        "qemu" => metadata.qemu.clone(),
        "cpu_model" => metadata.cpu_model.clone(),
        "machine" => metadata.machine.clone(),
        _ => match metadata.other.get(label)? {
            serde_json::Value::String(text) => Some(text.clone()),
            other => Some(other.to_string()),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dwell_policy::version::NEWEST_KERNEL;
    use dwell_recording::{Episode, Metadata, Packing, TimeRecorded, Writer};
    use std::path::Path;

    fn question() -> Question {
        Question::new(Layer::Host, NEWEST_KERNEL, Nanos(20_000), Fineness::Coarse)
    }

    /// A recording of one idler, of starts and lengths.
    fn recording(episodes: &[(u64, u64)], edit: impl Fn(&mut Metadata)) -> Reader {
        let mut metadata = Metadata::new(Layer::Host);
        edit(&mut metadata);
        let mut writer = Writer::new(vec![], metadata, Packing::default()).unwrap();
        for &(start_ns, idle_ns) in episodes {
            writer.push(&Episode::new("vcpu0", start_ns, idle_ns)).unwrap();
        }
        Reader::from_bytes("test", writer.close().unwrap().1).unwrap()
    }

    #[test]
    fn costs_are_those_of_the_scalar_replay() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../recordings");
        let path = folder.join("guest-redis_c1.parquet");
        let question = question();
        let costs = question.costs(Reader::open(&path).unwrap()).unwrap();
        let source = RecordingSource::new(Reader::open(&path).unwrap(), false);
        let some = [0, 1, 2, 100, question.settings.len() - 1];
        let rules: Vec<Rule> = some.iter().map(|&at| Rule::Layer(question.settings[at])).collect();
        let mut bank = dwell_replay::Bank::scalar(&rules, 0).unwrap();
        source.visit(0..u64::MAX, &mut |batch| bank.feed(batch)).unwrap();
        for (at, counts) in some.into_iter().zip(bank.take()) {
            assert_eq!(u128::from(costs.cost_ns[at]), counts.cost_ns(Nanos(20_000)), "setting {at}");
        }
        assert_eq!(costs.cost_ns.len(), question.settings.len());
        assert!(costs.cost_ns.iter().all(|&cost| cost >= costs.optimum_ns));
    }

    #[test]
    fn recordings_that_cannot_be_are_named() {
        let error = |reader| question().costs(reader).unwrap_err().to_string();
        assert_eq!(error(recording(&[], |_| {})), "it has no episodes");
        assert!(error(recording(&[(0, u64::MAX)], |_| {})).contains("more than a year"));
        let overlapping = error(recording(&[(0, 5_000), (1_000, 5_000)], |_| {}));
        assert!(overlapping.contains("cannot idle for 10.0 us in the 6.00 us"), "{overlapping}");
        let wide = recording(&[(0, 5_000), (5_000, 5_000)], |metadata| {
            metadata.recorded = Some(TimeRecorded { start_ns: 0, end_ns: LONGEST_TIME_NS + 1 });
        });
        assert!(error(wide).contains("more than a year"));
        let least = |metadata: &mut Metadata| {
            metadata.other.insert(dwell_recording::LEAST_LENGTHS.to_owned(), true.into());
        };
        assert!(error(recording(&[(0, 5_000)], least)).contains("lower bounds"));
        let free = Question::new(Layer::Host, NEWEST_KERNEL, Nanos(u64::MAX), Fineness::Coarse);
        let costs = free.costs(recording(&[(0, 5_000)], |_| {}));
        assert!(matches!(costs, Err(Unusable::TooExpensive { .. })), "{costs:?}");
    }

    #[test]
    fn labels_are_keys_of_the_metadata() {
        let labelled = |metadata: &mut Metadata| {
            metadata.kernel = Some("6.18.1".to_owned());
            metadata.other.insert("tenant".to_owned(), "blue".into());
            metadata.other.insert("shelf".to_owned(), 7.into());
        };
        let class = |label: &str| {
            let question = Question { label: Some(label.to_owned()), ..question() };
            question.costs(recording(&[(0, 5_000)], labelled)).unwrap().class
        };
        assert_eq!(class("tenant").as_deref(), Some("blue"));
        assert_eq!(class("shelf").as_deref(), Some("7"));
        assert_eq!(class("kernel").as_deref(), Some("6.18.1"));
        assert_eq!(class("nothing"), None);
    }
}
