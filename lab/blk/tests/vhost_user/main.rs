//! The device over vhost-user: a good driver, a hostile one, and a Linux guest in QEMU.

mod device;
mod guest;
mod hostile;
mod recorded;
mod rig;
