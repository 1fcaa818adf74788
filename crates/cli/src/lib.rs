//! What the programs `dwell` and `dwell-lab` share: quantities as people type them, output, progress, how they end,
//! manual pages and completions.

pub mod failure;
pub mod generate;
pub mod output;
pub mod paint;
pub mod progress;
pub mod quantity;
pub mod stop;

/// The command line of a program, to store in what it writes.
pub fn command_line(program: &str) -> String {
    let words = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned());
    std::iter::once(program.to_owned()).chain(words).collect::<Vec<_>>().join(" ")
}
