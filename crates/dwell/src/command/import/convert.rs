//! The text of a file, made by another tool where that is needed.

use crate::progress;
use anyhow::{Context, bail};
use dwell_recording::regular;
use dwell_trace::import::{Binary, Input};
use std::io::{self, Read};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

/// The text, made by another program where that is needed and asked for.
pub(in crate::command) fn open(path: &Path, convert: bool) -> anyhow::Result<Input<'static>> {
    let mut start = [0; 64];
    let is_file = convert && path != Path::new("-");
    let read =
        if is_file { regular::open(path).and_then(|mut file| file.read(&mut start)).unwrap_or(0) } else { 0 };
    match Binary::of(&start[..read]) {
        Some(kind) => Ok(Input::new(&path.display().to_string(), Converted::start(kind, path)?)?),
        None => progress::text(path),
    }
}

/// What a program prints of a file; an error at the end if it fails.
struct Converted {
    command: String,
    child: Child,
    text: ChildStdout,
}

impl Converted {
    fn start(kind: Binary, path: &Path) -> anyhow::Result<Converted> {
        let name = path.to_str().context("the name of the file is not UTF-8")?;
        let command = kind.command(name);
        let [program, arguments @ ..] = command.as_slice() else { bail!("no command") };
        let mut child = Command::new(program).args(arguments).stdout(Stdio::piped()).spawn().with_context(|| {
            format!("{name}: cannot convert {}: cannot run {program}; install it, or convert the file elsewhere", kind.words())
        })?;
        let text = child.stdout.take().context("no output")?;
        Ok(Converted { command: command.join(" "), child, text })
    }
}

impl Read for Converted {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.text.read(buffer)?;
        if read == 0 && !buffer.is_empty() {
            let status = self.child.wait()?;
            if !status.success() {
                return Err(io::Error::other(format!("`{}` failed: {status}", self.command)));
            }
        }
        Ok(read)
    }
}

impl Drop for Converted {
    /// A program whose text is not wanted ends when it cannot write on.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
