//! Where settings live on a machine: found, read, set and read back.
//!
//! Nothing is written unless a caller asks for it, nothing that is already there is written again, and every write is read
//! back.
//!
//! | what | module |
//! |---|---|
//! | one table of every knob | [`knob`] |
//! | the lines that set it by hand | [`lines`] |
//! | where a value lives, as text | [`place`] |
//! | what is to be written, and what for | [`plan`] |
//! | QEMU's monitor, as a client | [`qmp`] |
//! | the I/O threads of a QEMU or qemu-storage-daemon | [`iothread`] |

#![forbid(unsafe_code)]

pub mod iothread;
pub mod knob;
pub mod lines;
pub mod place;
pub mod plan;
pub mod qmp;
