//! The binary statistics file of KVM: it describes itself.
//!
//! A header of six 32-bit words (flags, length of names, number of descriptors, and where id, descriptors and data
//! begin) is followed by descriptors of 16 bytes and a name each. A descriptor gives type, unit, exponent and where
//! its values lie in the data, which are 64-bit words. The first three parts never change while the file is open; only
//! the data are read again. Layout: `struct kvm_stats_header` and `struct kvm_stats_desc` in `linux/kvm.h`.

use super::Counters;
use crate::native::{half, word};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

/// One statistic, as the file describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stat {
    pub name: String,
    /// What its numbers are, their unit, and the base of the exponent (`KVM_STATS_TYPE_*`, `_UNIT_*`, `_BASE_*`).
    pub flags: u32,
    /// The power of the base that a number is to be multiplied with.
    pub exponent: i16,
    /// How many numbers it has.
    pub size: u16,
    /// Where the first one lies in the data \[bytes\].
    offset: u32,
}

/// Why a file is not a statistics file.
#[derive(Debug, thiserror::Error)]
pub enum LayoutError {
    /// It cannot be read.
    #[error("cannot read a KVM statistics file")]
    Read(#[from] io::Error),
    /// It ends too early, or claims to be larger than any such file.
    #[error("malformed KVM statistics file: {field} = {value}")]
    Implausible {
        /// The field of the header or descriptor.
        field: &'static str,
        value: u64,
    },
}

const HEADER: usize = 24;
const DESCRIPTOR: usize = 16;
/// Kernels have names of 48 bytes, up to about 80 descriptors and 64 numbers in one; these limits are far above, and
/// keep a file that lies from taking memory.
const MOST_NAME: u32 = 1024;
const MOST_STATS: u32 = 4096;
const MOST_DATA: u64 = 1 << 20;

impl Stat {
    fn parse(bytes: &[u8]) -> Option<Stat> {
        let name = bytes.get(DESCRIPTOR..)?;
        let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
        Some(Stat {
            name: String::from_utf8_lossy(&name[..end]).into_owned(),
            flags: word(bytes, 0)?,
            exponent: half(bytes, 4)?.cast_signed(),
            size: half(bytes, 6)?,
            offset: word(bytes, 8)?,
        })
    }

    fn end(&self) -> u64 {
        u64::from(self.offset) + 8 * u64::from(self.size)
    }
}

/// An open statistics file of a VM or a vCPU.
#[derive(Debug)]
pub struct StatsFile {
    file: File,
    stats: Vec<Stat>,
    data_offset: u32,
    data_bytes: usize,
}

impl StatsFile {
    /// Reads the header of the file. The descriptor is the one that `KVM_GET_STATS_FD` returned, or a copy of it.
    ///
    /// # Errors
    /// [`LayoutError`] if it cannot be read or is no statistics file.
    pub fn new(fd: OwnedFd) -> Result<StatsFile, LayoutError> {
        StatsFile::of(File::from(fd))
    }

    fn of(file: File) -> Result<StatsFile, LayoutError> {
        let mut header = [0; HEADER];
        file.read_exact_at(&mut header, 0)?;
        let [name_size, count, descriptors_offset, data_offset] =
            [4, 8, 16, 20].map(|at| word(&header, at).unwrap_or(0));
        let limit = |field, value: u32, most: u32| match value {
            value if value <= most => Ok(value as usize),
            value => Err(LayoutError::Implausible { field, value: value.into() }),
        };
        let descriptor_bytes = DESCRIPTOR + limit("name_size", name_size, MOST_NAME)?;
        let mut descriptors = vec![0; limit("num_desc", count, MOST_STATS)? * descriptor_bytes];
        file.read_exact_at(&mut descriptors, descriptors_offset.into())?;
        let stats: Vec<Stat> = descriptors.chunks_exact(descriptor_bytes).filter_map(Stat::parse).collect();
        let data = stats.iter().map(Stat::end).max().unwrap_or(0);
        if data > MOST_DATA {
            return Err(LayoutError::Implausible { field: "offset + size", value: data });
        }
        Ok(StatsFile { file, stats, data_offset, data_bytes: usize::try_from(data).unwrap_or(0) })
    }

    /// The statistics that the file has.
    pub fn stats(&self) -> &[Stat] {
        &self.stats
    }

    /// Reads the numbers of every statistic, in the order of [`StatsFile::stats`].
    ///
    /// # Errors
    /// What reading answers; a VM that has ended answers nothing more.
    pub fn read(&self) -> io::Result<Vec<Vec<u64>>> {
        let mut data = vec![0; self.data_bytes];
        self.file.read_exact_at(&mut data, self.data_offset.into())?;
        Ok(self.stats.iter().map(|stat| numbers(&data, stat)).collect())
    }

    /// Reads the counters of halts and polls.
    ///
    /// # Errors
    /// What reading answers.
    pub fn counters(&self) -> io::Result<Counters> {
        let read = self.read()?;
        let find = |name: &str| {
            let at = self.stats.iter().position(|stat| stat.name == name)?;
            read.get(at).filter(|numbers| !numbers.is_empty())
        };
        Ok(Counters::gather(|name| find(name)?.first().copied(), |name| find(name).cloned()))
    }
}

fn numbers(data: &[u8], stat: &Stat) -> Vec<u64> {
    let from = usize::try_from(stat.offset).unwrap_or(usize::MAX);
    let bytes = data.get(from..).unwrap_or_default();
    let word = |chunk: &[u8]| chunk.try_into().map_or(0, u64::from_ne_bytes);
    bytes.chunks_exact(8).take(stat.size.into()).map(word).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use dwell_testing::kvm_stats::file;
    use proptest::prelude::*;
    use std::io::Write;

    fn open(bytes: &[u8]) -> Result<StatsFile, LayoutError> {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        StatsFile::of(file)
    }

    #[test]
    fn names_units_and_histograms() {
        let bytes = file(&[
            ("halt_exits", 0, 0, &[7]),
            ("halt_wait_ns", 0x20, -9, &[123_456]),
            ("halt_wait_hist", 0x24, -9, &[0, 1, 2]),
            ("novelty", 0x9ff, 3, &[1]),
        ]);
        let stats = open(&bytes).unwrap();
        let found: Vec<(&str, u32, i16, u16)> = stats
            .stats()
            .iter()
            .map(|stat| (stat.name.as_str(), stat.flags, stat.exponent, stat.size))
            .collect();
        let expected = [
            ("halt_exits", 0, 0, 1),
            ("halt_wait_ns", 0x20, -9, 1),
            ("halt_wait_hist", 0x24, -9, 3),
            ("novelty", 0x9ff, 3, 1),
        ];
        assert_eq!(found, expected);
        assert_eq!(stats.read().unwrap(), [vec![7], vec![123_456], vec![0, 1, 2], vec![1]]);
        let counters = stats.counters().unwrap();
        assert_eq!((counters.halt_exits, counters.halt_wait_ns), (Some(7), Some(123_456)));
        assert_eq!(counters.halt_wait_hist, Some(vec![0, 1, 2]));
        assert_eq!(counters.halt_poll_fail_ns, None);
    }

    #[test]
    fn cut_and_lying_files_are_refused() {
        let bytes = file(&[("halt_exits", 0, 0, &[7])]);
        for length in [0, 10, HEADER, HEADER + 20] {
            assert!(matches!(open(&bytes[..length]), Err(LayoutError::Read(_))), "{length}");
        }
        let cut = open(&bytes[..bytes.len() - 1]).unwrap();
        assert!(cut.counters().is_err());
        let mut lying = bytes.clone();
        lying[8..12].copy_from_slice(&u32::MAX.to_ne_bytes());
        assert_eq!(
            open(&lying).unwrap_err().to_string(),
            "malformed KVM statistics file: num_desc = 4294967295"
        );
        let mut far = bytes;
        far[HEADER + 8..HEADER + 12].copy_from_slice(&u32::MAX.to_ne_bytes());
        assert!(matches!(open(&far), Err(LayoutError::Implausible { field: "offset + size", .. })));
    }

    proptest! {
        #[test]
        fn garbage_never_panics(mut bytes in prop::collection::vec(any::<u8>(), 0..400), small in any::<[u8; 4]>()) {
            for (at, value) in [4usize, 8, 16, 20].into_iter().zip(small) {
                if let Some(word) = bytes.get_mut(at..at + 4) {
                    word.copy_from_slice(&u32::from(value % 64).to_ne_bytes());
                }
            }
            if let Ok(stats) = open(&bytes) {
                let _ = stats.counters();
            }
        }
    }
}
