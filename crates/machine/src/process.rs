//! Processes and their threads, as /proc shows them.

use crate::seam::Machine;

/// A field of a `status` file in /proc, without the white space around it.
pub fn field<'s>(status: &'s str, name: &str) -> Option<&'s str> {
    let mut fields = status.lines().filter_map(|line| line.split_once(':'));
    Some(fields.find(|(key, _)| *key == name)?.1.trim())
}

/// A number in the `stat` of a process, by the number of its field, from 1. The name is in brackets and may have any.
pub fn stat_field(stat: &str, number: usize) -> Option<u64> {
    let rest = stat.rsplit_once(')')?.1;
    rest.split_ascii_whitespace().nth(number.checked_sub(3)?)?.parse().ok()
}

/// The process of a thread; `None` if there is no such thread.
pub fn of_thread(machine: &dyn Machine, tid: u32) -> Option<u32> {
    field(&machine.text(&format!("/proc/{tid}/status"))?, "Tgid")?.parse().ok()
}

/// A process that is a virtual machine monitor, or may be one.
#[derive(Clone, Debug)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    pub(crate) comm: String,
    /// The words of its command line.
    pub(crate) arguments: Vec<String>,
    pub(crate) threads: Vec<Thread>,
    /// Where its open descriptors lead; `None` if this user may not see them.
    pub(crate) files: Option<Vec<String>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Thread {
    pub(crate) tid: u32,
    pub(crate) comm: String,
}

/// Every process; those that end meanwhile are left out.
pub(crate) fn all(machine: &dyn Machine) -> Vec<Process> {
    let pids = machine.numbers("/proc");
    pids.into_iter().filter_map(|pid| Process::read(machine, pid)).collect()
}

impl Process {
    fn read(machine: &dyn Machine, pid: u32) -> Option<Process> {
        let comm = machine.text(&format!("/proc/{pid}/comm"))?;
        let arguments = arguments(machine, pid);
        // Kernel threads have no command line, and no files either.
        let files = if arguments.is_empty() { Some(vec![]) } else { files(machine, pid) };
        Some(Process { pid, comm, arguments, threads: threads(machine, pid), files })
    }

    /// The name of the program file, without its directory.
    pub(crate) fn program(&self) -> &str {
        let path = self.arguments.first().map_or("", String::as_str);
        path.rsplit('/').next().unwrap_or(path)
    }

    /// The words that follow an option, `-name` and `--name` alike, and what follows `=` in `--name=…`.
    pub(crate) fn options<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.arguments.iter().enumerate().filter_map(move |(at, word)| {
            let option = word.trim_start_matches('-').strip_prefix(name).filter(|_| word.starts_with('-'))?;
            match option {
                "" => self.arguments.get(at + 1).map(String::as_str),
                _ => option.strip_prefix('=').filter(|_| word.starts_with("--")),
            }
        })
    }

    /// The VM's name: QEMU's `-name guest=X,…` or `-name X`, Firecracker's `--id X`.
    pub(crate) fn vm_name(&self) -> Option<String> {
        let qemu = self.options("name").find_map(|value| {
            let items = items(value);
            let first = items.first().filter(|item| !item.contains('=')).cloned();
            first.or_else(|| items.iter().find_map(|item| item.strip_prefix("guest=")).map(str::to_owned))
        });
        let id = || self.options("id").next().map(str::to_owned);
        qemu.or_else(id).filter(|name| !name.is_empty())
    }
}

/// The items of a value of QEMU, which writes a comma within one as two.
fn items(value: &str) -> Vec<String> {
    // No argument has a zero byte.
    value.replace(",,", "\0").split(',').map(|item| item.replace('\0', ",")).collect()
}

fn arguments(machine: &dyn Machine, pid: u32) -> Vec<String> {
    let line = machine.read(&format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words = line.split(|byte| *byte == 0).filter(|word| !word.is_empty());
    without_loader(words.map(|word| String::from_utf8_lossy(word).into_owned()).collect())
}

/// The words from the program on, where the dynamic loader was started with it: `ld-linux-x86-64.so.2`, `ld-musl-aarch64.so.1`,
/// `ld64.so.1` and so on, with options of its own.
fn without_loader(arguments: Vec<String>) -> Vec<String> {
    let loader = arguments.first().and_then(|path| path.rsplit('/').next()).unwrap_or_default();
    if !loader.starts_with("ld") || !loader.contains(".so") {
        return arguments;
    }
    let valued = [
        "argv0",
        "audit",
        "glibc-hwcaps-mask",
        "glibc-hwcaps-prepend",
        "inhibit-rpath",
        "library-path",
        "preload",
    ];
    let mut of_program = 1;
    while let Some(option) = arguments.get(of_program).and_then(|word| word.strip_prefix("--")) {
        of_program += if valued.contains(&option) { 2 } else { 1 };
    }
    if of_program < arguments.len() { arguments[of_program..].to_vec() } else { arguments }
}

/// By what the VM of a process can be recognised.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Naming {
    /// QEMU's `-name guest=X,…` or `-name X`, Firecracker's `--id X`.
    pub name: Option<String>,
    /// QEMU's `-uuid X`.
    pub uuid: Option<String>,
    /// The control groups of the process, from the root on.
    pub cgroups: Vec<String>,
}

impl Naming {
    /// As /proc has it.
    pub fn of(machine: &dyn Machine, pid: u32) -> Naming {
        let arguments = arguments(machine, pid);
        let process = Process { pid, comm: String::new(), arguments, threads: vec![], files: None };
        let groups = machine.text(&format!("/proc/{pid}/cgroup")).unwrap_or_default();
        // ID:CONTROLLERS:PATH
        let path = |line: &str| line.splitn(3, ':').nth(2).map(str::to_owned);
        Naming {
            name: process.vm_name(),
            uuid: process.options("uuid").next().map(str::to_owned),
            cgroups: groups.lines().filter_map(path).collect(),
        }
    }
}

fn threads(machine: &dyn Machine, pid: u32) -> Vec<Thread> {
    let tids = machine.numbers(&format!("/proc/{pid}/task"));
    let thread = |tid| Some(Thread { tid, comm: machine.text(&format!("/proc/{pid}/task/{tid}/comm"))? });
    tids.into_iter().filter_map(thread).collect()
}

fn files(machine: &dyn Machine, pid: u32) -> Option<Vec<String>> {
    let names = machine.names(&format!("/proc/{pid}/fd")).ok()?;
    Some(names.iter().filter_map(|name| machine.target(&format!("/proc/{pid}/fd/{name}")).ok()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Fake;

    #[test]
    fn a_vm_is_recognised_by_its_command_line_and_its_control_group() {
        let fake = Fake::new()
            .file(
                "/proc/7/cmdline",
                "/usr/bin/qemu-system-x86_64\0-name\0guest=web,debug-threads=on\0-uuid\0ab-CD\0",
            )
            .file("/proc/7/cgroup", "0::/machine.slice/machine-web.scope\n")
            .file("/proc/6/cmdline", "/usr/bin/qemu-system-x86_64\0-name\0guest=a,,b c,debug-threads=on\0")
            .file("/proc/8/cmdline", "/usr/bin/firecracker\0--id\0fc1\0");
        assert_eq!(Naming::of(&fake, 6).name.as_deref(), Some("a,b c"));
        let web = Naming::of(&fake, 7);
        assert_eq!((web.name.as_deref(), web.uuid.as_deref()), (Some("web"), Some("ab-CD")));
        assert_eq!(web.cgroups, ["/machine.slice/machine-web.scope"]);
        assert_eq!(Naming::of(&fake, 8), Naming { name: Some("fc1".to_owned()), ..Naming::default() });
        assert_eq!(Naming::of(&fake, 9), Naming::default());
    }

    #[test]
    fn a_program_that_the_dynamic_loader_has_started_is_that_program() {
        let fake = Fake::new()
            .file("/proc/7/comm", "ld-linux-x86-64\n")
            .file(
                "/proc/7/cmdline",
                "/opt/lib/ld-linux-x86-64.so.2\0--inhibit-cache\0--library-path\0/opt/lib:/opt/usr/lib\0\
                 /opt/bin/qemu-system-x86_64\0-name\0web\0",
            )
            .file("/proc/8/comm", "ld-musl\n")
            .file("/proc/8/cmdline", "/lib/ld-musl-x86_64.so.1\0/usr/bin/firecracker\0--id\0fc1\0")
            .file("/proc/9/comm", "ld\n")
            .file("/proc/9/cmdline", "/lib64/ld-linux-x86-64.so.2\0--version\0")
            .file("/proc/10/comm", "ldap.sock\n")
            .file("/proc/10/cmdline", "/usr/bin/ldapd\0--socket\0/run/x.so\0");
        let of = |pid| Process::read(&fake, pid).unwrap().program().to_owned();
        assert_eq!(
            [7, 8, 9, 10].map(of),
            ["qemu-system-x86_64", "firecracker", "ld-linux-x86-64.so.2", "ldapd"]
        );
        assert_eq!([7, 8].map(|pid| Naming::of(&fake, pid).name.unwrap()), ["web", "fc1"]);
    }

    #[test]
    fn fields_of_the_status() {
        let fake = Fake::new().file("/proc/100/status", "Name:\tvmm: a\nTgid:\t90\nPid:\t100\n");
        assert_eq!((of_thread(&fake, 100), of_thread(&fake, 7)), (Some(90), None));
        assert_eq!(field("Name:\tvmm: a\nTgid:\t90\n", "Name"), Some("vmm: a"));
        assert_eq!(field("Tgid:\t90\n", "gid"), None);
    }
}
