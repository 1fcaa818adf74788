//! This program itself as the guest's program.
//!
//! The guest runs functions of this very program: its code and constants are shown to the guest read-only, at
//! the addresses that they have here. So what polls in the guest *is* the code of `dwell-policy`, not a
//! translation of it.

use super::VmError;
use std::fs;

/// A piece of a mapped file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) from: u64,
    /// Its length \[bytes\].
    pub(super) bytes: u64,
}

/// The readable pieces of the program and its libraries.
pub(super) fn pieces() -> Result<Vec<Piece>, VmError> {
    let maps = fs::read_to_string("/proc/self/maps")
        .map_err(|error| VmError::Os { what: "reading /proc/self/maps", error })?;
    Ok(maps.lines().filter_map(piece).collect())
}

/// A line of `/proc/PID/maps`: `from-to perms offset device inode path`.
fn piece(line: &str) -> Option<Piece> {
    let mut fields = line.split_ascii_whitespace();
    let (from, to) = fields.next()?.split_once('-')?;
    let (from, to) = (u64::from_str_radix(from, 16).ok()?, u64::from_str_radix(to, 16).ok()?);
    let readable = fields.next()?.starts_with('r');
    let of_a_file = fields.nth(3)?.starts_with('/');
    (readable && of_a_file && to > from).then_some(Piece { from, bytes: to - from })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_readable_pieces_of_files() {
        let text = "55d0c000-55d0f000 r-xp 00001000 08:01 42  /usr/bin/dwell";
        assert_eq!(piece(text), Some(Piece { from: 0x55d0_c000, bytes: 0x3000 }));
        assert_eq!(piece("7ffd1000-7ffd2000 rw-p 00000000 00:00 0  [stack]"), None);
        assert_eq!(piece("55d0c000-55d0f000 ---p 00001000 08:01 42  /usr/bin/dwell"), None);
        assert_eq!(piece("55d0c000-55d0f000 rw-p 00000000 00:00 0"), None);
        assert_eq!(piece(""), None);
    }

    #[test]
    fn this_function_is_in_the_image() {
        let here = this_function_is_in_the_image as *const () as u64;
        assert!(pieces().unwrap().iter().any(|p| (p.from..p.from + p.bytes).contains(&here)));
    }
}
