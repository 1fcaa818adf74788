//! The capabilities of this process, so that an error names the one that is missing.

use dwell_machine::{Machine, process};

/// Capabilities that recording may need, with their bits.
const CAPABILITIES: [(u32, &str); 5] = [
    (2, "CAP_DAC_READ_SEARCH"),
    (19, "CAP_SYS_PTRACE"),
    (21, "CAP_SYS_ADMIN"),
    (38, "CAP_PERFMON"),
    (39, "CAP_BPF"),
];

/// Those in effect, out of the text of `/proc/self/status`.
pub(crate) fn capabilities(status: &str) -> Vec<&'static str> {
    let word = process::field(status, "CapEff").unwrap_or_default();
    let bits = u64::from_str_radix(word, 16).unwrap_or(0);
    CAPABILITIES.iter().filter(|(bit, _)| bits >> bit & 1 != 0).map(|(_, name)| *name).collect()
}

/// Whether this process has one of these.
pub(crate) fn has_one_of(machine: &dyn Machine, names: &[&str]) -> bool {
    let status = machine.text("/proc/self/status").unwrap_or_default();
    capabilities(&status).iter().any(|name| names.contains(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_out_of_the_status() {
        assert_eq!(
            capabilities("CapEff:\t0000004000200004\n"),
            ["CAP_DAC_READ_SEARCH", "CAP_SYS_ADMIN", "CAP_PERFMON"]
        );
        assert!(capabilities("CapEff:\tgarbage").is_empty());
    }
}
