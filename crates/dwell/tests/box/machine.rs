//! A Linux machine in QEMU that runs one shell script and hands back files.

use dwell_testing::cpio::Archive;
use dwell_testing::process::write_program;
use dwell_testing::qemu::{KERNEL, Release};
use dwell_testing::say;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// The kernels that `.ci/box` unpacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kernel {
    /// Debian 12's own: the driver haltpoll without the governor.
    V6_1,
    /// That of bookworm-backports.
    V6_12,
    /// That of trixie-backports.
    Newer,
}

impl Kernel {
    pub(crate) const ALL: [Kernel; 3] = [Kernel::V6_1, Kernel::V6_12, Kernel::Newer];

    pub(crate) fn vmlinuz(self) -> PathBuf {
        self.folder().join("vmlinuz")
    }

    fn folder(self) -> PathBuf {
        folder().join(match self {
            Kernel::V6_1 => "6.1",
            Kernel::V6_12 => "6.12",
            Kernel::Newer => "newer",
        })
    }

    /// A file of the package: `release`, `config`.
    pub(crate) fn text(self, file: &str) -> Result<String, String> {
        let path = self.folder().join(file);
        let text = fs::read_to_string(&path);
        text.map(|text| text.trim_end().to_owned())
            .map_err(|_| format!("no {}; .ci/box makes it", path.display()))
    }

    /// The modules of these names, each after those that it depends on; what is built in has none.
    fn modules(self, names: &[&str]) -> Vec<(String, Vec<u8>)> {
        let mut files = vec![];
        walk(&self.folder().join("modules"), &mut files);
        let mut taken = vec![];
        names.iter().for_each(|name| take(name, &files, &mut taken));
        taken
    }
}

/// Where `.ci/box` puts what it makes.
pub(crate) fn folder() -> PathBuf {
    let default = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/box");
    std::env::var_os("DWELL_BOX").map_or(default, PathBuf::from)
}

fn walk(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() { walk(&path, files) } else { files.push(path) }
    }
}

/// The name of a module as other modules have it.
fn module_name(path: &Path) -> Option<String> {
    let name = path.file_name()?.to_str()?;
    name.split_once(".ko").map(|(name, _)| name.replace('-', "_"))
}

fn take(name: &str, files: &[PathBuf], taken: &mut Vec<(String, Vec<u8>)>) {
    let name = name.replace('-', "_");
    let has = |taken: &[(String, Vec<u8>)]| taken.iter().any(|(other, _)| *other == name);
    let Some(path) = files.iter().find(|path| module_name(path).as_ref() == Some(&name)) else { return };
    if has(taken) {
        return;
    }
    let bytes = match path.extension().and_then(|extension| extension.to_str()) {
        Some("xz") => output(Command::new("xz").arg("-dc").arg(path)),
        Some("zst") => output(Command::new("zstd").arg("-qdc").arg(path)),
        _ => fs::read(path).unwrap(),
    };
    for other in dependencies(&bytes) {
        take(&other, files, taken);
    }
    taken.push((name, bytes));
}

/// What a module says in its section `.modinfo` that it depends on.
fn dependencies(module: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let Some(at) = memchr::memmem::find(module, KEY) else { return vec![] };
    let value = module[at + KEY.len()..].split(|byte| *byte == 0).next().unwrap_or_default();
    let value = String::from_utf8_lossy(value).into_owned();
    value.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

pub(crate) fn output(command: &mut Command) -> Vec<u8> {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

/// What the CPU of the machine says that it runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signature {
    /// KVM: the haltpoll driver and governor of a stock kernel load (`cpuidle_haltpoll.force=1`).
    Kvm,
    Tcg,
}

/// Without CMPXCHG16B, which QEMU 7.2 emulates with wrong flags when one thread runs all CPUs: kernels die of it.
const CPU: &str = "max,cx16=off";

/// What a machine consists of.
pub(crate) enum Root {
    Initramfs,
    /// Debian with systemd on a disk, whose image is not changed. The machine may reboot, the script is one
    /// for Debian's shell, and `files` are below `/run/box`.
    Copy(PathBuf),
    /// The same, and what it writes stays in the image.
    Disk(PathBuf),
}

/// A machine and its script.
pub(crate) struct Job<'a> {
    pub(crate) kernel: Kernel,
    pub(crate) qemu: Release,
    pub(crate) signature: Signature,
    /// The accelerator, such as `tcg,thread=single`, and what else of QEMU's options the job needs.
    pub(crate) options: &'a [&'a str],
    pub(crate) cpus: u32,
    pub(crate) memory_mib: u32,
    /// Words on the kernel's command line.
    pub(crate) append: &'a str,
    /// Modules to load before the script, with those they depend on.
    pub(crate) modules: &'a [&'a str],
    /// Modules that the script loads itself: `/mod/later/NAME.ko`.
    pub(crate) later: &'a [&'a str],
    /// Files to put in: from where, and to what path.
    pub(crate) files: Vec<(PathBuf, String)>,
    /// Programs to put in beside `dwell` and `inside`, with their libraries: from where, and under what name in `/bin`.
    pub(crate) programs: Vec<(PathBuf, &'a str)>,
    pub(crate) root: Root,
    /// What runs in it: a script for busybox's shell, with `at` and `keep` of `init`. The files in `/out` come back.
    pub(crate) script: &'a str,
    /// When it is killed at the latest.
    pub(crate) limit: Duration,
}

impl Default for Job<'_> {
    fn default() -> Self {
        Job {
            kernel: Kernel::V6_12,
            qemu: Release::Installed,
            signature: Signature::Kvm,
            options: &["-accel", "tcg,thread=single"],
            cpus: 2,
            memory_mib: 1024,
            append: "",
            modules: &[],
            later: &[],
            files: vec![],
            programs: vec![],
            root: Root::Initramfs,
            script: "",
            limit: Duration::from_secs(300),
        }
    }
}

/// What `dwell` prints of files, as JSON.
pub(crate) fn dwell_json(words: &[&str], files: &[&Path]) -> serde_json::Value {
    let text =
        output(Command::new(env!("CARGO_BIN_EXE_dwell")).args(words).args(["--format", "json"]).args(files));
    serde_json::from_slice(&text).expect("JSON")
}

/// What a job has left.
pub(crate) struct Ran {
    pub(crate) said: String,
    dir: tempfile::TempDir,
}

impl Ran {
    /// Where a file of `/out` is now.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join("out").join(name)
    }

    /// The text of a file of `/out`.
    pub(crate) fn text(&self, name: &str) -> String {
        let bytes =
            fs::read(self.path(name)).unwrap_or_else(|error| panic!("{name}: {error}\n{}", self.said));
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The JSON of a file of `/out`.
    pub(crate) fn json(&self, name: &str) -> serde_json::Value {
        let text = self.text(name);
        serde_json::from_str(&text).unwrap_or_else(|error| {
            panic!("{name}: {error}\n{text}\n{}\n{}", self.text(&format!("{name}.err")), self.said)
        })
    }

    /// The exit code of a command that the script ran with `keep NAME`.
    pub(crate) fn exit(&self, name: &str) -> i32 {
        let key = format!(" {name}: exit ");
        let line = self.said.lines().find_map(|line| line.split_once(&key)).map(|(_, code)| code.trim());
        line.and_then(|code| code.parse().ok())
            .unwrap_or_else(|| panic!("{name} did not end:\n{}", self.said))
    }

    /// That a command kept as `name` succeeded.
    pub(crate) fn succeeded(&self, name: &str) {
        let exit = self.exit(name);
        assert_eq!(exit, 0, "{name}: {}{}", self.text(name), self.text(&format!("{name}.err")));
    }
}

/// A folder for the files of a job.
fn folder_of_job(test: &str) -> tempfile::TempDir {
    let dir = match std::env::var_os("DWELL_BOX_KEEP") {
        Some(keep) => tempfile::Builder::new().prefix(test).disable_cleanup(true).tempdir_in(keep),
        None => tempfile::tempdir(),
    };
    dir.expect("a folder can be made")
}

/// What a machine has printed so far.
fn printed(dir: &Path, port: &str) -> String {
    fs::read(dir.join(port))
        .map_or_else(|_| String::new(), |bytes| String::from_utf8_lossy(&bytes).into_owned())
}

impl Job<'_> {
    /// With CPUs that are emulated at once, by the clock of the machine outside. QEMU 7.2 then executes instructions that another CPU
    /// has replaced, as to enable a tracepoint, and the kernel crashes.
    pub(crate) fn in_parallel() -> Self {
        Job { qemu: Release::Unpacked("10.0"), options: &["-accel", "tcg,thread=multi"], ..Job::default() }
    }

    /// Runs it to its end; the error is the cause why it cannot run here.
    pub(crate) fn run(&self, test: &str) -> Result<Ran, String> {
        self.run_watched(test, &mut |_| ())
    }

    /// The same, and shows what it has printed so far again and again.
    pub(crate) fn run_watched(&self, test: &str, watch: &mut dyn FnMut(&str)) -> Result<Ran, String> {
        let dir = folder_of_job(test);
        let qemu = self.machine(dir.path())?;
        let begun = Instant::now();
        let ended = to_its_end(qemu, self.limit, &mut || watch(&printed(dir.path(), "said")))?;
        let (said, console) = (printed(dir.path(), "said"), printed(dir.path(), "console"));
        assert!(
            said.contains("job: ended"),
            "{test}: the job {} within {:?}\n{said}\n{}",
            if ended { "did not end, QEMU did" } else { "did not end" },
            self.limit,
            &console[console.len().saturating_sub(3000)..]
        );
        let out = dir.path().join("out");
        fs::create_dir(&out).unwrap();
        output(Command::new("tar").arg("xf").arg(dir.path().join("disk")).arg("-C").arg(&out));
        say!("{test}: {} in {:.0} s", self.kernel.text("release")?, begun.elapsed().as_secs_f64());
        for warning in ["] WARNING: ", "] BUG: ", "] Oops: "] {
            assert!(!console.contains(warning), "{test}: {warning} in the kernel's log\n{console}");
        }
        Ok(Ran { said, dir })
    }

    /// Runs it until `patience` after it has printed `words`, and kills it then with SIGKILL; returns what it printed.
    pub(crate) fn cut(&self, test: &str, words: &str, patience: Duration) -> Result<String, String> {
        let dir = folder_of_job(test);
        let mut qemu = self.machine(dir.path())?;
        let qemu = qemu.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
        let mut qemu = qemu.map_err(|error| format!("QEMU cannot be started: {error}"))?;
        let begun = Instant::now();
        while !printed(dir.path(), "said").contains(words)
            && qemu.try_wait().expect("QEMU is a child").is_none()
            && begun.elapsed() < self.limit
        {
            std::thread::sleep(Duration::from_millis(20));
        }
        std::thread::sleep(patience);
        let _ = qemu.kill();
        let _ = qemu.wait();
        Ok(printed(dir.path(), "said"))
    }

    /// QEMU with the machine, whose files are in `dir`.
    fn machine(&self, dir: &Path) -> Result<Command, String> {
        let kernel = self.kernel.vmlinuz();
        if !kernel.exists() {
            return Err(format!("no kernel in {}; .ci/box gets it", self.kernel.folder().display()));
        }
        let (initramfs, disk) = (dir.join("initramfs"), dir.join("disk"));
        self.initramfs(&initramfs)?;
        File::create(&disk).and_then(|file| file.set_len(128 << 20)).expect("a disk can be made");

        let mut qemu = self.command(dir)?;
        qemu.args(self.options)
            .args(["-cpu", CPU, "-smp", &self.cpus.to_string(), "-m", &self.memory_mib.to_string()])
            .args(["-nodefaults", "-no-user-config", "-display", "none"])
            .arg("-kernel")
            .arg(kernel)
            .arg("-initrd")
            .arg(initramfs)
            .args(["-append", &format!("{KERNEL} {}", self.append)])
            .arg("-serial")
            .arg(format!("file:{}", dir.join("console").display()))
            .arg("-serial")
            .arg(format!("file:{}", dir.join("said").display()))
            .arg("-drive")
            .arg(format!("file={},format=raw,if=virtio,cache=unsafe", disk.display()));
        let root = |path: &Path, how: &str| format!("file={},format=raw,if=virtio,{how}", path.display());
        match &self.root {
            Root::Initramfs => qemu.arg("-no-reboot"),
            Root::Copy(image) => qemu.arg("-drive").arg(root(image, "cache=unsafe,snapshot=on")),
            Root::Disk(image) => qemu.arg("-drive").arg(root(image, "cache=writeback")),
        };
        Ok(qemu)
    }

    fn command(&self, dir: &Path) -> Result<Command, String> {
        let program = self.qemu.program()?;
        let qemu = match self.signature {
            Signature::Tcg => self.qemu.command()?,
            Signature::Kvm => {
                let copy = dir.join("qemu");
                write_program(&copy, &with_signature_of_kvm(fs::read(&program).unwrap())?);
                self.qemu.command_of(&copy)?
            }
        };
        Ok(with_its_parent(&qemu))
    }

    /// Writes its initramfs into a file.
    pub(crate) fn initramfs(&self, path: &Path) -> Result<(), String> {
        let file = std::io::BufWriter::new(File::create(path).unwrap());
        self.archive()?.write(file).expect("an initramfs can be written");
        Ok(())
    }

    fn archive(&self) -> Result<Archive, String> {
        let mut archive = Archive::new();
        let busybox = Path::new("/bin/busybox");
        let busybox = fs::read(busybox).map_err(|_| "no busybox".to_owned())?;
        archive.file("bin/busybox", busybox);
        // With one dwell knows that a recording is of this machine.
        archive.file("etc/machine-id", b"0123456789abcdef0123456789abcdef\n".to_vec());
        archive.file("init", include_bytes!("init").to_vec());
        archive.file("functions", include_bytes!("functions").to_vec());
        if !matches!(self.root, Root::Initramfs) {
            archive.file("unit", include_bytes!("unit").to_vec());
        }
        archive.file("job", self.script.as_bytes().to_vec());
        let virtio = ["virtio_pci", "virtio_blk"];
        let first: Vec<&str> = virtio.iter().chain(self.modules).copied().collect();
        let modules = self.kernel.modules(&first);
        for (number, (name, bytes)) in modules.iter().enumerate() {
            archive.file(&format!("mod/{number:03}-{name}.ko"), bytes.clone());
        }
        for (name, bytes) in self.kernel.modules(self.later) {
            if modules.iter().all(|(loaded, _)| *loaded != name) {
                archive.file(&format!("mod/later/{name}.ko"), bytes);
            }
        }
        for (from, to) in &self.files {
            archive.file(to, fs::read(from).map_err(|error| format!("{}: {error}", from.display()))?);
        }
        let always = [(Path::new(env!("CARGO_BIN_EXE_dwell")), "dwell"), (this_program(), "inside")];
        let more = self.programs.iter().map(|(program, name)| (program.as_path(), *name));
        for (program, name) in always.into_iter().chain(more) {
            archive.file(&format!("bin/{name}"), stripped(program));
            for library in libraries(program) {
                archive.file(&library, fs::read(&library).unwrap());
            }
        }
        Ok(archive)
    }
}

/// This test: inside the machine it is the load, see `inside`.
fn this_program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| std::env::current_exe().expect("the test knows its own file"))
}

/// The newest program of a test of the crate dwell-capture, which cargo puts beside this one. A program outlives its
/// sources there, so that these must exist.
pub(crate) fn program_of_test(name: &str) -> Result<PathBuf, String> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../capture/tests").join(name).join("main.rs");
    assert!(source.exists(), "there is no test {name}: {}", source.display());
    let folder = this_program().parent().expect("a program is in a folder");
    let is_it = |path: &PathBuf| {
        let file = path.file_name().and_then(|file| file.to_str()).unwrap_or_default();
        let hash = file.strip_prefix(name).and_then(|rest| rest.strip_prefix('-'));
        hash.is_some_and(|hash| hash.chars().all(|c| c.is_ascii_hexdigit()))
    };
    let paths = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let newest = paths.filter(is_it).max_by_key(|path| path.metadata().and_then(|data| data.modified()).ok());
    newest.ok_or_else(|| format!("the test {name} is not built; `cargo test` of the workspace builds it"))
}

/// A program without its debug information, which is most of it.
fn stripped(program: &Path) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let small = dir.path().join("small");
    let done = Command::new("strip").arg("-o").arg(&small).arg(program).output();
    let stripped = done.is_ok_and(|output| output.status.success());
    fs::read(if stripped { &small } else { program }).unwrap()
}

/// The shared libraries of a program, with the loader.
pub(crate) fn libraries(program: &Path) -> Vec<String> {
    let listed = String::from_utf8(output(Command::new("ldd").arg(program))).unwrap();
    let path = |line: &str| Some(line[line.find('/')?..].split(' ').next()?.to_owned());
    listed.lines().filter_map(path).collect()
}

/// A QEMU whose emulator shows KVM's signature in CPUID: the three words are numbers in its code, each there once.
fn with_signature_of_kvm(mut program: Vec<u8>) -> Result<Vec<u8>, String> {
    for (own, kvm) in [(b"TCGT", b"KVMK"), (b"CGTC", b"VMKV"), (b"GTCG", b"M\0\0\0")] {
        let mut places = memchr::memmem::find_iter(&program, own);
        let (Some(at), None) = (places.next(), places.next()) else {
            return Err("this QEMU does not have the emulator's signature exactly once".to_owned());
        };
        program[at..at + 4].copy_from_slice(kvm);
    }
    Ok(program)
}

/// The command, killed by the kernel when the thread that started it ends.
pub(crate) fn with_its_parent(command: &Command) -> Command {
    let mut child = Command::new("setpriv");
    child.args(["--pdeathsig", "KILL"]).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        if let Some(value) = value {
            child.env(name, value);
        }
    }
    child
}

/// Waits until it ends, at most so long, and kills it then; whether it ended by itself. Meanwhile it calls `watch`.
pub(crate) fn to_its_end(
    mut command: Command,
    limit: Duration,
    watch: &mut dyn FnMut(),
) -> Result<bool, String> {
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::inherit()).spawn();
    let mut child = child.map_err(|error| format!("QEMU cannot be started: {error}"))?;
    let begun = Instant::now();
    loop {
        if child.try_wait().expect("QEMU is a child").is_some() {
            return Ok(true);
        }
        if begun.elapsed() > limit {
            let _ = child.kill();
            let _ = child.wait();
            return Ok(false);
        }
        std::thread::sleep(Duration::from_millis(20));
        watch();
    }
}
