//! Real loads on the CPUs of this machine: programs that wait for each other, or for a disk.
//!
//! All their processes are killed when the [`Load`] is dropped, and when this program is killed. Their files
//! are in one directory of their own, which is removed.

use dwell_policy::Nanos;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand_distr::{Distribution, Exp};
use std::fmt;
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::str::FromStr;
use std::time::{Duration, Instant};
use tempfile::TempDir;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LoadKind {
    /// redis-server and `redis-benchmark -c 1 -t get`: a request as soon as the one before is answered.
    Redis,
    /// redis-server and one client that pauses after each answer, exponentially, 200 us on average.
    RedisPaced,
    /// One byte to another process and back through two pipes, then a pause, exponentially, 100 us on average.
    Pipe,
    /// fio: random reads of 4 KiB from a file, one after another, past the page cache.
    Fio,
    /// PostgreSQL and `pgbench -S -c 1`.
    Pgbench,
}

impl LoadKind {
    pub const ALL: [LoadKind; 5] =
        [LoadKind::Redis, LoadKind::RedisPaced, LoadKind::Pipe, LoadKind::Fio, LoadKind::Pgbench];

    pub const fn name(self) -> &'static str {
        match self {
            LoadKind::Redis => "redis",
            LoadKind::RedisPaced => "redis-paced",
            LoadKind::Pipe => "pipe",
            LoadKind::Fio => "fio",
            LoadKind::Pgbench => "pgbench",
        }
    }
}

impl fmt::Display for LoadKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A text that is no load.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no load has this name; write redis, redis-paced, pipe, fio or pgbench")]
pub struct ParseLoadKindError;

impl FromStr for LoadKind {
    type Err = ParseLoadKindError;

    fn from_str(text: &str) -> Result<LoadKind, ParseLoadKindError> {
        LoadKind::ALL.into_iter().find(|kind| kind.name() == text).ok_or(ParseLoadKindError)
    }
}

/// Why a load cannot run.
#[derive(Debug, thiserror::Error)]
pub enum LoadKindError {
    /// A program is missing.
    #[error("{program} is not installed")]
    Absent { program: &'static str },
    #[error("{program} failed: {why}")]
    Failed {
        program: &'static str,
        /// What it wrote, or its exit status.
        why: String,
    },
    /// What a program wrote is not what is known of it.
    #[error("what {program} prints is not understood: {text}")]
    Answer { program: &'static str, text: String },
    /// A file, a pipe or a socket.
    #[error("cannot talk to the programs of the load")]
    Io(#[from] io::Error),
}

/// What a load did, as its client counted it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Served {
    /// Requests answered in a second.
    pub per_second: f64,
    /// The median of their latency \[ns\].
    pub p50_ns: f64,
    /// The 99th percentile of their latency \[ns\].
    pub p99_ns: f64,
}

impl Served {
    /// From the latency of each request \[ns\], all in `elapsed`.
    fn of(mut latency_ns: Vec<u64>, elapsed: Duration) -> Served {
        latency_ns.sort_unstable();
        let at = |per_cent: usize| {
            let at = (latency_ns.len() * per_cent / 100).min(latency_ns.len().saturating_sub(1));
            latency_ns.get(at).map_or(f64::NAN, |ns| *ns as f64)
        };
        Served { per_second: latency_ns.len() as f64 / elapsed.as_secs_f64(), p50_ns: at(50), p99_ns: at(99) }
    }
}

/// A server, killed at the end.
#[derive(Debug)]
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What a client needs.
#[derive(Debug)]
enum Client {
    /// The socket, and the requests answered in a second so far.
    Redis {
        socket: PathBuf,
        per_second: f64,
    },
    RedisPaced {
        stream: UnixStream,
        pauses: Pauses,
    },
    Pipe {
        to: ChildStdin,
        from: ChildStdout,
        pauses: Pauses,
    },
    Fio {
        file: PathBuf,
    },
    Pgbench {
        directory: PathBuf,
    },
}

/// A load whose servers run.
#[derive(Debug)]
pub struct Load {
    kind: LoadKind,
    client: Client,
    _servers: Vec<Server>,
    _directory: TempDir,
}

/// Pauses that are exponential: the same ones in each run.
#[derive(Debug)]
struct Pauses {
    random: SmallRng,
    seconds: Exp<f64>,
}

impl Pauses {
    fn of(mean: Nanos) -> Pauses {
        let rate = 1e9 / mean.get() as f64;
        let seconds = Exp::new(rate).expect("a mean above 0 has a rate");
        Pauses { random: SmallRng::seed_from_u64(1), seconds }
    }

    fn pause(&mut self) {
        std::thread::sleep(Duration::from_secs_f64(self.seconds.sample(&mut self.random)));
    }
}

/// A program that is killed when this one is killed, with the rights of `user`, if given. Ctrl-C does not reach it.
fn command(program: &str, user: Option<&str>) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL"]);
    if let Some(user) = user {
        command.args(["--reuid", user, "--regid", user, "--clear-groups"]);
    }
    command.arg("--").arg(program).stdin(Stdio::null()).process_group(0);
    command
}

/// Where a program is.
fn found(program: &'static str) -> Result<PathBuf, LoadKindError> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    // Debian keeps PostgreSQL's servers out of the path.
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    folders.extend(versions.map(|version| version.path().join("bin")));
    let mut files = folders.iter().map(|folder| folder.join(program));
    files.find(|file| file.is_file()).ok_or(LoadKindError::Absent { program })
}

/// Runs a program to its end; what it printed.
fn output(program: &'static str, command: &mut Command) -> Result<String, LoadKindError> {
    let failed = |why: String| LoadKindError::Failed { program, why };
    let output = command.stderr(Stdio::piped()).stdout(Stdio::piped()).output();
    let output = output.map_err(|error| failed(error.to_string()))?;
    if !output.status.success() {
        let told = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(failed(if told.is_empty() { output.status.to_string() } else { told }));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

impl Load {
    /// Starts its servers.
    ///
    /// # Errors
    /// [`LoadKindError`]; [`LoadKindError::Absent`] where a program is not installed.
    pub fn start(kind: LoadKind) -> Result<Load, LoadKindError> {
        found("setpriv")?;
        let directory = tempfile::Builder::new().prefix("dwell-load-").tempdir_in("/var/tmp")?;
        let mut servers = vec![];
        let client = match kind {
            LoadKind::Redis | LoadKind::RedisPaced => {
                found("redis-benchmark")?;
                let socket = directory.path().join("socket");
                servers.push(redis(&socket)?);
                let stream = answering(|| UnixStream::connect(&socket))?;
                match kind {
                    LoadKind::Redis => Client::Redis { socket, per_second: 0.0 },
                    _ => Client::RedisPaced { stream, pauses: Pauses::of(Nanos::from_micros(200)) },
                }
            }
            LoadKind::Pipe => {
                let mut child = command("cat", None);
                let mut child = child.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
                let (to, from) = (child.stdin.take(), child.stdout.take());
                servers.push(Server(child));
                let (to, from) = to.zip(from).ok_or_else(|| io::Error::from(io::ErrorKind::BrokenPipe))?;
                Client::Pipe { to, from, pauses: Pauses::of(Nanos::from_micros(100)) }
            }
            LoadKind::Fio => {
                found("fio")?;
                Client::Fio { file: directory.path().join("file") }
            }
            LoadKind::Pgbench => {
                servers.push(postgres(directory.path())?);
                Client::Pgbench { directory: directory.path().to_owned() }
            }
        };
        let mut load = Load { kind, client, _servers: servers, _directory: directory };
        // Makes the file of fio, and measures the rate of redis.
        load.run(Duration::from_millis(300))?;
        Ok(load)
    }

    pub fn kind(&self) -> LoadKind {
        self.kind
    }

    /// Runs its client for about this time.
    ///
    /// # Errors
    /// [`LoadKindError`].
    pub fn run(&mut self, time: Duration) -> Result<Served, LoadKindError> {
        match &mut self.client {
            Client::Redis { socket, per_second } => {
                let first = *per_second == 0.0;
                // A positive number of requests, far below 2^53.
                #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
                let requests = if first { 5_000 } else { (*per_second * time.as_secs_f64()) as u64 + 1 };
                let served = redis_benchmark(socket, requests)?;
                if first {
                    *per_second = served.per_second;
                }
                Ok(served)
            }
            Client::RedisPaced { stream, pauses } => Ok(paced(time, pauses, || {
                const REQUEST: &[u8] = b"PING\r\n";
                const ANSWER: usize = b"+PONG\r\n".len();
                stream.write_all(REQUEST)?;
                stream.read_exact(&mut [0; ANSWER])
            })?),
            Client::Pipe { to, from, pauses } => Ok(paced(time, pauses, || {
                to.write_all(&[1])?;
                from.read_exact(&mut [0])
            })?),
            Client::Fio { file } => fio(file, time),
            Client::Pgbench { directory } => pgbench(directory, time),
        }
    }
}

/// Tries for 10 s at most.
fn answering<T>(mut ask: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let begun = Instant::now();
    loop {
        match ask() {
            Err(_) if begun.elapsed() < Duration::from_secs(10) => {
                std::thread::sleep(Duration::from_millis(20));
            }
            answer => return answer,
        }
    }
}

/// One request after another, each after a pause.
fn paced(
    time: Duration,
    pauses: &mut Pauses,
    mut request: impl FnMut() -> io::Result<()>,
) -> io::Result<Served> {
    let (begun, mut latency_ns) = (Instant::now(), vec![]);
    while begun.elapsed() < time {
        pauses.pause();
        let asked = Instant::now();
        request()?;
        latency_ns.push(u64::try_from(asked.elapsed().as_nanos()).unwrap_or(u64::MAX));
    }
    Ok(Served::of(latency_ns, begun.elapsed()))
}

fn redis(socket: &Path) -> Result<Server, LoadKindError> {
    let program = found("redis-server")?;
    let mut server = command(&program.to_string_lossy(), None);
    server.args(["--port", "0", "--save", "", "--appendonly", "no", "--unixsocket"]).arg(socket);
    Ok(Server(server.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?))
}

/// Its table has the names of the columns in the first line and all fields in quotes; times are in ms.
fn redis_benchmark(socket: &Path, requests: u64) -> Result<Served, LoadKindError> {
    const PROGRAM: &str = "redis-benchmark";
    let mut client = command(PROGRAM, None);
    client.args(["-c", "1", "-t", "get", "--csv", "-n", &requests.to_string(), "-s"]).arg(socket);
    let text = output(PROGRAM, &mut client)?;
    let fields = |line: &str| -> Vec<String> {
        line.split(',').map(|field| field.trim().trim_matches('"').to_owned()).collect()
    };
    let rows: Vec<Vec<String>> = text.lines().map(fields).collect();
    let column = |name: &str| -> Option<f64> {
        let at = rows.first()?.iter().position(|heading| heading == name)?;
        rows.get(1)?.get(at)?.parse().ok()
    };
    let served = || {
        Some(Served {
            per_second: column("rps")?,
            p50_ns: column("p50_latency_ms")? * 1e6,
            p99_ns: column("p99_latency_ms")? * 1e6,
        })
    };
    served().ok_or(LoadKindError::Answer { program: PROGRAM, text })
}

fn fio(file: &Path, time: Duration) -> Result<Served, LoadKindError> {
    const PROGRAM: &str = "fio";
    let mut client = command(PROGRAM, None);
    client.args(["--name=load", "--rw=randread", "--bs=4k", "--size=64m", "--direct=1", "--ioengine=psync"]);
    client.args(["--time_based", "--output-format=json", "--filename"]).arg(file);
    let text = output(PROGRAM, client.arg(format!("--runtime={}ms", time.as_millis())))?;
    let served = || {
        let told: serde_json::Value = serde_json::from_str(&text).ok()?;
        let read = &told["jobs"][0]["read"];
        let latency = &read["clat_ns"]["percentile"];
        Some(Served {
            per_second: read["iops"].as_f64()?,
            p50_ns: latency["50.000000"].as_f64()?,
            p99_ns: latency["99.000000"].as_f64()?,
        })
    };
    served().ok_or(LoadKindError::Answer { program: PROGRAM, text })
}

/// The user that PostgreSQL runs as: it refuses to run as root.
fn postgres_user() -> Option<&'static str> {
    rustix::process::geteuid().is_root().then_some("postgres")
}

fn postgres(directory: &Path) -> Result<Server, LoadKindError> {
    let (initdb, postgres) = (found("initdb")?, found("postgres")?);
    found("pgbench")?;
    if postgres_user().is_some() {
        // Its server writes there as another user.
        fs::set_permissions(directory, fs::Permissions::from_mode(0o777))?;
    }
    let data = directory.join("data");
    let mut init = command(&initdb.to_string_lossy(), postgres_user());
    output("initdb", init.args(["--auth=trust", "--username=load", "-N", "-D"]).arg(&data))?;
    let mut server = command(&postgres.to_string_lossy(), postgres_user());
    server
        .args(["-c", "listen_addresses=", "-c", "autovacuum=off", "-k"])
        .arg(directory)
        .arg("-D")
        .arg(&data);
    let server = Server(server.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?);
    let fill = || output("pgbench", client_of(directory).args(["-i", "-q"]));
    let begun = Instant::now();
    loop {
        match fill() {
            Ok(_) => return Ok(server),
            Err(_) if begun.elapsed() < Duration::from_secs(20) => {
                std::thread::sleep(Duration::from_millis(100));
            }
            Err(error) => return Err(error),
        }
    }
}

fn client_of(directory: &Path) -> Command {
    let mut client = command("pgbench", None);
    client.args(["-U", "load", "-h"]).arg(directory).current_dir(directory).args(["postgres"]);
    client
}

/// The latency of each transaction is the third number of a line of its log, in us.
fn pgbench(directory: &Path, time: Duration) -> Result<Served, LoadKindError> {
    const PROGRAM: &str = "pgbench";
    let logs = tempfile::tempdir_in(directory)?;
    let seconds = time.as_secs_f64().ceil().max(1.0);
    let mut client = client_of(directory);
    client.args(["-S", "-n", "-c", "1", "-M", "prepared", "-l", "-T", &seconds.to_string()]);
    let told = output(PROGRAM, client.arg("--log-prefix").arg(logs.path().join("log")))?;
    let not_understood = |text: String| LoadKindError::Answer { program: PROGRAM, text };
    let mut latency_ns = vec![];
    for log in fs::read_dir(logs.path())? {
        for line in fs::read_to_string(log?.path())?.lines() {
            let us = line.split(' ').nth(2).and_then(|us| us.parse::<u64>().ok());
            latency_ns.push(us.ok_or_else(|| not_understood(line.to_owned()))?.saturating_mul(1_000));
        }
    }
    let rate = told.lines().find_map(|line| line.strip_prefix("tps = ")?.split(' ').next()?.parse().ok());
    let per_second: f64 = rate.ok_or_else(|| not_understood(told))?;
    Ok(Served { per_second, ..Served::of(latency_ns, time) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_the_sorted_latency() {
        let served = Served::of((1..=1_000).rev().collect(), Duration::from_secs(2));
        assert_eq!((served.per_second, served.p50_ns, served.p99_ns), (500.0, 501.0, 991.0));
    }

    #[test]
    fn each_load_that_is_installed_serves() {
        let mut served = 0;
        for kind in LoadKind::ALL {
            let run = || {
                let mut load = Load::start(kind)?;
                let directory = load._directory.path().to_owned();
                Ok((load.run(Duration::from_millis(200))?, directory))
            };
            match run() {
                Ok((did, directory)) => {
                    assert!(
                        did.per_second > 1.0 && did.p50_ns > 0.0 && did.p50_ns <= did.p99_ns,
                        "{kind}: {did:?}"
                    );
                    assert!(!directory.exists());
                    served += 1;
                }
                Err(LoadKindError::Absent { program }) => {
                    dwell_testing::skip!(
                        "programs",
                        "each_load_that_is_installed_serves",
                        "{program} is not installed, {kind}"
                    );
                }
                Err(error) => panic!("{kind}: {error}"),
            }
        }
        assert!(served > 0, "a pipe can always be made");
    }
}
