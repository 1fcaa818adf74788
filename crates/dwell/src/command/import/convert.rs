//! The text of a file, made by another tool where that is needed.

use crate::progress;
use anyhow::{Context, bail, ensure};
use dwell_recording::regular;
use dwell_trace::import::{Binary, Input, InputError};
use std::io::{self, Read};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

/// The text, made by another program where that is needed and asked for; of perf `of_guests`, with what interrupts them.
pub(in crate::command) fn open(
    path: &Path,
    convert: bool,
    of_guests: bool,
) -> anyhow::Result<Input<'static>> {
    let mut start = [0; 64];
    let read = match path == Path::new("-") {
        true => 0,
        false => regular::open(path).and_then(|mut file| file.read(&mut start)).unwrap_or(0),
    };
    let name = path.display().to_string();
    match Binary::of(&start[..read]) {
        None => progress::text(path),
        Some(kind) => {
            let kind = if of_guests && kind == Binary::Perf { Binary::PerfOfGuests } else { kind };
            ensure!(convert, "{}, or give --convert", InputError::Binary { name, kind });
            Ok(Input::new(&name, Converted::start(kind, path)?)?)
        }
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
