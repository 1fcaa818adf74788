//! The sub-commands, one file each.

pub(crate) mod apply;
pub(crate) mod bound;
pub(crate) mod control;
pub(crate) mod doctor;
pub(crate) mod explain;
pub(crate) mod fleet;
pub(crate) mod import;
pub(crate) mod info;
pub(crate) mod iothread;
pub(crate) mod params;
pub(crate) mod record;
pub(crate) mod replay;
pub(crate) mod report;
pub(crate) mod revert;
pub(crate) mod sketch;
pub(crate) mod status;
pub(crate) mod timer;
pub(crate) mod top;
pub(crate) mod tune;
pub(crate) mod verify;
pub(crate) mod why;
