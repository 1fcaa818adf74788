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

/// The system emulator.
const PROGRAM: &str = "qemu-system-x86_64";

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
        let library = |place: &str| root.join(place).join("x86_64-linux-gnu");
        let loader = ["lib64", "usr/lib64"].map(|place| root.join(place).join("ld-linux-x86-64.so.2"));
        let loader = loader.into_iter().find(|loader| loader.exists());
        let loader = loader.ok_or_else(|| format!("no QEMU {version} in {}", folder().display()))?;
        let mut command = Command::new(loader);
        command
            .env("QEMU_MODULE_DIR", library("usr/lib").join("qemu"))
            .arg("--library-path")
            .arg(format!("{}:{}", library("lib").display(), library("usr/lib").display()))
            .arg(program)
            .args(["-L".into(), root.join("usr/share/qemu")])
            .args(["-L".into(), root.join("usr/share/seabios")]);
        Ok(command)
    }

    /// Where its program is.
    ///
    /// # Errors
    /// Why there is none.
    pub fn program(self) -> Result<PathBuf, String> {
        match self {
            Release::Installed => {
                let path = std::env::var_os("PATH").unwrap_or_default();
                let mut places = std::env::split_paths(&path).map(|folder| folder.join(PROGRAM));
                places.find(|program| program.exists()).ok_or_else(|| format!("no {PROGRAM}"))
            }
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

/// Where `.ci/qemu` puts what it makes.
pub fn folder() -> PathBuf {
    let default = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/qemu");
    std::env::var_os("DWELL_QEMU").map_or(default, PathBuf::from)
}
