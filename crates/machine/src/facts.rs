//! Everything that is read of a machine, once.

use crate::domain::{self, NextStart};
use crate::guest::Guest;
use crate::host::Host;
use crate::kernel::Kernel;
use crate::process;
use crate::seam::Machine;
use crate::timer::Timer;
use crate::vmm::Vmm;
use crate::wanted::{self, Wanted};
use dwell_policy::arch::Arch;
use serde::Serialize;

/// How a machine idles and what determines it.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Facts {
    pub kernel: Kernel,
    /// KVM, as the host of VMs.
    pub host: Host,
    /// This machine's own CPUs.
    pub guest: Guest,
    pub timer: Timer,
    /// What files and the kernel's command line ask for.
    pub wanted: Vec<Wanted>,
    /// Virtual machine monitors with their I/O threads.
    pub vmms: Vec<Vmm>,
    /// What VMs get at their next start and do not have now.
    pub next_start: Vec<NextStart>,
}

impl Facts {
    /// Reads a machine. Nothing is written.
    pub fn read(machine: &dyn Machine) -> Facts {
        let kernel = Kernel::read(machine);
        let processes = process::all(machine);
        let mut vmms: Vec<Vmm> = processes.iter().filter_map(Vmm::of).collect();
        let next_start = domain::read(machine, &vmms);
        // QEMU takes the option everywhere, and only KVM of x86 lets a VM execute HLT itself.
        if kernel.arch.unwrap_or_default() != Arch::X86_64 {
            vmms.iter_mut().filter_map(|vmm| vmm.options.as_mut()).for_each(|options| options.cpu_pm = false);
        }
        Facts {
            host: Host::read(machine, &kernel, &processes),
            guest: Guest::read(machine, &kernel),
            timer: Timer::read(machine, &kernel),
            wanted: wanted::read(machine),
            next_start,
            vmms,
            kernel,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Fake;
    use crate::{Sysroot, Vcpu};

    #[test]
    fn a_machine_without_files_has_no_facts() {
        let facts = Facts::read(&Fake::new());
        assert!(facts.host.kvm.is_none() && facts.guest.cpuidle.driver.is_none() && facts.vmms.is_empty());
    }

    #[test]
    fn vms_with_their_threads() {
        let facts = Facts::read(&Fake::quiet("6.18.44"));
        assert_eq!(facts.host.vms[0].name.as_deref(), Some("web"));
        assert_eq!(facts.host.vms[0].vcpus, [Vcpu { id: 0, tid: Some(101) }]);
        assert_eq!(facts.vmms[0].io_threads[0].tid, Some(102));
        assert!(facts.guest.cpuidle.haltpoll_decides() && facts.guest.poll_control == Some(true));
    }

    #[test]
    fn what_kvm_makes_of_its_own_choice_is_its_default() {
        let facts = Facts::read(&Fake::quiet("6.18.44"));
        assert_eq!(facts.timer.parameters[0].name, "pi_inject_timer");
        assert!(!facts.timer.parameters[0].changed());
    }

    #[test]
    fn this_machine_can_be_read() {
        let facts = Facts::read(&Sysroot::of_this_machine());
        assert!(facts.kernel.release.is_some());
        assert!(serde_json::to_string(&facts).is_ok());
    }
}
