//! What a file is, and the tool that converts it.

use super::{Events, Files, Qemu};
use crate::failure::Outcome;
use crate::progress;
use anyhow::{Context, bail};
use dwell_policy::Layer;
use dwell_recording::regular;
use dwell_trace::import::csv::CsvOptions;
use dwell_trace::import::perf::PerfOptions;
use dwell_trace::import::{self, Binary, Input};
use std::io::{self, Read};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

/// Imports a file by what its first lines are.
pub(super) fn any(files: Files, mut args: Events) -> Outcome {
    args.common.files.clone_from(&files);
    let mut input = open(&files.file, args.convert)?;
    let name = input.name().to_owned();
    match import::recognise(&mut input)? {
        import::Format::Events => args.import(input),
        import::Format::Qemu => Qemu {
            files,
            common: args.common,
            sleeps: None,
            context: None,
            skip_unparsable: args.skip_unparsable,
            allow_contradictions: false,
        }
        .import(input),
        import::Format::Csv => {
            let layer = args.layer.with_context(|| {
                format!("{name}: is a table of episodes, which does not say whose; give --layer guest, host or iothread")
            })?;
            let metadata = args.common.metadata(layer)?;
            let options = CsvOptions::for_layer(layer);
            args.common
                .import(input, metadata, |input, writer| Ok(import::csv::import(input, &options, writer)?))
        }
        import::Format::Foreign(foreign) => bail!("{name}: {}", foreign.words()),
    }
}

/// The text, made by another program where that is needed and asked for.
pub(in crate::command) fn open(path: &Path, convert: bool) -> anyhow::Result<Input<'static>> {
    let mut start = [0; 16];
    let is_file = convert && path != Path::new("-");
    let read =
        if is_file { regular::open(path).and_then(|mut file| file.read(&mut start)).unwrap_or(0) } else { 0 };
    match Binary::of(&start[..read]) {
        Some(kind) => Ok(Input::new(&path.display().to_string(), Converted::start(kind, path)?)?),
        None => progress::text(path),
    }
}

impl Events {
    pub(super) fn import(self, input: Input<'_>) -> Outcome {
        let options = PerfOptions {
            layer: self.layer,
            source: self.source.into(),
            arch: self.arch,
            skip_unparsable: self.skip_unparsable,
        };
        let metadata = self.common.metadata(self.layer.unwrap_or(Layer::Host))?;
        self.common
            .import(input, metadata, |input, writer| Ok(import::perf::import(input, &options, writer)?))
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
