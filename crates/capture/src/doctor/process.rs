//! Processes and their threads, as /proc shows them.

use super::root::Root;

/// A process that is a virtual machine monitor, or may be one.
#[derive(Clone, Debug)]
pub(super) struct Process {
    pub(super) pid: u32,
    pub(super) comm: String,
    /// The words of its command line.
    pub(super) arguments: Vec<String>,
    pub(super) threads: Vec<Thread>,
    /// Where its open descriptors lead; `None` if this user may not see them.
    pub(super) files: Option<Vec<String>>,
}

/// A thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Thread {
    /// Its number.
    pub(super) tid: u32,
    /// Its name.
    pub(super) comm: String,
}

/// Every process; those that end meanwhile are left out.
pub(super) fn all(root: &Root) -> Vec<Process> {
    let pids = root.numbers("/proc").unwrap_or_default();
    pids.into_iter().filter_map(|pid| Process::read(root, pid)).collect()
}

impl Process {
    fn read(root: &Root, pid: u32) -> Option<Process> {
        let comm = root.text(&format!("/proc/{pid}/comm")).ok()?;
        let line = root.bytes(&format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let arguments: Vec<String> = line
            .split(|byte| *byte == 0)
            .filter(|word| !word.is_empty())
            .map(|word| String::from_utf8_lossy(word).into_owned())
            .collect();
        // Kernel threads have no command line, and no files either.
        let files = if arguments.is_empty() { Some(vec![]) } else { files(root, pid) };
        Some(Process { pid, comm, arguments, threads: threads(root, pid), files })
    }

    /// The name of the program file, without its directory.
    pub(super) fn program(&self) -> &str {
        let path = self.arguments.first().map_or("", String::as_str);
        path.rsplit('/').next().unwrap_or(path)
    }

    /// The words that follow an option, `-name` and `--name` alike.
    pub(super) fn options<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.arguments.windows(2).filter_map(move |pair| {
            let option = pair[0].trim_start_matches('-');
            (pair[0].starts_with('-') && option == name).then_some(pair[1].as_str())
        })
    }

    /// The VM's name: QEMU's `-name guest=X,…` or `-name X`, Firecracker's `--id X`.
    pub(super) fn vm_name(&self) -> Option<String> {
        let qemu = self.options("name").find_map(|value| {
            let mut items = value.split(',');
            let first = items.next().filter(|item| !item.contains('='));
            first.or_else(|| value.split(',').find_map(|item| item.strip_prefix("guest=")))
        });
        qemu.or_else(|| self.options("id").next()).filter(|name| !name.is_empty()).map(str::to_owned)
    }
}

fn threads(root: &Root, pid: u32) -> Vec<Thread> {
    let tids = root.numbers(&format!("/proc/{pid}/task")).unwrap_or_default();
    let thread = |tid| Some(Thread { tid, comm: root.text(&format!("/proc/{pid}/task/{tid}/comm")).ok()? });
    tids.into_iter().filter_map(thread).collect()
}

fn files(root: &Root, pid: u32) -> Option<Vec<String>> {
    let names = root.names(&format!("/proc/{pid}/fd")).ok()?;
    Some(names.iter().filter_map(|name| root.link(&format!("/proc/{pid}/fd/{name}"))).collect())
}
