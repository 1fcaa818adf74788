//! The command line.

use anyhow::Context;
use clap::{ArgGroup, Parser, ValueEnum};
use dwell_blk::{Disk, Shape};
use dwell_idle::{Halt, MeasureHaltError, Price};
use dwell_policy::Layer;
use dwell_policy::catalogue::Any;
use dwell_policy::iothread::{self, Aio, Handler, Kind};
use dwell_replay::Rule;
use std::path::PathBuf;

/// Serve a disk to a virtual machine over vhost-user
///
/// The virtual machine monitor connects to the socket; of QEMU's options, `-object memory-backend-memfd,share=on` and
/// `-device vhost-user-blk-pci` are needed. One connection is served at a time; the next one can follow. The I/O thread
/// polls for as long as a policy says before it sleeps.
#[derive(Debug, Parser)]
#[command(name = "dwell-blk", version, max_term_width = 100)]
#[command(group(ArgGroup::new("disk").required(true).args(["file", "null"])))]
#[command(
    after_help = "Ctrl-C and SIGTERM end it when no request is in flight, and it prints what it did.\n\
                        Exit codes: 0 success; 2 error."
)]
pub(crate) struct Args {
    /// Path of the Unix socket; an old socket there is replaced
    #[arg(long)]
    pub(crate) socket: PathBuf,
    /// File or block device that is the disk
    #[arg(long)]
    file: Option<PathBuf>,
    /// A disk without data, of this size [bytes; K, M, G]
    ///
    /// Reads leave the guest's buffers as they are, writes are forgotten. For measurements.
    #[arg(long, value_name = "SIZE", value_parser = size)]
    null: Option<u64>,
    /// Open the file past the page cache (O_DIRECT)
    #[arg(long, requires = "file")]
    direct: bool,
    /// Refuse writes
    #[arg(long, requires = "file")]
    read_only: bool,
    /// Serial number that the guest reads; its first 20 bytes count
    #[arg(long, default_value = "dwell-blk")]
    serial: String,
    /// Virtqueues, at most [1 to 64]
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    queues: u16,
    /// Entries of a virtqueue, at most [a power of two, 2 to 32768]
    #[arg(long, default_value_t = 256, value_parser = power)]
    queue_size: u16,
    /// How long to poll before sleeping, as `dwell params --policies` lists it
    ///
    /// Such as `never`, `always`, `fixed=50us`, `leader@40us,late=15us` (at this halt cost and wakeup
    /// latency), `aio@11.1` (QEMU's rule). By default `leader` with trial bursts, at the halt cost that is
    /// measured at the start, in about 0.2 s, one for waits for the guest and one for waits for the disk.
    #[arg(long, conflicts_with = "latency_price")]
    policy: Option<Rule>,
    /// What a wakeup that comes earlier is worth, for the default policy [percent of the time gained, in CPU time]
    ///
    /// 0: poll only where that takes less CPU time than sleeping. 100: a microsecond of latency is worth a
    /// microsecond of CPU time.
    #[arg(long, value_name = "PERCENT", default_value_t = 100)]
    latency_price: u32,
    /// CPU that the I/O thread runs on; by default the scheduler's choice
    #[arg(long)]
    pub(crate) cpu: Option<usize>,
    /// End after the first connection
    #[arg(long)]
    pub(crate) once: bool,
    /// Record the waits of the I/O thread in this file, for `dwell tune` and `dwell report`
    #[arg(long, value_name = "FILE")]
    pub(crate) record: Option<PathBuf>,
    /// Format of what is printed on stdout at the end
    #[arg(long, value_enum, default_value_t = Format::Table)]
    pub(crate) format: Format,
}

/// Output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Lines for people.
    Table,
    /// Times in ns.
    Json,
}

/// A number of bytes: `1073741824`, `1G`.
fn size(text: &str) -> Result<u64, String> {
    let wrong = || format!("`{text}` is not a size; write it as 1073741824 or 1G");
    let (digits, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let unit: u64 = match unit {
        "" => 1,
        "K" => 1 << 10,
        "M" => 1 << 20,
        "G" => 1 << 30,
        "T" => 1 << 40,
        _ => return Err(wrong()),
    };
    let bytes = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(unit)).ok_or_else(wrong)?;
    if bytes < 512 { Err(format!("`{text}` is less than a sector of 512 bytes")) } else { Ok(bytes) }
}

fn power(text: &str) -> Result<u16, String> {
    let number =
        text.parse::<u16>().ok().filter(|number| number.is_power_of_two() && (2..=32_768).contains(number));
    number.ok_or_else(|| format!("`{text}` is not a power of two from 2 to 32768"))
}

impl Args {
    pub(crate) fn disk(&self) -> anyhow::Result<Disk> {
        let disk = match (&self.file, self.null) {
            (Some(path), _) => Disk::open(path, self.read_only, self.direct)?,
            (None, bytes) => Disk::null(bytes.unwrap_or(0)),
        };
        Ok(disk.with_serial(&self.serial))
    }

    pub(crate) fn shape(&self) -> Shape {
        Shape { queues: self.queues.into(), queue_size: self.queue_size }
    }

    /// The policy of the I/O thread, and that of its waits for the disk if that is another one; measures what
    /// a sleep costs where that is needed.
    pub(crate) fn policies(&self) -> anyhow::Result<(Any, Option<Any>)> {
        match &self.policy {
            Some(Rule::Layer(setting)) if setting.layer() == Layer::Iothread => {
                let revision = iothread::Revision::of(setting.version()).context("cannot use this policy")?;
                // The doorbell, the completions, and the virtqueues: all are looked at.
                let handlers = vec![Handler::new(Kind::Polled); 2 + usize::from(self.queues)];
                Ok((Any::other(Aio::new(revision, iothread::Params::from(setting), handlers)), None))
            }
            Some(rule) => Ok((rule.policy().context("cannot use this policy")?, None)),
            None => match Halt::measure() {
                Ok(halt) => {
                    let price = Price::percent(self.latency_price);
                    let (cost, latency) = (halt.cost(price), halt.typical(price).latency);
                    eprintln!(
                        "dwell-blk: policy leader@{cost:#},late={latency:#} with trial bursts, by measurement"
                    );
                    let for_disk = halt.leader_for_interrupts(price);
                    eprintln!(
                        "dwell-blk: while the disk is awaited, leader@{:#}",
                        for_disk.policy().account().halt_cost()
                    );
                    Ok((Any::other(halt.leader(price)), Some(Any::other(for_disk))))
                }
                Err(error @ MeasureHaltError::OneCpu) => Err(error)
                    .context("cannot choose a policy; start it on two CPUs and give --cpu, or give --policy"),
                Err(error) => Err(error).context("cannot choose a policy; give --policy"),
            },
        }
    }
}
