//! A key-value server on tokio's current-thread runtime, as it is and with the guard: `cargo run --release -p
//! dwell-idle --example kv_tokio`
//!
//! The server speaks enough of Redis's protocol for GET and SET. Each server is the same program: as tokio
//! is, with a fixed window, and with `leader` at three prices of latency. They run in threads of their own on
//! CPU 1 and take turns in short blocks, in an order that changes from round to round; the first of them is
//! measured twice under two names (A/A), whose difference is the error of the method. The client is on CPU 0,
//! sends `pipeline` requests at once, and sleeps or polls until it has their answers.

use anyhow::Context;
use clap::Parser;
use dwell_idle::policy::reference::Fixed;
use dwell_idle::{Halt, Idler, Nanos, Price, park};
use dwell_machine::load::Load;
use dwell_machine::threads::Thread;
use dwell_stats::histogram::nearest_rank;
use dwell_stats::{Block, Figure, SplitMix64, Unit};
use dwell_testing::contest::{Column, Contest, Format, chosen, load_average};
use rustix::thread::{CpuSet, sched_setaffinity};
use std::cell::RefCell;
use std::collections::HashMap;
use std::io::{ErrorKind, Read, Result, Write};
use std::net::{SocketAddr, TcpStream};
use std::rc::Rc;
use std::sync::mpsc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Compare a key-value server on tokio with and without the guard
#[derive(Parser)]
struct Args {
    /// How long it may take in all [s]; a row needs about 15 s
    #[arg(long, default_value_t = 300)]
    budget: u64,
    /// Only the cells whose name contains this, such as `pipeline 16` or `sleeps`; given several times: each
    /// of these
    #[arg(long)]
    only: Vec<String>,
    /// What is printed: `cells`, a table of each cell with intervals; `markdown`, the table of the book
    #[arg(long, default_value = "cells")]
    format: Format,
}

const BLOCK: Duration = Duration::from_millis(150);
const WARM: Duration = Duration::from_millis(15);
/// How long a phase takes where the load changes.
const PHASE: Duration = Duration::from_millis(20);
const KEYS: u64 = 1_000;
const VALUE: [u8; 32] = [b'v'; 32];

type Store = Rc<RefCell<HashMap<Vec<u8>, Vec<u8>>>>;

/// A request.
struct Request<'a> {
    words: Vec<&'a [u8]>,
    /// Bytes of it.
    len: usize,
}

/// The request at the beginning of `input`; `None`: more of it is to come.
fn request(input: &[u8]) -> Result<Option<Request<'_>>> {
    let mut at = 0;
    let Some(count) = number(b'*', input, &mut at)? else { return Ok(None) };
    let mut words = vec![];
    for _ in 0..count {
        let Some(len) = number(b'$', input, &mut at)? else { return Ok(None) };
        let Some(word) = input.get(at..at + len + 2) else { return Ok(None) };
        words.push(&word[..len]);
        at += len + 2;
    }
    Ok(Some(Request { words, len: at }))
}

/// A line that is this mark and a number of at most 512 MiB, as Redis limits it; `at` goes behind it.
fn number(mark: u8, input: &[u8], at: &mut usize) -> Result<Option<usize>> {
    let rest = &input[*at..];
    let Some(end) = rest.windows(2).position(|end| end == b"\r\n") else {
        return if rest.len() > 16 { Err(ErrorKind::InvalidData.into()) } else { Ok(None) };
    };
    let digits = rest[..end].strip_prefix(&[mark]).ok_or(ErrorKind::InvalidData)?;
    let digits = std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok());
    *at += end + 2;
    digits.filter(|number| *number <= 1 << 29).map(Some).ok_or_else(|| ErrorKind::InvalidData.into())
}

fn answer(words: &[&[u8]], store: &Store, out: &mut Vec<u8>) -> Result<()> {
    match words {
        [b"GET", key] => match store.borrow().get(*key) {
            Some(value) => {
                write!(out, "${}\r\n", value.len())?;
                out.extend_from_slice(value);
                out.extend_from_slice(b"\r\n");
            }
            None => out.extend_from_slice(b"$-1\r\n"),
        },
        [b"SET", key, value] => {
            store.borrow_mut().insert(key.to_vec(), value.to_vec());
            out.extend_from_slice(b"+OK\r\n");
        }
        _ => out.extend_from_slice(b"-ERR unknown command\r\n"),
    }
    Ok(())
}

async fn connection(mut stream: tokio::net::TcpStream, store: Store) -> Result<()> {
    let (mut input, mut out) = (vec![], vec![]);
    while stream.read_buf(&mut input).await? > 0 {
        park::worked();
        let mut used = 0;
        while let Some(Request { words, len }) = request(&input[used..])? {
            answer(&words, &store, &mut out)?;
            used += len;
        }
        input.drain(..used);
        stream.write_all(&out).await?;
        out.clear();
    }
    Ok(())
}

/// What decides how long a server polls.
#[derive(Clone, Copy)]
enum Polling {
    /// Nothing: tokio as it is.
    Never,
    /// A fixed window.
    Fixed(Nanos),
    /// The learner, at this cost of a sleep and price of latency.
    Leader(Halt, Price),
}

/// This thread runs on one CPU from now on.
fn pin_to(cpu: usize) -> anyhow::Result<()> {
    let mut only = CpuSet::new();
    only.set(cpu);
    sched_setaffinity(None, &only).with_context(|| format!("cannot run on CPU {cpu}"))
}

/// Serves in this thread until the process ends.
fn serve(polling: Polling, started: &mpsc::Sender<(SocketAddr, Thread)>) -> anyhow::Result<()> {
    pin_to(1)?;
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    match polling {
        Polling::Never => {}
        Polling::Fixed(window) => park::install(Idler::new(Fixed(window))),
        Polling::Leader(halt, price) => park::install(Idler::new(halt.leader(price))),
    }
    if !matches!(polling, Polling::Never) {
        runtime.on_thread_park(park::on_thread_park);
    }
    tokio::task::LocalSet::new().block_on(&runtime.enable_io().build()?, async {
        tokio::task::spawn_local(park::spinner());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        started.send((listener.local_addr()?, Thread::current()))?;
        let store = Store::default();
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            // A connection that fails is closed, and nothing else.
            tokio::task::spawn_local(connection(stream, Rc::clone(&store)));
        }
    })
}

/// A server that runs, and the client that is connected to it.
struct Peer {
    thread: Thread,
    stream: TcpStream,
}

impl Peer {
    fn start(polling: Polling) -> anyhow::Result<Peer> {
        let (started, starts) = mpsc::channel();
        std::thread::Builder::new().name("server".into()).spawn(move || {
            if let Err(error) = serve(polling, &started) {
                eprintln!("a server has ended: {error:#}");
            }
        })?;
        let (address, thread) = starts.recv().context("a server has not started")?;
        let mut stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        let mut sets = vec![];
        for key in 0..KEYS {
            sets.extend(command(&[b"SET", key.to_string().as_bytes(), &VALUE]));
        }
        stream.write_all(&sets)?;
        let mut answers = vec![0; "+OK\r\n".len() * usize::try_from(KEYS)?];
        stream.read_exact(&mut answers)?;
        Ok(Peer { thread, stream })
    }
}

fn command(words: &[&[u8]]) -> Vec<u8> {
    let mut command = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        command.extend(format!("${}\r\n", word.len()).into_bytes());
        command.extend_from_slice(word);
        command.extend_from_slice(b"\r\n");
    }
    command
}

#[derive(Clone, Copy)]
struct Cell {
    pipeline: u64,
    polls: bool,
    think: Duration,
    phases: bool,
}

impl Cell {
    fn all() -> Vec<Cell> {
        let cell =
            |pipeline, polls, us, phases| Cell { pipeline, polls, think: Duration::from_micros(us), phases };
        let mut cells = vec![];
        for polls in [false, true] {
            cells.extend([1, 16].map(|pipeline| cell(pipeline, polls, 0, false)));
        }
        cells.extend([20, 100, 500].map(|us| cell(1, false, us, false)));
        cells.push(cell(1, false, 500, true));
        cells
    }

    /// The book's table, and the head of the column in it.
    fn column(self) -> (String, String) {
        let think = match self.think.as_micros() {
            0 => String::new(),
            us => format!(", {us}{}", if self.phases { " in phases" } else { "" }),
        };
        let how = if self.polls { "polls" } else { "sleeps" };
        ("server".to_owned(), format!("{} {how}{think}", self.pipeline))
    }

    fn name(self) -> String {
        format!(
            "pipeline {}, client {}, think {} us{}",
            self.pipeline,
            if self.polls { "polls" } else { "sleeps" },
            self.think.as_micros(),
            if self.phases { " in phases" } else { "" }
        )
    }
}

/// One block of requests.
fn block(peer: &mut Peer, cell: Cell, sequence: u64) -> Result<Block> {
    let mut random = SplitMix64::new(sequence);
    let stream = &mut peer.stream;
    stream.set_nonblocking(cell.polls)?;
    let each = format!("${}\r\n", VALUE.len()).len() + VALUE.len() + 2;
    let mut answers = vec![0; each * usize::try_from(cell.pipeline).unwrap_or(1)];
    let (begin, mut measured) = (Instant::now(), None);
    let (mut done, mut latencies) = (0, vec![]);
    loop {
        let now = Instant::now();
        if measured.is_none() && now - begin >= WARM {
            measured = Some((now, peer.thread.cpu_time()?));
            (done, latencies) = (0, vec![]);
        }
        if now - begin >= WARM + BLOCK {
            break;
        }
        let quick = cell.phases && ((now - begin).as_millis() / PHASE.as_millis()).is_multiple_of(2);
        if !cell.think.is_zero() && !quick {
            let until = now + Duration::from_nanos(random.exponential(cell.think.as_nanos() as f64));
            while Instant::now() < until {
                std::hint::spin_loop();
            }
        }
        let mut requests = vec![];
        for _ in 0..cell.pipeline {
            requests.extend(command(&[b"GET", random.below(KEYS).to_string().as_bytes()]));
        }
        let sent = Instant::now();
        stream.write_all(&requests)?;
        let mut have = 0;
        while have < answers.len() {
            match stream.read(&mut answers[have..]) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(bytes) => have += bytes,
                Err(error) if error.kind() == ErrorKind::WouldBlock => std::hint::spin_loop(),
                Err(error) => return Err(error),
            }
        }
        latencies.push(u64::try_from(sent.elapsed().as_nanos()).unwrap_or(u64::MAX));
        done += cell.pipeline;
    }
    let (since, cpu) = measured.ok_or(ErrorKind::TimedOut)?;
    let elapsed = since.elapsed().as_secs_f64();
    let cpu = peer.thread.cpu_time()?.saturating_sub(cpu).get() as f64;
    latencies.sort_unstable();
    let quantile = |q: f64| {
        let rank = usize::try_from(nearest_rank(q, latencies.len() as u64)).unwrap_or(0);
        rank.checked_sub(1).map_or(f64::NAN, |place| latencies[place] as f64)
    };
    Ok(Block::default()
        .figure("requests", done as f64 / elapsed)
        .figure("cpu_ns_per_request", cpu / done.max(1) as f64)
        .figure("cpu", cpu / elapsed / 1e9)
        .figure("p50", quantile(0.5))
        .figure("p99", quantile(0.99)))
}

const COLUMNS: [Column; 7] = [
    Column::value("thousand requests/s", "requests", 1e3),
    Column::value("CPU us/request", "cpu_ns_per_request", 1e3),
    Column::ratio("CPU, ratio", "cpu_ns_per_request"),
    Column::ratio("requests/s, ratio", "requests"),
    Column::value("p50 us", "p50", 1e3),
    Column::value("p99 us", "p99", 1e3),
    Column::value("CPU %", "cpu", 0.01),
];

fn figures() -> Vec<Figure> {
    vec![
        Figure::of_block("requests", Unit::PerSecond),
        Figure::of_block("cpu_ns_per_request", Unit::Nanos),
        Figure::of_block("cpu", Unit::Share),
        Figure::of_block("p50", Unit::Nanos),
        Figure::of_block("p99", Unit::Nanos),
    ]
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let cells = chosen(&Cell::all(), Cell::name, &args.only).map_err(anyhow::Error::msg)?;
    let halt = Halt::measure()?;
    println!(
        "a sleep costs {} at 0 %, {} at 100 %; load average {}",
        halt.cost(Price::percent(0)),
        halt.cost(Price::percent(100)),
        load_average()
    );
    let leader = |percent| Polling::Leader(halt, Price::percent(percent));
    let servers = [
        ("tokio", Polling::Never),
        ("fixed 50us", Polling::Fixed(Nanos(50_000))),
        ("fixed 1ms", Polling::Fixed(Nanos(1_000_000))),
        ("leader 0 %", leader(0)),
        ("leader 100 %", leader(100)),
        ("leader 1000 %", leader(1000)),
    ];
    let mut peers = vec![];
    for (name, polling) in servers {
        peers.push((name, RefCell::new(Peer::start(polling).context(name)?)));
    }
    pin_to(0)?;
    let mut contest = Contest {
        figures: figures(),
        columns: &COLUMNS,
        compared: ["cpu_ns_per_request", "requests"],
        ours: |server| server.starts_with("leader"),
        ends: Instant::now() + Duration::from_secs(args.budget),
        format: args.format,
        losing: vec![],
        measured: vec![],
    };
    let names: Vec<&str> = peers.iter().map(|(name, _)| *name).collect();
    for (number, &cell) in cells.iter().enumerate() {
        contest.cell(
            (&cell.name(), cell.column()),
            &names,
            cells.len() - number,
            &mut Load::open()?,
            |server, sequence| block(&mut peers[server].1.borrow_mut(), cell, sequence),
        )?;
    }
    contest.print_end();
    Ok(())
}

#[test]
fn requests_are_decoded_wherever_they_are_cut() {
    let whole = [command(&[b"SET", b"a", b"1\r\n2"]), command(&[b"GET", b"a"])].concat();
    for cut in 0..whole.len() {
        let (store, mut out, mut input) = (Store::default(), vec![], vec![]);
        for part in [&whole[..cut], &whole[cut..]] {
            input.extend_from_slice(part);
            while let Some(Request { words, len }) = request(&input).unwrap() {
                answer(&words, &store, &mut out).unwrap();
                input.drain(..len);
            }
        }
        assert_eq!(out, b"+OK\r\n$4\r\n1\r\n2\r\n", "{cut}");
    }
    for wrong in [&b"GET a\r\n"[..], b"*x\r\n", b"*1\r\n$99999999999\r\n", b"*11111111111111111111111"] {
        assert!(request(wrong).is_err(), "{wrong:?}");
    }
}

#[test]
fn every_server_answers() {
    for polling in [Polling::Never, Polling::Fixed(Nanos(50_000))] {
        let mut peer = Peer::start(polling).unwrap();
        for polls in [false, true] {
            let cell = Cell { pipeline: 4, polls, think: Duration::ZERO, phases: false };
            block(&mut peer, cell, 1).unwrap();
        }
    }
}
