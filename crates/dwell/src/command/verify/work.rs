//! How much work is done: a counter of the user's own, and those that every machine has.

use anyhow::{Context, anyhow, bail, ensure};
use dwell_knobs::open_metrics;
use dwell_knobs::verification::Unit;
use dwell_machine::threads::context_switches;
use dwell_machine::{Machine, Sysroot};
use rustix::process::{Pid, Signal, kill_process_group};
use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// What a user counts work with.
#[derive(clap::Args)]
pub(super) struct WorkArgs {
    /// Command that prints how much work was done so far, as one number
    ///
    /// It is run by `sh -c` at the start and the end of each block, for 5 s at most; the difference is the work of the
    /// block. Less work with the values from after is a regression. Without this option and --work-metric, context switches and
    /// wakeups are counted, and of an I/O thread the requests of QEMU's block devices.
    #[arg(long, value_name = "CMD", conflicts_with = "work_metric")]
    work: Option<String>,
    /// Metric that counts the work: an http URL with metrics, and a name
    ///
    /// The text is OpenMetrics or Prometheus's own format. All series of the name are summed up, unless the name is one
    /// series with its labels, as in 'http_requests_total{code="200"}'.
    #[arg(long, num_args = 2, value_names = ["URL", "NAME"])]
    work_metric: Option<Vec<String>>,
}

/// The counters of work.
pub(super) struct Counters {
    own: Option<Own>,
    switches: bool,
}

/// A counter of the user.
enum Own {
    Command(String),
    Metric { url: Url, name: String },
}

/// All counters at one time.
pub(super) struct Reading(Vec<(Unit, Instant, f64)>);

impl WorkArgs {
    /// Reads once what the user asked for: before anything is changed.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        Counters::new(self, false).map(drop)
    }
}

impl Counters {
    /// What the user asked for; `switches`: also those of all CPUs.
    pub(super) fn new(args: &WorkArgs, switches: bool) -> anyhow::Result<Counters> {
        let own = match (&args.work, args.work_metric.as_deref()) {
            (Some(command), _) => Some(Own::Command(command.clone())),
            (None, Some([url, name])) => Some(Own::Metric { url: Url::parse(url)?, name: name.clone() }),
            (None, _) => None,
        };
        let counters = Counters { own, switches };
        counters.read().context("cannot count the work; no value was switched")?;
        Ok(counters)
    }

    pub(super) fn units(&self) -> impl Iterator<Item = Unit> {
        let own = self.own.is_some().then_some(Unit::Work);
        own.into_iter().chain(self.switches.then_some(Unit::ContextSwitch))
    }

    pub(super) fn read(&self) -> anyhow::Result<Reading> {
        let mut counts = vec![];
        if self.switches {
            counts.push((Unit::ContextSwitch, Instant::now(), switches()?));
        }
        if let Some(own) = &self.own {
            let begun = Instant::now();
            let count = own.read()?;
            counts.push((Unit::Work, begun + begun.elapsed() / 2, count));
        }
        Ok(Reading(counts))
    }
}

impl Reading {
    /// How many a second, since an earlier reading. Not a number where a counter went back.
    pub(super) fn rates_since(&self, before: &Reading) -> impl Iterator<Item = (Unit, f64)> {
        self.0.iter().zip(&before.0).map(|((unit, end, after), (_, begin, before))| {
            let counted = after - before;
            let rate = counted / end.duration_since(*begin).as_secs_f64();
            (*unit, if counted < 0.0 { f64::NAN } else { rate })
        })
    }
}

impl Own {
    fn read(&self) -> anyhow::Result<f64> {
        match self {
            Own::Command(command) => {
                printed(command, PATIENCE).with_context(|| format!("--work `{command}`"))
            }
            Own::Metric { url, name } => {
                let counted = || anyhow::Ok(open_metrics::sum(name, &url.get()?)?);
                counted().with_context(|| format!("--work-metric http://{}{}", url.host, url.path))
            }
        }
    }
}

/// The number that a command prints; it is killed after `patience`.
fn printed(command: &str, patience: Duration) -> anyhow::Result<f64> {
    let mut shell = Command::new("sh");
    shell.args(["-c", command]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // In a process group of its own, so that Ctrl-C reaches dwell only, which ends after the block.
    let child = shell.process_group(0).spawn()?;
    let group = Pid::from_child(&child);
    let (ended, waits) = channel::<()>();
    let (output, in_time) = std::thread::scope(|scope| {
        let watch = scope.spawn(move || {
            let late = waits.recv_timeout(patience) == Err(RecvTimeoutError::Timeout);
            if late {
                // It may have ended at this moment.
                let _ = kill_process_group(group, Signal::KILL);
            }
            !late
        });
        let output = child.wait_with_output();
        drop(ended);
        (output, watch.join().unwrap_or(false))
    });
    let output = output?;
    ensure!(in_time, "it took longer than {patience:?} and was killed");
    if !output.status.success() {
        let told = String::from_utf8_lossy(&output.stderr);
        bail!("{}: {}", output.status, told.trim().lines().last().unwrap_or("it printed no error"));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let number = text.trim().parse::<f64>().ok().filter(|number| number.is_finite());
    let shown: String = text.trim().chars().take(40).collect();
    number.with_context(|| format!("it printed `{shown}`; it has to print one number, a counter"))
}

/// Context switches of all CPUs since boot.
fn switches() -> anyhow::Result<f64> {
    let stat = Sysroot::of_this_machine().text("/proc/stat").context("cannot read /proc/stat")?;
    let count = context_switches(&stat).context("cannot read /proc/stat: it has no ctxt")?;
    Ok(count as f64)
}

struct Url {
    host: String,
    path: String,
}

/// The longest text of metrics \[bytes\].
const LONGEST: u64 = 16 << 20;
/// How long a server or a command may take.
const PATIENCE: Duration = Duration::from_secs(5);

impl Url {
    fn parse(text: &str) -> anyhow::Result<Url> {
        let rest = text.strip_prefix("http://").filter(|rest| !rest.starts_with('/') && !rest.is_empty());
        let Some(rest) = rest.filter(|rest| !rest.contains(char::is_whitespace)) else {
            bail!(
                "--work-metric {text}: not a URL that can be read; write http://HOST:PORT/PATH, or use --work 'curl …'"
            );
        };
        let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let port = host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        Ok(Url {
            host: if port { host.to_owned() } else { format!("{host}:80") },
            path: if path.is_empty() { "/".to_owned() } else { path.to_owned() },
        })
    }

    /// The text that is there. By HTTP/1.0, whose body ends with the connection.
    fn get(&self) -> anyhow::Result<String> {
        // A name may have addresses of which not all are served: localhost is ::1, too.
        let mut why = None;
        let mut addresses = self.host.to_socket_addrs()?;
        let connected = addresses.find_map(|address| {
            TcpStream::connect_timeout(&address, PATIENCE).map_err(|error| why = Some(error)).ok()
        });
        let Some(mut stream) = connected else {
            return Err(why.map_or_else(|| anyhow!("the host has no address"), Into::into));
        };
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        // In one piece: a server that answers the first one and closes would reset the connection at the next.
        let asked =
            format!("GET {} HTTP/1.0\r\nHost: {}\r\nAccept: text/plain\r\n\r\n", self.path, self.host);
        stream.write_all(asked.as_bytes())?;
        let mut answer = Vec::new();
        stream.take(LONGEST).read_to_end(&mut answer)?;
        let answer = String::from_utf8(answer).context("the answer is no UTF-8")?;
        let (head, body) = answer.split_once("\r\n\r\n").context("the answer is not HTTP")?;
        let status = head.lines().next().unwrap_or_default();
        ensure!(status.split(' ').nth(1) == Some("200"), "the server answers `{}`", status.escape_debug());
        Ok(body.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn a_command_prints_a_counter() {
        assert_eq!(printed("echo 12; true", PATIENCE).unwrap(), 12.0);
        for (command, why) in [
            ("echo served: 12", "it printed `served: 12`; it has to print one number"),
            ("echo no such server >&2; exit 3", "exit status: 3: no such server"),
            ("true", "it printed ``"),
            ("echo NaN", "it printed `NaN`"),
        ] {
            let error = printed(command, PATIENCE).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
        // What it has started keeps its output open.
        let error = printed("sleep 60 & echo 1", Duration::from_millis(100)).unwrap_err().to_string();
        assert!(error.contains("it took longer than 100ms and was killed"), "{error}");
    }

    #[test]
    fn rates_are_of_differences() {
        let begin = Instant::now();
        let at = |seconds: u64, count: f64| {
            Reading(vec![(Unit::Work, begin + Duration::from_secs(seconds), count)])
        };
        let rate = |before: &Reading, after: &Reading| after.rates_since(before).next().unwrap().1;
        assert_eq!(rate(&at(0, 100.0), &at(2, 700.0)), 300.0);
        assert!(rate(&at(0, 700.0), &at(2, 100.0)).is_nan(), "a server that was restarted");
    }

    #[test]
    fn context_switches_are_counted() {
        let counters = Counters::new(&WorkArgs { work: None, work_metric: None }, true).unwrap();
        let before = counters.read().unwrap();
        std::thread::sleep(Duration::from_millis(1));
        let rates: Vec<_> = counters.read().unwrap().rates_since(&before).collect();
        assert!(rates[0].0 == Unit::ContextSwitch && rates[0].1 > 0.0, "{rates:?}");
    }

    #[test]
    fn urls() {
        let parsed = |text: &str| Url::parse(text).map(|url| format!("{} {}", url.host, url.path));
        assert_eq!(parsed("http://localhost:9121/metrics").unwrap(), "localhost:9121 /metrics");
        assert_eq!(parsed("http://[::1]").unwrap(), "[::1]:80 /");
        for wrong in ["https://x/", "localhost:9121", "http://", "http:///x", "http://x/a b"] {
            assert!(parsed(wrong).unwrap_err().to_string().contains("http://HOST:PORT/PATH"), "{wrong}");
        }
    }

    /// Serves one answer at an address of this machine.
    fn serving(answer: &'static str) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut asked = vec![];
            while !asked.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                asked.extend(byte);
            }
            stream.write_all(answer.as_bytes()).unwrap();
        });
        format!("http://{address}/metrics")
    }

    #[test]
    fn a_metric_is_read_over_http() {
        let of = |answer| {
            let url = serving(answer);
            Own::Metric { url: Url::parse(&url).unwrap(), name: "served_total".to_owned() }.read()
        };
        assert_eq!(
            of("HTTP/1.1 200 OK\r\nA: b\r\n\r\n# TYPE served counter\nserved_total 7\n").unwrap(),
            7.0
        );
        for (answer, why) in [
            ("HTTP/1.1 404 Not Found\r\n\r\nserved_total 7\n", "HTTP/1.1 404 Not Found"),
            ("HTTP/1.0 200 OK\r\n\r\nother 7\n", "no metric `served_total`"),
            ("served_total 7\n", "not HTTP"),
        ] {
            let error = format!("{:#}", of(answer).unwrap_err());
            assert!(error.contains(why) && error.contains("--work-metric http://127.0.0.1:"), "{error}");
        }
    }
}
