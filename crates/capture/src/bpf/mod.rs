//! BPF as a source of events: small programs on raw tracepoints, which write into a ring buffer of their CPU.
//!
//! perf's rings miss the idle task of some CPUs on some kernels; a BPF program on the same tracepoint sees
//! every CPU, and costs the traced CPU less. The programs are assembled here, at run time: no compiler, no
//! object file, no library.
//!
//! | module | holds |
//! |---|---|
//! | `assembler` | instructions, and labels to jump to |
//! | `btf` | the kernel's own types, of which the offsets of fields are taken |
//! | `program` | the program of each tracepoint, and the layout of what it writes |
//! | `call` | bpf(2) |
//! | `ring` | the memory shared with the kernel |
//! | `source` | all of these together: records in, losses counted |
//!
//! # Needs
//! `CAP_BPF` and `CAP_PERFMON`, or `CAP_SYS_ADMIN`, which includes both. Linux 5.8 or later (the ring buffer), with
//! `CONFIG_DEBUG_INFO_BTF` (the offsets of fields).
//!
//! # Losses
//! A program that gets no room in the ring buffer counts that for its CPU. Every record has the count of its
//! CPU, so that a reader knows between which two records something is missing, and the count itself is read
//! at the end. What a program missed because it was interrupted by itself is counted by the kernel.
//!
//! # Limits
//! A program that is interrupted (by a hypervisor) while it writes a record keeps the reader from those of its CPU
//! that follow until it goes on. A CPU that comes online later has no ring buffer: its records count as lost.
//!
//! This module has `unsafe`: there is no way to bpf(2) and to memory shared with the kernel without it.
#![allow(unsafe_code)]

mod assembler;
mod btf;
mod call;
mod program;
mod ring;
mod source;

pub use assembler::Instruction;
pub(crate) use btf::KERNEL_TYPES;
pub use call::{Attach, Command, open};
pub use source::BpfSource;
