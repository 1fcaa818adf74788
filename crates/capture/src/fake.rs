//! A machine of which every answer is written down: for tests of what happens where this one would not refuse.

use crate::perf::Attributes;
use crate::system::System;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

#[derive(Debug)]
pub(crate) struct Fake {
    files: BTreeMap<PathBuf, String>,
    forbidden: Vec<PathBuf>,
    mount_errno: i32,
    perf_errno: i32,
    /// Whether it is a kernel before 6.0, which does not count lost records by event.
    old_perf: bool,
}

impl Fake {
    pub(crate) fn new() -> Fake {
        Fake {
            files: BTreeMap::new(),
            forbidden: vec![],
            mount_errno: libc::ENODEV,
            perf_errno: libc::EACCES,
            old_perf: false,
        }
    }

    pub(crate) fn file(mut self, path: &str, text: &str) -> Fake {
        self.files.insert(path.into(), text.to_owned());
        self
    }

    /// Everything below `path` exists and may not be read.
    pub(crate) fn forbid(mut self, path: &str) -> Fake {
        self.forbidden.push(path.into());
        self
    }

    pub(crate) fn mount_fails(mut self, errno: i32) -> Fake {
        self.mount_errno = errno;
        self
    }

    pub(crate) fn perf_fails(mut self, errno: i32) -> Fake {
        self.perf_errno = errno;
        self
    }

    /// The refusal for `perf_fails` comes only without the counts of lost records, which this kernel does not have.
    pub(crate) fn old_perf(mut self) -> Fake {
        self.old_perf = true;
        self
    }

    fn check(&self, path: &Path) -> io::Result<()> {
        match self.forbidden.iter().any(|root| path.starts_with(root)) {
            true => Err(io::Error::from_raw_os_error(libc::EACCES)),
            false => Ok(()),
        }
    }
}

impl System for Fake {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.check(path)?;
        let text = self.files.get(path).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOENT))?;
        Ok(text.clone().into_bytes())
    }

    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        self.check(path)?;
        let mut names: Vec<String> = self
            .files
            .keys()
            .filter_map(|file| file.strip_prefix(path).ok()?.components().next())
            .map(|name| name.as_os_str().to_string_lossy().into_owned())
            .collect();
        names.dedup();
        if names.is_empty() { Err(io::Error::from_raw_os_error(libc::ENOENT)) } else { Ok(names) }
    }

    fn read_link(&self, path: &Path) -> io::Result<String> {
        String::from_utf8(self.read(path)?).map_err(io::Error::other)
    }

    fn mount_tracefs(&self) -> io::Result<OwnedFd> {
        Err(io::Error::from_raw_os_error(self.mount_errno))
    }

    fn open_event(&self, attributes: &Attributes, _: u32) -> io::Result<OwnedFd> {
        if self.old_perf && attributes.counts_lost {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        Err(io::Error::from_raw_os_error(self.perf_errno))
    }
}
