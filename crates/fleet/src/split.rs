//! Which recordings are for choosing and which for reporting, and who gets a setting first.

use dwell_stats::SplitMix64;
use dwell_stats::whole::place;
use std::collections::BTreeSet;

/// What has no part in the choice, and is what the report is about.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum HeldOut {
    /// Nothing: the choice is reported on what it was made on.
    #[default]
    Nothing,
    /// This share of the VMs, above 0 and below 1, by a hash of their names.
    Vms(f64),
    /// The recordings with this component in their path: another day of the same VMs, or other VMs.
    Folder(String),
}

impl HeldOut {
    /// Reads `0`, a share such as `50%` or `0.5`, or the name of a folder, which may end in a slash.
    ///
    /// # Errors
    /// What is wrong with the text.
    pub fn parse(text: &str) -> Result<HeldOut, String> {
        let text = text.trim();
        if let Some(folder) = text.strip_suffix('/').filter(|folder| !folder.is_empty()) {
            return Ok(HeldOut::Folder(folder.to_owned()));
        }
        let (number, scale) =
            text.strip_suffix('%').map_or((text, 1.0), |percent| (percent.trim_end(), 100.0));
        match number.parse::<f64>().map(|number| number / scale) {
            Ok(0.0) => Ok(HeldOut::Nothing),
            Ok(share) if share > 0.0 && share < 1.0 => Ok(HeldOut::Vms(share)),
            Ok(number) if number.is_finite() => Err(format!(
                "`{text}` is not a share of the VMs from 0 to less than 100 %; write it as 50% or 0.5, or a folder as {text}/"
            )),
            Err(_) if text.is_empty() => Err("the name of a folder is empty".to_owned()),
            // `nan` and `inf` are folders.
            _ => Ok(HeldOut::Folder(text.to_owned())),
        }
    }

    pub fn words(&self) -> String {
        match self {
            HeldOut::Nothing => {
                "nothing is held out: figures are of the recordings that the settings were chosen on"
                    .to_owned()
            }
            HeldOut::Vms(share) => {
                format!("figures are of {:.0} % of the VMs, which had no part in the choice", share * 100.0)
            }
            HeldOut::Folder(folder) => {
                format!("figures are of the recordings in {folder}, which had no part in the choice")
            }
        }
    }

    /// Of these VMs those that are held out.
    pub(crate) fn vms<'a>(&self, all: &BTreeSet<&'a str>) -> BTreeSet<&'a str> {
        let HeldOut::Vms(share) = self else { return BTreeSet::new() };
        if all.len() < 2 {
            return BTreeSet::new();
        }
        // A share of a number of VMs, rounded, and not all nor none of them.
        let number = place((all.len() as f64 * share).round()).clamp(1, all.len() - 1);
        shuffled(all.iter().copied()).into_iter().take(number).collect()
    }

    /// Whether a recording is held out by its path.
    pub(crate) fn has_path(&self, recording: &str) -> bool {
        matches!(self, HeldOut::Folder(folder) if recording.split('/').any(|part| part == folder))
    }
}

/// Names in an order that depends on nothing but the names: by a hash of 64 bits (FNV-1a, mixed).
fn shuffled<'a>(names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let hash = |name: &str| {
        let fnv = name.bytes().fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        SplitMix64::new(fnv).bits()
    };
    let mut all: Vec<&str> = names.collect();
    all.sort_unstable_by_key(|name| (hash(name), *name));
    all
}

/// In which wave a VM gets its setting, in per cent of all: 1, 10 or 100. At least one is in the first.
pub fn waves<'a>(vms: impl Iterator<Item = &'a str>) -> Vec<(u8, &'a str)> {
    let all = shuffled(vms);
    let within = |place: usize, percent: usize| place * 100 < all.len() * percent;
    let wave = |place: usize| {
        if place == 0 || within(place, 1) {
            1
        } else if within(place, 10) {
            10
        } else {
            100
        }
    };
    all.iter().enumerate().map(|(place, vm)| (wave(place), *vm)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_and_folders_are_told_apart() {
        assert_eq!(HeldOut::parse("0"), Ok(HeldOut::Nothing));
        assert_eq!(HeldOut::parse("50%"), Ok(HeldOut::Vms(0.5)));
        assert_eq!(HeldOut::parse("0.25"), Ok(HeldOut::Vms(0.25)));
        assert_eq!(HeldOut::parse("day2"), Ok(HeldOut::Folder("day2".to_owned())));
        for name in ["20240101/", "nan", "NaN", "inf", "infinity", "-inf"] {
            let folder = name.trim_end_matches('/').to_owned();
            assert_eq!(HeldOut::parse(name), Ok(HeldOut::Folder(folder)));
        }
        for text in ["1", "100%", "-1", "1.5", ""] {
            assert!(HeldOut::parse(text).is_err(), "{text}");
        }
        assert!(HeldOut::parse("100%").unwrap_err().contains("less than 100 %"));
        assert!(HeldOut::parse("2024").unwrap_err().contains("a folder as 2024/"));
    }

    #[test]
    fn a_share_is_never_all_nor_none() {
        let names: Vec<String> = (0..1_000).map(|n| format!("vm{n}")).collect();
        let all: BTreeSet<&str> = names.iter().map(String::as_str).collect();
        assert_eq!(HeldOut::Vms(0.3).vms(&all).len(), 300);
        let two: BTreeSet<&str> = ["a", "b"].into();
        assert_eq!((HeldOut::Vms(0.01).vms(&two).len(), HeldOut::Vms(0.99).vms(&two).len()), (1, 1));
        assert!(HeldOut::Vms(0.5).vms(&["a"].into()).is_empty());
        let folder = HeldOut::Folder("day2".to_owned());
        assert!(folder.has_path("a/day2/vm.parquet") && !folder.has_path("a/day22/vm.parquet"));
    }

    #[test]
    fn waves_are_one_ten_and_a_hundred_per_cent() {
        let names: Vec<String> = (0..1_000).map(|n| format!("vm{n}")).collect();
        let waves = waves(names.iter().map(String::as_str));
        let count = |wanted| waves.iter().filter(|(wave, _)| *wave == wanted).count();
        assert_eq!((count(1), count(10), count(100)), (10, 90, 900));
        let few = super::waves(["a", "b", "c"].into_iter());
        assert_eq!(few.iter().map(|(wave, _)| *wave).collect::<Vec<_>>(), [1, 100, 100]);
    }
}
