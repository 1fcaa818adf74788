//! The device as a good guest sees it: what is written is read back, by every request that it has, under
//! polling and sleeping.

use crate::rig::{
    DISCARD, Device, FLUSH, GET_ID, IN, OUT, PATIENCE, WRITE_ZEROES, ended, file, policies, read, request,
    write,
};
use dwell_blk::Disk;
use dwell_blk::driver::Setup;
use dwell_idle::policy::reference::{Always, Never};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::time::{Duration, Instant};

const BYTES: u64 = 1 << 20;

fn ranges(of: &[(u64, u32, u32)]) -> Vec<u8> {
    let range = |&(sector, sectors, flags): &(u64, u32, u32)| {
        [&sector.to_le_bytes()[..], &sectors.to_le_bytes(), &flags.to_le_bytes()].concat()
    };
    of.iter().flat_map(range).collect()
}

#[test]
fn what_is_written_is_read_back() {
    for (policy, event_idx) in policies().into_iter().zip([true, false]) {
        let backing = file(BYTES);
        let device =
            Device::new(Disk::open(backing.path(), false, false).unwrap().with_serial("a serial"), 2, policy);
        let (mut driver, served) = device.drive(Setup { queues: 2, event_idx, ..Setup::default() });
        assert_eq!(driver.sectors().unwrap(), BYTES / 512);
        assert_eq!(driver.config(34, 2).unwrap(), [2, 0], "queues");
        for queue in 0..2u8 {
            let data = vec![queue + 1; 4096];
            assert_eq!(write(&mut driver, queue.into(), 8 + u64::from(queue) * 8, &data), 0);
        }
        assert_eq!(request(&mut driver, 1, (FLUSH, 0), 0, true), 0);
        assert_eq!(read(&mut driver, 1, 8, 4096), (0, vec![1; 4096]));
        assert_eq!(read(&mut driver, 0, 16, 512), (0, vec![2; 512]));
        let mut on_disk = [0; 8192];
        backing.as_file().read_exact_at(&mut on_disk, 4096).unwrap();
        assert!(
            on_disk[..4096].iter().all(|byte| *byte == 1) && on_disk[4096..].iter().all(|byte| *byte == 2)
        );

        assert_eq!(request(&mut driver, 0, (GET_ID, 0), 20, false), 0);
        let (queue, memory) = driver.queue(0);
        let mut serial = [0u8; 20];
        queue.data(memory, 0).copy_to(&mut serial[..]);
        assert_eq!(&serial[..9], b"a serial\0");

        // The last sector, the first one beyond, half a sector, an end beyond all numbers.
        assert_eq!(read(&mut driver, 0, BYTES / 512 - 1, 512).0, 0);
        assert_eq!(read(&mut driver, 0, BYTES / 512 - 1, 1024).0, 1);
        assert_eq!(write(&mut driver, 0, BYTES / 512, &[0; 512]), 1);
        assert_eq!(read(&mut driver, 0, 0, 100).0, 1);
        assert_eq!(read(&mut driver, 0, u64::MAX, 512).0, 1);
        assert_eq!(request(&mut driver, 0, (77, 0), 512, false), 2, "unknown requests are unsupported");
        drop(driver);
        ended(served).unwrap();
        let counts = device.end().counts;
        assert_eq!((counts.writes, counts.flushes, counts.errors, counts.queues.malformed), (3, 1, 5, 0));
        assert_eq!(counts.written_bytes, 8192);
    }
}

#[test]
fn discarded_and_zeroed_ranges_read_as_zeroes() {
    for (policy, direct) in policies().into_iter().zip([false, true]) {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let path = folder.path().join("disk");
        std::fs::write(&path, vec![7u8; usize::try_from(BYTES).unwrap()]).unwrap();
        let disk = match Disk::open(&path, false, direct) {
            Ok(disk) => disk,
            Err(error) => {
                dwell_testing::skip!(
                    "machine",
                    "discarded_and_zeroed",
                    "no direct I/O in the target folder ({error})"
                );
                continue;
            }
        };
        let before = std::fs::metadata(&path).unwrap().blocks();
        let device = Device::new(disk, 1, policy);
        let (mut driver, served) = device.drive(Setup::default());
        let mut ask = |kind, of: &[(u64, u32, u32)]| {
            let bytes = ranges(of);
            let (queue, memory) = driver.queue(0);
            queue.data(memory, 0).copy_from(&bytes);
            request(&mut driver, 0, (kind, 0), u32::try_from(bytes.len()).unwrap(), true)
        };
        assert_eq!(ask(DISCARD, &[(0, 256, 0), (512, 256, 0)]), 0);
        assert_eq!(ask(WRITE_ZEROES, &[(1024, 8, 0), (1040, 8, 1)]), 0);
        assert_eq!(ask(DISCARD, &[(0, 8, 1)]), 2, "a discard has no flags");
        assert_eq!(ask(WRITE_ZEROES, &[(0, 8, 2)]), 2);
        assert_eq!(ask(WRITE_ZEROES, &[(2040, 16, 0)]), 1, "beyond the end");
        assert_eq!(ask(WRITE_ZEROES, &[(u64::MAX, 8, 0)]), 1);
        assert_eq!(ask(DISCARD, &[]), 1, "no range");
        assert_eq!(ask(DISCARD, &[(0, 8, 0); 33]), 1, "more ranges than were offered");
        for (sector, byte) in
            [(0, 0), (255, 0), (256, 7), (512, 0), (1024, 0), (1032, 7), (1040, 0), (1048, 7)]
        {
            // By 4 KiB, as direct I/O may need.
            let (status, data) = read(&mut driver, 0, sector & !7, 4096);
            let at = usize::try_from(sector & 7).unwrap() * 512;
            assert_eq!((status, data[at]), (0, byte), "sector {sector}");
        }
        drop(driver);
        ended(served).unwrap();
        device.end();
        assert!(std::fs::metadata(&path).unwrap().blocks() < before, "nothing was deallocated");
    }
}

/// Many requests at a time, on every queue, while control requests are served in time.
#[test]
fn control_requests_are_served_under_load() {
    for policy in policies() {
        let backing = file(BYTES);
        let device = Device::new(Disk::open(backing.path(), false, false).unwrap(), 2, policy);
        let (mut driver, served) = device.drive(Setup { queues: 2, ..Setup::default() });
        let (begin, mut done, mut longest, mut asked) = (Instant::now(), 0u32, Duration::ZERO, 0);
        let mut free: [Vec<u16>; 2] = [(0..32).collect(), (0..32).collect()];
        while begin.elapsed() < Duration::from_millis(300) {
            for (index, free) in free.iter_mut().enumerate() {
                let (queue, memory) = driver.queue(index);
                while let Some(number) = free.pop() {
                    let sector = u64::from(done % 64) * 8;
                    let to_device = number % 2 == 0;
                    queue.submit(memory, number, if to_device { OUT } else { IN }, sector, 4096, to_device);
                }
                queue.publish(memory).unwrap();
                while let Some((number, status)) = queue.completed(memory) {
                    assert_eq!(status, 0);
                    free.push(number);
                    done += 1;
                }
            }
            if done / 512 > asked {
                asked = done / 512;
                let began = Instant::now();
                driver.config(0, 60).unwrap();
                // The ring stops when nothing is in flight, and goes on where it stopped.
                let base = driver.stop(0).unwrap();
                let (queue, memory) = driver.queue(0);
                while let Some((number, status)) = queue.completed(memory) {
                    assert_eq!(status, 0);
                    free[0].push(number);
                }
                let queue = driver.queues.remove(0);
                driver.start(&queue, base).unwrap();
                driver.queues.insert(0, queue);
                longest = longest.max(began.elapsed());
            }
        }
        for (index, free) in free.iter_mut().enumerate() {
            let (queue, memory) = driver.queue(index);
            while free.len() < 32 {
                let (number, status) =
                    queue.wait(memory, PATIENCE).unwrap().expect("every request is answered");
                assert_eq!(status, 0);
                free.push(number);
            }
        }
        dwell_testing::say!("{done} requests, {asked} rings stopped and started, the longest in {longest:?}");
        assert!(asked > 0 && longest < PATIENCE);
        drop(driver);
        ended(served).unwrap();
        let counts = device.end().counts;
        assert_eq!((counts.errors, counts.queues.broken), (0, 0));
    }
}

/// A driver kicks only where the device has asked for it, and it asks only where it goes to sleep.
#[test]
#[ignore = "measures time; .ci/long runs it"]
fn polling_device_needs_no_kicks() {
    let mut best = u64::MAX;
    for attempt in 1..=3 {
        let device = Device::new(Disk::null(BYTES), 1, dwell_idle::policy::reference::Always.into());
        let (mut driver, served) = device.drive(Setup::default());
        for _ in 0..1_000 {
            let (queue, memory) = driver.queue(0);
            queue.submit(memory, 0, IN, 0, 4096, false);
            queue.publish(memory).unwrap();
            let begin = Instant::now();
            while queue.completed(memory).is_none() {
                assert!(begin.elapsed() < PATIENCE, "not answered");
                std::thread::yield_now();
            }
        }
        let kicks = driver.queues[0].kicks;
        drop(driver);
        ended(served).unwrap();
        let statistics = device.end();
        let asked = statistics.waits - statistics.caught;
        dwell_testing::say!(
            "attempt {attempt}: {kicks} kicks for 1,000 requests, {} waits, {} of them polled through, {} preempted",
            statistics.waits,
            statistics.caught,
            statistics.preempted
        );
        assert!(kicks <= asked + 1, "kicks that nobody asked for");
        // A chain that came between two readings of the index was once taken for a broken ring.
        assert_eq!(statistics.counts.queues.broken, 0);
        // The driver polls, too, and does not ask to be notified.
        assert!(statistics.counts.queues.calls < 10, "{statistics:?}");
        best = best.min(kicks);
        if best <= 100 {
            break;
        }
    }
    if best > 100 {
        dwell_testing::say!("UNKNOWN polling_device_needs_no_kicks: others use this machine");
    }
}

#[test]
fn configuration_is_that_of_the_disk() {
    let disk = Disk::null(BYTES);
    let config = disk.config(0, 256, 4, 128).unwrap();
    assert_eq!(config[..8], (BYTES / 512).to_le_bytes());
    assert_eq!((config[12], config[20..24].to_vec()), (126, 512u32.to_le_bytes().to_vec()));
    assert_eq!(config[34], 4);
    assert_eq!((disk.config(250, 10, 1, 128), disk.config(u32::MAX, 1, 1, 128)), (None, None));
}

#[test]
fn next_connection_finds_the_device_as_it_was() {
    let backing = file(BYTES);
    for policy in policies() {
        let device = Device::new(Disk::open(backing.path(), false, false).unwrap(), 1, policy);
        for round in 1..6u8 {
            let (mut driver, served) = device.drive(Setup::default());
            if round > 1 {
                assert_eq!(read(&mut driver, 0, 0, 512).1, [round - 1; 512]);
            }
            assert_eq!(write(&mut driver, 0, 0, &[round; 512]), 0);
            // Requests are in flight when the frontend goes away.
            let (queue, memory) = driver.queue(0);
            (0..32).for_each(|number| queue.submit(memory, number, IN, 0, 4096, false));
            queue.publish(memory).unwrap();
            drop(driver);
            ended(served).unwrap();
        }
        let statistics = device.end();
        assert_eq!(statistics.counts.writes, 5);
    }
}

#[test]
fn read_only_disk_refuses_what_writes() {
    let backing = file(BYTES);
    let device = Device::new(Disk::open(backing.path(), true, false).unwrap(), 1, policies()[0].clone());
    let (mut driver, served) = device.drive(Setup::default());
    assert!(driver.has(5), "VIRTIO_BLK_F_RO");
    assert!(!driver.has(13) && !driver.has(14), "no discard, no write-zeroes");
    assert_eq!(write(&mut driver, 0, 0, &[1; 512]), 1);
    assert_eq!(read(&mut driver, 0, 0, 512), (0, vec![0; 512]));
    drop(driver);
    ended(served).unwrap();
    device.end();
    assert_eq!(std::fs::metadata(backing.path()).unwrap().len(), BYTES);
}

/// The file becomes shorter after it was opened: an error, not zeroes, and not a stall.
#[test]
fn shortened_file_gives_errors() {
    let backing = file(BYTES);
    let device = Device::new(Disk::open(backing.path(), false, false).unwrap(), 1, policies()[1].clone());
    let (mut driver, served) = device.drive(Setup::default());
    backing.as_file().set_len(6 * 512).unwrap();
    assert_eq!(read(&mut driver, 0, 0, 512).0, 0);
    assert_eq!(read(&mut driver, 0, 0, 4096).0, 1);
    assert_eq!(read(&mut driver, 0, 64, 4096).0, 1);
    drop(driver);
    ended(served).unwrap();
    device.end();
}

/// Never polls for the driver, and for the disk as long as it takes.
#[test]
fn waits_for_the_disk_have_their_own_policy() {
    for disk_policy in [None, Some(Always.into())] {
        let backing = file(BYTES);
        let disk = Disk::open(backing.path(), false, false).unwrap();
        let device = Device::with_disk_policy(disk, 1, Never.into(), disk_policy.clone());
        let (mut driver, served) = device.drive(Setup::default());
        for byte in 0..100 {
            // A flush is done by another thread of the kernel.
            assert_eq!(write(&mut driver, 0, 0, &[byte; 512]), 0);
            assert_eq!(request(&mut driver, 0, (FLUSH, 0), 0, true), 0);
        }
        drop(driver);
        ended(served).unwrap();
        let statistics = device.end();
        assert!(statistics.halts > 0, "{statistics}");
        assert_eq!(statistics.caught > 0, disk_policy.is_some(), "{statistics}");
    }
}
