//! A domain of any text: an error, or a text with the `<poll>` in it, which is found there again and is taken
//! out again.

use dwell_knobs::libvirt;

const POLL: &str = "<poll max='5'/>";

pub fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let _ = libvirt::is_poll(text);
    let Ok(with) = libvirt::with_poll(text, "vm", 1, Some(POLL)) else { return };
    assert_eq!(libvirt::poll_in(&with, "vm", 1).unwrap().as_deref(), Some(POLL));
    assert_eq!(libvirt::with_poll(&with, "vm", 1, Some(POLL)).unwrap(), with);
    // A domain with two of them has the other one still.
    let without = libvirt::with_poll(&with, "vm", 1, None).unwrap();
    assert!(libvirt::poll_in(&without, "vm", 1).is_ok());
}
