//! A kernel file system that no other process sees: mounted, but without a mount point.
//!
//! tracefs and debugfs are often not mounted in containers and small guests. A detached mount (`fsopen`, `fsmount`;
//! Linux 5.2) exists exactly as long as its file descriptor and changes nothing for any other process, so dwell stays
//! read-only.

use rustix::fs::{Mode, OFlags, open};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MountPropagationFlags, fsconfig_create, fsmount,
    fsopen, mount, mount_change,
};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

/// A file system mounted for this process alone, until it is dropped.
#[derive(Debug)]
pub struct Detached {
    mount: OwnedFd,
}

impl Detached {
    /// Mounts a file system that has no device, such as `debugfs`; needs CAP_SYS_ADMIN.
    ///
    /// # Errors
    /// The kernel's: not permitted, or no such file system.
    pub fn new(filesystem: &'static str) -> io::Result<Detached> {
        match by_descriptor(filesystem) {
            Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => in_namespace(filesystem),
            done => done,
        }
    }

    /// Where this process, and it alone, finds the file system.
    pub fn path(&self) -> String {
        format!("/proc/self/fd/{}", self.mount.as_raw_fd())
    }
}

pub(crate) fn by_descriptor(filesystem: &'static str) -> io::Result<Detached> {
    let context = fsopen(filesystem, FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&context)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_RDONLY
        | MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    Ok(Detached { mount: fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)? })
}

/// For kernels and sandboxes without `fsopen`: a thread with a mount namespace of its own mounts the file system there,
/// opens it and ends. The namespace goes with the thread; the descriptor keeps the mount.
pub(crate) fn in_namespace(filesystem: &'static str) -> io::Result<Detached> {
    let thread = std::thread::Builder::new().name(filesystem.to_owned()).spawn(move || {
        #[allow(deprecated, reason = "only unsharing descriptors can break safety; NEWNS unshares mounts")]
        rustix::thread::unshare(rustix::thread::UnshareFlags::NEWNS)?;
        mount_change("/", MountPropagationFlags::REC | MountPropagationFlags::PRIVATE)?;
        let place = "/sys";
        mount(filesystem, place, filesystem, MountFlags::RDONLY, None)?;
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        Ok(Detached { mount: open(place, flags, Mode::empty())? })
    })?;
    thread.join().unwrap_or_else(|_| Err(io::Error::other("the mounting thread panicked")))
}
