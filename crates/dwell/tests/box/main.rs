//! Every layer on a whole Linux machine: what dwell records, applies, verifies and reverts has its effect there.
//!
//! # Running it
//! ```text
//! .ci/qemu && .ci/box            # once: QEMU 10.0 and Debian's kernels; into target/qemu and target/box
//! cargo test --test box          # all jobs; a name after it selects
//! ```
//! `DWELL_BOX` and `DWELL_QEMU` name other folders, `DWELL_BOX_KEEP` one in which the files of every job are left.
//! What cannot run is skipped. Every QEMU is killed when its job takes too long, and when the test ends.
//!
//! # A job
//! A machine ([`machine::Job`]) boots one of Debian's kernels under QEMU's emulator, with an initramfs of
//! busybox, kernel modules, `dwell` and this program as `inside`, which is the load ([`inside`]). It runs a
//! script for busybox's shell in which `keep NAME command…` runs a command and keeps what it prints, `counted
//! NAME` keeps what the kernel counts ([`counted`]), and `at words…` prints words with the uptime. What the
//! script leaves in `/out` comes back ([`machine::Ran`]). To add one, write a function that makes a `Job`,
//! runs it and looks at what is left, and name it in [`JOBS`]. Files that it needs, such as a kernel module,
//! go into `Job::files`.
//!
//! # Virtual time
//! With `-icount` ([`VIRTUAL_TIME`]) the guest's clock counts its instructions. That the emulator is not run
//! for a while then does not show in the guest, and what is measured there does not depend on the load of the
//! machine outside.

mod control;
mod counted;
mod cycle;
mod guest;
mod host;
mod inside;
mod machine;
mod module;
mod neighbour;
mod nested;
mod persist;
mod power;
mod predicted;
mod soak;
#[path = "../it/report/timeline.rs"]
mod timeline;
mod timer;

use libtest_mimic::{Arguments, Trial};

/// The test's name is given, for what it prints; the error is the cause why it cannot run here.
type Check = fn(&str) -> Result<(), String>;

/// Those that [`LONG`] names, too.
const JOBS: &[(&str, Check)] = &[
    ("doctor_is_right_about_every_kernel", guest::doctor_is_right_about_every_kernel),
    ("the_guest_layer_from_record_to_revert", guest::from_record_to_revert),
    ("the_guest_layer_is_controlled", control::the_guest_layer_is_controlled),
    ("loads_that_react_are_controlled", control::loads_that_react_are_controlled),
    ("the_host_layer_is_controlled", control::the_host_layer_is_controlled),
    ("control_is_soaked", soak::control_is_soaked),
    ("the_host_layer_from_record_to_revert", host::from_record_to_revert),
    ("a_change_is_kept_over_a_reboot", persist::a_change_is_kept_over_a_reboot),
    ("a_machine_that_is_killed_starts_in_order", persist::a_machine_that_is_killed_starts_in_order),
    ("a_power_cut_is_survived_at_every_write", power::a_power_cut_is_survived_at_every_write),
    ("every_timer_of_a_vcpu_is_the_models", timer::every_timer_of_a_vcpu_is_the_models),
    ("every_timer_of_a_vcpu_is_the_models_on_6_1", timer::every_timer_of_a_vcpu_is_the_models_on_6_1),
    ("every_timer_of_a_vcpu_is_the_models_on_newer", timer::every_timer_of_a_vcpu_is_the_models_on_newer),
    ("why_has_exits_by_reason", timer::why_has_exits_by_reason),
    ("every_decision_of_kvm_is_the_models", host::every_decision_of_kvm_is_the_models),
    ("the_lab_measures_wakeups", host::the_lab_measures_wakeups),
    ("the_idle_driver_learns", module::the_idle_driver_learns),
    ("the_idle_driver_is_controlled", module::the_idle_driver_is_controlled),
    ("the_idle_driver_does_not_halt_over_a_timer", module::the_idle_driver_does_not_halt_over_a_timer),
    ("the_idle_driver_is_loaded_and_removed", module::the_idle_driver_is_loaded_and_removed),
    ("the_idle_driver_refuses_with_a_reason", module::the_idle_driver_refuses_with_a_reason),
    (
        "the_idle_driver_and_haltpoll_have_the_same_gaps",
        module::the_idle_driver_and_haltpoll_have_the_same_gaps,
    ),
    ("a_guest_and_its_host_on_one_timeline", nested::a_guest_and_its_host_on_one_timeline),
    ("a_cpu_that_polls_gets_no_interrupt", module::a_cpu_that_polls_gets_no_interrupt),
    ("the_idle_driver_gives_way_to_a_neighbour", neighbour::the_idle_driver_gives_way_to_a_neighbour),
    ("the_idle_driver_tells_kvm_not_to_poll", nested::the_idle_driver_tells_kvm_not_to_poll),
    ("an_open_loop_is_predicted", predicted::an_open_loop_is_predicted),
    ("loads_that_react_are_predicted", predicted::loads_that_react_are_predicted),
    ("every_decision_of_haltpoll_is_the_models", guest::every_decision_of_haltpoll_is_the_models),
];

/// Run with `--ignored`, and with `DWELL_BOX_LONG=1`: they run in real time or take minutes.
const LONG: &[&str] = &[
    "an_open_loop_is_predicted",
    "loads_that_react_are_controlled",
    "loads_that_react_are_predicted",
    "a_machine_that_is_killed_starts_in_order",
    "every_timer_of_a_vcpu_is_the_models",
    "every_timer_of_a_vcpu_is_the_models_on_6_1",
    "every_timer_of_a_vcpu_is_the_models_on_newer",
    "the_lab_measures_wakeups",
    "the_idle_driver_and_haltpoll_have_the_same_gaps",
    "a_cpu_that_polls_gets_no_interrupt",
    "a_guest_and_its_host_on_one_timeline",
    "the_idle_driver_gives_way_to_a_neighbour",
    "the_idle_driver_tells_kvm_not_to_poll",
    "control_is_soaked",
];

/// One instruction takes 2 ns; the clock jumps ahead when all CPUs are idle.
const VIRTUAL_TIME: &[&str] = &["-accel", "tcg,thread=single", "-icount", "shift=1,sleep=off"];

/// The same with 4 ns: a second of polling is emulated in half the time, and what the emulated programs take is twice as long.
const COARSE_TIME: &[&str] = &["-accel", "tcg,thread=single", "-icount", "shift=2,sleep=off"];

/// The coarse one where no long form is asked for.
fn coarse_time() -> &'static [&'static str] {
    if is_long() { VIRTUAL_TIME } else { COARSE_TIME }
}

/// As the clock of the machine outside. What is measured then depends on its load.
const REAL_TIME: [&str; 2] = ["-accel", "tcg,thread=single"];

/// Virtual time, in which 6.1 does not start.
fn time_of(kernel: machine::Kernel) -> &'static [&'static str] {
    if kernel == machine::Kernel::V6_1 { &REAL_TIME } else { coarse_time() }
}

/// Whether the long forms of the jobs are asked for.
fn is_long() -> bool {
    std::env::var("DWELL_BOX_LONG").is_ok_and(|value| value == "1")
}

fn main() {
    if let Some(result) = inside::run(&std::env::args().collect::<Vec<_>>()) {
        result.unwrap_or_else(|error| panic!("{error}"));
        return;
    }
    let trials = JOBS
        .iter()
        .map(|(name, check)| {
            Trial::test(*name, move || {
                if let Err(cause) = check(name) {
                    dwell_testing::skip!("box", name, "{cause}");
                }
                Ok(())
            })
            .with_ignored_flag(LONG.contains(name) && !is_long())
        })
        .collect();
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}
