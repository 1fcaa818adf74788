//! What a halt costs, as `dwell-lab calibrate` measured and stored it.
//!
//! Two kinds of halts are measured, for neither costs what the other does: those of the system's own CPUs, which count
//! where a guest, an event loop or an I/O thread was recorded, and those of a vCPU of the machine's own KVM, which count
//! where the vCPUs of a host were. In a guest the latter is a VM below a VM, if it has a KVM at all.

use dwell_policy::{Layer, Nanos};
use dwell_recording::{Metadata, regular};
use dwell_stats::Interval;
use dwell_stats::whole::whole;
use serde::{Deserialize, Serialize};
use std::env;
use std::io;
use std::path::{Path, PathBuf};

dwell_policy::named! {
    /// Whose halts.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum HaltOf {
        /// Of the system's own CPUs: a thread sleeps, and another one wakes it.
        OwnCpu = "halts of the system's own CPUs, between two threads",
        /// Of a vCPU of the machine's KVM.
        Vcpu = "halts of a vCPU of the machine's KVM",
    }

    /// Which halts, for people.
    pub fn words
}

impl HaltOf {
    /// The halts of the idlers of a layer.
    pub const fn layer(layer: Layer) -> HaltOf {
        match layer {
            Layer::Host => HaltOf::Vcpu,
            Layer::Guest | Layer::Driver | Layer::Iothread => HaltOf::OwnCpu,
        }
    }
}

/// What a halt costs after an idle period of one length.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct HaltCost {
    /// Length of the gap \[ns\].
    pub gap_ns: u64,
    /// CPU time of a halt and its wakeup \[ns\]. Of a vCPU: of its thread, beyond that of an idle period that polls.
    /// Of own CPUs: of the thread that sleeps and of the one that wakes it.
    pub cpu_ns: Interval,
    /// How much later the idler runs: a vCPU than after a poll, a thread than the event \[ns\].
    pub latency_ns: Interval,
    /// How much longer KVM takes an idle period to be that halts: by so much a recorded `idle_ns` is too long \[ns\].
    /// Of vCPUs only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_excess_ns: Option<Interval>,
    /// The part of [`HaltCost::cpu_ns`] by which the waker runs longer than in a system call that wakes no thread: it sends an
    /// interrupt, in a guest by an exit \[ns\]. Of own CPUs only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waker_ns: Option<Interval>,
}

/// What halts of one kind cost.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HaltCosts {
    pub halt_of: HaltOf,
    /// In order of the gap's length.
    pub costs: Vec<HaltCost>,
}

impl HaltCosts {
    /// CPU time of one halt and wakeup: the median over the lengths of gap.
    pub fn halt_cpu(&self) -> Option<Nanos> {
        self.median(|cost| cost.cpu_ns.value)
    }

    /// Latency of one halt: the median over the lengths of gap.
    pub fn halt_latency(&self) -> Option<Nanos> {
        self.median(|cost| cost.latency_ns.value)
    }

    /// The waker's part of that: the median over the lengths of gap; `None` where it was not measured.
    pub fn halt_waker(&self) -> Option<Nanos> {
        let wakers = self.costs.iter().filter_map(|cost| Some(cost.waker_ns?.value));
        dwell_stats::median(wakers.collect()).map(nanos)
    }

    fn median(&self, of: impl Fn(&HaltCost) -> f64) -> Option<Nanos> {
        dwell_stats::median(self.costs.iter().map(of).collect()).map(nanos)
    }
}

/// Rounded; what is below zero is noise around it.
fn nanos(value: f64) -> Nanos {
    Nanos(whole(value.round()))
}

/// What halts cost on a machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    /// Version of this form.
    pub format: u32,
    /// The CPU it holds for.
    pub cpu_model: String,
    /// The kernel it holds for.
    pub kernel: String,
    /// When it was measured, in seconds since 1970.
    pub measured_at_unix_s: u64,
    /// Each kind that could be measured.
    pub halts: Vec<HaltCosts>,
}

/// The version of [`Calibration`] that is written and read. Version 1 did not say that its halts were of vCPUs, and was
/// used for all layers.
pub const FORMAT: u32 = 2;

/// The largest file that is read \[bytes\]; one has a few kilobytes.
const LONGEST: u64 = 1 << 20;

/// Why there is no calibration where there is a file.
#[derive(Debug, thiserror::Error)]
pub enum LoadCalibrationError {
    /// It cannot be read.
    #[error("cannot read {path}")]
    Read {
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// It is something else.
    #[error("cannot read {path}: not a calibration; measure again with `dwell-lab calibrate`")]
    Form { path: PathBuf, source: serde_json::Error },
    /// It is of another version.
    #[error(
        "cannot read {path}: format {format} is not supported, only {FORMAT}; measure again with `dwell-lab calibrate`"
    )]
    Format { path: PathBuf, format: u32 },
}

impl Calibration {
    /// Where it is: in `$XDG_STATE_HOME/dwell`, else `~/.local/state/dwell`. `None`: neither XDG_STATE_HOME nor HOME is
    /// an absolute path.
    pub fn path() -> Option<PathBuf> {
        let absolute = |name: &str| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let state = absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state")));
        Some(state?.join("dwell/halt-cost.json"))
    }

    /// Reads it, if it is there.
    ///
    /// # Errors
    /// If it is there and cannot be read.
    pub fn load(path: &Path) -> Result<Option<Calibration>, LoadCalibrationError> {
        #[derive(Deserialize)]
        struct Format {
            format: u32,
        }
        let text = match regular::read_text(path, LONGEST) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(LoadCalibrationError::Read { path: path.to_owned(), source }),
        };
        let form = |source| LoadCalibrationError::Form { path: path.to_owned(), source };
        let Format { format } = serde_json::from_str(&text).map_err(form)?;
        if format != FORMAT {
            return Err(LoadCalibrationError::Format { path: path.to_owned(), format });
        }
        serde_json::from_str(&text).map(Some).map_err(form)
    }

    /// What was stored of the halts of a recording, if anything was; see [`of_recording`](Calibration::of_recording).
    ///
    /// # Errors
    /// If there is a file that cannot be read.
    pub fn load_for(metadata: &Metadata) -> Result<Option<HaltCosts>, LoadCalibrationError> {
        let Some(path) = Calibration::path() else { return Ok(None) };
        Ok(Calibration::load(&path)?.and_then(|stored| stored.of_recording(metadata).cloned()))
    }

    /// Takes the kinds that were not measured from what was stored before, if that holds for the same CPU model and kernel
    /// release; returns them.
    pub fn keep(&mut self, before: Calibration) -> Vec<HaltOf> {
        let same = before.cpu_model == self.cpu_model && before.kernel == self.kernel;
        let missing = |costs: &HaltCosts| same && self.halt_of(costs.halt_of).is_none();
        let kept: Vec<_> = before.halts.into_iter().filter(missing).collect();
        let kinds = kept.iter().map(|costs| costs.halt_of).collect();
        self.halts.extend(kept);
        kinds
    }

    /// What halts of this kind cost, if it was measured.
    pub fn halt_of(&self, halt_of: HaltOf) -> Option<&HaltCosts> {
        self.halts.iter().find(|costs| costs.halt_of == halt_of)
    }

    /// What the halts of a recording cost, if they were measured on a machine like that of the recording: of the same
    /// CPU model and kernel release.
    pub fn of_recording(&self, metadata: &Metadata) -> Option<&HaltCosts> {
        let same = metadata.cpu_model.as_ref() == Some(&self.cpu_model)
            && metadata.kernel.as_ref() == Some(&self.kernel);
        self.halt_of(HaltOf::layer(metadata.layer)).filter(|_| same)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spread(value: f64) -> Interval {
        Interval { value, low: value - 1.0, high: value + 1.0 }
    }

    fn costs(halt_of: HaltOf, costs: &[(u64, f64)]) -> HaltCosts {
        let cost = |&(gap_ns, value): &(u64, f64)| HaltCost {
            gap_ns,
            cpu_ns: spread(value),
            latency_ns: spread(2.0 * value),
            idle_excess_ns: (halt_of == HaltOf::Vcpu).then(|| spread(3.0 * value)),
            waker_ns: (halt_of == HaltOf::OwnCpu).then(|| spread(value / 2.0)),
        };
        HaltCosts { halt_of, costs: costs.iter().map(cost).collect() }
    }

    fn calibration() -> Calibration {
        Calibration {
            format: FORMAT,
            cpu_model: "x".to_owned(),
            kernel: "6.12".to_owned(),
            measured_at_unix_s: 1,
            halts: vec![costs(HaltOf::OwnCpu, &[(10, 5.0)]), costs(HaltOf::Vcpu, &[(50, 7.0)])],
        }
    }

    #[test]
    fn it_is_the_median_over_the_lengths_and_noise_below_zero_is_zero() {
        let three = costs(HaltOf::Vcpu, &[(100, 10.0), (200, 20.0), (400, 0.0)]);
        assert_eq!(three.halt_cpu(), Some(Nanos(10)));
        assert_eq!((three.halt_latency(), three.halt_waker()), (Some(Nanos(20)), None));
        assert_eq!(costs(HaltOf::Vcpu, &[]).halt_cpu(), None);
        assert_eq!(costs(HaltOf::Vcpu, &[(100, -3.0)]).halt_cpu(), Some(Nanos(0)));
    }

    #[test]
    fn what_is_stored_is_loaded() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("halt-cost.json");
        assert_eq!(Calibration::load(&path).unwrap(), None);
        std::fs::write(&path, serde_json::to_string_pretty(&calibration()).unwrap()).unwrap();
        assert_eq!(Calibration::load(&path).unwrap(), Some(calibration()));
        for (text, why) in [
            (
                r#"{"format":1,"cpu_model":"x","kernel":"y","measured_at_unix_s":0,"costs":[]}"#,
                "format 1 is not",
            ),
            (r#"{"format":2}"#, "not a calibration"),
            ("{", "not a calibration"),
        ] {
            std::fs::write(&path, text).unwrap();
            let refused = Calibration::load(&path).unwrap_err().to_string();
            assert!(refused.contains(why) && refused.contains("measure again with"), "{refused}");
        }
    }

    #[test]
    fn what_was_not_measured_again_is_kept_from_the_same_machine() {
        let own = |kernel: &str| Calibration {
            kernel: kernel.to_owned(),
            halts: vec![costs(HaltOf::OwnCpu, &[(10, 6.0)])],
            ..calibration()
        };
        let mut again = own("6.12");
        assert_eq!(again.keep(calibration()), [HaltOf::Vcpu]);
        assert_eq!(again.halts, [own("6.12").halts, calibration().halts[1..].to_vec()].concat());
        let mut elsewhere = own("6.13");
        assert_eq!(elsewhere.keep(calibration()), []);
        assert_eq!(elsewhere, own("6.13"));
    }

    /// A vCPU of this guest's own KVM gave the halt cost of the guest's own CPUs, which exit to the host below.
    #[test]
    fn a_recording_gets_the_halts_of_its_own_layer_and_machine() {
        let cpu = |layer, kernel: &str| {
            let known = Metadata {
                cpu_model: Some("x".to_owned()),
                kernel: Some(kernel.to_owned()),
                ..Metadata::new(layer)
            };
            calibration().of_recording(&known).and_then(HaltCosts::halt_cpu)
        };
        for layer in [Layer::Guest, Layer::Driver, Layer::Iothread] {
            assert_eq!(cpu(layer, "6.12"), Some(Nanos(5)));
        }
        assert_eq!(cpu(Layer::Host, "6.12"), Some(Nanos(7)));
        assert_eq!(cpu(Layer::Guest, "6.13"), None);
        let guest = Calibration { halts: calibration().halts[..1].to_vec(), ..calibration() };
        assert_eq!(guest.halt_of(HaltOf::Vcpu), None);
    }
}
