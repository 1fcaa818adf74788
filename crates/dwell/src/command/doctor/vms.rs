//! The part of `dwell doctor` about virtual machines and their monitors.

use super::Page;
use crate::settings::pairs;
use dwell_machine::{Facts, IoThread, VmOptions, Vmm};
use dwell_policy::host::MaxSource;

/// A host's VMs, each with the layers that act on it.
pub(super) fn rows(page: &mut Page, facts: &Facts) {
    let host = &facts.host;
    for vm in &host.vms {
        let name = vm.name.as_deref().map(|name| format!(" {name}")).unwrap_or_default();
        let several = if vm.count == 1 { String::new() } else { format!("{} VMs, ", vm.count) };
        let vcpus: Vec<String> = vm
            .vcpus
            .iter()
            .map(|vcpu| {
                vcpu.tid.map_or_else(|| vcpu.id.to_string(), |tid| format!("{} (thread {tid})", vcpu.id))
            })
            .collect();
        page.line(
            &format!("VM of process {}", vm.pid),
            &format!("{}{name}: {several}vCPU {}", vm.comm, vcpus.join(", ")),
        );
        let vmm = facts.vmms.iter().find(|vmm| vmm.pid == vm.pid);
        if let Some((vmm, options)) = vmm.and_then(|vmm| Some((vmm, vmm.options.as_ref()?))) {
            let mut words = layers_of(options, host.max_source);
            words.extend(polling_threads(vmm));
            page.line("  its layers", &words.join("; "));
        }
        page.line("  its CPU time", &format!("if it is busy while its guest is idle: dwell why {}", vm.pid));
    }
    if host.kvm.is_some() && host.vms.is_empty() {
        page.line("VMs", "none that this user can see");
    }
    if !host.vms.is_empty() {
        page.line("overrides of VMs", "not visible: KVM_CAP_HALT_POLL can be set but not read");
    }
}

/// Which layers act on a VM, as far as its command line and the kernel decide that.
fn layers_of(options: &VmOptions, max_source: Option<MaxSource>) -> Vec<String> {
    let window = match (options.cpu_pm, max_source) {
        (true, _) => "no effect (cpu-pm=on: HLT does not exit)",
        (false, Some(MaxSource::CopiedAtCreation)) => "halt_poll_ns as it was when the VM was created",
        (false, Some(_)) => "halt_poll_ns",
        (false, None) => "halt_poll_ns, now or when the VM was created",
    };
    let mut words = vec![format!("host polling: {window}")];
    words.extend(options.machine.as_ref().map(|machine| format!("machine {machine}")));
    words.extend(options.poll_control.then(|| "guest may switch it off (kvm-poll-control)".to_owned()));
    words.extend(options.cpu_pm.then(|| "timers may be posted".to_owned()));
    words.extend(
        options.hint_dedicated.then(|| "CPUs of its own are promised (kvm-hint-dedicated)".to_owned()),
    );
    words
        .extend((!options.hyper_v.is_empty()).then(|| format!("for Windows: {}", options.hyper_v.join(" "))));
    words.extend((options.hpet == Some(true)).then(|| "hpet=on".to_owned()));
    words.extend(options.vhost.then(|| "vhost serves its network".to_owned()));
    words
}

/// The I/O threads of QEMU, each with its longest polling time.
fn polling_threads(vmm: &Vmm) -> Option<String> {
    let of = |thread: &IoThread| {
        let id = thread.id.as_deref().unwrap_or("-");
        match thread.parameters.get("poll-max-ns") {
            Some(0) => format!("{id} never polls"),
            Some(max) => format!("{id} polls up to {max} ns"),
            None => format!("{id} polls up to QEMU's default"),
        }
    };
    let threads: Vec<String> = vmm.io_threads.iter().filter(|_| vmm.is_qemu()).map(of).collect();
    (!threads.is_empty()).then(|| format!("I/O threads: {}", threads.join(", ")))
}

pub(super) fn monitors(page: &mut Page, vmms: &[Vmm]) {
    page.section("iothread: virtual machine monitors");
    if vmms.is_empty() {
        page.line("monitors", "none that this user can see");
    }
    for vmm in vmms {
        let name = vmm.name.as_deref().unwrap_or("-");
        let version = vmm.at_least.as_deref().map(|v| format!(", at least version {v}")).unwrap_or_default();
        page.line(&format!("process {}", vmm.pid), &format!("{} {name}{version}", vmm.program));
        for thread in &vmm.io_threads {
            let label = thread.id.as_deref().or(thread.comm.as_deref()).unwrap_or("-");
            page.line(&format!("  I/O thread {label}"), &io_thread(thread));
        }
    }
}

fn io_thread(thread: &IoThread) -> String {
    let tid = thread
        .tid
        .map_or_else(|| "not named (debug-threads=on names them)".to_owned(), |tid| format!("thread {tid}"));
    let set = pairs(&thread.parameters);
    if set.is_empty() { tid } else { format!("{tid}, started with {set}") }
}
