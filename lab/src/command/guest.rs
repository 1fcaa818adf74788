//! `dwell-lab guest`

use super::campaign::{CampaignArgs, MayBeStopped, STOPPED_EARLY, Session};
use super::results::{self, ArmColumn};
use anyhow::{Context, anyhow, ensure};
use dwell_capture::{GuestSource, Recorder, Target, Until};
use dwell_cli::failure::Outcome;
use dwell_cli::output::{self, Format, FormatArg};
use dwell_cli::quantity;
use dwell_control::{Controller, Terms};
use dwell_knobs::journal::STATE_DIRECTORY;
use dwell_knobs::lease::{self, Holder, Lease, Subject};
use dwell_lab::loads::{Load, LoadKind, LoadKindError};
use dwell_machine::threads::process_cpu_time;
use dwell_machine::{Facts, Machine, Sysroot, parameter};
use dwell_policy::param::Setting;
use dwell_policy::{Layer, Nanos};
use dwell_recording::Reader;
use dwell_replay::advice::{Goal, Worth};
use dwell_replay::tune::{Task, TuneError, tune};
use dwell_replay::{RecordingSource, Values, WakeupLatency, grid};
use dwell_report::{Cell, Column, Table, duration};
use dwell_stats::{Arms, Block, Campaign, CampaignOptions, Figure, Results, Unit};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::Serialize;
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Measure real loads under fixed and controlled haltpoll parameters
///
/// For a guest whose haltpoll governor is in use. redis, a pair of processes, fio and PostgreSQL run on the
/// CPUs of this machine, each under Linux's defaults, the parameters as they were found, the best setting of
/// `tune` on a recording made first, without polling, and under `dwell control`, from the defaults and from
/// what was found. A load whose programs are not installed is left out. The cost is the time in cpuidle's
/// polling state plus halts x halt cost, as the kernel counts them; requests and latency are those that the
/// client of the load counts. Changes haltpoll's parameters and restores them; if it is killed, `dwell
/// control stop` does. Every row is printed.
#[derive(clap::Args)]
#[command(
    after_help = "Needs root. Example:\n  dwell-lab guest --load redis --load pipe --halt-cost 20us --budget 4min"
)]
pub(crate) struct GuestArgs {
    /// Cost of one halt and wakeup in CPU time, such as 20us
    ///
    /// From 0 to 10ms.
    #[arg(long, value_name = "TIME", default_value = "20us", value_parser = quantity::halt)]
    halt_cost: Nanos,
    /// Load to run: redis, redis-paced, pipe, fio or pgbench; can be repeated [default: all]
    #[arg(long, value_name = "LOAD")]
    load: Vec<LoadKind>,
    /// Length of the measured part of a block, from 1s to 1min
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = block_length)]
    block: Nanos,
    /// How long a load runs under a setting before it is measured, at most 1min
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = settle_length)]
    settle: Nanos,
    /// Directory of the journal
    #[arg(long, value_name = "DIR", default_value = STATE_DIRECTORY)]
    state_dir: String,
    #[command(flatten)]
    campaign: CampaignArgs,
    #[command(flatten)]
    format: FormatArg,
}

const LONGEST: Nanos = Nanos(60_000_000_000);

fn block_length(text: &str) -> Result<Nanos, String> {
    let length = quantity::duration(text)?;
    let within = (Nanos(1_000_000_000)..=LONGEST).contains(&length);
    within.then_some(length).ok_or_else(|| "from 1s to 1min".to_owned())
}

fn settle_length(text: &str) -> Result<Nanos, String> {
    let length = quantity::duration(text)?;
    (length <= LONGEST).then_some(length).ok_or_else(|| "at most 1min".to_owned())
}

/// What is in force during a block.
#[derive(Clone, Copy, Debug)]
enum Arm {
    Fixed(Setting),
    /// Controlled, from these originals.
    Controlled(Setting),
}

const DEFAULT: &str = "default";
const FOUND: &str = "as found";
const BEST: &str = "best";
const NEVER: &str = "never";
const CONTROLLED: &str = "controlled";
const CONTROLLED_FOUND: &str = "controlled from as found";
/// An original, and what is controlled from it.
const PAIRS: [(&str, &str); 2] = [(DEFAULT, CONTROLLED), (FOUND, CONTROLLED_FOUND)];

const COST: &str = "cost_ns_per_s";
const COST_OF_REQUEST: &str = "cost_ns_per_request";
/// More than this times the cost of the original is a loss.
const ALLOWED: f64 = 1.02;

#[derive(Serialize)]
struct Compared {
    halt_cost_ns: u64,
    seed: u64,
    found: Values,
    /// Loads that could not be run, and why.
    left_out: Vec<LeftOut>,
    campaigns: Vec<OfLoad>,
}

#[derive(Serialize)]
struct LeftOut {
    load: &'static str,
    why: String,
}

#[derive(Serialize)]
struct OfLoad {
    load: &'static str,
    /// What `tune` recommends; none where the CPUs idled too little.
    best: Option<Values>,
    losses: Vec<Loss>,
    #[serde(rename = "findings")]
    results: Results,
}

/// Control that cost more than [`ALLOWED`] times its original.
#[derive(Serialize)]
struct Loss {
    controlled: &'static str,
    figure: &'static str,
    ratio: f64,
}

/// The error of a block, as a campaign needs it.
#[derive(Debug, thiserror::Error)]
#[error("{0:#}")]
struct BlockError(anyhow::Error);

impl MayBeStopped for BlockError {
    /// A block is run to its end, whatever the user does.
    fn is_stopped(&self) -> bool {
        false
    }
}

pub(crate) fn run(args: GuestArgs) -> Outcome {
    let machine = Sysroot::of_this_machine();
    let found = in_force(&machine)?;
    let default = Setting::defaults(Layer::Guest, found.version());
    let mut session = Session::of_programs()?;
    let mut leased = Leased::take(&args, &machine, found, default)?;
    let compared = measure(&args, &mut session, &mut leased, found, default);
    leased.end()?;
    let compared = compared?;
    match args.format.format {
        Format::Json => output::json(&compared)?,
        Format::Csv => output::csv(&table(&compared))?,
        Format::Table => print(&compared)?,
    }
    args.campaign.end()
}

fn measure(
    args: &GuestArgs,
    session: &mut Session,
    leased: &mut Leased<'_>,
    found: Setting,
    default: Setting,
) -> anyhow::Result<Compared> {
    let kinds = if args.load.is_empty() { LoadKind::ALL.to_vec() } else { args.load.clone() };
    let share = kinds.len();
    let (mut left_out, mut campaigns) = (vec![], vec![]);
    for kind in kinds {
        if session.stopped() {
            break;
        }
        session.about(kind.name());
        let mut load = match Load::start(kind) {
            Ok(load) => load,
            Err(error @ LoadKindError::Absent { .. }) => {
                left_out.push(LeftOut { load: kind.name(), why: error.to_string() });
                continue;
            }
            Err(error) => return Err(error).with_context(|| format!("cannot run the load {kind}")),
        };
        let best = best(args, leased, &mut load, default, &session.stop)?;
        let campaign = Campaign::new("guest", arms(found, default, best), figures(), options(args, share))?;
        let measured = session.run(|environment, stop, progress| {
            campaign.run(environment, stop, progress, |trial| {
                block(args, leased, &mut load, *trial.setting).map_err(BlockError)
            })
        })?;
        let Some(measurements) = measured else { break };
        args.campaign.keep(&measurements, campaigns.len(), kind.name(), &[]);
        let results = measurements.results();
        let losses = losses(&results);
        campaigns.push(OfLoad { load: kind.name(), best: best.as_ref().map(Values::from), losses, results });
    }
    ensure!(!campaigns.is_empty() || !left_out.is_empty() && !session.stopped(), STOPPED_EARLY);
    let (halt_cost_ns, seed) = (args.halt_cost.get(), args.campaign.seed());
    Ok(Compared { halt_cost_ns, seed, found: Values::from(&found), left_out, campaigns })
}

/// A block begins with its own warm-up, and takes seconds: it is repeated once at most.
fn options(args: &GuestArgs, share: usize) -> CampaignOptions {
    CampaignOptions { warm_up: false, repeats: 1, ..args.campaign.options(share) }
}

fn arms(found: Setting, default: Setting, best: Option<Setting>) -> Arms<Arm> {
    let mut arms = Arms::new(DEFAULT, Arm::Fixed(default));
    if let Some(best) = best {
        arms = arms.arm(BEST, Arm::Fixed(best));
    }
    arms = arms.arm(NEVER, Arm::Fixed(never(default))).arm(CONTROLLED, Arm::Controlled(default));
    if found != default {
        // Where nothing polls it is `never` by another name, and measured only once.
        if found != never(default) {
            arms = arms.arm(FOUND, Arm::Fixed(found));
        }
        arms = arms.arm(CONTROLLED_FOUND, Arm::Controlled(found));
    }
    arms
}

fn never(default: Setting) -> Setting {
    let mut setting = default;
    // 0 is in the range of the parameter.
    let _ = setting.set("guest_halt_poll_ns", 0);
    setting
}

fn figures() -> Vec<Figure> {
    vec![
        Figure::of_block(COST, Unit::Nanos),
        Figure::of_block(COST_OF_REQUEST, Unit::Nanos),
        Figure::of_block("polled_share", Unit::Share),
        Figure::of_block("halts_per_s", Unit::PerSecond),
        Figure::of_block("requests_per_s", Unit::PerSecond),
        Figure::of_block("p50_ns", Unit::Nanos),
        Figure::of_block("p99_ns", Unit::Nanos),
        Figure::of_block("controller_cpu", Unit::Share),
        Figure::of_block("changes", Unit::Count),
    ]
}

/// The parameters, leased while the experiment runs.
struct Leased<'m> {
    machine: &'m Sysroot,
    /// `None` once it has ended.
    lease: Option<Lease>,
}

impl<'m> Leased<'m> {
    /// With every value that an arm may write, or a controller: if all of this is killed, `dwell control
    /// stop` restores what was found.
    fn take(
        args: &GuestArgs,
        machine: &'m Sysroot,
        found: Setting,
        default: Setting,
    ) -> anyhow::Result<Leased<'m>> {
        let mut settings = grid::settings(Layer::Guest, found.version());
        for originals in [default, found] {
            let controller = Controller::new(originals, Terms::at(args.halt_cost))?;
            settings.extend_from_slice(controller.candidates());
        }
        let subject = Subject::Layer(Layer::Guest);
        let holder = Holder::begin(machine, &args.state_dir)?;
        let lease = Lease::take(machine, &holder, &subject, found, &settings)?;
        Ok(Leased { machine, lease: Some(lease) })
    }

    fn set(&mut self, to: &Setting) -> anyhow::Result<()> {
        let lease = self.lease.as_mut().context("the lease has ended")?;
        Ok(lease.set(self.machine, to)?)
    }

    /// Restores what was found.
    fn end(&mut self) -> anyhow::Result<()> {
        let Some(lease) = self.lease.take() else { return Ok(()) };
        let ended = lease::end(self.machine, &[&lease]).into_iter().collect::<Result<Vec<_>, _>>()?;
        ensure!(
            ended.iter().all(|reverted| reverted.complete),
            "cannot restore the parameters that were found; `dwell status` shows what is in force"
        );
        Ok(())
    }
}

impl Drop for Leased<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            output::remark(&format!("warning: {error:#}"));
        }
    }
}

/// The setting that `tune` recommends for a recording of the load without polling, or the default where it
/// recommends none. `None`: the CPUs idled too little to choose one.
fn best(
    args: &GuestArgs,
    leased: &mut Leased<'_>,
    load: &mut Load,
    default: Setting,
    stop: &AtomicBool,
) -> anyhow::Result<Option<Setting>> {
    const RECORDED: Duration = Duration::from_secs(2);
    leased.set(&never(default))?;
    load.run(Duration::from_millis(500))?;
    let recorded = std::thread::scope(|scope| {
        let recorded = scope.spawn(|| {
            let target = Target::Guest { source: GuestSource::Auto, causes: false };
            let until = Until { duration: Some(RECORDED), stop };
            Ok::<_, anyhow::Error>(Recorder::open(target, None)?.to_memory(&until, &mut ())?.1)
        });
        load.run(RECORDED)?;
        recorded.join().map_err(|_| anyhow!("the recorder panicked"))?
    });
    let bytes = recorded.context("cannot record the load")?;
    let source = RecordingSource::new(Reader::from_bytes("load", bytes)?, false);
    let advice = tune(&Task {
        source: &source,
        present: default,
        candidates: &grid::settings(Layer::Guest, default.version()),
        goal: Goal::LeastCost,
        halt_cost: args.halt_cost,
        wakeup_latency: &WakeupLatency::constant(Nanos::ZERO),
        worth_a_change: Worth::default(),
        decided: None,
        progress: &|_| (),
    });
    match advice {
        Ok(advice) => Ok(Some(advice.recommended().unwrap_or(default))),
        Err(TuneError::TooFew(_) | TuneError::UnevenHalves { .. }) => Ok(None),
        Err(error) => Err(error).context("cannot choose the best setting"),
    }
}

/// The program of the controller: beside this one, else wherever programs are.
fn dwell() -> PathBuf {
    let beside = std::env::current_exe().map(|program| program.with_file_name("dwell"));
    beside.ok().filter(|program| program.exists()).unwrap_or_else(|| "dwell".into())
}

/// haltpoll's parameters in force.
fn in_force(machine: &dyn Machine) -> anyhow::Result<Setting> {
    let Facts { kernel, guest, .. } = Facts::read(machine);
    let version =
        kernel.version.context("cannot control the guest layer: the version of the kernel is not known")?;
    let mut setting = Setting::defaults(Layer::Guest, version);
    for (param, _) in setting.clone().iter() {
        let value = parameter::get(&guest.parameters, param.name).with_context(|| {
            format!("cannot control the guest layer: {} cannot be read", parameter::path(param))
        })?;
        setting.set(param.name, value)?;
    }
    Ok(setting)
}

/// What cpuidle has counted of all CPUs together since boot: state 0 of haltpoll's driver polls, state 1 halts.
#[derive(Clone, Copy)]
struct Counted {
    polled: Duration,
    halts: u64,
}

impl Counted {
    fn read(machine: &dyn Machine) -> Counted {
        const CPUS: &str = "/sys/devices/system/cpu";
        let names = machine.names(CPUS).unwrap_or_default();
        let sum = |file: &str| -> u64 {
            let read = |name: &String| machine.number(&format!("{CPUS}/{name}/cpuidle/{file}"));
            names.iter().filter_map(read).map(i64::unsigned_abs).fold(0, u64::saturating_add)
        };
        Counted { polled: Duration::from_micros(sum("state0/time")), halts: sum("state1/usage") }
    }

    fn since(self, before: Counted) -> Counted {
        Counted {
            polled: self.polled.saturating_sub(before.polled),
            halts: self.halts.saturating_sub(before.halts),
        }
    }
}

/// A controller of this machine, with a journal of its own.
struct Running {
    child: Child,
    directory: TempDir,
}

impl Running {
    fn start(args: &GuestArgs) -> anyhow::Result<Running> {
        let directory = tempfile::tempdir().context("cannot make a directory for the controller")?;
        let config = directory.path().join("control.toml");
        std::fs::write(&config, "").context("cannot write the configuration of the controller")?;
        // It ends by itself if this process is killed.
        let longest = args.block.get().saturating_mul(4).saturating_add(args.settle.get() + LONGEST.get());
        let mut command = Command::new(dwell());
        command
            .args(["control", "--mode", "active", "--layer", "guest"])
            .args(["--halt-cost", &format!("{}ns", args.halt_cost.get())])
            .args(["--duration", &format!("{longest}ns"), "--config"])
            .arg(config)
            .arg("--state-dir")
            .arg(directory.path())
            .env_remove("NOTIFY_SOCKET")
            .env_remove("WATCHDOG_USEC")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            // Ctrl-C is for this process, which ends it.
            .process_group(0);
        let child = command.spawn().with_context(|| format!("cannot start {} control", dwell().display()))?;
        let mut running = Running { child, directory };
        let lines = running.child.stdout.take().map(BufReader::new).context("no output")?;
        let mut lines = lines.lines();
        let line = lines.next().transpose()?;
        ensure!(line.is_some_and(|line| line.contains("controls")), "the controller did not begin");
        // Its later lines are few, and read when it has ended, by nobody.
        std::thread::spawn(move || lines.for_each(drop));
        Ok(running)
    }

    /// How much CPU time it has used.
    fn cpu(&self) -> anyhow::Result<Nanos> {
        process_cpu_time(self.child.id()).context("the controller has ended")
    }

    fn changes(&self) -> anyhow::Result<u64> {
        let mut command = Command::new(dwell());
        command.args(["status", "--control", "--format", "json", "--state-dir"]).arg(self.directory.path());
        let answer = command.output().context("cannot ask the controller")?;
        let status: Value =
            serde_json::from_slice(&answer.stdout).context("the controller does not answer")?;
        status["layers"][0]["changes"].as_u64().context("the controller does not count its changes")
    }

    /// Ends it, which restores its originals.
    fn end(mut self) -> anyhow::Result<()> {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).context("the controller has no number")?);
        kill(pid, Signal::SIGTERM).context("cannot end the controller")?;
        let ended = self.child.wait().context("cannot wait for the controller")?;
        ensure!(ended.success(), "the controller failed: {ended}");
        Ok(())
    }
}

impl Drop for Running {
    /// Where a block failed; otherwise it has ended.
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            let pid = i32::try_from(self.child.id()).map(Pid::from_raw);
            let _ = pid.map(|pid| kill(pid, Signal::SIGTERM));
            let _ = self.child.wait();
        }
    }
}

fn block(args: &GuestArgs, leased: &mut Leased<'_>, load: &mut Load, arm: Arm) -> anyhow::Result<Block> {
    /// Without a load, each timer's halt halves a window that is above the maximum.
    const WINDOWS_SHRINK: Duration = Duration::from_millis(300);
    let (settle, length) = (Duration::from_nanos(args.settle.get()), Duration::from_nanos(args.block.get()));
    let (Arm::Fixed(setting) | Arm::Controlled(setting)) = arm;
    leased.set(&setting)?;
    std::thread::sleep(WINDOWS_SHRINK);
    let running = matches!(arm, Arm::Controlled(_)).then(|| Running::start(args)).transpose()?;
    load.run(settle)?;
    let used = || running.as_ref().map_or(Ok(Nanos::ZERO), Running::cpu);
    let (cpu, before, begun) = (used()?, Counted::read(leased.machine), Instant::now());
    let served = load.run(length)?;
    let (elapsed, counted) = (begun.elapsed().as_secs_f64(), Counted::read(leased.machine).since(before));
    let cpu = used()?.saturating_sub(cpu);
    let changes = running.as_ref().map_or(Ok(0), Running::changes)?;
    if let Some(running) = running {
        running.end()?;
    }
    let cost_ns = counted.polled.as_nanos() as f64 + counted.halts as f64 * args.halt_cost.get() as f64;
    Ok(Block::default()
        .figure(COST, cost_ns / elapsed)
        .figure(COST_OF_REQUEST, cost_ns / elapsed / served.per_second)
        .figure("polled_share", counted.polled.as_secs_f64() / elapsed)
        .figure("halts_per_s", counted.halts as f64 / elapsed)
        .figure("requests_per_s", served.per_second)
        .figure("p50_ns", served.p50_ns)
        .figure("p99_ns", served.p99_ns)
        .figure("controller_cpu", cpu.get() as f64 / 1e9 / elapsed)
        .figure("changes", changes as f64))
}

fn value(results: &Results, arm: &str, figure: &str) -> Option<f64> {
    results.row(arm, figure)?.value.map(|interval| interval.value)
}

/// What control costs over its original.
fn ratio(results: &Results, (original, controlled): (&str, &str), figure: &str) -> Option<f64> {
    let cost = value(results, controlled, figure)?;
    // Where nothing polled, what was found is measured as `never`.
    let original = value(results, original, figure).or_else(|| value(results, NEVER, figure))?;
    // Of a load that did not idle there is none.
    (original > 0.0).then(|| cost / original)
}

fn losses(results: &Results) -> Vec<Loss> {
    let of = |pair: (&'static str, &'static str), figure| {
        let ratio = ratio(results, pair, figure)?;
        (ratio > ALLOWED).then_some(Loss { controlled: pair.1, figure, ratio })
    };
    PAIRS
        .into_iter()
        .flat_map(|pair| [COST, COST_OF_REQUEST].map(|figure| of(pair, figure)))
        .flatten()
        .collect()
}

fn table(compared: &Compared) -> Table {
    let columns = vec![
        ArmColumn::nanos(Column::number("cost/s", "cost_ns_per_s"), COST),
        ArmColumn::ratio(Column::text("/ default", "cost_ratio").rank(3), COST),
        ArmColumn::nanos(Column::number("cost/request", "cost_ns_per_request"), COST_OF_REQUEST),
        ArmColumn::ratio(Column::text("/ default, 95 %", "request_cost_ratio").rank(1), COST_OF_REQUEST),
        ArmColumn::number(Column::number("halts/s", "halts_per_s").rank(4), "halts_per_s"),
        ArmColumn::share(Column::number("polled", "polled_share").rank(5), "polled_share"),
        ArmColumn::number(Column::number("requests/s", "requests_per_s").rank(1), "requests_per_s"),
        ArmColumn::nanos(Column::number("p50", "p50_ns").rank(2), "p50_ns"),
        ArmColumn::nanos(Column::number("p99", "p99_ns").rank(2), "p99_ns"),
        ArmColumn::number(Column::number("changes", "changes_per_block").rank(2), "changes"),
        ArmColumn::share(Column::number("controller's CPU", "controller_cpu").rank(3), "controller_cpu"),
    ];
    results::arm_table("load", columns, compared.campaigns.iter().map(|of| (of.load, &of.results)))
}

/// Control beside its originals.
fn control_table(compared: &Compared) -> Table {
    let mut table = Table::new([
        Column::text("load", "load"),
        Column::text("arm", "arm"),
        Column::number("cost/s / original", "cost_over_original"),
        Column::number("cost/request / original", "request_cost_over_original"),
        Column::text("best setting", "best").below(),
    ]);
    for of in &compared.campaigns {
        for pair in PAIRS {
            let ratios = [COST, COST_OF_REQUEST].map(|figure| ratio(&of.results, pair, figure));
            if value(&of.results, pair.1, COST).is_some() {
                let words = [of.load, pair.1].map(|word| Cell::Text(word.to_owned()));
                let cells = words.into_iter().chain(ratios.map(Cell::ratio));
                table
                    .push(cells.chain([
                        of.best.as_ref().map_or(Cell::Missing, |best| Cell::Text(best.to_string())),
                    ]));
            }
        }
    }
    table
}

fn print(compared: &Compared) -> anyhow::Result<()> {
    let price = duration(compared.halt_cost_ns as f64);
    let title = format!(
        "Real loads under haltpoll, of all CPUs together; cost is the time polled plus {price} per halt; the last arm is the default \
         measured again"
    );
    let mut text = format!("{}\n{}\n", output::wrapped(&title), output::fitted(&table(compared)));
    let title = "What control costs over the parameters that it began with:";
    text += &format!("{}\n{}\n", output::wrapped(title), output::fitted(&control_table(compared)));
    let losses: Vec<String> = compared
        .campaigns
        .iter()
        .flat_map(|of| of.losses.iter().map(move |loss| (of.load, loss)))
        .map(|(load, loss)| format!("{load}, {}: {} {:.3}", loss.controlled, loss.figure, loss.ratio))
        .collect();
    let compared_all = compared.campaigns.iter().all(|of| {
        let pairs = PAIRS.into_iter().filter(|pair| value(&of.results, pair.1, COST).is_some());
        pairs
            .flat_map(|pair| [COST, COST_OF_REQUEST].map(|figure| (pair, figure)))
            .all(|(pair, figure)| ratio(&of.results, pair, figure).is_some())
    });
    text += &output::wrapped(&match losses.is_empty() {
        true if compared_all => format!("No arm of control costs more than {ALLOWED} times its original."),
        true => "Where no CPU idled, nothing can be compared.".to_owned(),
        false => format!("More than {ALLOWED} times the original: {}", losses.join("; ")),
    });
    output::text(&text)?;
    output::remark(&format!("found, and restored: {}", compared.found));
    for LeftOut { load, why } in &compared.left_out {
        output::remark(&format!("left out: {load}: {why}"));
    }
    for OfLoad { load, results, .. } in &compared.campaigns {
        results::remarks(load, results);
    }
    Ok(())
}
