//! Control of loads that answer to the setting.

mod loops;
mod mixed;
