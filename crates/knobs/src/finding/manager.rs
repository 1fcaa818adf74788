//! Remedies in the words of what starts a VM.

use dwell_machine::Manager;
use std::collections::BTreeSet;

/// A remedy, by who starts the VM.
pub struct Words {
    qemu: &'static str,
    libvirt: &'static str,
    proxmox: &'static str,
    kubevirt: &'static str,
    openstack: &'static str,
}

impl Words {
    /// For a VM that this started; `None`: nobody that is known.
    pub const fn of(&self, manager: Option<Manager>) -> &'static str {
        match manager {
            None => self.qemu,
            Some(Manager::Libvirt) => self.libvirt,
            Some(Manager::Proxmox) => self.proxmox,
            Some(Manager::KubeVirt) => self.kubevirt,
            Some(Manager::OpenStack) => self.openstack,
        }
    }

    /// For VMs of these managers; of each once.
    pub(super) fn of_all(&self, managers: impl Iterator<Item = Option<Manager>>) -> String {
        let words: BTreeSet<&str> = managers.map(|manager| self.of(manager)).collect();
        if words.is_empty() { self.qemu.to_owned() } else { Vec::from_iter(words).join("; ") }
    }

    /// Those of all managers, where it is not known which one started the VM.
    pub(super) fn any(&self) -> String {
        [self.qemu, self.libvirt, self.proxmox, self.kubevirt, self.openstack].join("; ")
    }
}

/// Windows keeps time without a storm of timers.
pub static WINDOWS: Words = Words {
    qemu: "QEMU: -cpu …,hv_time,hv_vpindex,hv_synic,hv_stimer and -machine …,hpet=off",
    libvirt: "libvirt: in <hyperv> <vpindex state='on'/> <synic state='on'/> <stimer state='on'/>, in <clock> <timer \
              name='hypervclock' present='yes'/> and <timer name='hpet' present='no'/>",
    proxmox: "Proxmox: ostype win10 or win11 and a machine version that then has hv_synic and hv_stimer, else args: -cpu …,hv_time,\
              hv_vpindex,hv_synic,hv_stimer; and -machine hpet=off",
    kubevirt: "KubeVirt: in features.hyperv vpindex, synic and synictimer, in clock.timer hyperv, and hpet with present: false",
    openstack: "OpenStack: image properties os_type=windows, with which Nova gives the enlightenments that it knows, and \
                hw_time_hpet=false",
};

/// The guest may switch host polling off.
pub static POLL_CONTROL: Words = Words {
    qemu: "QEMU: -cpu …,kvm-poll-control=on",
    libvirt: "libvirt: <features> <kvm> <poll-control state='on'/>",
    proxmox: "Proxmox: args: -cpu …,kvm-poll-control=on",
    kubevirt: "KubeVirt: a hook that adds <poll-control state='on'/> to the domain",
    openstack: "OpenStack: dwell knows of no property of Nova for it",
};

/// A VM executes HLT and MWAIT itself.
pub static CPU_PM: Words = Words {
    qemu: "QEMU: -overcommit cpu-pm=on",
    libvirt: "libvirt: <qemu:commandline> <qemu:arg value='-overcommit'/> <qemu:arg value='cpu-pm=on'/>",
    proxmox: "Proxmox: args: -overcommit cpu-pm=on",
    kubevirt: "KubeVirt: cpu.realtime with dedicatedCpuPlacement",
    openstack: "OpenStack: dwell knows of no property of Nova for it",
};

/// The guest has no HPET.
pub static HPET: Words = Words {
    qemu: "QEMU: -machine …,hpet=off",
    libvirt: "libvirt: in <clock> <timer name='hpet' present='no'/>",
    proxmox: "Proxmox: args: -machine hpet=off",
    kubevirt: "KubeVirt: in clock.timer hpet with present: false",
    openstack: "OpenStack: image property hw_time_hpet=false",
};

/// An I/O thread does not poll.
pub static IO_POLLING: Words = Words {
    qemu: "QEMU: -object iothread,…,poll-max-ns=0",
    libvirt: "libvirt: in <iothreadids> <iothread …><poll max='0'/></iothread>",
    proxmox: "Proxmox: dwell knows of no option for its own I/O threads",
    kubevirt: "KubeVirt: a hook that adds <poll max='0'/> to the domain's I/O threads",
    openstack: "OpenStack: dwell knows of no property of Nova for it",
};
