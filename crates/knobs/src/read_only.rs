//! Whether this process may change settings. All that writes one is [`value::write`](crate::value::write) and
//! [`iothread::put`](crate::iothread::put), which ask here.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

static READ_ONLY: AtomicBool = AtomicBool::new(false);

/// From now on this process changes no setting: an attempt is an error.
pub fn read_only() {
    READ_ONLY.store(true, Ordering::Relaxed);
}

/// # Errors
/// If this process may not change settings.
pub(crate) fn check() -> io::Result<()> {
    if READ_ONLY.load(Ordering::Relaxed) { Err(refusal()) } else { Ok(()) }
}

fn refusal() -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, "this command changes no settings; please report this")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::iothread;
    use crate::place::Place;
    use crate::qmp::{Limits, Monitor};
    use crate::value;
    use dwell_recording::with_causes;
    use dwell_testing::machine::Fake;
    use dwell_testing::process;
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::net::UnixStream;
    use std::path::Path;
    use std::thread::{JoinHandle, spawn};

    /// A monitor that accepts every command, and the commands that it got, once the client has ended.
    fn monitor() -> (Monitor, JoinHandle<Vec<String>>) {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let serving = spawn(move || {
            let version = "{\"qemu\": {\"major\": 7, \"minor\": 2, \"micro\": 0}, \"package\": \"\"}";
            writeln!(theirs, "{{\"QMP\": {{\"version\": {version}, \"capabilities\": []}}}}").unwrap();
            let mut commands = vec![];
            for line in BufReader::new(theirs.try_clone().unwrap()).lines().map_while(Result::ok) {
                let request: serde_json::Value = serde_json::from_str(&line).unwrap();
                commands.push(request["execute"].as_str().unwrap().to_owned());
                writeln!(theirs, "{{\"return\": {{}}, \"id\": {}}}", request["id"]).unwrap();
            }
            commands
        });
        (Monitor::over(ours, Path::new("sock"), Limits::default()).unwrap(), serving)
    }

    #[test]
    fn a_process_that_changes_no_settings_writes_no_parameter_and_no_property() {
        if !process::is_alone(concat!(
            module_path!(),
            "::a_process_that_changes_no_settings_writes_no_parameter_and_no_property"
        )) {
            return;
        }
        let path = "/sys/module/kvm/parameters/halt_poll_ns";
        let machine = Fake::new().file(path, "200000");
        let place = Place::Parameter(path.to_owned());
        let (mut monitor, serving) = monitor();
        let mut set = |value: i64| {
            [
                value::write(&machine, &place, Some(&value.to_string())).map_err(|error| with_causes(&error)),
                iothread::put(&mut monitor, "io0", "poll-grow", value).map_err(|error| with_causes(&error)),
            ]
        };
        assert_eq!(set(1), [Ok(()), Ok(())]);
        read_only();
        for refused in set(2) {
            let told = refused.unwrap_err();
            assert!(told.contains("this command changes no settings"), "{told}");
        }
        assert_eq!(value::read(&machine, &place).unwrap().as_deref(), Some("1"));
        drop(monitor);
        assert_eq!(serving.join().unwrap(), ["qmp_capabilities", "qom-set"]);
    }
}
