//! Settings on a machine: found, read, set and read back.
//!
//! Nothing is written unless a caller asks for it, nothing that is already there is written again, and every
//! write is read back.
//!
//! | what | module |
//! |---|---|
//! | one table of every knob | [`knob`] |
//! | the place of a value, as text | [`place`] |
//! | writes, with their predicted effect | [`plan`] |
//! | whether a knob can be set here, and whether anything reads it | [`condition`] |
//! | what a value does, and whether another does the same | [`explain`] |
//! | doctor's findings: settings without effect, equivalent ones, harmful ones | [`finding`] |
//! | applying and reverting a plan | [`change`] |
//! | original values, on the disk | [`journal`] |
//! | values that a controller changes all the time | [`lease`] |
//! | predicted and measured effects | [`verification`] |
//! | the id of an object of QEMU | [`object_id`] |
//! | a number of a text of metrics | [`open_metrics`] |
//! | how values are kept over a reboot | [`keep`] |
//! | the lines that set it by hand | [`lines`] |
//! | the value at a place: read, written, read back | [`value`] |
//! | QEMU's monitor, as a client | [`qmp`] |
//! | the I/O threads of a QEMU or qemu-storage-daemon | [`iothread`] |

#![forbid(unsafe_code)]

/// What `#[serde(try_from = "String", into = "String")]` needs of a type that is parsed and displayed as text.
#[macro_export]
macro_rules! serde_as_text {
    ($type:ty, $error:ty) => {
        impl TryFrom<String> for $type {
            type Error = $error;

            fn try_from(text: String) -> Result<$type, $error> {
                text.parse()
            }
        }

        impl From<$type> for String {
            fn from(value: $type) -> String {
                value.to_string()
            }
        }
    };
}

pub mod change;
pub mod condition;
pub mod explain;
pub mod finding;
pub mod iothread;
pub mod journal;
pub mod keep;
mod kept;
pub mod knob;
pub mod lease;
pub mod libvirt;
pub mod lines;
pub mod object_id;
pub mod open_metrics;
pub mod place;
pub mod plan;
pub mod qmp;
mod read_only;
pub mod typed;
pub mod value;
pub mod verification;
mod whole_file;

pub use read_only::read_only;
