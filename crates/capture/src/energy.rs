//! Energy that the machine's power meters counted: RAPL, where the kernel shows it under /sys/class/powercap.
//!
//! A counter runs on and begins anew at its maximum, after minutes to hours; a recording is taken to be
//! shorter than that. Only root may read one (it would tell too much of what others compute).

use dwell_machine::Machine;
use std::collections::BTreeMap;

const POWERCAP: &str = "/sys/class/powercap";

/// The key of a recording's metadata: zones by name, with the energy they used while it was made \[uJ\].
pub const ENERGY: &str = "dwell.energy_uj";

/// The meters of a machine, with what they showed when they were opened.
#[derive(Debug, Default)]
pub struct Meter {
    zones: Vec<Zone>,
}

#[derive(Debug)]
struct Zone {
    name: String,
    folder: String,
    before_uj: u64,
    /// The greatest count \[uJ\].
    max_uj: u64,
}

impl Meter {
    /// Reads every zone that is a whole (a package, the platform), not those within; none where there is none
    /// or none may be read.
    pub fn open(machine: &dyn Machine) -> Meter {
        let names = machine.names(POWERCAP).unwrap_or_default();
        let whole = |name: &String| name.starts_with("intel-rapl:") && name.matches(':').count() == 1;
        Meter {
            zones: names
                .iter()
                .filter(|name| whole(name))
                .filter_map(|name| Zone::open(machine, name))
                .collect(),
        }
    }

    /// The energy used since then, by zone \[uJ\].
    pub fn used(&self, machine: &dyn Machine) -> BTreeMap<String, u64> {
        self.zones.iter().filter_map(|zone| Some((zone.name.clone(), zone.used(machine)?))).collect()
    }
}

impl Zone {
    fn open(machine: &dyn Machine, name: &str) -> Option<Zone> {
        let folder = format!("{POWERCAP}/{name}");
        Some(Zone {
            name: machine.text(&format!("{folder}/name"))?,
            before_uj: machine.text(&format!("{folder}/energy_uj"))?.parse().ok()?,
            max_uj: machine.text(&format!("{folder}/max_energy_range_uj"))?.parse().ok()?,
            folder,
        })
    }

    fn used(&self, machine: &dyn Machine) -> Option<u64> {
        let now_uj: u64 = machine.text(&format!("{}/energy_uj", self.folder))?.parse().ok()?;
        now_uj
            .checked_sub(self.before_uj)
            .or_else(|| self.max_uj.checked_sub(self.before_uj)?.checked_add(now_uj))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dwell_testing::machine::Fake;

    fn machine(package_uj: &str, core_uj: &str) -> Fake {
        let zone = |fake: Fake, id: &str, name: &str, uj: &str| {
            fake.file(&format!("{POWERCAP}/{id}/name"), name)
                .file(&format!("{POWERCAP}/{id}/energy_uj"), uj)
                .file(&format!("{POWERCAP}/{id}/max_energy_range_uj"), "1000000\n")
        };
        zone(
            zone(Fake::new(), "intel-rapl:0", "package-0\n", package_uj),
            "intel-rapl:0:0",
            "core\n",
            core_uj,
        )
    }

    #[test]
    fn packages_are_counted_once_and_over_the_end_of_the_counter() {
        let meter = Meter::open(&machine("400000\n", "1\n"));
        assert_eq!(
            meter.used(&machine("700000\n", "9\n")),
            BTreeMap::from([("package-0".to_owned(), 300_000)])
        );
        assert_eq!(meter.used(&machine("100\n", "9\n")), BTreeMap::from([("package-0".to_owned(), 600_100)]));
    }

    #[test]
    fn without_a_meter_there_is_nothing() {
        assert!(Meter::open(&Fake::new()).used(&Fake::new()).is_empty());
        let forbidden = machine("1\n", "1\n").forbid(&format!("{POWERCAP}/intel-rapl:0/energy_uj"));
        assert!(Meter::open(&forbidden).used(&forbidden).is_empty());
        // It may go away meanwhile.
        assert!(Meter::open(&machine("1\n", "1\n")).used(&Fake::new()).is_empty());
    }
}
