//! Notifications to the service manager: `sd_notify(3)`, a datagram to the socket in `NOTIFY_SOCKET`.

use std::ffi::OsStr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The service manager, if there is one.
pub(super) struct Manager(Option<(UnixDatagram, SocketAddr)>);

impl Manager {
    /// From the environment.
    pub(super) fn of_environment() -> Manager {
        let address = std::env::var_os("NOTIFY_SOCKET").and_then(|path| address(&path));
        Manager(address.and_then(|address| Some((UnixDatagram::unbound().ok()?, address))))
    }

    /// Sends one, such as `READY=1`. Without a manager that listens nothing is sent.
    pub(super) fn tell(&self, text: &str) {
        if let Some((socket, address)) = &self.0 {
            let _ = socket.send_to_addr(text.as_bytes(), address);
        }
    }
}

/// A path, or the name of an abstract socket after `@`.
fn address(path: &OsStr) -> Option<SocketAddr> {
    match path.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name).ok(),
        None => SocketAddr::from_pathname(path).ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manager_gets_what_it_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let manager = UnixDatagram::bind(&path).unwrap();
        let told =
            Manager(address(path.as_os_str()).map(|address| (UnixDatagram::unbound().unwrap(), address)));
        told.tell("READY=1");
        let mut text = [0; 32];
        let length = manager.recv(&mut text).unwrap();
        assert_eq!(&text[..length], b"READY=1");
        assert!(address(OsStr::new("@dwell")).unwrap().as_abstract_name().is_some());
        Manager(None).tell("READY=1");
    }
}
