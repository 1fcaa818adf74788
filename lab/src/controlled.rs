//! Control of one VM by its VMM: the maximum of KVM's rule alone, by `KVM_CAP_HALT_POLL`, which other
//! processes cannot set.

use dwell_control::{Change, Controller, Drawn, Histograms, Looks, Observed, Reach, Terms};
use dwell_policy::Nanos;
use dwell_policy::param::Setting;
use dwell_replay::RuleError;
use dwell_stats::SplitMix64;

/// The lengths that are drawn of a period.
const DRAWN: usize = 1024;

/// What a VMM does to its VM.
pub trait SetMaximum {
    type Error;

    /// `KVM_ENABLE_CAP` of `KVM_CAP_HALT_POLL` on the VM, with this argument \[ns\].
    ///
    /// # Errors
    /// KVM's.
    fn set_halt_poll_ns(&mut self, ns: u32) -> Result<(), Self::Error>;
}

/// A controller inside a VMM.
///
/// The VMM adds up the statistics of its vCPUs (`KVM_GET_STATS_FD`), and calls [`VmController::step`] with
/// what was counted since the last call when [`VmController::next_at_ns`] says so. `KVM_CAP_HALT_POLL` cannot
/// be read or taken back: the VMM sets it to the maximum of the originals when it no longer wants control.
pub struct VmController {
    controller: Controller,
    late: Nanos,
    looks: Looks,
    drawn: Drawn,
    random: SplitMix64,
}

impl VmController {
    /// Over a VM for which these parameters are in force; nothing but the maximum is ever changed.
    ///
    /// # Errors
    /// [`RuleError`] if their rule cannot be replayed.
    pub fn new(originals: Setting, terms: Terms) -> Result<VmController, RuleError> {
        let terms = Terms { reach: Reach::Maximum, ..terms };
        Ok(VmController {
            controller: Controller::new(originals, terms)?,
            late: terms.late,
            looks: Looks::default(),
            drawn: Drawn::new(DRAWN),
            random: SplitMix64::new(1),
        })
    }

    /// When to step \[ns\]: to look, or to decide.
    pub fn next_at_ns(&self) -> u64 {
        self.controller.next_at_ns().min(self.looks.next_ns)
    }

    /// What is in force, and when it is decided next.
    pub fn controller(&mut self) -> &mut Controller {
        &mut self.controller
    }

    /// Looks at what was counted since the last step. If it is time to, decides and sets the maximum; returns
    /// the change.
    ///
    /// # Errors
    /// Those of [`SetMaximum`]; the setting is then taken to be what it was.
    pub fn step<V: SetMaximum>(
        &mut self,
        now_ns: u64,
        counted: &Histograms<'_>,
        vm: &mut V,
    ) -> Result<Option<Change>, V::Error> {
        self.drawn.look(counted, self.late, &mut self.random);
        self.looks.looked(now_ns, 1, counted.episodes());
        if now_ns < self.controller.next_at_ns() {
            return Ok(None);
        }
        let (counted, drawn) = self.drawn.take();
        let observed = Observed::drawn(0, counted, drawn);
        let Some(change) = self.controller.decide(now_ns, &[observed]) else { return Ok(None) };
        let max = change.to.get("halt_poll_ns").and_then(|max| u32::try_from(max).ok()).unwrap_or(0);
        vm.set_halt_poll_ns(max)?;
        self.controller.changed(&change);
        Ok(Some(change))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dwell_policy::Layer;
    use dwell_policy::host::{BUCKETS, bucket};
    use dwell_policy::version::Version;
    use std::convert::Infallible;

    struct Vm(Vec<u32>);

    impl SetMaximum for Vm {
        type Error = Infallible;

        fn set_halt_poll_ns(&mut self, ns: u32) -> Result<(), Infallible> {
            self.0.push(ns);
            Ok(())
        }
    }

    #[test]
    fn a_vm_that_polls_for_too_long_is_made_to_halt() {
        let originals = Setting::defaults(Layer::Host, Version::new(6, 18));
        let mut control = VmController::new(originals, Terms::at(Nanos(20_000))).unwrap();
        control.controller().start(0);
        let mut vm = Vm(vec![]);
        // 2,000 polls of about 90 us, longer than a halt is worth.
        let mut success = [0u64; BUCKETS];
        success[bucket(90_000)] = 2_000;
        let counted =
            Histograms { success: &success, fail: &[], wait: &[], success_ns: 180_000_000, fail_ns: 0 };
        let now_ns = control.controller().next_at_ns();
        let Ok(change) = control.step(now_ns, &counted, &mut vm);
        assert_eq!(vm.0, [0]);
        assert_eq!(change.unwrap().to.get("halt_poll_ns_shrink"), originals.get("halt_poll_ns_shrink"));
    }
}
