//! `dwell` as a user runs it. In programs of their own are `box`, whose harness also runs in guests, `qemu`, whose guests
//! need the CPUs for themselves, and `change`, whose locks a child between fork and exec holds too.

mod cli;
mod control;
mod docs;
mod fleet;
mod kept;
mod memory;
mod report;
mod rules;
mod schemas;
mod untrusted;
mod words;
