//! `dwell report`: its forms, and its page as a browser shows it.

mod browser;
mod fleet;
mod forms;
pub(crate) mod inputs;
mod page;
mod timeline;
mod timer;
mod work;
