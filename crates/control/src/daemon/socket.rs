//! How a running controller is asked: one line over a UNIX socket in the state directory, answered by one line of JSON.

use anyhow::{Context, bail};
use serde_json::Value;
use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The name of the socket in the state directory.
const NAME: &str = "control.sock";
/// How long a client may take to send its request, or to read the answer.
const PATIENCE: Duration = Duration::from_secs(1);
/// The longest line that is read \[bytes\].
const LONGEST: u64 = 1 << 20;

dwell_policy::named! {
    /// What a controller can be asked.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Ask {
        Status = "status",
        /// Control again what was given up.
        Resume = "resume",
        Stop = "stop",
    }

    pub(super) fn word
}

/// The socket of this controller, removed at the end.
pub(super) struct Server {
    pub(super) listener: UnixListener,
    path: PathBuf,
}

impl Server {
    /// In a directory that is there and that only this user can change, by the only controller of it.
    pub(super) fn bind(directory: &Path) -> anyhow::Result<Server> {
        let path = directory.join(NAME);
        // Of a controller that was killed: no other one runs, as this one has the lock.
        let _ = fs::remove_file(&path);
        let bind = || {
            let listener = UnixListener::bind(&path)?;
            listener.set_nonblocking(true)?;
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
            Ok::<_, io::Error>(listener)
        };
        let listener = bind().with_context(|| format!("cannot listen on {}", path.display()))?;
        Ok(Server { listener, path })
    }

    /// Answers all clients that are waiting.
    pub(super) fn answer(&self, mut reply: impl FnMut(Ask) -> Value) {
        while let Ok((stream, _)) = self.listener.accept() {
            // A client that has hung up gets no answer.
            let _ = answer_one(stream, &mut reply);
        }
    }
}

fn answer_one(mut stream: UnixStream, reply: &mut impl FnMut(Ask) -> Value) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let line = read_line(&stream)?;
    let asked = Ask::ALL.into_iter().find(|ask| ask.word() == line.trim());
    let answer = match asked {
        Some(ask) => reply(ask),
        None => serde_json::json!({ "error": "no such question; ask status, resume or stop" }),
    };
    writeln!(stream, "{answer}")
}

fn read_line(stream: &UnixStream) -> io::Result<String> {
    let mut line = String::new();
    BufReader::new(io::Read::take(stream, LONGEST)).read_line(&mut line)?;
    Ok(line)
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// How long to wait for an answer, unless there is a reason to wait for less.
pub const LONG: Duration = Duration::from_secs(10);

/// Asks the controller of a state directory, and waits no longer for the answer.
pub fn ask(directory: &Path, ask: Ask, patience: Duration) -> anyhow::Result<Value> {
    let path = directory.join(NAME);
    let mut stream = match UnixStream::connect(&path) {
        Ok(stream) => stream,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
            bail!("no dwell control answers at {}", path.display())
        }
        Err(error) => return Err(error).with_context(|| format!("cannot connect to {}", path.display())),
    };
    let mut exchange = || {
        stream.set_read_timeout(Some(patience))?;
        writeln!(stream, "{}", ask.word())?;
        read_line(&stream)
    };
    let line = exchange().with_context(|| format!("cannot ask the controller at {}", path.display()))?;
    let answer: Value = serde_json::from_str(&line).context("the controller's answer is not JSON")?;
    if let Some(error) = answer.get("error") {
        bail!("the controller refused: {}", error.as_str().unwrap_or("without a reason"));
    }
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_this_user_asks_is_answered() {
        let folder = tempfile::tempdir().unwrap();
        let server = Server::bind(folder.path()).unwrap();
        let mode = fs::metadata(folder.path().join(NAME)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{mode:o}");
        let asked = std::thread::scope(|scope| {
            let client = scope.spawn(|| ask(folder.path(), Ask::Resume, LONG));
            let mut asked = None;
            while asked.is_none() {
                server.answer(|ask| {
                    asked = Some(ask);
                    serde_json::json!({ "resumed": 1 })
                });
            }
            assert_eq!(client.join().unwrap().unwrap()["resumed"], 1);
            asked
        });
        assert_eq!(asked, Some(Ask::Resume));
        drop(server);
        assert!(
            ask(folder.path(), Ask::Status, LONG)
                .unwrap_err()
                .to_string()
                .contains("no dwell control answers")
        );
        Server::bind(folder.path()).unwrap();
    }
}
