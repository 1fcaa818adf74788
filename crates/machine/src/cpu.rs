//! Which CPUs there are.

use crate::seam::Machine;

/// The CPUs in a list such as `0-3,8`, as the kernel prints them; parts that are not understood are left out.
pub fn parse_list(text: &str) -> Vec<u32> {
    let mut cpus = Vec::new();
    for part in text.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (Ok(first), Ok(last)) = (first.trim().parse::<u32>(), last.trim().parse::<u32>()) else {
            continue;
        };
        // The kernel has at most 8192 CPUs; a longer range is not a list of CPUs.
        cpus.extend((first..=last).take(8192));
    }
    cpus
}

/// The CPUs that are online, by `/proc/stat` where a container hides sysfs; CPU 0 alone if neither can be read.
pub fn online(machine: &dyn Machine) -> Vec<u32> {
    let mut cpus = list(machine, "/sys/devices/system/cpu/online");
    if cpus.is_empty() {
        let stat = machine.text("/proc/stat").unwrap_or_default();
        let cpu = |line: &str| line.strip_prefix("cpu")?.split(' ').next()?.parse::<u32>().ok();
        cpus.extend(stat.lines().filter_map(cpu));
    }
    if cpus.is_empty() { vec![0] } else { cpus }
}

/// The CPUs whose scheduling tick stops while one task runs (`nohz_full=`).
pub fn tickless(machine: &dyn Machine) -> Vec<u32> {
    list(machine, NOHZ_FULL)
}

pub(crate) const NOHZ_FULL: &str = "/sys/devices/system/cpu/nohz_full";

fn list(machine: &dyn Machine, path: &str) -> Vec<u32> {
    machine.text(path).map(|list| parse_list(&list)).unwrap_or_default()
}

/// The CPU model, as `/proc/cpuinfo` has it.
pub fn model(machine: &dyn Machine) -> Option<String> {
    let info = machine.text("/proc/cpuinfo")?;
    let line = info.lines().find(|line| line.starts_with("model name") || line.starts_with("Model"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Fake;

    #[test]
    fn cpus_that_sysfs_does_not_show() {
        let machine = Fake::new();
        assert_eq!(online(&machine), [0]);
        machine.set("/proc/stat", "cpu  9 9\ncpu0 1 1\ncpu3 1 1\nintr 5\n");
        assert_eq!(online(&machine), [0, 3]);
        machine.set("/sys/devices/system/cpu/online", "0-1\n");
        assert_eq!(online(&machine), [0, 1]);
    }

    #[test]
    fn cpu_lists() {
        assert_eq!(parse_list("0-1\n"), [0, 1]);
        assert_eq!(parse_list("0,2-4,7"), [0, 2, 3, 4, 7]);
        assert_eq!(parse_list(""), [0u32; 0]);
        assert_eq!(parse_list("(null)"), [0u32; 0]);
        assert_eq!(parse_list("x,3-1,5"), [5]);
        assert_eq!(parse_list("0-4294967295").len(), 8192);
    }
}
