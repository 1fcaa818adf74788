//! Bills, as their owners read them.

use super::*;
use dwell_testing::machine::Fake;
use dwell_timer::why::{Class, Counted, Describe, Task, Watch};
use dwell_trace::event::{Event, EventKind, SystemCall, Timeout};
use std::collections::BTreeMap;

const MAIN: i32 = 6101;
const VCPU: i32 = 6102;
const SPAN_NS: u64 = 1_000_000_000;
/// `KVM_RUN`, and what leaves it for the VMM because of memory of a device.
const RUN: [u64; 2] = [13, 0xae80];
const MMIO: u32 = 6;

/// One tick of a guest that keeps time by the HPET of its VMM: the main loop's timer raises the line, the guest wakes
/// up, reads the counter of the HPET twice and halts.
fn tick(start_ns: u64, events: &mut Vec<Event>) {
    let mut on = |after_us: u64, tid, kind| {
        events.push(Event { time_ns: start_ns + after_us * 1_000, cpu: 0, pid: MAIN, tid, kind });
    };
    let call = SystemCall::Ppoll;
    on(0, MAIN, EventKind::Leave { call, result: 0 });
    on(10, MAIN, EventKind::LineRaised { gsi: 2 });
    on(11, MAIN, EventKind::ApicAccept { apic: 0 });
    on(40, MAIN, EventKind::Return);
    on(40, MAIN, EventKind::Enter { call, timeout: Timeout::Limited });
    on(45, 0, EventKind::Ran { task: MAIN, ns: 50_000 });
    on(50, VCPU, EventKind::VcpuWakeup { ns: 780_000, waited: true, valid: true });
    for read_us in [80, 140] {
        on(read_us, VCPU, EventKind::Mmio { address: 0xfed0_00f0, write: false });
        on(read_us + 1, VCPU, EventKind::UserspaceExit { reason: Some(MMIO) });
        on(
            read_us + 21,
            VCPU,
            EventKind::Call { number: if cfg!(target_arch = "x86_64") { 16 } else { 29 }, arguments: RUN },
        );
        on(read_us + 22, VCPU, EventKind::Mmio { address: 0xfed0_00f0, write: false });
    }
    on(270, 0, EventKind::Ran { task: VCPU, ns: 230_000 });
}

/// Field case 11: a guest for Windows under Proxmox that idles, without synthetic timers and with an HPET.
#[test]
fn an_idle_windows_guest_with_an_hpet() {
    let machine = Fake::quiet("6.8.12-4-pve");
    machine.vm(
        MAIN.unsigned_abs(),
        &[
            "/usr/bin/kvm",
            "-id",
            "110",
            "-name",
            "win10,debug-threads=on",
            "-cpu",
            "host,hv_relaxed,hv_time,hv_vapic,+kvm_pv_eoi",
            "-machine",
            "hpet=on,type=pc-q35-9.0+pve0",
        ],
    );
    let vmm = Facts::read(&machine).vmms.into_iter().find(|vmm| vmm.pid == MAIN.unsigned_abs()).unwrap();
    let task = |tid, class, vcpu| Task { tid, name: format!("thread {tid}"), class, vcpu, own: true };
    let tasks = vec![task(MAIN, Class::MainLoop, None), task(VCPU, Class::Vcpu, Some(0))];
    let describe: Describe = Box::new(|_| None);
    let mut watch = Watch::new(tasks, Default::default(), describe);
    let mut events = vec![];
    (1..=1_000).for_each(|tick_of| tick(tick_of * 1_000_000, &mut events));
    for ticks in events.chunks(events.len() / 10) {
        ticks.iter().for_each(|event| watch.observe(event));
        watch.cut();
    }
    let slices = watch.take_slices();
    // /proc counts a little more than the events show.
    let threads: BTreeMap<i32, u64> = [(MAIN, 50_500_000), (VCPU, 231_000_000)].into();
    let bill = watch.finish(&Counted { threads, process_ns: 283_000_000, polls: None });
    let known = Known {
        vmm: Some(&vmm),
        span_ns: SPAN_NS,
        unwatched_ns_per_s: Some(250_000_000),
        slices: &slices,
        used_half_width: Some(0.1),
        halt_cost: HALT_COST,
    };
    let removals = removals(&bill, &known);
    let hpet = &removals[0];
    assert!(
        hpet.what.starts_with("HPET") && hpet.how.starts_with("Proxmox: ") && hpet.how.contains("hv_stimer"),
        "{hpet:?}"
    );
    assert!(hpet.saves_ns > 230_000_000, "nearly all of 25 %: {hpet:?}");
    let one = OfSubject {
        pid: Some(vmm.pid),
        name: "win10".to_owned(),
        unwatched_ns_per_s: Some(250_000_000),
        busy_ns: None,
        steal_ns: None,
        bill,
        removals,
    };
    insta::assert_snapshot!(show::bill(&one, SPAN_NS));
    // Saved and read again.
    let report = Report { span_ns: SPAN_NS, events: 9, lost_events: 0, untraced: None, bills: vec![one] };
    let saved = serde_json::to_string(&report).unwrap();
    assert_eq!(Report::parse(&saved).unwrap(), report);
    let other = Report::parse(&saved.replace("\"cpu_ns\":283000000", "\"cpu_ns\":283000001"));
    assert!(other.unwrap_err().to_string().contains("do not add up"));
    assert_eq!(
        show::brief(&report),
        [
            "why win10: 28.3 % of a CPU: 18.0 % vCPUs: guest, woken by: HPET (or a PIT of the VMM); 4.00 % vCPUs: device \
             served by the VMM: HPET; 4.00 % main loop: work for a timer: HPET",
            "  saves 24.7 % if removed: HPET: its accesses, its interrupts, and the main loop's timers for it"
        ]
    );
}
