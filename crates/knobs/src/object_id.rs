//! The id of an object of QEMU.

use crate::place::is_name;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::Deref;
use std::str::FromStr;

/// The longest id \[bytes\]. QEMU has no limit; ids in use are far shorter.
pub const LONGEST: usize = 255;

/// The id of an object of QEMU: letters, digits, `-`, `.` and `_`, the first a letter or a digit. QEMU takes these and no
/// others (with a letter first), so whatever else a monitor sends is no id. One can be put into a place of the journal, into
/// a line of the log and into a label of the metrics as it is.
///
/// ```
/// use dwell_knobs::object_id::ObjectId;
/// assert_eq!("io.0_a-b".parse::<ObjectId>().unwrap().to_string(), "io.0_a-b");
/// for text in ["", "a b", "a=b", "x/y", "é", ".", "-x", "io:0", "a\nb"] {
///     assert!(text.parse::<ObjectId>().is_err(), "{text:?}");
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ObjectId(String);

/// Text that is not an id of an object of QEMU.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not an id of an object of QEMU: a letter, then letters, digits, `-`, `.` and `_`, at most {LONGEST}"
)]
pub struct NotAnId(String);

impl FromStr for ObjectId {
    type Err = NotAnId;

    fn from_str(text: &str) -> Result<ObjectId, NotAnId> {
        match text.len() <= LONGEST && is_name(text) {
            true => Ok(ObjectId(text.to_owned())),
            false => Err(NotAnId(text.chars().take(80).flat_map(char::escape_debug).collect())),
        }
    }
}

crate::serde_as_text!(ObjectId, NotAnId);

impl Deref for ObjectId {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
