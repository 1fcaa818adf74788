//! The QEMUs that tests run: the installed one, and those that `.ci/qemu` unpacks into a folder (`DWELL_QEMU`, else
//! `target/qemu`).

use std::path::{Path, PathBuf};
use std::process::Command;

/// A QEMU that can be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// The one that is installed.
    Installed,
    /// One unpacked by `.ci/qemu`.
    Unpacked(&'static str),
}

const PROGRAM: &str = "qemu-system-x86_64";

/// The command line of a guest's kernel. Without its tests of ciphers, which keep emulated CPUs busy for seconds after the start,
/// so that nothing there idles.
pub const KERNEL: &str = "console=ttyS0 quiet panic=-1 no_timer_check nowatchdog cryptomgr.notests";

impl Release {
    /// Every release that is tested.
    pub const ALL: [Release; 3] = [Release::Installed, Release::Unpacked("10.0"), Release::Unpacked("11.1")];

    /// The command without options.
    ///
    /// # Errors
    /// Why there is none.
    pub fn command(self) -> Result<Command, String> {
        self.command_of(&self.program()?)
    }

    /// The command for a copy of its program, which is elsewhere.
    ///
    /// # Errors
    /// Why there is none.
    pub fn command_of(self, program: &Path) -> Result<Command, String> {
        let Release::Unpacked(version) = self else {
            let mut command = Command::new(program);
            command.env("QEMU_MODULE_DIR", "/usr/lib/x86_64-linux-gnu/qemu").args([
                "-L",
                "/usr/share/qemu",
                "-L",
                "/usr/share/seabios",
            ]);
            return Ok(command);
        };
        let root = folder().join(version);
        let mut command = Release::unpacked(version, program)?;
        command
            .args(["-L".into(), root.join("usr/share/qemu")])
            .args(["-L".into(), root.join("usr/share/seabios")]);
        Ok(command)
    }

    /// A program of an unpacked release with the libraries of that release.
    fn unpacked(version: &str, program: &Path) -> Result<Command, String> {
        let root = folder().join(version);
        let library = |place: &str| root.join(place).join("x86_64-linux-gnu");
        let loader = ["lib64", "usr/lib64"].map(|place| root.join(place).join("ld-linux-x86-64.so.2"));
        let loader = loader.into_iter().find(|loader| loader.exists());
        let loader = loader.ok_or_else(|| format!("no QEMU {version} in {}", folder().display()))?;
        let mut command = Command::new(loader);
        command
            .env("QEMU_MODULE_DIR", library("usr/lib").join("qemu"))
            .arg("--library-path")
            .arg(format!("{}:{}", library("lib").display(), library("usr/lib").display()))
            .arg(program);
        Ok(command)
    }

    /// Its qemu-storage-daemon without options.
    ///
    /// # Errors
    /// Why there is none.
    pub fn storage_daemon(self) -> Result<Command, String> {
        const DAEMON: &str = "qemu-storage-daemon";
        match self {
            Release::Installed => installed(DAEMON).map(Command::new),
            Release::Unpacked(version) => {
                let program = folder().join(version).join("usr/bin").join(DAEMON);
                if !program.exists() {
                    return Err(format!("no {DAEMON} {version} in {}", folder().display()));
                }
                Release::unpacked(version, &program)
            }
        }
    }

    /// Where its program is.
    ///
    /// # Errors
    /// Why there is none.
    pub fn program(self) -> Result<PathBuf, String> {
        match self {
            Release::Installed => installed(PROGRAM),
            Release::Unpacked(version) => {
                let program = folder().join(version).join("usr/bin").join(PROGRAM);
                program
                    .exists()
                    .then_some(program)
                    .ok_or_else(|| format!("no QEMU {version} in {}", folder().display()))
            }
        }
    }
}

/// Where the program of this name is that a shell would start.
fn installed(program: &str) -> Result<PathBuf, String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places = std::env::split_paths(&path).map(|folder| folder.join(program));
    places.find(|program| program.exists()).ok_or_else(|| format!("no {program}"))
}

/// Where `.ci/qemu` puts what it makes.
pub fn folder() -> PathBuf {
    let default = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/qemu");
    std::env::var_os("DWELL_QEMU").map_or(default, PathBuf::from)
}
