//! A statistics file of KVM, for tests of what reads one.

/// A statistics file as a kernel writes it: `struct kvm_stats_header`, descriptors with names of 24 bytes,
/// and the data. Each statistic is its name, flags, exponent and values.
///
/// # Panics
/// With more statistics or values than a file can hold.
#[must_use]
pub fn file(stats: &[(&str, u32, i16, &[u64])]) -> Vec<u8> {
    const HEADER: u32 = 24;
    const DESCRIPTOR: u32 = 16;
    const NAME: u32 = 24;
    let count = u32::try_from(stats.len()).unwrap();
    let mut bytes = vec![];
    for word in [0, NAME, count, HEADER, HEADER, HEADER + count * (DESCRIPTOR + NAME)] {
        bytes.extend(word.to_ne_bytes());
    }
    let mut offset = 0u32;
    for (name, flags, exponent, values) in stats {
        let size = u16::try_from(values.len()).unwrap();
        bytes.extend(flags.to_ne_bytes());
        bytes.extend(exponent.to_ne_bytes());
        bytes.extend(size.to_ne_bytes());
        bytes.extend(offset.to_ne_bytes());
        bytes.extend(0u32.to_ne_bytes());
        let mut padded = name.as_bytes().to_vec();
        padded.resize(NAME as usize, 0);
        bytes.extend(padded);
        offset += 8 * u32::from(size);
    }
    bytes.extend(stats.iter().flat_map(|(.., values)| *values).flat_map(|value| value.to_ne_bytes()));
    bytes
}
