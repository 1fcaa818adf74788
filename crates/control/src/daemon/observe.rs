//! What is seen of the idlers of a machine, period by period.

use super::bursts::Bursts;
use super::config::Config;
use super::counters::{Between, Cpus, DWELL_IDLE, IdleCounters, counts, since};
use super::iothread::{Look, Trouble};
use super::tenants::{Tenants, Vm};
use super::{cpu_time, nanos};
use crate::core::{Controller, Drawn, Episode, Histograms, Looks, Observed};
use anyhow::Context;
use dwell_capture::kvm_stats::{Counters, Snapshot, SourceError, StatsReader, VmId};
use dwell_capture::polling::poll_step;
use dwell_capture::{GuestSource, Observer, Target};
use dwell_knobs::lease::Lease;
use dwell_machine::threads::context_switches;
use dwell_machine::{IdleCounts, Machine, Sysroot, Writable};
use dwell_policy::{Layer, Nanos};
use dwell_recording::{Reader, Segments};
use dwell_replay::IdleLoop;
use dwell_stats::SplitMix64;
use dwell_trace::pairing::PairedEpisode;
use std::collections::BTreeMap;
use std::time::Duration;

/// The lengths that are drawn of a period, of all VMs together.
const DRAWN: usize = 2048;
/// VMs that have started are searched for so often …
const SEARCH_EVERY: Duration = Duration::from_secs(5);
/// … unless a search takes more than one part in so many of that time …
const SEARCH_SHARE: u32 = 2_000;
/// … but at least so often; what a search takes beyond that share makes decisions rarer.
const SEARCH_AT_LEAST: Duration = Duration::from_secs(60);
/// A burst that follows within this time is made ready for \[ns\]: that costs less than to begin again.
const SOON_NS: u64 = 50_000_000;
/// What is counted below this share of a CPU is not recorded.
const LEAST_CPU: f64 = 0.001;

/// The wakeup latency of a halt.
#[derive(Clone, Copy)]
pub(super) struct WakeupLatency {
    /// Where none was measured.
    pub(super) assumed: Nanos,
    /// Whether it is as recorded in bursts, of each CPU.
    pub(super) measured: bool,
}

/// A source of what is seen.
pub(super) trait Source {
    /// What was seen since the last call. A source of bursts takes as long as a burst. Of an I/O thread the
    /// setting is changed for a burst, if there is a lease.
    fn observe(
        &mut self,
        machine: &dyn Writable,
        controller: &mut Controller,
        lease: Option<&mut Lease>,
        now_ns: u64,
    ) -> Result<Look, Trouble>;

    /// What runs between idle times and what wakes it, recorded for so long; `None` where no such recording is made.
    fn segments(&mut self, _length: Duration) -> anyhow::Result<Option<Segments>> {
        Ok(None)
    }

    /// The next decision is due so much later \[ns\].
    fn rest(&mut self, _until_next_ns: u64) {}

    /// Trace events lost so far.
    fn lost(&self) -> u64 {
        0
    }

    /// The VMs that idlers are, which come and go and are counted all of the time. `None` where idlers are CPUs or a thread,
    /// which takes time to observe: what does not count is then not observed.
    fn vms(&self) -> Option<&Tenants> {
        None
    }

    /// When to look between two decisions \[ns\], if ever.
    fn next_look_ns(&self, _controller: &Controller) -> Option<u64> {
        None
    }

    /// Looks at what is counted, which may show the controller that a decision is due.
    fn look(&mut self, _controller: &mut Controller, _now_ns: u64) -> anyhow::Result<()> {
        Ok(())
    }

    /// CPU time of searches for idlers since the last call, as far as these have a limit of their own.
    fn take_searched(&mut self) -> Duration {
        Duration::ZERO
    }

    /// Whether values are to be compared with those written: those of a QEMU are not at each decision.
    fn is_to_be_checked(&mut self) -> bool {
        true
    }
}

/// An idler as it is called in lines.
pub(super) fn called(source: &dyn Source, idler: u64) -> String {
    let Some(vms) = source.vms() else { return format!("idler {idler}") };
    let id = vm_id(idler);
    match vms.found(id).name {
        Some(name) => format!("{} ({id})", name.escape_debug()),
        None => id.to_string(),
    }
}

/// The source of a layer: KVM's statistics files, or counters of cpuidle or of dwell_idle and bursts of the
/// recorder. Fails where the machine's CPUs idle and this process may not record them: a later burst would.
pub(super) fn of_layer(
    machine: &dyn Writable,
    layer: Layer,
    latency: WakeupLatency,
    config: &Config,
) -> anyhow::Result<Box<dyn Source>> {
    if layer == Layer::Host {
        return Ok(Box::new(Host::new(latency.assumed, &config.vms)));
    }
    let driver = layer == Layer::Driver;
    if driver {
        machine.read(DWELL_IDLE).with_context(|| {
            format!(
                "cannot read the counters of dwell_idle in {DWELL_IDLE}; mount debugfs: mount -t debugfs debugfs \
                 /sys/kernel/debug"
            )
        })?;
    }
    let step = (!driver).then(poll_step).flatten();
    let lengths = Lengths {
        late: if driver { latency.assumed } else { Nanos::ZERO },
        measures: latency.measured,
        idle_loop: IdleLoop::new(step.unwrap_or(Nanos::ZERO), Nanos::ZERO),
    };
    let mut guest = Guest {
        layer,
        burst: Duration::from_nanos(config.burst.get()),
        lengths,
        halt_cost: config.halt_cost,
        counters: IdleCounters::of(machine, layer),
        bursts: Bursts::of(Target::Guest { source: GuestSource::Auto, causes: false }),
        causes: Bursts::of(Target::Guest { source: GuestSource::Auto, causes: true }),
        online: online(machine),
        last: None,
        glanced: None,
    };
    if guest.counters.read().values().any(|read| read.cpu != IdleCounts::default()) {
        guest.bursts.open(&guest.online).context(CANNOT_RECORD)?;
    }
    Ok(Box::new(guest))
}

/// The VM that an idler is.
pub(super) fn vm_id(idler: u64) -> VmId {
    let [pid, fd] = [idler >> 32, idler & u64::from(u32::MAX)].map(|half| u32::try_from(half).unwrap_or(0));
    VmId { pid, fd }
}

/// The VMs of a host.
pub(super) struct Host {
    late: Nanos,
    this_machine: Sysroot,
    tenants: Tenants,
    reader: Option<StatsReader>,
    /// When to search for VMs again \[ns\].
    search_at_ns: Option<u64>,
    /// CPU time of searches that was not asked for yet.
    searched: Duration,
    last: Option<Snapshot>,
    looks: Looks,
    drawn: BTreeMap<VmId, Drawn>,
    random: SplitMix64,
}

impl Source for Host {
    fn observe(
        &mut self,
        _: &dyn Writable,
        _: &mut Controller,
        _: Option<&mut Lease>,
        now_ns: u64,
    ) -> Result<Look, Trouble> {
        self.look_at_statistics(now_ns).map_err(Trouble::Other)?;
        let Host { drawn, tenants, this_machine, .. } = self;
        let observed = drawn.iter_mut().map(|(id, drawn)| {
            let (counted, episodes) = drawn.take();
            let idler = u64::from(id.pid) << 32 | u64::from(id.fd);
            let tenant = tenants.find(this_machine, *id);
            Observed { tenant, ..Observed::drawn(idler, counted, episodes) }
        });
        Ok(Look::Episodes(observed.collect()))
    }

    fn vms(&self) -> Option<&Tenants> {
        Some(&self.tenants)
    }

    fn next_look_ns(&self, controller: &Controller) -> Option<u64> {
        (!self.drawn.is_empty()).then(|| self.looks.next_ns.max(controller.out_of_budget_until_ns()))
    }

    fn look(&mut self, _: &mut Controller, now_ns: u64) -> anyhow::Result<()> {
        self.look_at_statistics(now_ns)
    }

    fn take_searched(&mut self) -> Duration {
        std::mem::take(&mut self.searched)
    }
}

impl Host {
    /// Takes in what was counted since the last look.
    fn look_at_statistics(&mut self, now_ns: u64) -> anyhow::Result<()> {
        if self.search_at_ns.is_none_or(|at_ns| at_ns <= now_ns) {
            let before = cpu_time();
            self.tenants.forget();
            self.reader = match StatsReader::new(None) {
                Ok(reader) => Some(reader),
                Err(SourceError::NoVm | SourceError::LockedDown) => None,
                Err(error) => return Err(error.into()),
            };
            let took = cpu_time().saturating_sub(before);
            self.searched += took.min(SEARCH_AT_LEAST / SEARCH_SHARE);
            self.search_at_ns = Some(now_ns.saturating_add(nanos(search_after(took))));
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
        delta.retain(|id, counters| last.vms.contains_key(id) && Histograms::of(counters).is_some());
        if !self.drawn.keys().eq(delta.keys()) {
            // Of each of another number of VMs another number of lengths is drawn.
            self.drawn.clear();
        }
        let most = DRAWN / delta.len().max(1);
        let mut episodes = 0u64;
        for (id, counters) in &delta {
            let Some(histograms) = Histograms::of(counters) else { continue };
            episodes = episodes.saturating_add(histograms.episodes());
            let drawn = self.drawn.entry(*id).or_insert_with(|| Drawn::new(most));
            drawn.look(&histograms, self.late, &mut self.random);
        }
        self.looks.looked(now_ns, delta.len(), episodes);
        Ok(())
    }

    fn new(late: Nanos, vms: &[Vm]) -> Host {
        Host {
            late,
            this_machine: Sysroot::of_this_machine(),
            tenants: Tenants::new(vms.to_vec()),
            reader: None,
            search_at_ns: None,
            searched: Duration::ZERO,
            last: None,
            looks: Looks::default(),
            drawn: BTreeMap::new(),
            random: SplitMix64::new(1),
        }
    }
}

/// When to search again after a search that took so long.
fn search_after(took: Duration) -> Duration {
    took.saturating_mul(SEARCH_SHARE).clamp(SEARCH_EVERY, SEARCH_AT_LEAST)
}

impl<'a> Histograms<'a> {
    /// From counters of the machine; `None` without histograms: sums alone do not tell lengths.
    pub fn of(counters: &'a Counters) -> Option<Histograms<'a>> {
        Some(Histograms {
            success: counters.halt_poll_success_hist.as_deref()?,
            fail: counters.halt_poll_fail_hist.as_deref()?,
            wait: counters.halt_wait_hist.as_deref()?,
            success_ns: counters.halt_poll_success_ns?,
            fail_ns: counters.halt_poll_fail_ns?,
        })
    }
}

/// The CPUs of this machine, whose haltpoll governor or driver dwell_idle decides.
pub(super) struct Guest {
    layer: Layer,
    burst: Duration,
    lengths: Lengths,
    halt_cost: Nanos,
    counters: IdleCounters,
    bursts: Bursts,
    /// The same with what wakes tasks.
    causes: Bursts,
    /// The CPUs that were online.
    online: String,
    /// The counters at the end of the last burst.
    last: Option<Cpus>,
    /// The same at the last glance, if there was anything to see in the last burst.
    glanced: Option<Cpus>,
}

/// What recorded lengths are made into episodes with.
#[derive(Clone, Copy, Default)]
struct Lengths {
    /// By how much one is too long where the CPU halted; of dwell_idle only, which says whether it did.
    late: Nanos,
    /// Whether the wakeup latency is that of the recorded halts.
    measures: bool,
    idle_loop: IdleLoop,
}

pub(super) const CPUS: &str = "/sys/devices/system/cpu";

const CANNOT_RECORD: &str = "cannot record the idle times of this machine's CPUs";

/// The CPUs that are online, as the kernel lists them.
fn online(machine: &dyn Machine) -> String {
    machine.text(&format!("{CPUS}/online")).unwrap_or_default()
}

/// The number of a CPU from its name.
fn number_of(name: &str) -> Option<u32> {
    name.strip_prefix("cpu")?.parse().ok()
}

impl Source for Guest {
    fn observe(
        &mut self,
        machine: &dyn Writable,
        controller: &mut Controller,
        _: Option<&mut Lease>,
        _: u64,
    ) -> Result<Look, Trouble> {
        let observed = self.burst(machine, controller.another_load).map_err(Trouble::Other)?;
        self.glanced = self.last.clone().filter(|_| !observed.is_empty());
        Ok(Look::Episodes(observed))
    }

    fn next_look_ns(&self, controller: &Controller) -> Option<u64> {
        self.glanced.as_ref().and_then(|_| controller.next_glance_ns())
    }

    fn look(&mut self, controller: &mut Controller, now_ns: u64) -> anyhow::Result<()> {
        let Some(before) = &mut self.glanced else { return Ok(()) };
        let now = self.counters.read();
        let since = since(&now, before);
        let ns = since.values().map(Between::ns).max().unwrap_or(0);
        let counted = since.values().map(|cpu| counts(cpu.cpu, 0)).sum();
        controller.glance(now_ns, ns, now.len(), &counted);
        if controller.another_load {
            // The next burst does not cover the time before this glance.
            self.last = Some(now.clone());
        }
        *before = now;
        Ok(())
    }

    fn segments(&mut self, length: Duration) -> anyhow::Result<Option<Segments>> {
        if self.layer == Layer::Driver {
            return Ok(None);
        }
        let bytes = self.causes.record(&self.online, length)?;
        Ok(Reader::from_bytes("causes", bytes)?.segments()?)
    }

    fn rest(&mut self, until_next_ns: u64) {
        if until_next_ns > SOON_NS {
            self.bursts.stay(false);
        }
    }

    fn lost(&self) -> u64 {
        self.bursts.lost + self.causes.lost
    }
}

impl Guest {
    fn burst(&mut self, machine: &dyn Writable, another_load: bool) -> anyhow::Result<Vec<Observed>> {
        let online = online(machine);
        if self.online != online {
            (self.counters, self.online) = (IdleCounters::of(machine, self.layer), online);
        }
        let now = self.counters.read();
        let Some(last) = self.last.replace(now.clone()) else { return Ok(vec![]) };
        let share =
            |counted: &Between| counts(counted.cpu, 0).cost_ns(self.halt_cost) as f64 / counted.ns() as f64;
        if !another_load && since(&now, &last).values().map(share).sum::<f64>() <= LEAST_CPU {
            return Ok(vec![]);
        }
        let found = Found { lengths: self.lengths, ..Found::default() };
        let mut burst = Burst { machine, counters: &self.counters, found, begun: None, ended: None };
        self.bursts.stay(true);
        self.bursts.watch(&self.online, self.burst, &mut burst).context(CANNOT_RECORD)?;
        let Burst { found, begun: Some((switches_before, begun)), ended: Some((switches, ended)), .. } =
            burst
        else {
            return Ok(vec![]);
        };
        let mut observed = found.observed(&since(&ended, &begun), &since(&ended, &last));
        if let Some(first) = observed.first_mut() {
            first.switches = switches.zip(switches_before).and_then(|(now, before)| now.checked_sub(before));
        }
        self.last = Some(ended);
        Ok(observed)
    }
}

/// A burst, and the counters at its beginning and its end.
struct Burst<'a> {
    machine: &'a dyn Machine,
    counters: &'a IdleCounters,
    found: Found,
    begun: Option<(Option<u64>, Cpus)>,
    ended: Option<(Option<u64>, Cpus)>,
}

impl Burst<'_> {
    /// Context switches, and the counters of each CPU.
    fn read(&self) -> (Option<u64>, Cpus) {
        let switches = self.machine.text("/proc/stat").and_then(|stat| context_switches(&stat));
        (switches, self.counters.read())
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

/// The episodes of a burst, by CPU, each with when it ended \[ns\].
#[derive(Default)]
struct Found {
    cpus: BTreeMap<u32, Vec<(u64, Episode)>>,
    lengths: Lengths,
}

impl Found {
    fn add(&mut self, cpu: u32, episode: &PairedEpisode) {
        let all = self.cpus.entry(cpu).or_default();
        let busy_ns = all.last().map_or(0, |(ended_ns, _)| episode.start_ns.saturating_sub(*ended_ns));
        let halted = episode.halted == Some(true);
        let Lengths { late, measures, idle_loop } = self.lengths;
        let late_ns = if halted { late.get() } else { 0 };
        // Where the event is not known the latency is in the length.
        let latency_ns = (halted && measures).then(|| episode.wake_latency_ns.unwrap_or(0));
        let idle_ns = episode.idle_ns.saturating_sub(late_ns);
        let ended_ns = episode.start_ns.saturating_add(episode.idle_ns);
        all.push((ended_ns, Episode { busy_ns, latency_ns, idle_loop, ..Episode::of(idle_ns) }));
    }

    /// Of each CPU what was counted in the burst, with the episodes that ended while it was: before and
    /// after, while the counters of other CPUs are read, this program keeps one CPU busy. A burst stands for
    /// a period.
    fn observed(mut self, burst: &BTreeMap<u32, Between>, period: &BTreeMap<u32, Between>) -> Vec<Observed> {
        let of = |(cpu, counted): (&u32, &Between)| {
            let share = counted.ns() as f64 / period.get(cpu)?.ns() as f64;
            let ended_then = |ended_ns: u64| ended_ns > counted.from_ns && ended_ns <= counted.to_ns;
            let episodes = self.cpus.remove(cpu)?.into_iter();
            let episodes: Vec<Episode> =
                episodes.filter(|(ended_ns, _)| ended_then(*ended_ns)).map(|(_, episode)| episode).collect();
            let counts = counts(counted.cpu, episodes.len() as u64);
            (!episodes.is_empty())
                .then(|| Observed { share, ..Observed::new((*cpu).into(), counts, episodes) })
        };
        burst.iter().filter_map(of).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn episodes_are_those_that_ended_while_their_cpu_was_counted() {
        let mut found = Found::default();
        // On each of two CPUs one that ends every 10 us.
        for at in (1..=100).map(|number| 10_000 * number) {
            (0..2).for_each(|cpu| found.add(cpu, &episode(at - 4_000, 4_000, true)));
        }
        let counted = |from_us: u64, to_us: u64| {
            let cpu = IdleCounts { polls: 0, polled_ns: 0, halts: 30 };
            Between { cpu, from_ns: 1_000 * from_us, to_ns: 1_000 * to_us }
        };
        // The first CPU is read 50 us before the second. A third one has no episodes, and a fourth was not
        // counted before.
        let burst =
            [(0, counted(200, 500)), (1, counted(250, 550)), (2, counted(250, 550)), (3, counted(250, 550))];
        let period = [(0, counted(0, 500)), (1, counted(0, 550)), (2, counted(0, 550))];
        let observed = found.observed(&burst.into(), &period.into());
        assert_eq!(observed.iter().map(|cpu| cpu.idler).collect::<Vec<_>>(), [0, 1]);
        for (cpu, share) in observed.iter().zip([300.0 / 500.0, 300.0 / 550.0]) {
            assert_eq!((cpu.counted.episodes, cpu.counted.halts, cpu.episodes.len()), (30, 30, 30));
            assert_eq!((cpu.share, cpu.episodes[0].busy_ns), (share, 6_000));
        }
    }

    fn episode(start_ns: u64, idle_ns: u64, halted: bool) -> PairedEpisode {
        PairedEpisode { halted: Some(halted), ..PairedEpisode::new(0, start_ns, idle_ns) }
    }

    fn of(lengths: Lengths) -> Found {
        Found { lengths, ..Found::default() }
    }

    #[test]
    fn episodes_of_dwell_idle_have_busy_times_and_no_latency() {
        let mut found = of(Lengths { late: Nanos(3_000), ..Lengths::default() });
        found.add(0, &episode(1_000, 9_000, false));
        found.add(1, &episode(5_000, 2_000, true));
        found.add(0, &episode(14_000, 50_000, true));
        let first = Episode::of(9_000);
        let second = Episode { busy_ns: 4_000, ..Episode::of(47_000) };
        assert_eq!(found.cpus[&0], [(10_000, first), (64_000, second)]);
        assert_eq!(found.cpus[&1], [(7_000, Episode::of(0))]);
    }

    #[test]
    fn halts_of_a_guest_have_the_latency_that_was_recorded() {
        let with = |latency_ns: u64, halted| PairedEpisode {
            wake_latency_ns: Some(latency_ns),
            ..episode(1_000, 9_000, halted)
        };
        for (measures, latencies) in [(true, [Some(14_000), None, Some(0)]), (false, [None; 3])] {
            let mut found = of(Lengths { measures, ..Lengths::default() });
            [with(14_000, true), with(700, false), episode(1_000, 9_000, true)]
                .iter()
                .for_each(|one| found.add(0, one));
            let all: Vec<Option<u64>> =
                found.cpus[&0].iter().map(|(_, episode)| episode.latency_ns).collect();
            assert_eq!(all, latencies);
        }
    }

    #[test]
    fn searches_take_a_small_share_of_the_time() {
        let after = |us| search_after(Duration::from_micros(us)).as_secs();
        assert_eq!([after(100), after(2_500), after(16_000), after(1_000_000)], [5, 5, 32, 60]);
    }

    #[test]
    fn kvm_without_histograms_tells_no_lengths() {
        let counters = Counters { halt_attempted_poll: Some(5), ..Counters::default() };
        assert!(Histograms::of(&counters).is_none());
        let hist = |n: u64| Some(vec![0, n]);
        let counters = Counters {
            halt_poll_success_hist: hist(3),
            halt_poll_fail_hist: hist(2),
            halt_wait_hist: hist(4),
            halt_poll_success_ns: Some(30),
            halt_poll_fail_ns: Some(20),
            ..Counters::default()
        };
        let counts = Histograms::of(&counters).unwrap().counts();
        assert_eq!((counts.episodes, counts.polls, counts.halts, counts.polled_ns), (7, 5, 4, 50));
    }
}
