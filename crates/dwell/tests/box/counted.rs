//! What the kernel counts and which parameters are in force, at moments of a job.

use crate::machine::Ran;
use std::collections::BTreeMap;

/// What the script's `counted NAME` has read.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Counted {
    /// Each file in /sys with its number, and the uptime \[s\].
    numbers: BTreeMap<String, f64>,
    /// The parameters of haltpoll and of KVM, each file with its value.
    pub(crate) parameters: String,
}

/// The key of the uptime among the numbers.
const UPTIME: &str = "/proc/uptime";

impl Counted {
    pub(crate) fn of(ran: &Ran, name: &str) -> Counted {
        let number = |line: &str| {
            let (file, value) = line.split_once(':')?;
            Some((file.to_owned(), value.split_whitespace().next()?.parse().ok()?))
        };
        let numbers = ran.text(&format!("{name}.counted")).lines().filter_map(number).collect();
        Counted { numbers, parameters: ran.text(&format!("{name}.parameters")) }
    }

    /// By how much the files rose until `later` whose path contains `begin` and ends with `end`, in all.
    pub(crate) fn rise(&self, later: &Counted, begin: &str, end: &str) -> f64 {
        let sum = |counted: &Counted| -> f64 {
            let wanted =
                counted.numbers.iter().filter(|(file, _)| file.contains(begin) && file.ends_with(end));
            let (count, sum) = wanted.fold((0, 0.0), |(count, sum), (_, number)| (count + 1, sum + number));
            assert!(count > 0, "no file {begin}…{end}: {counted:?}");
            sum
        };
        sum(later) - sum(self)
    }

    /// The same for each second.
    pub(crate) fn per_s(&self, later: &Counted, begin: &str, end: &str) -> f64 {
        self.rise(later, begin, end) / self.rise(later, UPTIME, "")
    }
}
