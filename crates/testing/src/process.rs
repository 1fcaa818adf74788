//! Child processes of tests.

use std::env;
use std::io::{self, Read, Write as _};
use std::ops::{Deref, DerefMut};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// Whether this process runs only the test of this path, `concat!(module_path!(), "::the_test")`. Elsewhere the test is run
/// in such a process first: it changes what all tests of a process share.
///
/// # Panics
/// If the test fails there.
#[must_use]
pub fn is_alone(path: &str) -> bool {
    const ALONE: &str = "DWELL_TEST_ALONE";
    // Tests are named without the crate.
    let test = path.split_once("::").map_or(path, |(_, test)| test);
    if env::var_os(ALONE).is_some_and(|name| name == test) {
        return true;
    }
    let program = env::current_exe().expect("the test knows its own file");
    let mut command = Command::new(program);
    let output = command.args(["--exact", test, "--nocapture"]).env(ALONE, test).output();
    let output = output.expect("a test can be started");
    let printed = String::from_utf8_lossy(&output.stdout);
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && printed.contains("1 passed"), "{test}: {printed}{told}");
    false
}

/// Writes a program that a test starts afterwards. A child of this process does it: what is open for writing here while another
/// thread starts a program is open there, too, for a moment, and the kernel refuses to run such a file ("Text file busy").
///
/// # Panics
/// If it cannot be written.
pub fn write_program(path: &Path, bytes: &[u8]) {
    let mut command = Command::new("install");
    command.args(["-m", "755", "/dev/stdin"]).arg(path).stdin(Stdio::piped());
    let mut install = command.spawn().expect("`install` can be started");
    let written = install.stdin.take().expect("it has a pipe").write_all(bytes);
    let ended = install.wait();
    assert!(ended.is_ok_and(|status| status.success()), "{} cannot be written", path.display());
    written.expect("`install` reads all of it");
}

/// A child process that is killed when this is dropped.
#[derive(Debug)]
pub struct Process(pub Child);

impl Process {
    /// As [`Child::wait_with_output`].
    ///
    /// # Errors
    /// The system's error.
    ///
    /// # Panics
    /// Where the thread that reads one of two pipes does.
    pub fn wait_with_output(mut self) -> io::Result<Output> {
        drop(self.0.stdin.take());
        let (stdout, stderr) = (self.0.stdout.take(), self.0.stderr.take());
        let stderr = thread::spawn(move || all_of(stderr));
        let stdout = all_of(stdout)?;
        let stderr = stderr.join().expect("it only reads")?;
        Ok(Output { status: self.0.wait()?, stdout, stderr })
    }
}

fn all_of(pipe: Option<impl Read>) -> io::Result<Vec<u8>> {
    let mut bytes = vec![];
    pipe.map_or(Ok(0), |mut pipe| pipe.read_to_end(&mut bytes))?;
    Ok(bytes)
}

/// A thread that sleeps for a millisecond at a time until this is dropped: a CPU that has nothing else to do idles that often.
#[derive(Debug, Default)]
pub struct Sleeper(Arc<AtomicBool>);

impl Sleeper {
    #[must_use]
    pub fn start() -> Sleeper {
        let sleeper = Sleeper::default();
        let stop = Arc::clone(&sleeper.0);
        thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_millis(1));
            }
        });
        sleeper
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Deref for Process {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for Process {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}
