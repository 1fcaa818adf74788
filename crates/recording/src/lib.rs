//! Recordings of how things idle: written, read, and imported from what other tools write.

#![forbid(unsafe_code)]

mod chunk;
mod columns;
mod contents;
mod decode;
mod episode;
pub mod exits;
pub mod import;
mod metadata;
mod newfile;
mod open;
mod reader;
mod storage;
pub mod summary;
mod writer;

pub use chunk::{Chunk, ReadySets};
pub use columns::Columns;
pub use contents::{Contents, Idler};
pub use dwell_policy::Layer;
pub use episode::{Episode, Wake};
pub use metadata::{Clock, CpuLoss, IdleIncludes, Losses, Metadata, SettingValue, SettingsChange, Source};
pub use newfile::{NewFile, NewFileError};
pub use open::OpenError;
pub use reader::{ReadError, Reader};
pub use writer::{FORMAT, Packing, WriteError, Writer};
