//! Which machine it is, and which boot of it.

use crate::seam::Machine;
use sha2::{Digest, Sha256};

/// A number that is different on every machine and does not disclose `/etc/machine-id`: the first 16 bytes of
/// a SHA-256 of it, as 32 hexadecimal digits. `None` where the machine has no id.
///
/// Clones of one disk image have the same id unless it was reset, as systemd's documentation asks for.
pub fn machine_id(machine: &dyn Machine) -> Option<String> {
    let id = ["/etc/machine-id", "/var/lib/dbus/machine-id"].iter().find_map(|path| {
        // Before the first boot is complete the file is empty or holds the word `uninitialized`.
        machine.text(path).filter(|id| id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit()))
    })?;
    let digest = Sha256::new_with_prefix(b"dwell machine identity 1\n").chain_update(id.to_ascii_lowercase());
    Some(digest.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect())
}

/// What is different at every boot; `None` if it cannot be read.
pub fn boot_id(machine: &dyn Machine) -> Option<String> {
    machine.text("/proc/sys/kernel/random/boot_id").filter(|id| !id.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Fake;

    #[test]
    fn machines_are_told_apart_and_their_ids_are_not_disclosed() {
        let of = |id: &str| machine_id(&Fake::new().file("/etc/machine-id", id));
        let (a, b) = ("0123456789abcdef0123456789abcdef\n", "0123456789abcdef0123456789abcdee\n");
        assert_eq!(of(a).unwrap().len(), 32);
        assert_ne!(of(a), of(b));
        assert_ne!(of(a).as_deref(), Some(a.trim()));
        assert_eq!(of("uninitialized\n"), None);
        assert_eq!(machine_id(&Fake::new()), None);
        let dbus = Fake::new().file("/etc/machine-id", "").file("/var/lib/dbus/machine-id", a);
        assert_eq!(machine_id(&dbus), of(a));
    }
}
