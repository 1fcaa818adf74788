//! The VM whose timers are asked about: as given, else as this machine would have it, else assumed.

use crate::{Pcpu, TimerVm};
use dwell_machine::{Machine, TimerHost};
use dwell_policy::timer::{PI_INJECT_TIMER_DEFAULT, pi_inject_timer_at_init};
use serde::Serialize;

/// The key of [`Metadata::other`](dwell_recording::Metadata::other) under which a recording of timers has the
/// frequency of its host's time-stamp counter \[kHz\], which is the guests' unless a VMM scales it.
pub const TSC_KHZ: &str = "tsc_khz";

/// The key of [`Metadata::other`](dwell_recording::Metadata::other) under which a recording of timers has
/// what its host has for timers.
pub const HOST: &str = "timer_host";

dwell_policy::named! {
    /// Where a fact comes from.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Origin {
        Given = "given",
        Recording = "recording",
        ThisMachine = "this machine",
        Assumed = "assumed",
    }

    pub fn words
}

/// What was given of a VM.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Given {
    /// The module parameter, before initialisation; −1: by `nohz_full`.
    pub pi_inject_timer: Option<i32>,
    pub apicv: Option<bool>,
    /// The VMX preemption timer.
    pub preemption_timer: Option<bool>,
    /// Which instructions do not exit: bits of `KVM_CAP_X86_DISABLE_EXITS`.
    pub disabled_exits: Option<u64>,
    /// What its vCPUs run on.
    pub pcpu: Option<Pcpu>,
    /// Whether the host has `nohz_full=`.
    pub nohz_full: Option<bool>,
}

/// A VM and where its facts come from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Described {
    pub vm: TimerVm,
    /// Each fact in words, with its origin.
    pub facts: Vec<Fact>,
}

/// One fact of a VM or its host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fact {
    pub name: &'static str,
    /// Its value, in words.
    pub value: String,
    /// Where it comes from.
    pub origin: Origin,
}

/// Puts together what was given, what was `recorded` of the host, what `machine` shows if it is the host, and
/// what is assumed.
pub fn describe(given: &Given, recorded: Option<&TimerHost>, machine: Option<&dyn Machine>) -> Described {
    let here = machine.map(TimerHost::read).unwrap_or_default();
    let recorded = recorded.copied().unwrap_or_default();
    let mut facts = Facts { all: vec![] };
    let apicv = facts.switch(APICV, [given.apicv, recorded.apicv, here.apicv], true);
    let preemption_timer = [given.preemption_timer, recorded.preemption_timer, here.preemption_timer];
    let preemption_timer = facts.switch(PREEMPTION_TIMER, preemption_timer, true);
    let isolated_given = given.pcpu.filter(|pcpu| *pcpu == Pcpu::Isolated).map(|_| true);
    let nohz_full_given = given.nohz_full.or(isolated_given);
    let nohz_full = facts.switch("nohz_full", [nohz_full_given, recorded.nohz_full, here.nohz_full], false);
    let kind = if nohz_full { Pcpu::Isolated } else { Pcpu::Housekeeping };
    let pcpu = facts.add("vCPUs on", [given.pcpu, None, None], kind, |pcpu| {
        match pcpu {
            Pcpu::Isolated => "isolated CPUs",
            Pcpu::Housekeeping => "housekeeping CPUs",
        }
        .to_owned()
    });
    let disabled = [given.disabled_exits, None, machine.and_then(disabled_exits)];
    let disabled = facts.add(EXITS, disabled, 0, |bits| exits_in_words(*bits));
    let parameter = given.pi_inject_timer.map(|value| pi_inject_timer_at_init(value, nohz_full));
    // What the module has now is what it decided, by this machine's nohz_full.
    let loaded = machine.and_then(|machine| machine.switch("/sys/module/kvm/parameters/pi_inject_timer"));
    let decided = pi_inject_timer_at_init(PI_INJECT_TIMER_DEFAULT, nohz_full);
    let loaded = loaded.filter(|_| nohz_full_given.is_none());
    let pi_inject_timer = facts.switch("pi_inject_timer", [parameter, None, loaded], decided);
    let timer_migration = [None, recorded.timer_migration, here.timer_migration];
    let timer_migration = facts.switch("kernel.timer_migration", timer_migration, true);
    let vm = TimerVm {
        pi_inject_timer,
        apicv,
        preemption_timer,
        mwait_in_guest: disabled & dwell_policy::timer::disable_exits::MWAIT != 0,
        hlt_in_guest: disabled & dwell_policy::timer::disable_exits::HLT != 0,
        pcpu,
        timer_migration,
    };
    Described { vm, facts: facts.all }
}

const APICV: &str = "APICv or AVIC";
const PREEMPTION_TIMER: &str = "preemption timer";
const EXITS: &str = "disabled exits";

/// Replaces the facts that a recording contradicts by what is `used` in place of what was `described`; returns notes on
/// those that were given.
pub fn correct(facts: &mut [Fact], described: &TimerVm, used: &TimerVm) -> Vec<String> {
    let switch = |on: bool| if on { "on" } else { "off" }.to_owned();
    let exits = |vm: &TimerVm| {
        let held = [vm.hlt_in_guest, vm.mwait_in_guest].into_iter().zip(DISABLE_EXITS);
        exits_in_words(held.filter(|(held, _)| *held).map(|(_, (_, bit))| bit).sum())
    };
    let both = |of: &dyn Fn(&TimerVm) -> String| [of(described), of(used)];
    let mut notes = vec![];
    for (name, [was, is]) in [
        (APICV, both(&|vm| switch(vm.apicv))),
        (PREEMPTION_TIMER, both(&|vm| switch(vm.preemption_timer))),
        (EXITS, both(&exits)),
    ] {
        let Some(fact) = facts.iter_mut().find(|fact| fact.name == name && was != is) else { continue };
        if fact.origin == Origin::Given {
            notes.push(format!("{name}: {was} was given, but the recording shows {is}, which is used"));
        }
        (fact.value, fact.origin) = (is, Origin::Recording);
    }
    notes
}

struct Facts {
    all: Vec<Fact>,
}

impl Facts {
    /// Takes the first that is known: as given, as recorded, or as this machine shows it if it is the host.
    fn add<T>(
        &mut self,
        name: &'static str,
        known: [Option<T>; 3],
        otherwise: T,
        words: impl Fn(&T) -> String,
    ) -> T {
        let origins = [Origin::Given, Origin::Recording, Origin::ThisMachine];
        let mut known = known.into_iter().zip(origins).filter_map(|(value, origin)| Some((value?, origin)));
        let (value, origin) = known.next().unwrap_or((otherwise, Origin::Assumed));
        self.all.push(Fact { name, value: words(&value), origin });
        value
    }

    fn switch(&mut self, name: &'static str, known: [Option<bool>; 3], otherwise: bool) -> bool {
        self.add(name, known, otherwise, |on| if *on { "on" } else { "off" }.to_owned())
    }
}

/// The exits that the VMs of a machine have disabled, if their command lines show it and all are alike.
fn disabled_exits(machine: &dyn Machine) -> Option<u64> {
    let vmms = dwell_machine::Facts::read(machine).vmms;
    let mut all = vmms.iter().filter_map(|vmm| Some(vmm.options.as_ref()?.cpu_pm));
    let cpu_pm = all.next()?;
    let bits = if cpu_pm { DISABLE_EXITS.iter().map(|(_, bit)| bit).sum() } else { 0 };
    all.all(|other| other == cpu_pm).then_some(bits)
}

fn exits_in_words(bits: u64) -> String {
    let names: Vec<&str> =
        DISABLE_EXITS.iter().filter(|(_, bit)| bits & bit != 0).map(|(name, _)| *name).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(",") }
}

/// The names of the bits of `KVM_CAP_X86_DISABLE_EXITS` on which timers depend.
pub const DISABLE_EXITS: [(&str, u64); 2] =
    [("hlt", dwell_policy::timer::disable_exits::HLT), ("mwait", dwell_policy::timer::disable_exits::MWAIT)];

#[cfg(test)]
mod tests {
    use super::*;
    use dwell_testing::machine::Fake;

    fn origin(described: &Described, name: &str) -> (String, Origin) {
        let fact = described.facts.iter().find(|fact| fact.name == name).unwrap();
        (fact.value.clone(), fact.origin)
    }

    #[test]
    fn given_comes_before_this_machine_and_that_before_assumptions() {
        let machine = Fake::new()
            .file("/sys/module/kvm/parameters/pi_inject_timer", "1")
            .file("/sys/module/kvm_intel/parameters/enable_apicv", "Y")
            .file("/sys/module/kvm_intel/parameters/preemption_timer", "Y")
            .file("/sys/devices/system/cpu/nohz_full", "2-3");
        let here = describe(&Given::default(), None, Some(&machine));
        assert_eq!(here.vm.pcpu, Pcpu::Isolated);
        assert!(here.vm.pi_inject_timer && here.vm.apicv && here.vm.preemption_timer);
        assert_eq!(origin(&here, "APICv or AVIC"), ("on".to_owned(), Origin::ThisMachine));
        assert_eq!(origin(&here, "disabled exits"), ("none".to_owned(), Origin::Assumed));
        let given = Given { apicv: Some(false), nohz_full: Some(false), ..Given::default() };
        let other = describe(&given, None, Some(&machine));
        assert_eq!(origin(&other, "APICv or AVIC"), ("off".to_owned(), Origin::Given));
        assert!(!other.vm.pi_inject_timer);
        assert_eq!(other.vm.pcpu, Pcpu::Housekeeping);
        // A recording comes between the two.
        let host = TimerHost { apicv: Some(false), nohz_full: Some(false), ..TimerHost::default() };
        let recorded = describe(&Given::default(), Some(&host), Some(&machine));
        assert_eq!(origin(&recorded, "APICv or AVIC"), ("off".to_owned(), Origin::Recording));
        assert_eq!(recorded.vm.pcpu, Pcpu::Housekeeping);
        assert_eq!(origin(&recorded, "preemption timer"), ("on".to_owned(), Origin::ThisMachine));
        let given = Given { nohz_full: Some(true), ..Given::default() };
        assert_eq!(describe(&given, Some(&host), None).vm.pcpu, Pcpu::Isolated);
    }

    #[test]
    fn isolated_cpus_imply_nohz_full_and_what_kvm_decides_by_it() {
        let given = Given { pcpu: Some(Pcpu::Isolated), ..Given::default() };
        let described = describe(&given, None, None);
        assert!(described.vm.pi_inject_timer && described.vm.apicv);
        assert_eq!(origin(&described, "pi_inject_timer"), ("on".to_owned(), Origin::Assumed));
        let off = Given { pi_inject_timer: Some(0), ..given };
        assert!(!describe(&off, None, None).vm.pi_inject_timer);
        let forced = Given { pi_inject_timer: Some(1), nohz_full: Some(false), ..Given::default() };
        assert!(describe(&forced, None, None).vm.pi_inject_timer);
    }

    #[test]
    fn what_a_recording_contradicts_is_replaced_and_noted_where_it_was_given() {
        let given = Given { apicv: Some(false), disabled_exits: Some(3), ..Given::default() };
        let Described { vm, mut facts } = describe(&given, None, None);
        let used = TimerVm {
            apicv: true,
            preemption_timer: false,
            mwait_in_guest: false,
            hlt_in_guest: false,
            ..vm
        };
        let notes = correct(&mut facts, &vm, &used);
        let described = Described { vm: used, facts };
        assert_eq!(origin(&described, APICV), ("on".to_owned(), Origin::Recording));
        assert_eq!(origin(&described, PREEMPTION_TIMER), ("off".to_owned(), Origin::Recording));
        assert_eq!(origin(&described, EXITS), ("none".to_owned(), Origin::Recording));
        assert_eq!(notes.len(), 2, "{notes:?}");
        assert!(
            notes[0].starts_with("APICv or AVIC: off was given, but the recording shows on"),
            "{notes:?}"
        );
        let mut same = described.facts.clone();
        assert!(correct(&mut same, &used, &used).is_empty() && same == described.facts);
    }

    #[test]
    fn a_kvm_without_a_vendor_module_cannot_post() {
        let machine = Fake::new().file("/sys/module/kvm/parameters/halt_poll_ns", "0");
        let described = describe(&Given::default(), None, Some(&machine));
        assert!(!described.vm.apicv && !described.vm.preemption_timer);
    }
}
