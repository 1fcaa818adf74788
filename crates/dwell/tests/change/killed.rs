//! The program, killed with SIGKILL at every system call.
//!
//! It runs under ptrace, on a machine below a directory. At the n-th stop, which is the entry or the exit of
//! a system call, it is killed; then another process reverts. This is done for every n until the program
//! comes to its end. The calls of its start are among them.

use crate::{FORKS, Scene, start, stderr};
use dwell_knobs::change::{self, Permission};
use dwell_knobs::journal::{Journal, STATE_DIRECTORY};
use dwell_machine::Sysroot;
use dwell_testing::fixture::guest_plan;
use dwell_testing::say;
use nix::errno::Errno;
use nix::libc;
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use std::mem::ManuallyDrop;
use std::process::{Child, Command, Stdio};
use std::sync::PoisonError;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How a traced program ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// It was killed at the stop that was asked for.
    Killed,
    /// It came to its end before, with this exit code, after so many stops.
    Exited { code: i32, stops: usize },
}

/// Which system calls are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Calls {
    All,
    /// Those that can change a file or tell a monitor to change a value, and the end. What is on the disk is the same at all others between two of these.
    Writing,
}

impl Calls {
    fn has(self, pid: Pid) -> Result<bool, Errno> {
        const WRITING: [libc::c_long; 21] = [
            libc::SYS_bind,
            libc::SYS_chmod,
            libc::SYS_exit_group,
            libc::SYS_fchmod,
            libc::SYS_fchmodat,
            libc::SYS_fdatasync,
            libc::SYS_flock,
            libc::SYS_fsync,
            libc::SYS_ftruncate,
            libc::SYS_mkdir,
            libc::SYS_mkdirat,
            libc::SYS_pwrite64,
            libc::SYS_rename,
            libc::SYS_renameat,
            libc::SYS_renameat2,
            libc::SYS_rmdir,
            libc::SYS_sendto,
            libc::SYS_unlink,
            libc::SYS_unlinkat,
            libc::SYS_write,
            libc::SYS_writev,
        ];
        if self == Calls::All {
            return Ok(true);
        }
        let registers = ptrace::getregs(pid)?;
        let call = libc::c_long::try_from(registers.orig_rax).unwrap_or(-1);
        // The third argument has the flags.
        let for_writing = || registers.rdx & (libc::O_ACCMODE | libc::O_CREAT | libc::O_TRUNC) as u64 != 0;
        Ok(WRITING.contains(&call) || call == libc::SYS_openat && for_writing())
    }
}

/// Runs the program and kills it at its `last` stop, counted from 1.
pub(crate) fn run(words: &[String], last: usize, calls: Calls) -> Result<End, Errno> {
    // A program that waits to be traced needs no code of its own between fork and exec.
    let wait = "kill -STOP $$; exec \"$0\" \"$@\"";
    let mut command = Command::new("sh");
    command.args(["-c", wait, env!("CARGO_BIN_EXE_dwell")]).args(words);
    // It is waited for by its number, until it ends; afterwards another process may have that.
    let child =
        ManuallyDrop::new(start(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null())));
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap());
    waitpid(pid, Some(WaitPidFlag::WUNTRACED))?;
    if let Err(refused) = ptrace::seize(pid, options() | Options::PTRACE_O_TRACEEXEC) {
        kill(pid, Signal::SIGKILL)?;
        waitpid(pid, None)?;
        return Err(refused);
    }
    kill(pid, Signal::SIGCONT)?;
    follow(pid, last, calls, false)
}

/// Kills a program that runs at the `last` stop from now on, whichever of its threads comes to it.
pub(crate) fn run_on(child: &Child, last: usize, calls: Calls) -> Result<End, Errno> {
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap());
    for thread in std::fs::read_dir(format!("/proc/{pid}/task")).map_err(|_| Errno::ESRCH)?.flatten() {
        let thread = thread.file_name().to_str().and_then(|number| number.parse().ok()).map(Pid::from_raw);
        let seized = |thread| ptrace::seize(thread, options()).and_then(|()| ptrace::interrupt(thread));
        match thread.map(seized) {
            // A thread that has ended since it was listed.
            None | Some(Ok(()) | Err(Errno::ESRCH)) => {}
            Some(refused) => return refused.map(|()| unreachable!()),
        }
    }
    follow(pid, last, calls, true)
}

/// All threads, those too that are started later.
fn options() -> Options {
    Options::PTRACE_O_TRACESYSGOOD | Options::PTRACE_O_TRACECLONE | Options::PTRACE_O_EXITKILL
}

fn follow(program: Pid, last: usize, calls: Calls, mut started: bool) -> Result<End, Errno> {
    let (mut stops, mut killed) = (0, false);
    // Each test thread waits for what it traces itself.
    let threads = WaitPidFlag::__WALL | WaitPidFlag::__WNOTHREAD;
    loop {
        let status = waitpid(None, Some(threads))?;
        let Some(pid) = status.pid() else { continue };
        let signal = match status {
            WaitStatus::Exited(ended, code) if ended == program => return Ok(End::Exited { code, stops }),
            WaitStatus::Signaled(ended, ..) if ended == program => return Ok(End::Killed),
            WaitStatus::Exited(..) | WaitStatus::Signaled(..) => continue,
            WaitStatus::PtraceEvent(_, _, libc::PTRACE_EVENT_EXEC) => {
                started = true;
                None
            }
            WaitStatus::PtraceSyscall(_) => {
                let counts = match calls.has(pid) {
                    Err(Errno::ESRCH) if killed => false,
                    counts => counts?,
                };
                stops += usize::from(counts);
                if counts && stops == last {
                    kill(program, Signal::SIGKILL)?;
                    killed = true;
                }
                None
            }
            WaitStatus::Stopped(_, signal) => Some(signal),
            _ => None,
        };
        let signal = signal.filter(|signal| *signal != Signal::SIGTRAP);
        let resumed = if started { ptrace::syscall(pid, signal) } else { ptrace::cont(pid, signal) };
        // What was killed is no longer there to be resumed.
        if !killed {
            resumed?;
        }
    }
}

/// What was applied before, by another process as it were.
#[derive(Clone, Copy)]
struct First {
    keep: bool,
}

fn apply(machine: &Sysroot, keep: bool) {
    let _no_forks = FORKS.write().unwrap_or_else(PoisonError::into_inner);
    let mut journal = Journal::open(machine, STATE_DIRECTORY).unwrap();
    let ready = change::check(machine, &guest_plan(), keep, Permission::default(), &[]).unwrap();
    change::apply(&mut journal, &ready, &mut |_| ()).unwrap();
}

/// Runs a case for every stop, from the first to the one at which the program has ended; it returns whether
/// there was such a stop. The number of cases; `None` if nothing may be traced here.
pub(crate) fn at_every(step: usize, case: impl Fn(usize) -> Result<bool, Errno> + Sync) -> Option<usize> {
    let (next, cases) = (AtomicUsize::new(1), AtomicUsize::new(0));
    let work = || loop {
        let last = next.fetch_add(step, Ordering::Relaxed);
        match case(last) {
            Ok(true) => cases.fetch_add(1, Ordering::Relaxed),
            Ok(false) => return None,
            Err(refused) => return Some(refused),
        };
    };
    let refused = std::thread::scope(|scope| {
        // A case waits more than it computes.
        let workers = [&work; 4].map(|work| scope.spawn(work));
        workers.map(|worker| worker.join().expect("no case fails")).into_iter().flatten().next()
    });
    match refused {
        Some(Errno::EPERM | Errno::ENOSYS) => None,
        Some(other) => panic!("tracing: {other}"),
        None => Some(cases.into_inner()),
    }
}

/// Whether there was a stop of this number.
fn case(first: Option<First>, words: &[&str], last: usize) -> Result<bool, Errno> {
    let scene = Scene::guest();
    let before = scene.machine.snapshot();
    if let Some(First { keep }) = first {
        apply(&scene.machine.machine, keep);
    }
    let end = run(&scene.words(words), last, Calls::All)?;
    if let End::Exited { code, stops } = end {
        assert!(code == 0 && stops < last, "{code} after {stops} stops");
    }
    if !scene.machine.path(STATE_DIRECTORY).exists() {
        // Where there is no journal there is nothing to revert, and nothing may have changed.
        assert_eq!(scene.machine.snapshot(), before, "killed at stop {last}");
        return Ok(end == End::Killed);
    }
    let output = scene.run(&["revert", "--all"]);
    assert!(output.status.success(), "killed at stop {last}: {}", stderr(&output));
    assert_eq!(scene.machine.snapshot(), before, "killed at stop {last}");
    Ok(end == End::Killed)
}

/// At each stop with `DWELL_KILL_ALL=1`, as .ci/long does, else at one in four: every case syncs its disk.
#[test]
fn killed_at_any_system_call_revert_restores_everything() {
    let all = std::env::var("DWELL_KILL_ALL").is_ok_and(|value| value == "1");
    let step = if all { 1 } else { 4 };
    let (apply, keep, revert) =
        (&["apply", "PLAN"][..], &["apply", "PLAN", "--persist"][..], &["revert"][..]);
    let mut sum = 0;
    for (words, first, after) in [
        (apply, None, ""),
        (keep, None, ""),
        (revert, Some(First { keep: false }), " of what was applied"),
        (revert, Some(First { keep: true }), " of what was applied with --persist"),
    ] {
        // After `first` has run to its end.
        let Some(cases) = at_every(step, |last| case(first, words, last)) else {
            dwell_testing::skip!(
                "machine",
                "killed_at_any_system_call_revert_restores_everything",
                "ptrace is not permitted"
            );
            return;
        };
        let words = words.join(" ");
        say!(
            "killed at one in {step} entries and exits of system calls of dwell {words}{after}: {cases} cases, all restored"
        );
        assert!(cases > 100, "{cases}");
        sum += cases;
    }
    say!("kill -9 in {sum} cases: originals restored in all of them");
}
