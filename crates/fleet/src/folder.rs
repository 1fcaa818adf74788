//! The recordings of a folder, their VMs and classes.

use crate::costs::{Costs, Question, Unusable};
use crate::sketch::Input;
use dwell_recording::with_causes;
use rayon::prelude::*;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// A recording and what it gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The VM, by the name of the file without its folders and extension.
    pub vm: String,
    /// The file, as it was named.
    pub recording: String,
    /// Its costs, or why it does not count.
    pub costs: Result<Costs, String>,
}

impl Row {
    /// The costs of a recording, as it was `opened`; errors call it by a name that is not repeated in the row.
    pub fn new(recording: String, name: &str, question: &Question, opened: Result<Input, Unusable>) -> Row {
        let costs = opened.and_then(|input| question.costs(input)).map_err(|error| {
            let text = with_causes(&error);
            text.strip_prefix(name).and_then(|text| text.strip_prefix(": ")).unwrap_or(&text).to_owned()
        });
        Row { vm: vm_of(&recording), recording, costs }
    }

    /// The costs of recordings, on all cores, in their order. `done` is called after each.
    pub fn of_files(
        folder: &Path,
        recordings: &[String],
        question: &Question,
        done: &(dyn Fn() + Sync),
    ) -> Vec<Row> {
        let row = |recording: &String| {
            let path = folder.join(recording);
            let opened = Input::open(&path);
            let row = Row::new(recording.clone(), &path.display().to_string(), question, opened);
            done();
            row
        };
        recordings.par_iter().map(row).collect()
    }

    /// Those that count, by VM, the newest of each last: by the time of day, and by the path where a recording has none,
    /// which those that have one come after.
    pub fn by_vm(rows: &[Row]) -> Vec<(&Row, &Costs)> {
        let mut used: Vec<(&Row, &Costs)> =
            rows.iter().filter_map(|row| Some((row, row.costs.as_ref().ok()?))).collect();
        used.sort_by_key(|(row, costs)| (&row.vm, costs.ended_unix_ns, &row.recording));
        used
    }

    /// Gives recordings the classes of their VMs; a VM that is not in the table has none.
    pub fn classify(rows: &mut [Row], classes: &Classes) {
        for row in rows {
            if let Ok(costs) = &mut row.costs {
                costs.class = classes.get(&row.vm).cloned();
            }
        }
    }
}

/// The VM of a recording: the name of the file without its folders and extension.
pub fn vm_of(recording: &str) -> String {
    let name = recording.rsplit('/').next().unwrap_or(recording);
    name.strip_suffix(EXTENSION).unwrap_or(name).to_owned()
}

const EXTENSION: &str = ".parquet";

/// The recordings (`*.parquet`) of a folder and the folders below it, by their paths from it, in order.
/// Symbolic links to folders are not followed, but are among them: whoever opens them reports that they are left out.
///
/// # Errors
/// The folder that cannot be read, and why.
pub fn recordings(folder: &Path) -> Result<Vec<String>, (PathBuf, io::Error)> {
    let mut found = vec![];
    let mut open = vec![PathBuf::new()];
    while let Some(below) = open.pop() {
        let here = folder.join(&below);
        let failed = |error| (here.clone(), error);
        for entry in fs::read_dir(&here).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let path = below.join(entry.file_name());
            let kind = entry.file_type().map_err(failed)?;
            let is_linked = || kind.is_symlink() && entry.path().is_dir();
            if kind.is_dir() {
                open.push(path);
            } else if path.as_os_str().as_encoded_bytes().ends_with(EXTENSION.as_bytes()) || is_linked() {
                // A name that is not UTF-8 cannot be opened in this form, and the recording is reported as left out.
                found.push(path.to_string_lossy().into_owned());
            }
        }
    }
    found.sort_unstable();
    Ok(found)
}

/// Classes of VMs, by their names.
pub type Classes = BTreeMap<String, String>;

/// A text is no table of classes.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClassesError {
    /// The first line is another one.
    #[error("the first line has to be `vm,class`")]
    Heading,
    /// A line has not two values.
    #[error("line {line} has {values} values; each line has a VM and its class, without quotes")]
    Line {
        /// From 1.
        line: usize,
        /// How many it has.
        values: usize,
    },
    /// A VM or its class has no name.
    #[error("line {line}: the VM or its class is empty")]
    Empty {
        /// From 1.
        line: usize,
    },
    /// A VM is in two classes.
    #[error("line {line}: `{vm}` has a class already")]
    Twice {
        /// From 1.
        line: usize,
        vm: String,
    },
}

/// Reads a table with the columns `vm` and `class`, separated by commas, without quotes.
///
/// # Errors
/// [`ClassesError`], which names the line.
pub fn classes(text: &str) -> Result<Classes, ClassesError> {
    // Spreadsheets begin a text with a mark of its encoding.
    let mut lines = (1..).zip(text.strip_prefix('\u{feff}').unwrap_or(text).lines());
    if lines.next().is_none_or(|(_, heading)| heading.trim() != "vm,class") {
        return Err(ClassesError::Heading);
    }
    let mut classes = Classes::new();
    for (line, text) in lines.filter(|(_, text)| !text.trim().is_empty()) {
        let values: Vec<&str> = text.split(',').map(str::trim).collect();
        let [vm, class] = values[..] else {
            return Err(ClassesError::Line { line, values: values.len() });
        };
        if vm.is_empty() || class.is_empty() {
            return Err(ClassesError::Empty { line });
        }
        if classes.insert(vm.to_owned(), class.to_owned()).is_some() {
            return Err(ClassesError::Twice { line, vm: vm.to_owned() });
        }
    }
    Ok(classes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vm_is_named_after_its_file() {
        assert_eq!(vm_of("day1/vm7.parquet"), "vm7");
        assert_eq!(vm_of("s3://bucket/day1/vm7.parquet"), "vm7");
        assert_eq!(vm_of("vm7"), "vm7");
    }

    #[test]
    fn recordings_are_found_in_all_folders_in_order() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("b/c")).unwrap();
        for name in ["z.parquet", "b/a.parquet", "b/c/a.parquet", "b/notes.txt"] {
            fs::write(folder.path().join(name), "").unwrap();
        }
        assert_eq!(recordings(folder.path()).unwrap(), ["b/a.parquet", "b/c/a.parquet", "z.parquet"]);
        // A link to a folder is not passed over either.
        std::os::unix::fs::symlink("b", folder.path().join("link")).unwrap();
        let found = recordings(folder.path()).unwrap();
        assert_eq!(found, ["b/a.parquet", "b/c/a.parquet", "link", "z.parquet"]);
        // A name that is not UTF-8 is not passed over.
        let odd = std::os::unix::ffi::OsStrExt::from_bytes(b"y\xff.parquet");
        fs::write(folder.path().join(odd as &std::ffi::OsStr), "").unwrap();
        assert!(recordings(folder.path()).unwrap().contains(&"y\u{fffd}.parquet".to_owned()));
        assert_eq!(recordings(&folder.path().join("nowhere")).unwrap_err().1.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn tables_of_classes_name_the_line_that_is_wrong() {
        let table = classes("vm,class\na,db\n\nb, web \n").unwrap();
        assert_eq!(
            table,
            [("a", "db"), ("b", "web")].map(|(a, b)| (a.to_owned(), b.to_owned())).into_iter().collect()
        );
        assert_eq!(classes("\u{feff}vm,class\r\na,db\r\nb,web\r\n"), Ok(table));
        assert_eq!(classes("a,db\n"), Err(ClassesError::Heading));
        assert_eq!(classes("vm,class\na\n"), Err(ClassesError::Line { line: 2, values: 1 }));
        for table in ["vm,class\na,db\nb,\n", "vm,class\na,db\n ,web\n"] {
            assert_eq!(classes(table), Err(ClassesError::Empty { line: 3 }));
        }
        let twice = classes("vm,class\na,db\na,web\n");
        assert_eq!(twice, Err(ClassesError::Twice { line: 3, vm: "a".to_owned() }));
    }
}
