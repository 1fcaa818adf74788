//! The VM of `dwell timer explain` and `dwell timer tune`, as it is typed.

use dwell_policy::version::Version;
use dwell_timer::describe::{DISABLE_EXITS, Given};
use dwell_timer::{Pcpu, TimerVm};

/// The heading of these options in the help. Options that follow would have it too if it were that of the struct.
pub(super) const VM_AND_HOST: &str = "VM and host";

/// The VM and its host, as far as timers depend on them.
#[derive(Clone, Debug, Default, clap::Args)]
pub(super) struct VmArgs {
    /// Whether APICv or AVIC is active for the VM: on or off
    ///
    /// [default: that of this machine; on if it has no KVM]
    #[arg(long, help_heading = VM_AND_HOST, value_name = "ON|OFF", value_parser = switch)]
    apicv: Option<bool>,
    /// Whether the host uses the VMX preemption timer: on or off
    ///
    /// AMD hosts have none. [default: that of this machine; on if it has no KVM]
    #[arg(long, help_heading = VM_AND_HOST, value_name = "ON|OFF", value_parser = switch)]
    preemption_timer: Option<bool>,
    /// Instructions that do not exit: hlt, mwait, both with a comma, or none
    ///
    /// `-overcommit cpu-pm=on` of QEMU disables both exits. [default: none]
    #[arg(long, help_heading = VM_AND_HOST, value_name = "LIST", value_parser = disabled_exits)]
    disable_exits: Option<u64>,
    /// CPUs that the vCPUs run on: housekeeping or isolated
    ///
    /// Isolated CPUs are those of nohz_full=. [default: isolated if the host has nohz_full=]
    #[arg(long, help_heading = VM_AND_HOST, value_name = "KIND", value_parser = pcpu)]
    pcpu: Option<Pcpu>,
    /// Whether the host was booted with nohz_full=: on or off
    ///
    /// [default: on with --pcpu isolated, else that of this machine]
    #[arg(long, help_heading = VM_AND_HOST, value_name = "ON|OFF", value_parser = switch)]
    nohz_full: Option<bool>,
    /// Compare with this kernel release on the host, 5.4 to 7.3
    #[arg(long, help_heading = VM_AND_HOST, value_name = "VERSION", hide_possible_values = true, value_parser = crate::suggest::kernels(crate::settings::kernel))]
    pub(super) upgrade: Option<Version>,
}

impl VmArgs {
    /// The VM with the host's `pi_inject_timer`, if that is given.
    pub(super) fn given(&self, pi_inject_timer: Option<i32>) -> Given {
        Given {
            pi_inject_timer,
            apicv: self.apicv,
            preemption_timer: self.preemption_timer,
            disabled_exits: self.disable_exits,
            pcpu: self.pcpu,
            nohz_full: self.nohz_full,
        }
    }
}

/// `on` or `off`.
fn switch(text: &str) -> Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(format!("`{text}` is neither on nor off")),
    }
}

fn pcpu(text: &str) -> Result<Pcpu, String> {
    match text {
        "housekeeping" => Ok(Pcpu::Housekeeping),
        "isolated" => Ok(Pcpu::Isolated),
        _ => Err(format!("`{text}` is neither housekeeping nor isolated")),
    }
}

fn disabled_exits(text: &str) -> Result<u64, String> {
    if text == "none" {
        return Ok(0);
    }
    let bit = |name: &str| {
        let known = DISABLE_EXITS.iter().find(|(known, _)| *known == name.trim());
        known.map(|(_, bit)| *bit).ok_or_else(|| {
            format!("`{name}` is no instruction on which timers depend; write hlt, mwait, hlt,mwait or none")
        })
    };
    text.split(',').try_fold(0, |bits, name| Ok(bits | bit(name)?))
}

/// Which of HLT and MWAIT exit, in words.
pub(super) fn exits_in(vm: &TimerVm) -> &'static str {
    match (vm.hlt_in_guest, vm.mwait_in_guest) {
        (false, false) => "HLT exits",
        (true, false) => "HLT does not exit",
        (false, true) => "MWAIT does not exit",
        (true, true) => "HLT and MWAIT do not exit",
    }
}
