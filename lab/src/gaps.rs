//! How long an experiment waits between two events, drawn so that every arm can be given the same.
//!
//! A distribution is written as `constant:100us`, `exponential:100us` (its mean), `bimodal:2us,150us,0.5`
//! (two lengths and the share of the first) or `recording:FILE[@IDLER]` (the `idle_ns` of one idler, in
//! order; without a name, the idler with the most episodes; a FILE with an @ in its name needs one at its
//! end).

use dwell_policy::{Nanos, ParseNanosError};
use dwell_recording::{Chunk, Columns, OpenError, ReadError, Reader};
use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};
use rand_distr::{Distribution, Exp1};
use std::cmp::Reverse;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Gaps taken from a recording: more than an experiment can ever replay, in 8 MiB.
const MOST_RECORDED: usize = 1 << 20;

/// A distribution of gaps, as it is written on a command line.
#[derive(Clone, Debug, PartialEq)]
pub enum GapSpec {
    Constant(Nanos),
    /// Exponential, of this mean: independent events.
    Exponential(Nanos),
    Bimodal {
        first: Nanos,
        /// The other.
        second: Nanos,
        /// The probability of the first, 0 to 1.
        first_share: f64,
    },
    /// The episodes of one idler of a recording.
    Recording {
        path: PathBuf,
        /// The idler; `None`: the one with the most episodes.
        idler: Option<String>,
    },
}

/// Why a text is not a distribution of gaps.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseGapSpecError {
    /// No such distribution.
    #[error(
        "`{text}` is not a distribution of gaps; write constant:100us, exponential:100us, bimodal:2us,150us,0.5 or \
         recording:FILE[@IDLER]"
    )]
    Unknown { text: String },
    /// One of its lengths cannot be read.
    #[error("`{text}`: `{length}` {source}")]
    Length {
        text: String,
        /// The part that is wrong.
        length: String,
        /// What is wrong with it.
        source: ParseNanosError,
    },
    /// The distribution takes another number of values.
    #[error("`{text}`: {kind} takes {wanted}")]
    Values { text: String, kind: &'static str, wanted: &'static str },
}

impl FromStr for GapSpec {
    type Err = ParseGapSpecError;

    fn from_str(text: &str) -> Result<GapSpec, ParseGapSpecError> {
        let unknown = || ParseGapSpecError::Unknown { text: text.to_owned() };
        let values = |kind, wanted| ParseGapSpecError::Values { text: text.to_owned(), kind, wanted };
        let length = |part: &str| {
            let (text, length) = (text.to_owned(), part.to_owned());
            part.parse::<Nanos>().map_err(|source| ParseGapSpecError::Length { text, length, source })
        };
        let (kind, rest) = text.split_once(':').ok_or_else(unknown)?;
        let parts: Vec<&str> = rest.split(',').map(str::trim).collect();
        match (kind.trim(), parts.as_slice()) {
            ("constant", [gap]) => Ok(GapSpec::Constant(length(gap)?)),
            ("constant", _) => Err(values("constant", "one length")),
            ("exponential", [mean]) => Ok(GapSpec::Exponential(length(mean)?)),
            ("exponential", _) => Err(values("exponential", "one length, its mean")),
            ("bimodal", parts) => {
                let wrong = || values("bimodal", "two lengths and the share of the first, from 0 to 1");
                let [first, second, share] = parts else { return Err(wrong()) };
                let first_share: f64 = share.parse().map_err(|_| wrong())?;
                if !(0.0..=1.0).contains(&first_share) {
                    return Err(wrong());
                }
                Ok(GapSpec::Bimodal { first: length(first)?, second: length(second)?, first_share })
            }
            ("recording", _) => {
                let (path, idler) = rest.rsplit_once('@').unwrap_or((rest, ""));
                if path.is_empty() {
                    return Err(values("recording", "the name of a file"));
                }
                let idler = Some(idler.to_owned()).filter(|idler| !idler.is_empty());
                Ok(GapSpec::Recording { path: PathBuf::from(path), idler })
            }
            _ => Err(unknown()),
        }
    }
}

impl fmt::Display for GapSpec {
    /// As it is parsed.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GapSpec::Constant(gap) => write!(f, "constant:{gap:#}"),
            GapSpec::Exponential(mean) => write!(f, "exponential:{mean:#}"),
            GapSpec::Bimodal { first, second, first_share } => {
                write!(f, "bimodal:{first:#},{second:#},{first_share}")
            }
            GapSpec::Recording { path, idler } => {
                let path = path.display().to_string();
                let at = if idler.is_some() || path.contains('@') { "@" } else { "" };
                write!(f, "recording:{path}{at}{}", idler.as_deref().unwrap_or_default())
            }
        }
    }
}

/// Why gaps could not be read.
#[derive(Debug, thiserror::Error)]
pub enum GapsError {
    /// The recording could not be opened.
    #[error("cannot take gaps from a recording")]
    Open(#[from] OpenError),
    /// Its episodes could not be read.
    #[error("cannot take gaps from a recording")]
    Read(#[from] ReadError),
    /// The recording has no episode of the idler.
    #[error("cannot take gaps from {path}: it has no episode of idler `{idler}`, only of {known}")]
    NoSuchIdler {
        path: PathBuf,
        /// The idler asked for.
        idler: String,
        /// The idlers that it has.
        known: String,
    },
    /// The recording has no episode at all.
    #[error("cannot take gaps from {path}: it has no episodes")]
    Empty { path: PathBuf },
}

/// A distribution from which sequences can be drawn.
#[derive(Clone, Debug)]
pub struct Gaps {
    spec: GapSpec,
    most: Nanos,
    recorded: Vec<Nanos>,
}

/// Gaps to be replayed one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sequence {
    pub gaps: Vec<Nanos>,
    /// How many of them were longer than the maximum and were cut to it.
    pub cut: usize,
}

impl Sequence {
    /// The sum of all gaps; saturates.
    pub fn total(&self) -> Nanos {
        self.gaps.iter().fold(Nanos::ZERO, |sum, gap| Nanos(sum.get().saturating_add(gap.get())))
    }
}

impl Gaps {
    /// Makes a distribution ready to be drawn from. Gaps longer than `most` will be cut to it.
    ///
    /// Of a recording at most 2^20 gaps are taken, the first ones of its idler.
    ///
    /// # Errors
    /// If a recording cannot be read, or has no episode of the idler that is asked for.
    pub fn open(spec: GapSpec, most: Nanos) -> Result<Gaps, GapsError> {
        let (spec, recorded) = match spec {
            GapSpec::Recording { path, idler } => {
                let reader = Reader::open(&path)?;
                let (number, name) = choose_idler(&reader, &path, idler)?;
                let recorded = read_idler(&reader, number)?;
                if recorded.is_empty() {
                    return Err(GapsError::Empty { path });
                }
                (GapSpec::Recording { path, idler: Some(name) }, recorded)
            }
            other => (other, Vec::new()),
        };
        Ok(Gaps { spec, most, recorded })
    }

    /// What is drawn from; the idler of a recording is named.
    pub fn spec(&self) -> &GapSpec {
        &self.spec
    }

    /// After how many sequences of `length` gaps a recording begins anew; `None` where nothing is recorded.
    pub fn sequences_until_repeat(&self, length: usize) -> Option<usize> {
        (!self.recorded.is_empty()).then(|| self.recorded.len() / length.max(1))
    }

    /// `length` gaps. The same `seed` and `number` give the same gaps, in every arm and on every machine; different
    /// numbers give independent gaps, or of a recording, one stretch after the other, and from the beginning again
    /// where it ends.
    pub fn sequence(&self, seed: u64, number: u64, length: usize) -> Sequence {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        random.set_stream(number);
        let drawn: Vec<Nanos> = match &self.spec {
            GapSpec::Constant(gap) => vec![*gap; length],
            GapSpec::Exponential(mean) => (0..length).map(|_| exponential(&mut random, *mean)).collect(),
            GapSpec::Bimodal { first, second, first_share } => {
                let mut pick = || if random.random::<f64>() < *first_share { *first } else { *second };
                (0..length).map(|_| pick()).collect()
            }
            GapSpec::Recording { .. } => stretch(&self.recorded, number, length),
        };
        let cut = drawn.iter().filter(|gap| **gap > self.most).count();
        Sequence { gaps: drawn.into_iter().map(|gap| gap.min(self.most)).collect(), cut }
    }
}

fn exponential(random: &mut ChaCha8Rng, mean: Nanos) -> Nanos {
    let unit: f64 = Exp1.sample(random);
    // Saturates beyond 2^64, and is never negative.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let ns = (unit * mean.get() as f64).round() as u64;
    Nanos(ns)
}

fn stretch(recorded: &[Nanos], number: u64, length: usize) -> Vec<Nanos> {
    // Lengths are at most 2^20, so that the remainder fits.
    #[allow(clippy::cast_possible_truncation)]
    let begin = (u128::from(number) * length as u128 % recorded.len().max(1) as u128) as usize;
    recorded.iter().cycle().skip(begin).take(length).copied().collect()
}

fn choose_idler(reader: &Reader, path: &Path, wanted: Option<String>) -> Result<(u32, String), GapsError> {
    let idlers = &reader.contents().idlers;
    let numbered = (0u32..).zip(idlers).filter(|(_, idler)| idler.episodes > 0);
    match wanted {
        Some(name) => {
            let found = numbered.clone().find(|(_, idler)| idler.name == name);
            let known =
                || idlers.iter().map(|idler| format!("`{}`", idler.name)).collect::<Vec<_>>().join(", ");
            found.map(|(number, idler)| (number, idler.name.clone())).ok_or_else(|| GapsError::NoSuchIdler {
                path: path.to_owned(),
                idler: name,
                known: known(),
            })
        }
        // Of several with the same number, the first.
        None => numbered
            .max_by_key(|(number, idler)| (idler.episodes, Reverse(*number)))
            .map(|(number, idler)| (number, idler.name.clone()))
            .ok_or_else(|| GapsError::Empty { path: path.to_owned() }),
    }
}

fn read_idler(reader: &Reader, number: u32) -> Result<Vec<Nanos>, ReadError> {
    let mut gaps = Vec::new();
    let mut chunk = Chunk::default();
    for row_group in 0..reader.row_groups() {
        reader.read(row_group, Columns::IDLER | Columns::IDLE_NS, &mut chunk)?;
        let rows = chunk.idler.iter().zip(&chunk.idle_ns);
        gaps.extend(rows.filter(|(idler, _)| **idler == number).map(|(_, idle_ns)| Nanos(*idle_ns)));
        if gaps.len() >= MOST_RECORDED {
            gaps.truncate(MOST_RECORDED);
            break;
        }
    }
    Ok(gaps)
}

#[cfg(test)]
mod tests {
    use super::*;
    use dwell_recording::{Episode, Layer, Metadata, Writer};
    use proptest::prelude::*;

    const NO_CUT: Nanos = Nanos::MAX;

    fn spec(text: &str) -> GapSpec {
        text.parse().unwrap()
    }

    fn drawn(text: &str, seed: u64, number: u64, length: usize) -> Vec<u64> {
        let gaps = Gaps::open(spec(text), NO_CUT).unwrap();
        gaps.sequence(seed, number, length).gaps.into_iter().map(Nanos::get).collect()
    }

    #[test]
    fn parses_all_kinds() {
        assert_eq!(spec("constant:100us"), GapSpec::Constant(Nanos(100_000)));
        assert_eq!(spec("exponential: 1.5ms"), GapSpec::Exponential(Nanos(1_500_000)));
        assert_eq!(
            spec("bimodal:2us, 150us, 0.5"),
            GapSpec::Bimodal { first: Nanos(2_000), second: Nanos(150_000), first_share: 0.5 }
        );
        let recording = |path: &str, idler: Option<&str>| GapSpec::Recording {
            path: path.into(),
            idler: idler.map(str::to_owned),
        };
        assert_eq!(spec("recording:a,b.parquet"), recording("a,b.parquet", None));
        assert_eq!(spec("recording:a.parquet@cpu0"), recording("a.parquet", Some("cpu0")));
        assert_eq!(spec("recording:a@b.parquet@"), recording("a@b.parquet", None));
    }

    #[test]
    fn refusals_say_what_is_wrong() {
        for (text, words) in [
            ("", "is not a distribution of gaps; write constant:100us"),
            ("100us", "is not a distribution"),
            ("uniform:1us,2us", "is not a distribution"),
            ("constant:1us,2us", "constant takes one length"),
            ("constant:5 minutes", "`5 minutes` is not a duration"),
            ("exponential:", "`` is not a duration"),
            ("bimodal:1us,2us", "bimodal takes two lengths and"),
            ("bimodal:1us,2us,1.5", "from 0 to 1"),
            ("bimodal:1us,2us,NaN", "from 0 to 1"),
            ("bimodal:1us,0.1ns,0.5", "`0.1ns` is finer"),
            ("recording:", "the name of a file"),
            ("recording:@cpu0", "the name of a file"),
        ] {
            let error = text.parse::<GapSpec>().unwrap_err().to_string();
            assert!(error.contains(words), "{text}: {error}");
        }
    }

    /// What a seed gives must never change: a result can then be repeated with another release. If a new version of
    /// `rand` or `rand_distr` fails here, its old stream has to be kept in some other way.
    #[test]
    fn sequences_of_a_seed_are_for_ever() {
        assert_eq!(drawn("exponential:100us", 1, 0, 4), [44_690, 15_670, 121_480, 58_044]);
        assert_eq!(drawn("exponential:100us", 1, 7, 4), [84_267, 199_949, 94_934, 111_033]);
        assert_eq!(
            drawn("bimodal:1us,2us,0.25", 42, 0, 8),
            [2_000, 2_000, 2_000, 2_000, 2_000, 1_000, 2_000, 2_000]
        );
        assert_eq!(drawn("constant:3us", 1, 0, 2), [3_000, 3_000]);
    }

    /// The mean of 100 000 exponential gaps is within 5 of its standard errors, their variance is the mean squared, and
    /// one in e is longer than the mean.
    #[test]
    fn exponential_gaps_are_exponential() {
        let gaps = drawn("exponential:100us", 3, 0, 100_000);
        let n = gaps.len() as f64;
        let mean = gaps.iter().sum::<u64>() as f64 / n;
        let variance = gaps.iter().map(|gap| (*gap as f64 - mean).powi(2)).sum::<f64>() / n;
        let longer = gaps.iter().filter(|gap| **gap > 100_000).count() as f64 / n;
        assert!((mean / 1e5 - 1.0).abs() < 5.0 / n.sqrt(), "{mean}");
        assert!((variance / 1e10 - 1.0).abs() < 0.05, "{variance}");
        assert!((longer - (-1.0f64).exp()).abs() < 0.01, "{longer}");
    }

    #[test]
    fn bimodal_gaps_have_the_share_asked_for() {
        let gaps = drawn("bimodal:2us,150us,0.3", 3, 0, 100_000);
        let first = gaps.iter().filter(|gap| **gap == 2_000).count() as f64 / gaps.len() as f64;
        assert!((first - 0.3).abs() < 0.01, "{first}");
        assert!(gaps.iter().all(|gap| [2_000, 150_000].contains(gap)));
        assert!(drawn("bimodal:2us,150us,1", 3, 0, 100).iter().all(|gap| *gap == 2_000));
        assert!(drawn("bimodal:2us,150us,0", 3, 0, 100).iter().all(|gap| *gap == 150_000));
    }

    fn recording(dir: &tempfile::TempDir, episodes: &[(&str, u64)]) -> PathBuf {
        let path = dir.path().join("a.parquet");
        let mut writer = Writer::create(&path, Metadata::new(Layer::Guest)).unwrap();
        for (start_ns, (idler, idle_ns)) in (0..).zip(episodes) {
            writer.push(&Episode::new(idler, start_ns, *idle_ns)).unwrap();
        }
        writer.finish().unwrap();
        path
    }

    #[test]
    fn recorded_gaps_come_in_order_stretch_by_stretch_and_from_the_beginning_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = recording(&dir, &[("a", 1), ("b", 10), ("b", 20), ("a", 2), ("b", 30)]);
        let gaps = Gaps::open(spec(&format!("recording:{}", path.display())), Nanos(25)).unwrap();
        assert_eq!(gaps.spec(), &GapSpec::Recording { path: path.clone(), idler: Some("b".to_owned()) });
        assert_eq!(gaps.sequence(9, 0, 2), Sequence { gaps: vec![Nanos(10), Nanos(20)], cut: 0 });
        assert_eq!(gaps.sequence(9, 1, 2), Sequence { gaps: vec![Nanos(25), Nanos(10)], cut: 1 });
        assert_eq!(gaps.sequences_until_repeat(2), Some(1));
        let a = Gaps::open(spec(&format!("recording:{}@a", path.display())), NO_CUT).unwrap();
        assert_eq!(a.sequence(9, 0, 5).gaps, [1, 2, 1, 2, 1].map(Nanos));
    }

    #[test]
    fn unknown_idlers_and_empty_recordings_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = recording(&dir, &[("a", 1), ("b", 10)]);
        let error = Gaps::open(spec(&format!("recording:{}@c", path.display())), NO_CUT).unwrap_err();
        assert!(error.to_string().ends_with("no episode of idler `c`, only of `a`, `b`"), "{error}");
        let path = recording(&dir, &[]);
        let error = Gaps::open(spec(&format!("recording:{}", path.display())), NO_CUT).unwrap_err();
        assert!(error.to_string().contains("no episodes"), "{error}");
        let error = Gaps::open(spec("recording:/no/such/file"), NO_CUT).unwrap_err();
        assert!(matches!(error, GapsError::Open(_)), "{error}");
    }

    fn specs() -> impl Strategy<Value = GapSpec> {
        let ns = || prop_oneof![any::<u64>(), (0u64..1000).prop_map(|us| us * 1_000)].prop_map(Nanos);
        prop_oneof![
            ns().prop_map(GapSpec::Constant),
            ns().prop_map(GapSpec::Exponential),
            (ns(), ns(), 0.0..=1.0).prop_map(|(first, second, first_share)| GapSpec::Bimodal {
                first,
                second,
                first_share
            }),
            ("[a-z@:,./ ]+", prop::option::of("[a-z0-9/:, ]+"))
                .prop_map(|(path, idler)| GapSpec::Recording { path: path.into(), idler }),
        ]
    }

    proptest! {
        #[test]
        fn what_is_shown_parses_to_the_same(spec in specs()) {
            prop_assert_eq!(spec.to_string().parse(), Ok(spec));
        }

        #[test]
        fn no_text_makes_the_parser_panic(text in ".*") {
            let _ = text.parse::<GapSpec>();
        }

        #[test]
        fn the_same_seed_and_number_give_the_same_gaps_below_the_maximum(
            seed: u64, number: u64, length in 0usize..200, most in 1u64..300_000,
        ) {
            for text in ["exponential:100us", "bimodal:2us,150us,0.5", "constant:100us"] {
                let gaps = Gaps::open(spec(text), Nanos(most)).unwrap();
                let uncut = Gaps::open(spec(text), NO_CUT).unwrap().sequence(seed, number, length);
                let sequence = gaps.sequence(seed, number, length);
                prop_assert_eq!(&sequence, &gaps.clone().sequence(seed, number, length));
                prop_assert_eq!(sequence.gaps.len(), length);
                prop_assert_eq!(sequence.cut, uncut.gaps.iter().filter(|gap| gap.get() > most).count());
                let cut: Vec<Nanos> = uncut.gaps.iter().map(|gap| Nanos(gap.get().min(most))).collect();
                prop_assert_eq!(&sequence.gaps, &cut);
                let longer = gaps.sequence(seed, number, length + 5);
                prop_assert_eq!(longer.gaps.get(..length), Some(&sequence.gaps[..]));
            }
        }
    }
}
