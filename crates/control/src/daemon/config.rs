//! The configuration of `dwell control`: a TOML file and its drop-ins.

use super::serve::{Address, OFF};
use super::tenants::Vm;
use anyhow::{Context, anyhow, bail, ensure};
use dwell_cli::quantity;
use dwell_policy::{Layer, Nanos};
use dwell_recording::regular;
use dwell_stats::whole::whole;
use serde::de::{Deserializer, Error, Visitor};
use serde::{Deserialize, Serialize};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::{fmt, fs, io};

/// What a file may set; what it does not keeps its default.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
struct File {
    mode: Option<Mode>,
    layers: Option<Vec<String>>,
    #[serde(deserialize_with = "time")]
    halt_cost: Option<String>,
    #[serde(deserialize_with = "time")]
    wakeup_latency: Option<String>,
    #[serde(deserialize_with = "time")]
    longest_window: Option<String>,
    #[serde(deserialize_with = "time")]
    period: Option<String>,
    #[serde(deserialize_with = "time")]
    burst: Option<String>,
    #[serde(deserialize_with = "share_of_cpu")]
    cpu_limit: Option<String>,
    #[serde(deserialize_with = "time")]
    verify: Option<String>,
    on_exit: Option<OnExit>,
    metrics: Option<Address>,
    log: Option<String>,
    /// Of all files together.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    qemu: Vec<Qemu>,
    /// Of all files together.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    vm: Vec<Vm>,
}

/// A value in quotes; its unit is read by [`File::settle`].
struct Quoted(&'static str);

impl Visitor<'_> for Quoted {
    type Value = Option<String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in quotes", self.0)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Option<String>, E> {
        Ok(Some(text.to_owned()))
    }
}

fn time<'de, D: Deserializer<'de>>(value: D) -> Result<Option<String>, D::Error> {
    value.deserialize_str(Quoted("a time with its unit, such as \"20us\","))
}

fn share_of_cpu<'de, D: Deserializer<'de>>(value: D) -> Result<Option<String>, D::Error> {
    value.deserialize_str(Quoted("a share of a CPU, such as \"0.5%\","))
}

/// What is wrong with a file, and in which line, as one line.
fn wrong(text: &str, error: &toml::de::Error) -> anyhow::Error {
    /// The longest part of a line that is quoted.
    const QUOTED: usize = 80;
    let message = error.message();
    let Some(before) = error.span().and_then(|span| text.get(..span.start)) else {
        return anyhow!("{message}");
    };
    let number = before.split('\n').count();
    let line: String = text.lines().nth(number - 1).unwrap_or_default().trim().chars().take(QUOTED).collect();
    anyhow!("line {number}, `{line}`: {message}")
}

/// What options set, over all files.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    pub mode: Option<Mode>,
    pub halt_cost: Option<Nanos>,
    pub wakeup_latency: Option<Nanos>,
}

/// A QEMU, or qemu-storage-daemon, whose I/O threads are controlled.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Qemu {
    /// UNIX socket of its monitor, from the root on.
    pub qmp: String,
}

/// Whether settings are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Print the changes that would be made.
    Advise,
    Active,
}

/// What happens to the setting at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OnExit {
    /// The originals are restored.
    Revert,
    /// It stays, and the lease with it: the next start adopts it, and `dwell control stop` restores the originals.
    Keep,
}

/// What is in force.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    pub mode: Mode,
    /// In this order; empty: those that this machine has.
    pub layers: Vec<Layer>,
    pub halt_cost: Nanos,
    /// `None`: as measured in bursts, or by a calibration.
    pub wakeup_latency: Option<Nanos>,
    /// What a calibration of this machine measured; no file sets it.
    pub calibrated_latency: Option<Nanos>,
    pub longest_window: Nanos,
    pub period: Nanos,
    pub burst: Nanos,
    /// The CPU time of a second that control itself may use.
    pub cpu_limit: Nanos,
    /// How often a setting is compared with the originals in turns; 0: never.
    pub verify: Nanos,
    pub on_exit: OnExit,
    pub metrics: Address,
    /// The file in which decisions are kept, if they are.
    pub log: Option<PathBuf>,
    /// Whose I/O threads are controlled.
    pub qemus: Vec<Qemu>,
    /// What VMs of the host layer count, and their limits; of a VM the first that it matches.
    pub vms: Vec<Vm>,
}

/// The default halt cost, as of `tune` where nothing was measured.
const HALT_COST: Nanos = Nanos::from_micros(20);
/// The wakeup latency that is not given.
const MEASURED: &str = "measured";
/// The default period.
const PERIOD: Nanos = Nanos(100_000_000);
/// The default length of a burst.
const BURST: Nanos = Nanos(20_000_000);
/// The default of what control itself may use: 0.5 % of a CPU.
const CPU_LIMIT: Nanos = Nanos(5_000_000);
/// The default: once an hour.
const VERIFY: Nanos = Nanos(3_600_000_000_000);

impl Config {
    /// Whether settings of a layer are compared in turns, once they may be written: of an I/O thread too little is seen in a
    /// turn, and dwell_idle learns anew in each.
    pub(super) fn compares(&self, layer: Layer) -> bool {
        self.verify > Nanos::ZERO && matches!(layer, Layer::Host | Layer::Guest)
    }

    /// Reads the file and the drop-ins `FILE.d/*.toml` in the order of their names, each over the ones
    /// before, and the options over all. Without a file, the defaults.
    pub fn read(file: Option<&Path>, options: Options) -> anyhow::Result<Config> {
        let Some(file) = file else { return File::default().settle(options) };
        let mut parts = vec![];
        for path in std::iter::once(file.to_owned()).chain(drop_ins(file)?) {
            let name = path.display();
            let text = is_own(&path)
                .and_then(|()| Ok(regular::read_text(&path, LONGEST)?))
                .with_context(|| format!("cannot read the configuration {name}"))?;
            let part: File = toml::from_str(&text)
                .map_err(|error| wrong(&text, &error))
                .with_context(|| format!("cannot use the configuration {name}"))?;
            parts.push((path, part));
        }
        let all = parts.iter().fold(File::default(), |before, (_, part)| part.clone().over(before));
        all.settle(options).with_context(|| {
            // The last that cannot be used alone, as it is over the others.
            let alone = |(_, part): &&(PathBuf, File)| part.clone().settle(Options::default()).is_err();
            match parts.iter().rev().find(alone) {
                Some((path, _)) => format!("cannot use the configuration {}", path.display()),
                None => format!(
                    "cannot use the configuration {} with its drop-ins and these options",
                    file.display()
                ),
            }
        })
    }

    /// As a file that has every key.
    pub fn to_toml(&self) -> Result<String, toml::ser::Error> {
        toml::to_string(&File {
            mode: Some(self.mode),
            layers: Some(self.layers.iter().map(|layer| layer.name().to_owned()).collect()),
            halt_cost: Some(format!("{:#}", self.halt_cost)),
            wakeup_latency: Some(self.wakeup_latency.map_or(MEASURED.to_owned(), |it| format!("{it:#}"))),
            longest_window: Some(format!("{:#}", self.longest_window)),
            period: Some(format!("{:#}", self.period)),
            burst: Some(format!("{:#}", self.burst)),
            cpu_limit: Some(format!("{}%", self.cpu_limit.get() as f64 / 1e7)),
            verify: Some(format!("{:#}", self.verify)),
            on_exit: Some(self.on_exit),
            metrics: Some(self.metrics.clone()),
            log: Some(self.log.as_ref().map_or_else(|| OFF.to_owned(), |path| path.display().to_string())),
            qemu: self.qemus.clone(),
            vm: self.vms.clone(),
        })
    }
}

/// The largest file that is read \[bytes\].
const LONGEST: u64 = 1 << 16;

/// The most drop-ins that are read.
const MOST_DROP_INS: usize = 256;

/// Refuses a file that another user than root and this one can have written: it decides what is written as root, and where
/// a log goes.
fn is_own(path: &Path) -> anyhow::Result<()> {
    Ok(is_of_this_user(&fs::metadata(path)?, "it")?)
}

/// Refuses what another user than root and this one can change, or a group that is not theirs.
pub(super) fn is_of_this_user(found: &fs::Metadata, what: &str) -> io::Result<()> {
    // In a sticky folder, such as /tmp, nobody removes or renames what is another's.
    let sticky = found.is_dir() && found.mode() & 0o1000 != 0;
    let own_group = [0, rustix::process::getegid().as_raw()].contains(&found.gid());
    let others = if own_group { 0o002 } else { 0o022 };
    let why = match [0, rustix::process::geteuid().as_raw()].contains(&found.uid()) {
        false => "belongs to another user; run `chown root` on it",
        true if found.mode() & others != 0 && !sticky => {
            "can be changed by other users; run `chmod go-w` on it"
        }
        true => return Ok(()),
    };
    Err(io::Error::new(io::ErrorKind::PermissionDenied, format!("{what} {why}")))
}

fn drop_ins(file: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut folder = file.as_os_str().to_owned();
    folder.push(".d");
    let folder = PathBuf::from(folder);
    if !folder.is_dir() {
        return Ok(vec![]);
    }
    let read = fs::read_dir(&folder).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let entries = read.with_context(|| format!("cannot list the drop-ins {}", folder.display()))?;
    let mut paths: Vec<PathBuf> = entries.iter().map(fs::DirEntry::path).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "toml"));
    paths.sort();
    ensure!(
        paths.len() <= MOST_DROP_INS,
        "there are {} drop-ins in {}, more than {MOST_DROP_INS}",
        paths.len(),
        folder.display()
    );
    Ok(paths)
}

impl File {
    fn over(self, before: File) -> File {
        File {
            mode: self.mode.or(before.mode),
            layers: self.layers.or(before.layers),
            halt_cost: self.halt_cost.or(before.halt_cost),
            wakeup_latency: self.wakeup_latency.or(before.wakeup_latency),
            longest_window: self.longest_window.or(before.longest_window),
            period: self.period.or(before.period),
            burst: self.burst.or(before.burst),
            cpu_limit: self.cpu_limit.or(before.cpu_limit),
            verify: self.verify.or(before.verify),
            on_exit: self.on_exit.or(before.on_exit),
            metrics: self.metrics.or(before.metrics),
            log: self.log.or(before.log),
            qemu: before.qemu.into_iter().chain(self.qemu).collect(),
            vm: before.vm.into_iter().chain(self.vm).collect(),
        }
    }

    fn settle(self, options: Options) -> anyhow::Result<Config> {
        type Parse = fn(&str) -> Result<Nanos, String>;
        let parsed = |parse: Parse, name: &str, text: Option<&String>, default: Nanos| match text {
            None => Ok(default),
            Some(text) => parse(text).map_err(|why| anyhow!("{name}: {why}")),
        };
        let time = |name: &str, text, default| parsed(quantity::duration, name, text, default);
        let halt = |name: &str, text, default| parsed(quantity::halt, name, text, default);
        let halt_cost = halt("halt_cost", self.halt_cost.as_ref(), HALT_COST)?;
        let halt_cost = options.halt_cost.unwrap_or(halt_cost);
        let four = Nanos(halt_cost.get().saturating_mul(4));
        let layer = |name: &String| {
            Layer::from_name(name).ok_or_else(|| {
                anyhow!("layers: `{name}` is not one that can be controlled: host, guest, driver, iothread")
            })
        };
        let wakeup_latency = self.wakeup_latency.as_ref().filter(|text| *text != MEASURED);
        let wakeup_latency = match wakeup_latency {
            None => None,
            text => Some(
                halt("wakeup_latency", text, Nanos::ZERO)
                    .map_err(|why| anyhow!("{why}; without a time it is \"{MEASURED}\""))?,
            ),
        };
        let period = time("period", self.period.as_ref(), PERIOD)?;
        let config = Config {
            mode: options.mode.or(self.mode).unwrap_or(Mode::Advise),
            layers: self.layers.unwrap_or_default().iter().map(layer).collect::<Result<_, _>>()?,
            halt_cost,
            wakeup_latency: options.wakeup_latency.or(wakeup_latency),
            calibrated_latency: None,
            longest_window: time("longest_window", self.longest_window.as_ref(), four)?,
            period,
            burst: time("burst", self.burst.as_ref(), BURST.min(period))?,
            cpu_limit: parsed(cpu_limit, "cpu_limit", self.cpu_limit.as_ref(), CPU_LIMIT)?,
            verify: time("verify", self.verify.as_ref(), VERIFY)?,
            on_exit: self.on_exit.unwrap_or(OnExit::Revert),
            metrics: self.metrics.unwrap_or_default(),
            log: self.log.filter(|log| log != OFF).map(PathBuf::from),
            qemus: self.qemu,
            vms: self.vm,
        };
        if let Some(log) = config.log.as_deref().filter(|log| !log.is_absolute()) {
            bail!("log: `{}` is neither a path from the root on nor \"off\"", log.display());
        }
        for (number, layer) in config.layers.iter().enumerate() {
            ensure!(!config.layers[..number].contains(layer), "layers: `{}` is given twice", layer.name());
        }
        for (number, Qemu { qmp }) in config.qemus.iter().enumerate() {
            ensure!(qmp.starts_with('/'), "qemu: the socket {qmp} is not a path from the root on");
            let before = config.qemus.iter().take(number);
            ensure!(before.clone().all(|other| other.qmp != *qmp), "qemu: the socket {qmp} is given twice");
        }
        for (number, Vm { by, .. }) in config.vms.iter().enumerate() {
            let mut before = config.vms.iter().take(number);
            ensure!(
                before.all(|other| other.by != *by),
                "vm: the name or cgroup of number {} is given twice",
                number + 1
            );
        }
        let within = |time: Nanos, least: u64, most: u64| (least..=most).contains(&time.get());
        ensure!(within(config.period, 10_000_000, 10_000_000_000), "period: from 10ms to 10s");
        ensure!(within(config.burst, 1_000_000, 1_000_000_000), "burst: from 1ms to 1s");
        ensure!(
            config.burst <= config.period,
            "burst: {:#} is longer than the period, which is {:#}; at most as long",
            config.burst,
            config.period
        );
        ensure!(within(config.cpu_limit, 100_000, 1_000_000_000), "cpu_limit: from 0.01% to 100%");
        ensure!(
            config.verify == Nanos::ZERO || within(config.verify, 10_000_000_000, u64::MAX),
            "verify: 0, or from 10s"
        );
        ensure!(within(config.longest_window, 0, 100_000_000), "longest_window: at most 100ms");
        Ok(config)
    }
}

/// The default file, if it is there.
pub fn default_file() -> Option<&'static Path> {
    const FILE: &str = "/etc/dwell/control.toml";
    let file = Path::new(FILE);
    file.exists().then_some(file)
}

/// A share of a CPU, as the CPU time of a second. Whoever writes 0.5 means 0.5 %.
fn cpu_limit(text: &str) -> Result<Nanos, String> {
    match quantity::cpus(text) {
        Ok(share) if text.trim().ends_with('%') => Ok(Nanos(whole((share * 1e9).round()))),
        _ => Err(format!("`{text}` is not a share of a CPU with its sign; write it as 0.5%")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_is_a_configuration() {
        let config = Config {
            mode: Mode::Active,
            layers: vec![Layer::Guest],
            halt_cost: Nanos(12_500),
            wakeup_latency: Some(Nanos(14_000)),
            cpu_limit: Nanos(12_345_678),
            on_exit: OnExit::Keep,
            metrics: Address::Unix("/run/metrics".into()),
            log: Some("/var/log/decisions".into()),
            vms: ["web", "web2,weight=0,most-loss=12.5%", "web3,most-loss=7%"]
                .map(|vm| vm.parse().unwrap())
                .to_vec(),
            qemus: vec![Qemu { qmp: "/run/a.qmp".to_owned() }, Qemu { qmp: "/run/b.qmp".to_owned() }],
            ..Config::read(None, Options::default()).unwrap()
        };
        for config in [Config::read(None, Options::default()).unwrap(), config] {
            let text = config.to_toml().unwrap();
            assert_eq!(
                toml::from_str::<File>(&text).unwrap().settle(Options::default()).unwrap(),
                config,
                "{text}"
            );
        }
    }

    #[test]
    fn drop_ins_go_over_the_file_in_the_order_of_their_names() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("control.toml");
        fs::write(&file, "halt_cost = \"10us\"\nlayers = [\"guest\"]\n").unwrap();
        fs::create_dir(folder.path().join("control.toml.d")).unwrap();
        let drop_in =
            |name: &str, text: &str| fs::write(folder.path().join("control.toml.d").join(name), text);
        drop_in("10-a.toml", "mode = \"active\"\nhalt_cost = \"5us\"\n").unwrap();
        drop_in("20-b.toml", "halt_cost = \"7us\"\non_exit = \"keep\"\n[[qemu]]\nqmp = \"/run/b\"\n")
            .unwrap();
        drop_in("21-c.toml", "[[qemu]]\nqmp = \"/run/c\"\n").unwrap();
        drop_in("30-c.conf", "not read").unwrap();
        let config = Config::read(Some(&file), Options::default()).unwrap();
        assert_eq!((config.halt_cost, config.longest_window), (Nanos(7_000), Nanos(28_000)));
        assert_eq!((config.mode, config.on_exit), (Mode::Active, OnExit::Keep));
        assert_eq!(
            config.qemus.iter().map(|qemu| qemu.qmp.as_str()).collect::<Vec<_>>(),
            ["/run/b", "/run/c"]
        );
        assert_eq!((config.layers, config.period), (vec![Layer::Guest], PERIOD));
        // The file that has to be changed is named.
        let error = |text: &str| {
            drop_in("20-b.toml", text).unwrap();
            format!("{:#}", Config::read(Some(&file), Options::default()).unwrap_err())
        };
        assert!(
            error("# a\n\nspeed = 2\n").contains("d/20-b.toml: line 3, `speed = 2`: unknown field `speed`")
        );
        assert!(error("period = \"1us\"").ends_with("d/20-b.toml: period: from 10ms to 10s"));
        let twice = error("[[qemu]]\nqmp = \"/run/c\"\n");
        assert!(twice.contains("control.toml with its drop-ins") && twice.contains("given twice"), "{twice}");
    }

    #[test]
    fn options_go_over_all_files() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("control.toml");
        let options = |halt_cost| Options {
            mode: Some(Mode::Active),
            halt_cost: Some(Nanos(halt_cost)),
            wakeup_latency: Some(Nanos(7)),
        };
        fs::write(&file, "mode = \"advise\"\nhalt_cost = \"20us\"\n").unwrap();
        let config = Config::read(Some(&file), options(5_000)).unwrap();
        assert_eq!((config.mode, config.wakeup_latency), (Mode::Active, Some(Nanos(7))));
        assert_eq!((config.halt_cost, config.longest_window), (Nanos(5_000), Nanos(20_000)));
        // A burst is in its period.
        fs::write(&file, "period = \"10ms\"\n").unwrap();
        assert_eq!(Config::read(Some(&file), options(5_000)).unwrap().burst, Nanos(10_000_000));
        // What is set for itself stays.
        fs::write(&file, "longest_window = \"30us\"\n").unwrap();
        let config = Config::read(Some(&file), options(5_000)).unwrap();
        assert_eq!((config.halt_cost, config.longest_window), (Nanos(5_000), Nanos(30_000)));
    }

    #[test]
    fn files_of_others_and_drop_ins_without_end_are_refused() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("control.toml");
        let refused = || format!("{:#}", Config::read(Some(&file), Options::default()).unwrap_err());
        fs::write(&file, "mode = \"advise\"\n").unwrap();
        Config::read(Some(&file), Options::default()).unwrap();
        let drop_ins = folder.path().join("control.toml.d");
        fs::create_dir(&drop_ins).unwrap();
        let of_all = drop_ins.join("50.toml");
        fs::write(&of_all, "").unwrap();
        fs::set_permissions(&of_all, fs::Permissions::from_mode(0o666)).unwrap();
        assert!(refused().contains("50.toml: it can be changed by other users"), "{}", refused());
        fs::set_permissions(&of_all, fs::Permissions::from_mode(0o644)).unwrap();
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&of_all, Some(65_534), None).unwrap();
            assert!(refused().contains("it belongs to another user"), "{}", refused());
            std::os::unix::fs::chown(&of_all, Some(0), None).unwrap();
        }
        // Its group may write it where that is this user's.
        fs::set_permissions(&of_all, fs::Permissions::from_mode(0o664)).unwrap();
        Config::read(Some(&file), Options::default()).unwrap();
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&of_all, None, Some(65_534)).unwrap();
            assert!(refused().contains("50.toml: it can be changed by other users"), "{}", refused());
            std::os::unix::fs::chown(&of_all, None, Some(0)).unwrap();
        }
        fs::set_permissions(&of_all, fs::Permissions::from_mode(0o644)).unwrap();
        (100..400).for_each(|number| fs::write(drop_ins.join(format!("{number}.toml")), "").unwrap());
        assert!(refused().contains("more than 256"), "{}", refused());
    }

    #[test]
    fn what_is_wrong_is_named() {
        let error = |text: &str| {
            let folder = tempfile::tempdir().unwrap();
            let file = folder.path().join("c.toml");
            fs::write(&file, text).unwrap();
            format!("{:#}", Config::read(Some(&file), Options::default()).unwrap_err())
        };
        let longest = "`11ms` is more than any halt takes (10ms)";
        assert!(error("halt_cost = \"11ms\"").contains(&format!("halt_cost: {longest}")));
        assert!(error("wakeup_latency = \"11ms\"").contains(&format!("wakeup_latency: {longest}")));
        assert!(error("longest_window = \"101ms\"").ends_with("longest_window: at most 100ms"));
        assert!(error("mod = \"active\"").contains("unknown field `mod`"));
        assert!(error("mode = \"on\"").contains("`advise` or `active`"));
        assert!(
            error("halt_cost = \"long\"")
                .contains("halt_cost: `long` is not a duration; write a number with ns, us, ms or s")
        );
        let unquoted = error("mode = \"active\"\nhalt_cost = 20\n");
        assert!(unquoted.contains("line 2, `halt_cost = 20`: invalid type: integer `20`"), "{unquoted}");
        assert!(
            unquoted.ends_with("expected a time with its unit, such as \"20us\", in quotes"),
            "{unquoted}"
        );
        assert!(error("cpu_limit = 0.5").ends_with("expected a share of a CPU, such as \"0.5%\", in quotes"));
        assert!(error("layers = [\"timer\"]").contains("host, guest"));
        assert!(error("layers = [\"host\", \"host\"]").contains("`host` is given twice"));
        assert!(error("[[qemu]]\nqmp = \"vm.qmp\"").contains("not a path from the root on"));
        assert!(error("[[qemu]]\nqmp = \"/a\"\n[[qemu]]\nqmp = \"/a\"").contains("given twice"));
        assert!(error("[[vm]]\nweight = 2").contains("either name or cgroup"));
        let twice = "[[vm]]\nname = \"a\"\n".repeat(2);
        assert!(error(&twice).ends_with("vm: the name or cgroup of number 2 is given twice"));
        assert!(error("[[vm]]\nname = \"a\"\ncgroup = \"/b\"").contains("either name or cgroup"));
        assert!(error("[[vm]]\ncgroup = \"b\"").contains("not a path from the root on"));
        assert!(error("[[vm]]\nname = \"a\"\nweight = -1").contains("from 0 to 1000"));
        assert!(error("[[vm]]\nname = \"a\"\nmost_loss = \"much\"").contains("`much`"));
        for text in ["2 of it", "0.5"] {
            let wanted = format!("cpu_limit: `{text}` is not a share");
            assert!(error(&format!("cpu_limit = \"{text}\"")).contains(&wanted));
        }
        assert!(error("wakeup_latency = \"auto\"").ends_with("without a time it is \"measured\""));
        assert!(error("cpu_limit = \"0.001%\"").contains("from 0.01% to 100%"));
        assert!(error("period = \"1us\"").contains("from 10ms to 10s"));
        let long = error("period = \"50ms\"\nburst = \"60ms\"");
        assert!(
            long.ends_with("burst: 60ms is longer than the period, which is 50ms; at most as long"),
            "{long}"
        );
        assert!(error("log = \"decisions\"").contains("neither a path from the root on"));
        assert!(error("metrics = \"9469\"").contains("an address with a port"));
        assert_eq!(Config::read(None, Options::default()).unwrap().mode, Mode::Advise);
        assert!(Config::read(Some(Path::new("/nonexistent.toml")), Options::default()).is_err());
    }
}
