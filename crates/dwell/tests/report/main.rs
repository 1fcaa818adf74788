//! `dwell report`: its forms, and its page as a browser shows it.

#[path = "../../../capture/tests/say/mod.rs"]
mod say;

mod browser;
mod forms;
mod inputs;
mod page;
