//! Progress of long work, on stderr and only on a terminal.

use anyhow::Context;
use dwell_recording::import::Input;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressFinish, ProgressStyle};
use std::fs::File;
use std::io;
use std::path::Path;
use std::time::Duration;

/// A bar over episodes.
pub(crate) fn episodes(total: u64, what: &'static str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
    bar.set_style(style("{msg} {wide_bar} {percent}% of {human_len} episodes, {eta} left"));
    bar.set_message(what);
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

/// A bar over the bytes of a text; - is stdin, of which the length is not known.
pub(crate) fn text(path: &Path) -> anyhow::Result<Input<'static>> {
    if path == Path::new("-") {
        return Ok(Input::new("stdin", io::stdin())?);
    }
    let name = path.display().to_string();
    let file = File::open(path).with_context(|| format!("cannot open {name}"))?;
    let total = file.metadata().map_or(0, |metadata| metadata.len());
    let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
    bar.set_style(style("{msg} {wide_bar} {bytes} of {total_bytes}, {eta} left"));
    bar.set_message("reading");
    // The bar is cleared when the reader, which holds it, is dropped at the end of the input.
    let bar = bar.with_finish(ProgressFinish::AndClear);
    Ok(Input::new(&name, bar.wrap_read(file))?)
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}
