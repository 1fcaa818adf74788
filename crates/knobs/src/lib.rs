//! Where settings live on a machine: found, read, set and read back.
//!
//! Nothing is written unless a caller asks for it, nothing that is already there is written again, and every write is read
//! back.
//!
//! | what | module |
//! |---|---|
//! | QEMU's monitor, as a client | [`qmp`] |
//! | the I/O threads of a QEMU or qemu-storage-daemon | [`iothread`] |

#![forbid(unsafe_code)]

pub mod iothread;
pub mod qmp;
