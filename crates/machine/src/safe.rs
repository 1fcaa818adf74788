//! Files that are read and written as root without trusting who else can write nearby.
//!
//! | what | how |
//! |---|---|
//! | any file that is read | opened without blocking, a regular file, at most [`LONGEST_OF_MACHINE`] bytes |
//! | a file of dwell's own that is read | also: at most [`LONGEST`] bytes, not a symbolic link, owned by root or this user, writable by its owner only |
//! | a file that is created | new (`O_EXCL`), so that neither a file nor a link that is there is followed |
//! | a directory that holds such files | it and every directory above it is owned by root or this user; no other user can write to it |
//!
//! A directory above may be writable by all if it is sticky, as `/tmp` is: others cannot rename or remove
//! what is in it.

use memchr::memmem::Finder;
use rustix::fs::OFlags;
use rustix::process::geteuid;
use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, Metadata, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};

/// The most that is read of one file of dwell's own \[bytes\]: of its journal, and its configuration.
pub const LONGEST: u64 = 1 << 20;
/// The most that is read of another file \[bytes\]: `/proc/cpuinfo` has about 1,500 bytes for each CPU.
const LONGEST_OF_MACHINE: u64 = 16 << 20;

/// Another user owns it or can write to it.
fn refused(why: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why.into())
}

/// It is no file or directory such as dwell writes, whoever owns it.
fn unfit(why: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.into())
}

/// The bytes of a regular file of at most [`LONGEST_OF_MACHINE`] bytes.
///
/// # Errors
/// The system's error; `InvalidData` for a file of another kind or a longer one.
pub(crate) fn read(path: &Path) -> io::Result<Vec<u8>> {
    read_all(open(OpenOptions::new().read(true), OFlags::empty(), path)?, LONGEST_OF_MACHINE)
}

/// As [`read`], of a file that only root or this user can have written.
///
/// # Errors
/// As [`read`]; `InvalidInput` if another user owns the file or can write to it, `ELOOP` if it is a symbolic link.
pub(crate) fn read_own(path: &Path) -> io::Result<Vec<u8>> {
    let file = open(OpenOptions::new().read(true), OFlags::NOFOLLOW, path)?;
    writable_by_others(&file.metadata()?, false)
        .map_or_else(|| read_all(file, LONGEST), |why| Err(refused(why)))
}

fn open(options: &mut OpenOptions, flags: OFlags, path: &Path) -> io::Result<File> {
    // Without O_NONBLOCK, opening a FIFO waits for a writer.
    let flags = (flags | OFlags::NONBLOCK | OFlags::NOCTTY).bits();
    let file = options.custom_flags(flags.cast_signed()).open(path)?;
    match file.metadata()? {
        metadata if metadata.is_file() => Ok(file),
        metadata => Err(unfit(format!("it is {}, not a regular file", kind(&metadata)))),
    }
}

fn kind(metadata: &Metadata) -> &'static str {
    let kind = metadata.file_type();
    match () {
        () if kind.is_dir() => "a directory",
        () if kind.is_fifo() => "a FIFO",
        () if kind.is_socket() => "a socket",
        () => "a device",
    }
}

fn read_all(file: File, longest: u64) -> io::Result<Vec<u8>> {
    let mut bytes = vec![];
    file.take(longest + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > longest {
        true => Err(unfit(format!("it is longer than {longest} bytes"))),
        false => Ok(bytes),
    }
}

/// Whether a regular file, of whatever length, has these bytes: so large are the kernel's lists of types and symbols.
///
/// # Errors
/// The system's error.
pub(crate) fn contains(path: &Path, bytes: &[u8]) -> io::Result<bool> {
    let mut file = open(OpenOptions::new().read(true), OFlags::empty(), path)?;
    let (mut held, mut read) = (Vec::<u8>::new(), vec![0_u8; 1 << 16]);
    let finder = Finder::new(bytes);
    loop {
        match file.read(&mut read)? {
            0 => return Ok(false),
            count => held.extend_from_slice(&read[..count]),
        }
        if finder.find(&held).is_some() {
            return Ok(true);
        }
        held.drain(..held.len().saturating_sub(bytes.len()));
    }
}

/// Makes a file that is not there yet, readable by all, and writes it through to the disk.
///
/// # Errors
/// The system's error; `AlreadyExists` if anything has this name, a symbolic link included.
pub(crate) fn create(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o644).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Opens a lock file, or makes it; on a file system that is read-only one that is there. Only root can open it: whoever can
/// open a file can lock it.
///
/// # Errors
/// The system's error; `InvalidData` if it is not a regular file, `ELOOP` if it is a symbolic link.
pub(crate) fn open_lock(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    match open(options.write(true).create(true).truncate(false).mode(0o600), OFlags::NOFOLLOW, path) {
        Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => {
            open(OpenOptions::new().read(true), OFlags::NOFOLLOW, path)
        }
        opened => opened,
    }
}

/// Makes a directory and those above it, none of them writable by others.
///
/// # Errors
/// The system's error.
pub(crate) fn make_directory(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o755).create(path)
}

/// Checks that no user but root and this one can change what is in a directory, nor put another directory in its place.
/// Of a path that is not there, what is there of it is checked.
///
/// # Errors
/// `InvalidInput` with the directory and the reason, `InvalidData` if it is none; the system's error if something cannot be looked at.
pub(crate) fn check_directory(path: &Path) -> io::Result<()> {
    let mut links = 0;
    let mut rest: Vec<OsString> = parts(&std::path::absolute(path)?);
    rest.reverse();
    let mut here = PathBuf::from("/");
    check_one(&here, rest.is_empty())?;
    while let Some(name) = rest.pop() {
        if name == ".." {
            here.pop();
            continue;
        }
        let next = here.join(&name);
        let metadata = match fs::symlink_metadata(&next) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            found => found?,
        };
        if !metadata.is_symlink() {
            here = next;
            check_one(&here, rest.is_empty())?;
            continue;
        }
        // The directory that the link is in was checked, so the link is root's or this user's own; unless it is sticky.
        if let Some(why) = owned_by_other(&metadata) {
            return Err(refused(format!("{}: {why}", next.display())));
        }
        links += 1;
        if links > MOST_LINKS {
            return Err(unfit(format!("{}: too many symbolic links", next.display())));
        }
        let target = fs::read_link(&next)?;
        if target.is_absolute() {
            here = PathBuf::from("/");
        }
        rest.extend(parts(&target).into_iter().rev());
    }
    Ok(())
}

/// As many as the kernel follows.
const MOST_LINKS: u32 = 40;

fn parts(path: &Path) -> Vec<OsString> {
    let part = |part: Component<'_>| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        _ => None,
    };
    path.components().filter_map(part).collect()
}

fn check_one(path: &Path, is_last: bool) -> io::Result<()> {
    let metadata = fs::symlink_metadata(path)?;
    if !metadata.is_dir() {
        return Err(unfit(format!("{}: it is not a directory", path.display())));
    }
    let why = writable_by_others(&metadata, !is_last);
    why.map_or(Ok(()), |why| Err(refused(format!("{}: {why}", path.display()))))
}

fn owned_by_other(metadata: &Metadata) -> Option<String> {
    let owner = metadata.uid();
    (owner != 0 && owner != geteuid().as_raw())
        .then(|| format!("user {owner} owns it and could change what `dwell revert` writes"))
}

fn writable_by_others(metadata: &Metadata, sticky_will_do: bool) -> Option<String> {
    let mode = metadata.mode() & 0o7777;
    let writable = mode & 0o022 != 0 && !(sticky_will_do && mode & 0o1000 != 0);
    owned_by_other(metadata).or_else(|| {
        writable.then(|| {
            format!("its mode {mode:04o} lets other users write, who could change what `dwell revert` writes")
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    fn folder() -> tempfile::TempDir {
        tempfile::tempdir().unwrap()
    }

    fn mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn what_never_ends_or_never_begins_is_not_read() {
        let folder = folder();
        let fifo = folder.path().join("fifo");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        assert_eq!(read(&fifo).unwrap_err().to_string(), "it is a FIFO, not a regular file");
        assert!(read("/dev/zero".as_ref()).unwrap_err().to_string().contains("a device"));
        assert!(read(folder.path()).unwrap_err().to_string().contains("a directory"));
        let long = folder.path().join("long");
        fs::write(&long, vec![b'x'; 1 << 20]).unwrap();
        mode(&long, 0o600);
        assert_eq!(read_own(&long).unwrap().len(), 1 << 20);
        fs::write(&long, vec![b'x'; (1 << 20) + 1]).unwrap();
        assert!(read_own(&long).unwrap_err().to_string().contains("longer than 1048576 bytes"));
        assert!(read(&long).is_ok());
        File::options().write(true).open(&long).unwrap().set_len((16 << 20) + 1).unwrap();
        assert!(read(&long).is_err_and(|error| error.to_string().contains("longer than 16777216 bytes")));
    }

    #[test]
    fn a_link_is_neither_written_through_nor_read_as_our_own() {
        let folder = folder();
        let (aim, link) = (folder.path().join("aim"), folder.path().join("link"));
        symlink(&aim, &link).unwrap();
        assert_eq!(create(&link, b"x").unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert!(open_lock(&link).is_err() && !aim.exists());
        fs::write(&aim, "x").unwrap();
        assert_eq!(read(&link).unwrap(), b"x");
        assert!(read_own(&link).is_err());
        mode(&aim, 0o666);
        assert!(read_own(&aim).unwrap_err().to_string().contains("0666 lets other users write"));
        mode(&aim, 0o644);
        assert_eq!(read_own(&aim).unwrap(), b"x");
        open_lock(&folder.path().join("lock")).unwrap();
        assert_eq!(fs::metadata(folder.path().join("lock")).unwrap().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_directory_that_others_can_write_is_refused_wherever_it_is_in_the_path() {
        let folder = folder();
        let (middle, last) = (folder.path().join("a"), folder.path().join("a/b"));
        make_directory(&last).unwrap();
        check_directory(&last).unwrap();
        check_directory(&last.join("not/there/yet")).unwrap();
        let told = |path: &Path| check_directory(path).unwrap_err().to_string();
        mode(&middle, 0o777);
        assert!(told(&last).contains("a: its mode 0777 lets other users write"), "{}", told(&last));
        assert!(told(&last.join("not/there")).contains("0777"));
        // Sticky will do for a directory above, not for the one that holds the files.
        mode(&middle, 0o1777);
        check_directory(&last).unwrap();
        mode(&last, 0o1777);
        assert!(told(&last).contains("b: its mode 1777"));
        mode(&last, 0o775);
        assert!(told(&last).contains("0775"));
        mode(&last, 0o755);
        // A link leads to what is checked in its place.
        let link = folder.path().join("link");
        symlink("a/b", &link).unwrap();
        check_directory(&link).unwrap();
        mode(&last, 0o777);
        assert!(told(&link).contains("0777"));
        symlink("round", folder.path().join("round")).unwrap();
        assert!(told(&folder.path().join("round")).contains("too many symbolic links"));
    }

    #[test]
    fn a_directory_of_another_user_is_refused() {
        let folder = folder();
        let other = folder.path().join("a");
        make_directory(&other.join("b")).unwrap();
        if chown(&other, Some(65_533), None).is_err() {
            dwell_testing::skip!("root", "a_directory_of_another_user_is_refused", "not root");
            return;
        }
        for path in [&other, &other.join("b")] {
            let told = check_directory(path).unwrap_err().to_string();
            assert!(told.contains("a: user 65533 owns it"), "{told}");
        }
    }
}
