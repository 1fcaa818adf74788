//! How often CPUs polled and halted, and for how long they polled, as cpuidle counts it.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

/// The folder of CPU `cpu0` and the others.
const CPUS: &str = "/sys/devices/system/cpu";
/// State 0 polls, state 1 is the shallowest that halts; haltpoll's driver has no other.
const STATES: [&str; 3] = ["state0/usage", "state0/time", "state1/usage"];
/// So many files stay open: many fewer than a process may have.
const MOST_OPEN: usize = 384;
/// The longest file is one with a line of 100 bytes for each CPU.
const LONGEST: usize = 1 << 16;

/// A file that stays open, as to find it takes longer than to read it.
#[derive(Debug)]
pub struct Kept {
    path: PathBuf,
    file: Option<File>,
}

impl Kept {
    /// Opens it, if it is there.
    pub fn open(path: PathBuf) -> Kept {
        Kept { file: File::open(&path).ok(), path }
    }

    /// What it has now.
    pub fn read(&self) -> Option<String> {
        let Some(file) = &self.file else { return std::fs::read_to_string(&self.path).ok() };
        let mut text = vec![0; 64];
        loop {
            let bytes = file.read_at(&mut text, 0).ok()?;
            if bytes < text.len() || bytes >= LONGEST {
                text.truncate(bytes);
                return String::from_utf8(text).ok();
            }
            text.resize(LONGEST, 0);
        }
    }

    fn number(&self) -> u64 {
        self.read().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
    }
}

/// The counters of a CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IdleCounts {
    pub polls: u64,
    pub polled_ns: u64,
    pub halts: u64,
}

impl IdleCounts {
    /// What was counted from then to now.
    pub const fn since(self, then: IdleCounts) -> IdleCounts {
        IdleCounts {
            polls: self.polls.saturating_sub(then.polls),
            polled_ns: self.polled_ns.saturating_sub(then.polled_ns),
            halts: self.halts.saturating_sub(then.halts),
        }
    }
}

/// The counters of the states of cpuidle, of the CPUs that were there.
#[derive(Debug)]
pub struct CpuidleCounters(Vec<(u32, [Kept; 3])>);

impl CpuidleCounters {
    /// Those of these CPUs, in files where `path` says.
    pub fn open(cpus: impl IntoIterator<Item = u32>, path: impl Fn(&str) -> PathBuf) -> CpuidleCounters {
        let mut open = 0;
        let mut kept = |file: String| {
            open += 1;
            let path = path(&file);
            if open <= MOST_OPEN { Kept::open(path) } else { Kept { path, file: None } }
        };
        let of = |cpu| (cpu, STATES.map(|file| kept(format!("{CPUS}/cpu{cpu}/cpuidle/{file}"))));
        CpuidleCounters(cpus.into_iter().map(of).collect())
    }

    /// Reads those of each CPU, one after the other.
    pub fn read(&self) -> impl Iterator<Item = (u32, IdleCounts)> + '_ {
        self.0.iter().map(|(cpu, files)| {
            let [polls, polled_us, halts] = files.each_ref().map(Kept::number);
            (*cpu, IdleCounts { polls, polled_ns: polled_us.saturating_mul(1_000), halts })
        })
    }
}
