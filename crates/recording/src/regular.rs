//! Files named by the user: only regular ones are read, and only up to a given length.

use crate::open::{PACKED, UTF_16};
use rustix::fs::OFlags;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

/// Opens a regular file. Opening a FIFO could wait for a writer for ever, and a device need not end.
///
/// # Errors
/// The system's error; `InvalidInput` for anything but a regular file.
pub fn open(path: &Path) -> io::Result<File> {
    // Opening a device can already do something; a FIFO that takes the file's place meanwhile does not block.
    check(&fs::metadata(path)?)?;
    let file =
        OpenOptions::new().read(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed()).open(path)?;
    check(&file.metadata()?)?;
    Ok(file)
}

fn check(metadata: &Metadata) -> io::Result<()> {
    let kind = metadata.file_type();
    let other = match () {
        () if kind.is_file() => return Ok(()),
        () if kind.is_dir() => "a directory",
        () if kind.is_fifo() => "a FIFO",
        () if kind.is_socket() => "a socket",
        () => "a device",
    };
    Err(io::Error::new(io::ErrorKind::InvalidInput, format!("it is {other}, not a regular file")))
}

/// The text in a regular file of at most `most` bytes.
///
/// # Errors
/// As [`open`]; `InvalidInput` for a longer file, `InvalidData` if it is not UTF-8.
pub fn read_text(path: &Path, most: u64) -> io::Result<String> {
    let mut bytes = vec![];
    open(path)?.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        let why = format!("it is longer than {most} bytes");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    String::from_utf8(bytes).map_err(|error| {
        let begins = |magic: &[u8]| error.as_bytes().starts_with(magic);
        let packed = PACKED.iter().find(|(magic, _)| begins(magic));
        let what = match packed {
            Some((_, what)) => format!("it is {what}; unpack it first"),
            None if UTF_16.iter().any(|mark| begins(mark)) => {
                "it is UTF-16; make it UTF-8 with `iconv -f UTF-16 -t UTF-8`".to_owned()
            }
            None => error.to_string(),
        };
        io::Error::new(io::ErrorKind::InvalidData, what)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_and_long_files_are_refused() {
        assert_eq!(open("/dev/zero".as_ref()).unwrap_err().to_string(), "it is a device, not a regular file");
        assert_eq!(open("/".as_ref()).unwrap_err().to_string(), "it is a directory, not a regular file");
        let mut file = tempfile::NamedTempFile::new().unwrap();
        io::Write::write_all(&mut file, b"12345").unwrap();
        assert_eq!(read_text(file.path(), 5).unwrap(), "12345");
        for (bytes, what) in [
            (&b"\x1f\x8b\x08"[..], "it is compressed by gzip; unpack it first"),
            (b"\xff\xfex\0", "it is UTF-16; make it UTF-8 with `iconv -f UTF-16 -t UTF-8`"),
        ] {
            std::fs::write(file.path(), bytes).unwrap();
            assert_eq!(read_text(file.path(), 5).unwrap_err().to_string(), what);
        }
        std::fs::write(file.path(), b"12345").unwrap();
        assert_eq!(read_text(file.path(), 4).unwrap_err().to_string(), "it is longer than 4 bytes");
    }
}
