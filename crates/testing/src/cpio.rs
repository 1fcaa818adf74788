//! An initramfs: the `newc` form of a cpio archive, not compressed.

use std::collections::BTreeMap;
use std::io::{self, Write};

/// A regular file anyone may run, a folder, and the console that the kernel opens for init.
const FILE: u32 = 0o100_755;
const FOLDER: u32 = 0o040_755;
const CONSOLE: u32 = 0o020_600;

/// Files by path, and the folders above them.
#[derive(Debug, Default)]
pub struct Archive {
    entries: BTreeMap<String, (u32, Vec<u8>)>,
}

impl Archive {
    /// An archive with the folders and the console that init needs.
    pub fn new() -> Archive {
        let mut archive = Archive::default();
        for folder in ["bin", "dev", "proc", "sys", "tmp", "run", "mod", "mnt", "etc", "out", "var/lib"] {
            archive.insert(folder, FOLDER, vec![]);
        }
        archive.insert("dev/console", CONSOLE, vec![]);
        archive
    }

    pub fn file(&mut self, path: &str, content: Vec<u8>) {
        self.insert(path.trim_start_matches('/'), FILE, content);
    }

    fn insert(&mut self, path: &str, mode: u32, content: Vec<u8>) {
        for (at, _) in path.match_indices('/') {
            self.entries.entry(path[..at].to_owned()).or_insert((FOLDER, vec![]));
        }
        self.entries.insert(path.to_owned(), (mode, content));
    }

    /// Writes it.
    ///
    /// # Errors
    /// Those of `to`.
    pub fn write(&self, mut to: impl Write) -> io::Result<()> {
        let mut number = 0;
        for (path, (mode, content)) in &self.entries {
            number += 1;
            entry(&mut to, number, path, *mode, content)?;
        }
        entry(&mut to, 0, "TRAILER!!!", 0, &[])
    }
}

fn entry(to: &mut impl Write, number: usize, path: &str, mode: u32, content: &[u8]) -> io::Result<()> {
    let device = if mode == CONSOLE { [5, 1] } else { [0, 0] };
    let [major, minor] = device;
    // The fields of the header: inode, mode, owner, group, links, time, size, device, device of a node, length of the
    // name, checksum.
    let fields = [number, mode as usize, 0, 0, 1, 0, content.len(), 0, 0, major, minor, path.len() + 1, 0];
    let mut head = String::from("070701");
    fields.iter().for_each(|field| head += &format!("{field:08X}"));
    head += path;
    head.push('\0');
    padded(to, head.as_bytes())?;
    padded(to, content)
}

/// What is written, filled up to a multiple of four.
fn padded(to: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    to.write_all(bytes)?;
    to.write_all(&[0; 3][..bytes.len().wrapping_neg() % 4])
}
