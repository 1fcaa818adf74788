//! The device under a hostile guest and a hostile frontend: no panic, no stall, no access outside of the
//! guest's memory, and the next frontend can connect.

use crate::rig::{Device, IN, PATIENCE, ended, file, policies, read, request};
use dwell_blk::Disk;
use dwell_blk::driver::{BASE, Descriptor, Driver, INDIRECT, NEXT, Setup, WRITE};
use dwell_stats::SplitMix64;
use std::io::{Read, Write};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const BYTES: u64 = 1 << 20;
/// Parts of a queue's area that the driver's own requests do not use.
const SPARE: usize = 0xd000;

/// Offers a chain that begins at this descriptor; what was returned for it.
fn offer(driver: &mut Driver, head: u16) -> Option<(u16, u32)> {
    let (queue, memory) = driver.queue(0);
    queue.offer(memory, head);
    queue.publish(memory).unwrap();
    let begin = Instant::now();
    while begin.elapsed() < PATIENCE {
        if let Some(returned) = queue.returned(memory) {
            return Some(returned);
        }
        if queue.is_broken(Duration::ZERO).unwrap() {
            return None;
        }
        std::thread::yield_now();
    }
    panic!("the device stalls");
}

fn still_works(device: &Device) {
    let (mut driver, served) = device.drive(Setup::default());
    assert_eq!(read(&mut driver, 0, 0, 512).0, 0);
    drop(driver);
    ended(served).unwrap();
}

#[test]
fn malformed_chains_are_returned_with_nothing_written() {
    for policy in policies() {
        let backing = file(BYTES);
        let device = Device::new(Disk::open(backing.path(), false, false).unwrap(), 1, policy);
        let (mut driver, served) = device.drive(Setup::default());
        let spare = driver.queues[0].address(SPARE);
        let header = Descriptor { address: spare, length: 16, flags: NEXT, next: 1 };
        let status = Descriptor { address: spare + 64, length: 1, flags: WRITE, next: 0 };
        let chains: &[&[Descriptor]] = &[
            &[Descriptor { flags: 0, ..header }],           // no status
            &[Descriptor { length: 15, ..header }, status], // header too short
            &[Descriptor { length: 0, ..header }, status],  // no header
            &[status],                                      // only a status
            &[header, Descriptor { length: 0, ..status }],  // a status of no length
            &[header, Descriptor { flags: WRITE | NEXT, next: 0, ..status }], // a loop
            &[Descriptor { next: 0, ..header }],            // a loop of one
            &[Descriptor { next: 9999, ..header }],         // a link beyond the table
            &[
                header,
                Descriptor { flags: WRITE | NEXT, next: 2, ..status },
                Descriptor { flags: 0, ..header },
            ], // order
            &[Descriptor { address: 0, ..header }, status], // header outside of the memory
            &[Descriptor { address: u64::MAX - 3, ..header }, status], // and beyond all addresses
            &[header, Descriptor { address: 0, ..status }], // status outside
            &[header, Descriptor { address: u64::MAX, length: u32::MAX, ..status }],
            &[Descriptor { flags: INDIRECT, length: 17, ..header }], // half a descriptor
            &[Descriptor { flags: INDIRECT, length: 0, ..header }],  // an empty table
            &[Descriptor { flags: INDIRECT, address: 0, length: 64, ..header }], // a table outside
        ];
        for (number, chain) in chains.iter().enumerate() {
            let (queue, memory) = driver.queue(0);
            queue.part(memory, SPARE, 128).copy_from(&[0u8; 128]);
            for (at, descriptor) in (0u16..).zip(*chain) {
                queue.describe(memory, at, *descriptor);
            }
            assert_eq!(offer(&mut driver, 0), Some((0, 0)), "chain {number}");
        }
        // An indirect table in an indirect table, and a loop in one.
        for inner in [
            Descriptor { address: spare, length: 32, flags: INDIRECT, next: 0 },
            Descriptor { address: spare, length: 1, flags: NEXT, next: 0 },
        ] {
            let (queue, memory) = driver.queue(0);
            queue.part(memory, SPARE, 16).copy_from(&inner.bytes());
            queue.describe(memory, 0, Descriptor { address: spare, length: 32, flags: INDIRECT, next: 0 });
            assert_eq!(offer(&mut driver, 0), Some((0, 0)), "{inner:?}");
        }
        let counts = device.statistics().counts;
        assert_eq!((counts.queues.malformed, counts.requests), (chains.len() as u64 + 2, 0));
        // Data outside of the memory is an I/O error of a request that is one.
        let (queue, memory) = driver.queue(0);
        queue.submit(memory, 0, IN, 0, 512, false);
        queue.describe(
            memory,
            1,
            Descriptor { address: BASE - 512, length: 512, flags: NEXT | WRITE, next: 2 },
        );
        queue.publish(memory).unwrap();
        assert_eq!(queue.wait(memory, PATIENCE).unwrap(), Some((0, 1)));
        assert_eq!(read(&mut driver, 0, 0, 512).0, 0);
        drop(driver);
        ended(served).unwrap();
        still_works(&device);
        device.end();
    }
}

#[test]
fn broken_rings_are_stopped_and_reported_until_they_are_started_anew() {
    for policy in policies() {
        let device = Device::new(Disk::null(BYTES), 1, policy);
        let (mut driver, served) = device.drive(Setup::default());
        for broken in 0..2 {
            let (queue, memory) = driver.queue(0);
            if broken == 0 {
                // More available than the ring has.
                queue.set_available(memory, 1_000);
                queue.kick().unwrap();
            } else {
                // The head of a chain beyond the table.
                queue.offer(memory, 5_000);
                queue.publish(memory).unwrap();
                queue.kick().unwrap();
            }
            assert!(queue.is_broken(PATIENCE).unwrap(), "it is not reported");
            assert_eq!(device.statistics().counts.queues.broken, 1 + broken);
            // It sleeps, although something seems to be available.
            let before = device.statistics().cpu_ns;
            std::thread::sleep(Duration::from_millis(50));
            let took = device.statistics().cpu_ns - before;
            assert!(took < 25_000_000, "it keeps looking at a broken ring: {took} ns of 50 ms");
            driver.stop(0).unwrap();
            let (queue, memory) = driver.queue(0);
            queue.clear(memory);
            let queue = driver.queues.remove(0);
            driver.start(&queue, 0).unwrap();
            driver.queues.insert(0, queue);
            assert_eq!(read(&mut driver, 0, 0, 512).0, 0);
        }
        drop(driver);
        ended(served).unwrap();
        device.end();
    }
}

/// Random descriptors, indirect tables, indexes and memory, for a second or two. What the chains ask for goes
/// to a disk of its own.
#[test]
fn random_chains_neither_panic_nor_stall() {
    let seconds = std::env::var("DWELL_FUZZ_SECONDS").map_or(1.0, |text| text.parse::<f64>().unwrap());
    let seed = SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |time| time.subsec_nanos().into());
    let mut random = SplitMix64::new(seed);
    for policy in policies() {
        let backing = file(BYTES);
        let device = Device::new(Disk::open(backing.path(), false, false).unwrap(), 1, policy);
        let end = Instant::now() + Duration::from_secs_f64(seconds);
        let (mut chains, mut broken, mut connections) = (0u64, 0u32, 0u32);
        while Instant::now() < end {
            connections += 1;
            let (mut driver, served) = device.drive(Setup::default());
            for _ in 0..200 {
                let (queue, memory) = driver.queue(0);
                let spare = queue.address(SPARE);
                let mut describe = || {
                    let address = match random.below(8) {
                        0 => random.bits(),
                        1 => BASE + random.below(1 << 17),
                        2 => u64::MAX - random.below(64),
                        _ => spare + random.below(1 << 12),
                    };
                    let length = match random.below(6) {
                        0 => u32::try_from(random.bits() >> 32).unwrap(),
                        1 => 16,
                        2 => 1,
                        _ => 16 * u32::try_from(random.below(64)).unwrap(),
                    };
                    let flags =
                        u16::try_from(random.below(8)).unwrap() & if random.below(4) > 0 { 3 } else { 7 };
                    Descriptor { address, length, flags, next: u16::try_from(random.below(130)).unwrap() }
                };
                for at in 0..128 {
                    let descriptor = describe();
                    queue.describe(memory, at, descriptor);
                }
                for at in 0..16 {
                    let descriptor = describe().bytes();
                    queue.part(memory, SPARE + at * 16, 16).copy_from(&descriptor);
                }
                // Headers of all kinds, of sectors near the beginning and the end.
                for at in 16..64 {
                    let kind = u32::try_from(random.below(16)).unwrap();
                    let sector =
                        if random.below(4) > 0 { random.below(BYTES / 512 + 8) } else { random.bits() };
                    let header = [&kind.to_le_bytes()[..], &[0; 4], &sector.to_le_bytes()].concat();
                    queue.part(memory, SPARE + at * 16, 16).copy_from(&header);
                }
                let count = 1 + random.below(32);
                for _ in 0..count {
                    let most = if random.below(256) == 0 { 1 << 16 } else { 128 };
                    queue.offer(memory, u16::try_from(random.below(most)).unwrap());
                }
                chains += count;
                queue.publish(memory).unwrap();
                let begin = Instant::now();
                let mut returned = 0;
                let mut is_broken = false;
                while returned < count && !is_broken {
                    assert!(begin.elapsed() < PATIENCE, "the device stalls; seed {seed}");
                    if queue.returned(memory).is_some() {
                        returned += 1;
                    } else {
                        is_broken = queue.is_broken(Duration::from_micros(50)).unwrap();
                    }
                }
                if is_broken {
                    broken += 1;
                    break;
                }
            }
            drop(driver);
            ended(served).unwrap();
        }
        still_works(&device);
        let counts = device.end().counts;
        dwell_testing::say!(
            "{chains} random chains in {connections} connections: {} requests, {} malformed, {broken} rings broken; seed {seed}",
            counts.requests,
            counts.queues.malformed,
        );
        assert!(counts.requests > 0 && counts.queues.malformed > 0);
    }
}

/// Invalid messages, half messages, and none.
#[test]
fn invalid_messages_end_the_connection_only() {
    let mut random = SplitMix64::new(1);
    let device = Device::new(Disk::null(BYTES), 1, policies()[0].clone());
    // Half a header: I/O and statistics go on meanwhile.
    let (mut silent, waits) = device.accept();
    silent.write_all(&[1, 0, 0]).unwrap();
    device.statistics();
    drop(silent);
    assert!(ended(waits).is_err());
    for _ in 0..500 {
        let (mut frontend, served) = device.accept();
        let kind = u32::try_from(random.below(48)).unwrap();
        let size = if random.below(4) == 0 {
            u32::try_from(random.bits() >> 32).unwrap()
        } else {
            8 * u32::try_from(random.below(16)).unwrap()
        };
        let flags = if random.below(4) == 0 { u32::try_from(random.below(16)).unwrap() } else { 1 };
        let mut message = [kind.to_le_bytes(), flags.to_le_bytes(), size.to_le_bytes()].concat();
        message.extend(
            (0..size.min(256))
                .map(|_| u8::try_from(random.below(256)).unwrap() & if kind % 2 == 0 { 0xff } else { 1 }),
        );
        // It may have closed already.
        let _ = frontend.write_all(&message);
        let _ = frontend.shutdown(std::net::Shutdown::Write);
        let mut answer = vec![];
        let _ = frontend.read_to_end(&mut answer);
        let _ = ended(served);
    }
    still_works(&device);
    device.end();
}

/// Control requests that are invalid in the state of the device are refused, and the connection ends.
#[test]
fn control_requests_that_make_no_sense_are_refused() {
    use vhost::VhostBackend;
    use vhost::vhost_user::VhostUserFrontend;
    use vmm_sys_util::eventfd::EventFd;
    type Try = fn(&mut Driver) -> bool;
    let tries: &[(&str, Try)] = &[
        ("a queue that is not there", |driver| driver.frontend.set_vring_num(7, 64).is_err()),
        ("a size that is no power of two", |driver| {
            driver.stop(0).unwrap();
            driver.frontend.set_vring_num(0, 100).is_err()
        }),
        ("a size beyond the largest", |driver| {
            driver.stop(0).unwrap();
            driver.frontend.set_vring_num(0, 32_768).is_err()
        }),
        ("another place for a running ring", |driver| driver.frontend.set_vring_base(0, 3).is_err()),
        ("features that were not offered", |driver| {
            driver.frontend.set_features(1 << 34 | 1 << 32 | 1 << 30).is_err()
        }),
        ("a kick of something that cannot be waited for", |driver| {
            driver.stop(0).unwrap();
            let file = tempfile::tempfile().unwrap();
            // SAFETY: the descriptor is owned by nobody else.
            #[allow(unsafe_code)]
            let kick = unsafe {
                <EventFd as std::os::fd::FromRawFd>::from_raw_fd(std::os::fd::IntoRawFd::into_raw_fd(file))
            };
            driver.frontend.set_vring_kick(0, &kick).is_err()
        }),
        ("a region that is longer than its file", |driver| {
            use std::os::fd::AsRawFd;
            let file = tempfile::tempfile().unwrap();
            file.set_len(1 << 16).unwrap();
            let region = vhost::VhostUserMemoryRegionInfo {
                memory_size: 1 << 30,
                mmap_handle: file.as_raw_fd(),
                ..Default::default()
            };
            driver.frontend.set_mem_table(&[region]).is_err()
        }),
        ("the configuration is not for the driver to change", |driver| {
            let flags = vhost::vhost_user::message::VhostUserConfigFlags::WRITABLE;
            driver.frontend.set_config(0, flags, &[0; 8]).is_err()
        }),
    ];
    for policy in policies() {
        let device = Device::new(Disk::null(BYTES), 1, policy);
        for (what, attempt) in tries {
            let (mut driver, served) = device.drive(Setup::default());
            driver.frontend.set_hdr_flags(vhost::vhost_user::message::VhostUserHeaderFlag::NEED_REPLY);
            assert!(attempt(&mut driver), "{what}");
            drop(driver);
            assert!(ended(served).is_err(), "{what}");
            still_works(&device);
        }
        device.end();
    }
}

/// The I/O thread waits in a write to a descriptor of the frontend, until the frontend has gone.
#[test]
fn a_frontend_that_lets_the_device_wait_keeps_no_other_one_waiting() {
    for policy in policies() {
        let device = Device::new(Disk::null(BYTES), 1, policy);
        for event_idx in [false, true] {
            let (mut driver, served) = device.drive(Setup { event_idx, ..Setup::default() });
            assert_eq!(read(&mut driver, 0, 0, 512).0, 0);
            driver.queues[0].jam().unwrap();
            let (queue, memory) = driver.queue(0);
            (0..4).for_each(|number| queue.submit(memory, number, IN, 0, 512, false));
            queue.publish(memory).unwrap();
            drop(driver);
            let (ends, ended) = std::sync::mpsc::channel();
            std::thread::spawn(move || ends.send(served.join().is_ok()).unwrap());
            assert!(ended.recv_timeout(PATIENCE).expect("the connection ends"));
            still_works(&device);
        }
        device.end();
    }
}

/// Memory that is taken away while requests are in flight, again and again.
#[test]
fn memory_can_be_replaced_under_load() {
    for policy in policies() {
        let backing = file(BYTES);
        let device = Device::new(Disk::open(backing.path(), false, false).unwrap(), 1, policy);
        let (mut driver, served) = device.drive(Setup::default());
        for round in 0..50 {
            let (queue, memory) = driver.queue(0);
            (0..32).for_each(|number| queue.submit(memory, number, IN, u64::from(number) * 8, 4096, false));
            queue.publish(memory).unwrap();
            driver.share().unwrap();
            let (queue, memory) = driver.queue(0);
            for _ in 0..32 {
                let done = queue.wait(memory, PATIENCE).unwrap();
                assert_eq!(done.map(|(_, status)| status), Some(0), "round {round}");
            }
        }
        assert_eq!(request(&mut driver, 0, (IN, 0), 512, false), 0);
        drop(driver);
        ended(served).unwrap();
        device.end();
    }
}
