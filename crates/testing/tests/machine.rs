//! The fake machine against a real one.
#![cfg(feature = "machine")]

use dwell_machine::{Machine, Sysroot, Writable};
use dwell_testing::machine::{Fake, Fault, Faulty};
use std::io;

/// `errno` of `linux/errno.h`.
const EACCES: i32 = 13;
const ENOSPC: i32 = 28;

/// The same operations on the fake and on a real directory give the same results.
#[test]
fn the_fake_behaves_as_a_directory_does() {
    let dir = tempfile::tempdir().unwrap();
    let (fake, real) = (Fake::new(), Sysroot::at(dir.path()));
    let kind = |result: io::Result<()>| result.map_err(|error| error.kind());
    let both = |what: &str, operation: &dyn Fn(&dyn Writable) -> io::Result<()>| {
        assert_eq!(kind(operation(&fake)), kind(operation(&real)), "{what}");
    };
    both("no parent", &|m| m.create("/etc/x/a.conf", b"1"));
    both("directories", &|m| m.make_directory("/etc/x"));
    both("create", &|m| m.create("/etc/x/a.conf", b"1"));
    both("create in place of another", &|m| m.create("/etc/x/a.conf", b"2"));
    both("rename", &|m| m.rename("/etc/x/a.conf", "/etc/x/b.conf"));
    both("what was renamed is gone", &|m| m.read("/etc/x/a.conf").map(drop));
    both("rename of nothing", &|m| m.rename("/etc/x/a.conf", "/etc/x/c"));
    both("remove of nothing", &|m| m.remove("/etc/x/a.conf"));
    both("link", &|m| m.link("/etc/x/b.conf", "/etc/l"));
    both("link in place of another", &|m| m.link("/etc/x/b.conf", "/etc/l"));
    both("write", &|m| m.write("/etc/x/b.conf", b"200000"));
    both("a shorter value", &|m| m.write("/etc/x/b.conf", b"7"));
    both("write of nothing", &|m| m.write("/etc/nothing", b"7"));
    both("sync", &|m| m.sync_directory("/etc/x"));
    both("sync of nothing", &|m| m.sync_directory("/etc/y"));
    both("try", &|m| m.try_writing("/etc/x/b.conf"));
    both("try of nothing", &|m| m.try_writing("/etc/nothing"));
    both("a directory is not a link", &|m| m.target("/etc/x").map(drop));
    for machine in [&fake as &dyn Writable, &real] {
        assert_eq!(machine.read("/etc/x/b.conf").unwrap(), b"7\n");
        assert_eq!(machine.target("/etc/l").unwrap(), "/etc/x/b.conf");
        assert_eq!(machine.names("/etc").unwrap(), ["l", "x"]);
        let lock = machine.lock("/etc/lock").unwrap();
        assert!(lock.is_some() && machine.lock("/etc/lock").unwrap().is_none());
        drop(lock);
        assert!(machine.lock("/etc/lock").unwrap().is_some());
    }
    let copy = tempfile::tempdir().unwrap();
    fake.write_below(copy.path()).unwrap();
    assert_eq!(Sysroot::at(copy.path()).text("/etc/x/b.conf").as_deref(), Some("7"));
}

#[test]
fn faults_come_when_they_are_told_to() {
    let fake = Fake::new().file("/p", "1\n");
    let once = Faulty::new(&fake, Fault::Once { number: 1, errno: EACCES });
    assert!(once.read("/p").is_ok() && once.read("/p").is_err() && once.read("/p").is_ok());
    assert_eq!(once.operations(), 3);
    let full = Faulty::new(&fake, Fault::From { number: 0, errno: ENOSPC });
    assert!(full.create("/q", b"abcd").is_err() && full.read("/p").is_ok() && full.write("/p", b"2").is_ok());
    assert_eq!(fake.text("/q").as_deref(), Some("ab"));
    assert!(full.remove("/q").is_ok());
}
