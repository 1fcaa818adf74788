//! A kernel file system that nobody else sees: mounted, but at no place.
//!
//! tracefs and debugfs are often not mounted in containers and small guests. A detached mount (`fsopen`, `fsmount`;
//! Linux 5.2) lives exactly as long as its file descriptor and changes nothing for any other process, so dwell stays
//! read-only.

use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;

/// A file system mounted for this process alone, until it is dropped.
#[derive(Debug)]
pub struct Detached {
    mount: OwnedFd,
}

impl Detached {
    /// Mounts a file system that has no device, such as `debugfs`; needs CAP_SYS_ADMIN.
    ///
    /// # Errors
    /// What the kernel answers: not permitted, no such file system, or (before 5.2) no such call.
    pub fn new(filesystem: &str) -> io::Result<Detached> {
        let context = fsopen(filesystem, FsOpenFlags::FSOPEN_CLOEXEC)?;
        fsconfig_create(&context)?;
        let attributes = MountAttrFlags::MOUNT_ATTR_RDONLY
            | MountAttrFlags::MOUNT_ATTR_NOSUID
            | MountAttrFlags::MOUNT_ATTR_NODEV
            | MountAttrFlags::MOUNT_ATTR_NOEXEC;
        let mount = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
        Ok(Detached { mount })
    }

    /// Where this process, and it alone, finds the file system.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.mount.as_raw_fd()))
    }
}
