//! What is seen of the idlers of a machine, period by period.

use super::bursts::Bursts;
use super::iothread::{IothreadSource, Look, Trouble};
use super::metrics::cpu_time;
use super::tenants::{Found as FoundVm, Tenants, Vm};
use anyhow::Context;
use dwell_capture::kvm_stats::{Counters, Snapshot, SourceError, StatsReader, VmId};
use dwell_capture::{GuestSource, Observer, Target};
use dwell_control::{Controller, Drawn, Episode, Histograms, Looks, Observed};
use dwell_knobs::lease::Lease;
use dwell_machine::{Machine, Sysroot};
use dwell_policy::{Layer, Nanos};
use dwell_replay::{Counts, Span};
use dwell_stats::SplitMix64;
use dwell_trace::pairing::PairedEpisode;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The lengths that are drawn of a period, of all VMs together.
const DRAWN: usize = 2048;
/// VMs that have started are searched for so often …
const SEARCH_EVERY: Duration = Duration::from_secs(5);
/// … unless a search takes more than one part in so many of that time …
const SEARCH_SHARE: u32 = 2_000;
/// … but at least so often; what a search takes beyond that share makes decisions rarer.
const SEARCH_AT_LEAST: Duration = Duration::from_secs(60);
/// What is counted below this share of a CPU is not recorded.
const LEAST_CPU: f64 = 0.001;

/// A source of what is seen.
pub(super) enum Source {
    /// KVM's statistics files.
    Host(Box<Host>),
    /// Counters of cpuidle or of dwell_idle, and bursts of the recorder.
    Guest(Box<Guest>),
    /// Bursts of the recorder of an I/O thread.
    Iothread(Box<IothreadSource>),
}

impl Source {
    /// Of a layer. Fails where the machine's CPUs idle and this process may not record them: a later burst would.
    pub(super) fn new(
        machine: &dyn Machine,
        layer: Layer,
        late: Nanos,
        burst: Nanos,
        halt_cost: Nanos,
        vms: &[Vm],
    ) -> anyhow::Result<Source> {
        if layer == Layer::Host {
            return Ok(Source::Host(Box::new(Host {
                late,
                this_machine: Sysroot::of_this_machine(),
                tenants: Tenants::new(vms.to_vec()),
                reader: None,
                search_at: None,
                searched: Duration::ZERO,
                last: None,
                looks: Looks::new(),
                drawn: BTreeMap::new(),
                random: SplitMix64::new(1),
            })));
        }
        let counters = if layer == Layer::Driver { Counted::DwellIdle } else { Counted::Cpuidle };
        if counters == Counted::DwellIdle {
            machine.read(DWELL_IDLE).with_context(|| {
                format!(
                    "cannot read the counters of dwell_idle in {DWELL_IDLE}; mount debugfs: mount -t debugfs debugfs \
                     /sys/kernel/debug"
                )
            })?;
        }
        let mut guest = Guest {
            burst: Duration::from_nanos(burst.get()),
            late: if counters == Counted::DwellIdle { late } else { Nanos::ZERO },
            halt_cost,
            counters,
            bursts: Bursts::of(Target::Guest { source: GuestSource::Auto }),
            last: None,
        };
        if counters.read(machine).values().any(|cpu| *cpu != Cpuidle::default()) {
            guest.bursts.open(&online(machine)).context(CANNOT_RECORD)?;
        }
        Ok(Source::Guest(Box::new(guest)))
    }

    /// The name of the VM that an idler is, where idlers are VMs.
    pub(super) fn vm_of(&self, idler: u64) -> Option<String> {
        self.has_vms().then(|| vm_id(idler).to_string())
    }

    /// What is known of a VM.
    pub(super) fn found(&self, idler: u64) -> FoundVm {
        match self {
            Source::Host(host) => host.tenants.found(vm_id(idler)),
            Source::Guest(_) | Source::Iothread(_) => FoundVm::default(),
        }
    }

    /// A VM as it is called in lines.
    pub(super) fn called(&self, idler: u64) -> String {
        match (self.vm_of(idler), self.found(idler).name) {
            (Some(id), Some(name)) => format!("{} ({id})", name.escape_debug()),
            (Some(id), None) => id,
            (None, _) => format!("idler {idler}"),
        }
    }

    /// Whether idlers are VMs, which come and go, and not CPUs.
    pub(super) fn has_vms(&self) -> bool {
        matches!(self, Source::Host(_))
    }

    /// Trace events lost so far.
    pub(super) fn lost(&self) -> u64 {
        match self {
            Source::Host(_) => 0,
            Source::Guest(guest) => guest.bursts.lost(),
            Source::Iothread(thread) => thread.lost(),
        }
    }

    /// Whether it takes time to observe: what does not count is then not observed.
    pub(super) const fn is_in_bursts(&self) -> bool {
        matches!(self, Source::Guest(_) | Source::Iothread(_))
    }

    /// What was seen since the last call. A source of bursts takes as long as a burst. Of an I/O thread the setting is changed for a
    /// burst, if there is a lease.
    pub(super) fn observe(
        &mut self,
        machine: &Sysroot,
        controller: &mut Controller,
        lease: Option<&mut Lease>,
        now_ns: u64,
    ) -> Result<Look, Trouble> {
        match self {
            Source::Host(host) => host.observe(now_ns).map(Look::Episodes).map_err(Trouble::Other),
            Source::Guest(guest) => guest.observe(machine).map(Look::Episodes).map_err(Trouble::Other),
            Source::Iothread(thread) => thread.observe(machine, controller, lease, now_ns),
        }
    }

    /// When to look between two decisions \[ns\], if ever.
    pub(super) fn next_look_ns(&self) -> Option<u64> {
        match self {
            Source::Host(host) if !host.drawn.is_empty() => Some(host.looks.next_ns()),
            _ => None,
        }
    }

    /// CPU time of searches for idlers since the last call, as far as these have a limit of their own.
    pub(super) fn take_searched(&mut self) -> Duration {
        match self {
            Source::Host(host) => std::mem::take(&mut host.searched),
            Source::Guest(_) | Source::Iothread(_) => Duration::ZERO,
        }
    }

    /// Looks.
    pub(super) fn look(&mut self, now_ns: u64) -> anyhow::Result<()> {
        match self {
            Source::Host(host) => host.look(now_ns),
            Source::Guest(_) | Source::Iothread(_) => Ok(()),
        }
    }

    /// Whether values are to be compared with those written: those of a QEMU are not at each decision.
    pub(super) fn is_to_be_checked(&mut self) -> bool {
        match self {
            Source::Host(_) | Source::Guest(_) => true,
            Source::Iothread(thread) => thread.is_to_be_checked(),
        }
    }
}

/// The VM that an idler is.
fn vm_id(idler: u64) -> VmId {
    let [pid, fd] = [idler >> 32, idler & u64::from(u32::MAX)].map(|half| u32::try_from(half).unwrap_or(0));
    VmId { pid, fd }
}

/// The VMs of a host.
pub(super) struct Host {
    late: Nanos,
    this_machine: Sysroot,
    tenants: Tenants,
    reader: Option<StatsReader>,
    /// When to search for VMs again.
    search_at: Option<Instant>,
    /// The same that was not asked for yet.
    searched: Duration,
    last: Option<Snapshot>,
    looks: Looks,
    drawn: BTreeMap<VmId, Drawn>,
    random: SplitMix64,
}

impl Host {
    fn observe(&mut self, now_ns: u64) -> anyhow::Result<Vec<Observed>> {
        self.look(now_ns)?;
        let Host { drawn, tenants, this_machine, .. } = self;
        let observed = drawn.iter_mut().map(|(id, drawn)| {
            let (counted, episodes) = drawn.take();
            let idler = u64::from(id.pid) << 32 | u64::from(id.fd);
            let tenant = tenants.find(this_machine, *id);
            Observed { tenant, ..Observed::drawn(idler, counted, episodes) }
        });
        Ok(observed.collect())
    }

    /// Takes in what was counted since the last look.
    fn look(&mut self, now_ns: u64) -> anyhow::Result<()> {
        if self.search_at.is_none_or(|at| at <= Instant::now()) {
            let before = cpu_time();
            self.tenants.forget();
            self.reader = match StatsReader::new(None) {
                Ok(reader) => Some(reader),
                Err(SourceError::NoVm | SourceError::LockedDown) => None,
                Err(error) => return Err(error.into()),
            };
            let took = cpu_time().saturating_sub(before);
            self.searched += took.min(SEARCH_AT_LEAST / SEARCH_SHARE);
            self.search_at = Some(Instant::now() + search_after(took));
        }
        let Some(reader) = &mut self.reader else {
            self.last = None;
            self.drawn.clear();
            self.looks.looked(now_ns, 0, 0);
            return Ok(());
        };
        let (now, _) = reader.snapshot();
        let Some(last) = self.last.replace(now.clone()) else { return Ok(()) };
        // A VM that was not there before has counted since its start.
        let mut delta = now.since(&last).vms;
        delta.retain(|id, counters| last.vms.contains_key(id) && histograms(counters).is_some());
        self.drawn.retain(|id, _| delta.contains_key(id));
        let most = DRAWN / delta.len().max(1);
        let mut episodes = 0u64;
        for (id, counters) in &delta {
            let Some(histograms) = histograms(counters) else { continue };
            episodes = episodes.saturating_add(histograms.episodes());
            let drawn = self.drawn.entry(*id).or_insert_with(|| Drawn::new(most));
            drawn.look(&histograms, self.late, &mut self.random);
        }
        self.looks.looked(now_ns, delta.len(), episodes);
        Ok(())
    }
}

/// When to search again after a search that took so long.
fn search_after(took: Duration) -> Duration {
    took.saturating_mul(SEARCH_SHARE).clamp(SEARCH_EVERY, SEARCH_AT_LEAST)
}

/// `None` without histograms: sums alone do not tell lengths.
pub(crate) fn histograms(counters: &Counters) -> Option<Histograms<'_>> {
    Some(Histograms {
        success: counters.halt_poll_success_hist.as_deref()?,
        fail: counters.halt_poll_fail_hist.as_deref()?,
        wait: counters.halt_wait_hist.as_deref()?,
        success_ns: counters.halt_poll_success_ns?,
        fail_ns: counters.halt_poll_fail_ns?,
    })
}

/// The CPUs of this machine, whose haltpoll governor or driver dwell_idle decides.
pub(super) struct Guest {
    burst: Duration,
    /// By how much a recorded length is too long where the CPU halted; of dwell_idle only, which says whether it did.
    late: Nanos,
    halt_cost: Nanos,
    counters: Counted,
    bursts: Bursts,
    /// The counters of cpuidle when they were last read, and when that was.
    last: Option<(Cpus, Instant)>,
}

/// What cpuidle has counted of all CPUs together, where haltpoll's driver is in use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CpuidleCounts {
    pub(crate) polled: Duration,
    pub(crate) halts: u64,
}

impl CpuidleCounts {
    /// Since boot.
    pub(crate) fn read(machine: &dyn Machine) -> CpuidleCounts {
        let all = cpus(machine);
        let sum = |of: fn(&Cpuidle) -> u64| all.values().map(of).fold(0, u64::saturating_add);
        CpuidleCounts { polled: Duration::from_nanos(sum(|cpu| cpu.polled_ns)), halts: sum(|cpu| cpu.halts) }
    }

    pub(crate) fn since(self, before: CpuidleCounts) -> CpuidleCounts {
        CpuidleCounts {
            polled: self.polled.saturating_sub(before.polled),
            halts: self.halts.saturating_sub(before.halts),
        }
    }
}

/// The counters of each CPU.
type Cpus = BTreeMap<u32, Cpuidle>;

/// The counters of cpuidle, of one CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Cpuidle {
    /// 0 where they are not counted, by cpuidle.
    episodes: u64,
    polls: u64,
    polled_ns: u64,
    halts: u64,
}

/// The counters that show what a CPU's idling did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Counted {
    /// Those of the states of cpuidle, under haltpoll's driver.
    Cpuidle,
    /// Those of dwell_idle, whose one state polls and halts.
    DwellIdle,
}

/// A line for each CPU, after one with the names.
const DWELL_IDLE: &str = "/sys/kernel/debug/dwell_idle/cpus";

impl Counted {
    fn read(self, machine: &dyn Machine) -> Cpus {
        match self {
            Counted::Cpuidle => cpus(machine),
            Counted::DwellIdle => dwell_idle(&machine.text(DWELL_IDLE).unwrap_or_default()),
        }
    }
}

fn dwell_idle(text: &str) -> Cpus {
    let mut lines = text.lines().map(|line| line.split_ascii_whitespace().collect::<Vec<_>>());
    let names = lines.next().unwrap_or_default();
    let of = |line: Vec<&str>| {
        let number = |name: &str| line.get(names.iter().position(|one| *one == name)?)?.parse::<u64>().ok();
        let sum = |a: &str, b: &str| number(a)?.checked_add(number(b)?);
        let cpu = Cpuidle {
            episodes: number("episodes")?,
            polls: sum("polls_successful", "polls_failed")?,
            polled_ns: sum("poll_success_ns", "poll_fail_ns")?,
            halts: number("halts")?,
        };
        Some((u32::try_from(number("cpu")?).ok()?, cpu))
    };
    lines.filter_map(of).collect()
}

const CPUS: &str = "/sys/devices/system/cpu";

const CANNOT_RECORD: &str = "cannot record the idle times of this machine's CPUs";

/// The CPUs that are online, as the kernel lists them.
fn online(machine: &dyn Machine) -> String {
    machine.text(&format!("{CPUS}/online")).unwrap_or_default()
}

/// The number of a CPU from its name.
fn number_of(name: &str) -> Option<u32> {
    name.strip_prefix("cpu")?.parse().ok()
}

fn cpus(machine: &dyn Machine) -> Cpus {
    let names = machine.names(CPUS).unwrap_or_default();
    names.iter().filter_map(|name| Some((number_of(name)?, Cpuidle::read(machine, name)))).collect()
}

impl Cpuidle {
    /// State 0 of haltpoll's driver polls, state 1 halts.
    fn read(machine: &dyn Machine, cpu: &str) -> Cpuidle {
        let number = |file: &str| {
            let number = machine.number(&format!("{CPUS}/{cpu}/cpuidle/{file}"));
            number.and_then(|number| u64::try_from(number).ok()).unwrap_or(0)
        };
        Cpuidle {
            episodes: 0,
            polls: number("state0/usage"),
            polled_ns: number("state0/time").saturating_mul(1_000),
            halts: number("state1/usage"),
        }
    }

    fn since(self, before: Cpuidle) -> Cpuidle {
        Cpuidle {
            episodes: self.episodes.saturating_sub(before.episodes),
            polls: self.polls.saturating_sub(before.polls),
            polled_ns: self.polled_ns.saturating_sub(before.polled_ns),
            halts: self.halts.saturating_sub(before.halts),
        }
    }

    /// This share of it.
    fn part(self, share: f64) -> Cpuidle {
        // No more than there was.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let part = |number: u64| (number as f64 * share.clamp(0.0, 1.0)).round() as u64;
        Cpuidle {
            episodes: part(self.episodes),
            polls: part(self.polls),
            polled_ns: part(self.polled_ns),
            halts: part(self.halts),
        }
    }

    /// As counts of so many episodes.
    fn counts(self, episodes: u64) -> Counts {
        Counts {
            episodes,
            polls: self.polls,
            polls_succeeded: episodes.saturating_sub(self.halts),
            polled_ns: self.polled_ns.into(),
            halts: self.halts,
            exits: self.halts,
            ..Counts::default()
        }
    }
}

/// What was counted of each CPU since.
fn since(now: &Cpus, before: &Cpus) -> Cpus {
    let of = |(cpu, now): (&u32, &Cpuidle)| Some((*cpu, now.since(*before.get(cpu)?)));
    now.iter().filter_map(of).collect()
}

impl Guest {
    fn observe(&mut self, machine: &dyn Machine) -> anyhow::Result<Vec<Observed>> {
        let before = self.counters.read(machine);
        let last = self.last.replace((before.clone(), Instant::now()));
        let Some((counted, at)) = last else { return Ok(vec![]) };
        let elapsed = at.elapsed();
        let cost_ns = |cpu: &Cpuidle| cpu.counts(0).cost_ns(self.halt_cost) as f64;
        let cost_ns: f64 = since(&before, &counted).values().map(cost_ns).sum();
        if cost_ns <= LEAST_CPU * elapsed.as_nanos() as f64 {
            return Ok(vec![]);
        }
        let found = Found { late: self.late, ..Found::default() };
        let mut burst = Burst { machine, counters: self.counters, found, begun: None, ended: None };
        self.bursts.watch(&online(machine), self.burst, &mut burst).context(CANNOT_RECORD)?;
        let Burst { found, begun: Some((before, begun)), ended: Some((after, ended)), .. } = burst else {
            return Ok(vec![]);
        };
        let took = ended.duration_since(begun);
        let counted = since(&after, &before);
        self.last = Some((after, ended));
        let share = took.as_secs_f64() / (elapsed + took).as_secs_f64();
        Ok(found.observed(&counted, took, share))
    }
}

/// A burst, and the counters at its beginning and its end.
struct Burst<'a> {
    machine: &'a dyn Machine,
    counters: Counted,
    found: Found,
    begun: Option<(Cpus, Instant)>,
    ended: Option<(Cpus, Instant)>,
}

impl Burst<'_> {
    fn read(&self) -> (Cpus, Instant) {
        (self.counters.read(self.machine), Instant::now())
    }
}

impl Observer for Burst<'_> {
    fn begins(&mut self) {
        self.begun = Some(self.read());
    }

    fn ends(&mut self) {
        self.ended = Some(self.read());
    }

    fn episodes(&mut self, names: &[String], found: &[PairedEpisode]) {
        for episode in found {
            if let Some(cpu) = names.get(episode.idler as usize).and_then(|name| number_of(name)) {
                self.found.add(cpu, episode);
            }
        }
    }
}

/// The episodes of a burst, by CPU, from the first start to the last end.
#[derive(Default)]
struct Found {
    cpus: BTreeMap<u32, Vec<Episode>>,
    /// When the last episode of each CPU ended \[ns\].
    ended_ns: BTreeMap<u32, u64>,
    span: Span,
    late: Nanos,
}

impl Found {
    fn add(&mut self, cpu: u32, episode: &PairedEpisode) {
        let ended = self.ended_ns.insert(cpu, episode.start_ns.saturating_add(episode.idle_ns));
        let busy_ns = ended.map_or(0, |ended| episode.start_ns.saturating_sub(ended));
        let late_ns = if episode.halted == Some(true) { self.late.get() } else { 0 };
        let idle_ns = episode.idle_ns.saturating_sub(late_ns);
        self.cpus.entry(cpu).or_default().push(Episode { busy_ns, ..Episode::of(idle_ns) });
        self.span.add(episode.start_ns, episode.idle_ns);
    }

    /// The counters were read when the recorder began and before it ended, `counting` apart: of them the part that is the
    /// episodes', by their number if that was counted, else by their time.
    fn observed(self, counted: &Cpus, counting: Duration, share: f64) -> Vec<Observed> {
        let part = self.span.ns() as f64 / counting.as_nanos().max(1) as f64;
        let of = |(cpu, episodes): (u32, Vec<Episode>)| {
            let counted = counted.get(&cpu)?;
            let number = episodes.len() as u64;
            let part = if counted.episodes == 0 { part } else { number as f64 / counted.episodes as f64 };
            let counts = counted.part(part).counts(number);
            Some(Observed { share, ..Observed::new(cpu.into(), counts, episodes) })
        };
        self.cpus.into_iter().filter_map(of).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dwell_machine::fake::Fake;

    #[test]
    fn counters_of_cpuidle_are_those_of_each_cpu() {
        let machine = Fake::new();
        let write = |cpu: u32, state: u32, usage: u64, time: u64| {
            machine.set(&format!("{CPUS}/cpu{cpu}/cpuidle/state{state}/usage"), &usage.to_string());
            machine.set(&format!("{CPUS}/cpu{cpu}/cpuidle/state{state}/time"), &time.to_string());
        };
        machine.set(&format!("{CPUS}/cpuidle/current_driver"), "haltpoll\n");
        (0..2).for_each(|cpu| (0..2).for_each(|state| write(cpu, state, 10, 100)));
        let before = cpus(&machine);
        assert_eq!(
            before,
            (0..2)
                .map(|cpu| (cpu, Cpuidle { episodes: 0, polls: 10, polled_ns: 100_000, halts: 10 }))
                .collect()
        );
        write(1, 0, 15, 190);
        write(1, 1, 13, 5_000);
        let since = since(&cpus(&machine), &before);
        assert_eq!(since[&0], Cpuidle::default());
        let counts = since[&1].counts(6);
        assert_eq!((counts.polls, counts.polls_succeeded, counts.halts, counts.polled_ns), (5, 3, 3, 90_000));
        let found = |span_ns: u64| {
            let mut found = Found { cpus: [(1, vec![Episode::of(9); 6])].into(), ..Found::default() };
            found.span.add(1_000, span_ns);
            found
        };
        let observed = found(20_000).observed(&since, Duration::from_micros(20), 0.1);
        assert_eq!((observed.len(), observed[0].idler, observed[0].counted), (1, 1, counts));
        // Counted over three times as long as recorded.
        let part = &found(20_000).observed(&since, Duration::from_micros(60), 0.1)[0].counted;
        assert_eq!((part.polls, part.halts, part.polled_ns), (2, 1, 30_000));
    }

    #[test]
    fn counters_of_dwell_idle_are_those_of_each_cpu() {
        let head =
            "cpu window_ns episodes polls_successful polls_failed halts poll_success_ns poll_fail_ns\n";
        let all = dwell_idle(&format!("{head}0 5 30 10 2 20 4000 50\n1 0 0 0 0 0 0 0\n2 torn"));
        assert_eq!(all.len(), 2);
        assert_eq!(all[&0], Cpuidle { episodes: 30, polls: 12, polled_ns: 4_050, halts: 20 });
        // Half as many were recorded, in however short a time.
        let found = Found { cpus: [(0, vec![Episode::of(9); 15])].into(), ..Found::default() };
        let observed = found.observed(&all, Duration::from_micros(60), 0.1);
        let counted = &observed[0].counted;
        assert_eq!((counted.episodes, counted.polls, counted.halts, counted.polled_ns), (15, 6, 10, 2_025));
        assert!(dwell_idle("").is_empty() && dwell_idle("0 5 30 10 2 20 4000 50\n").is_empty());
    }

    #[test]
    fn episodes_of_dwell_idle_have_busy_times_and_no_latency() {
        let mut found = Found { late: Nanos(3_000), ..Found::default() };
        let episode = |start_ns, idle_ns, halted| PairedEpisode {
            idler: 0,
            start_ns,
            idle_ns,
            window_ns: None,
            halted: Some(halted),
            wake: None,
            wake_latency_ns: None,
            alone_ns: None,
        };
        found.add(0, &episode(1_000, 9_000, false));
        found.add(1, &episode(5_000, 2_000, true));
        found.add(0, &episode(14_000, 50_000, true));
        let first = Episode::of(9_000);
        assert_eq!(found.cpus[&0], [first, Episode { busy_ns: 4_000, ..Episode::of(47_000) }]);
        assert_eq!(found.cpus[&1], [Episode::of(0)]);
    }

    #[test]
    fn searches_take_a_small_share_of_the_time() {
        let after = |us| search_after(Duration::from_micros(us)).as_secs();
        assert_eq!([after(100), after(2_500), after(16_000), after(1_000_000)], [5, 5, 32, 60]);
    }

    #[test]
    fn kvm_without_histograms_tells_no_lengths() {
        let counters = Counters { halt_attempted_poll: Some(5), ..Counters::default() };
        assert!(histograms(&counters).is_none());
        let hist = |n: u64| Some(vec![0, n]);
        let counters = Counters {
            halt_poll_success_hist: hist(3),
            halt_poll_fail_hist: hist(2),
            halt_wait_hist: hist(4),
            halt_poll_success_ns: Some(30),
            halt_poll_fail_ns: Some(20),
            ..Counters::default()
        };
        let counts = histograms(&counters).unwrap().counts();
        assert_eq!((counts.episodes, counts.polls, counts.halts, counts.polled_ns), (7, 5, 4, 50));
    }
}
