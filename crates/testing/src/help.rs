//! The help of a program, and command lines in pages that have to be in it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The lines of a page: those of prose, and those inside fences with the fence's language.
#[derive(Debug)]
pub enum Line<'a> {
    Prose(&'a str),
    /// The language of the fence, and the line.
    Code(&'a str, &'a str),
}

/// The lines of a page.
pub fn lines(text: &str) -> Vec<Line<'_>> {
    let mut fence = None;
    let mut lines = vec![];
    for line in text.lines() {
        match (line.strip_prefix("```"), fence) {
            (Some(_), Some(_)) => fence = None,
            (Some(language), None) => fence = Some(language),
            (None, Some(language)) => lines.push(Line::Code(language, line)),
            (None, None) => lines.push(Line::Prose(line)),
        }
    }
    lines
}

pub fn inline_code(line: &str) -> Vec<&str> {
    line.split('`').skip(1).step_by(2).collect()
}

/// Help of a program, one text for each command.
#[derive(Debug)]
pub struct Help {
    program: PathBuf,
    name: String,
    /// By command, with `dwell` or `dwell record host` as the key.
    pub texts: BTreeMap<String, String>,
}

impl Help {
    /// Asks the program, and all its commands.
    ///
    /// # Panics
    /// If it cannot be started, or a command has no help.
    pub fn read(program: &Path) -> Help {
        let name = program.file_name().expect("a program has a name").to_string_lossy().into_owned();
        let mut help = Help { program: program.to_owned(), name: name.clone(), texts: BTreeMap::new() };
        help.add(&name);
        help
    }

    fn add(&mut self, command: &str) {
        let args: Vec<&str> = command.split(' ').skip(1).collect();
        let output = Command::new(&self.program)
            .args(args)
            .arg("--help")
            .env("COLUMNS", "100")
            .output()
            .expect("the program can be started");
        assert!(output.status.success(), "{command} --help: {}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).expect("help is UTF-8");
        let subs: Vec<String> = text
            .lines()
            // Those of the program may be in groups.
            .skip_while(|line| !["Everyday:", "Commands:"].contains(line))
            .take_while(|line| !["Options:", "Arguments:"].contains(line))
            .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
            .map(|line| line.split_whitespace().next().expect("a line has a word").to_owned())
            .filter(|name| name != "help")
            .collect();
        self.texts.insert(command.to_owned(), text);
        for sub in subs {
            self.add(&format!("{command} {sub}"));
        }
    }

    /// Commands directly below this one.
    pub fn below(&self, command: &str) -> Vec<&str> {
        let depth = command.split(' ').count() + 1;
        let begins = format!("{command} ");
        self.texts
            .keys()
            .map(String::as_str)
            .filter(|key| key.starts_with(&begins) && key.split(' ').count() == depth)
            .collect()
    }

    /// What is wrong with a command line, given without the name of the program.
    pub fn check(&self, words: &[&str]) -> Option<String> {
        let mut command = self.name.clone();
        let mut words = words.iter().peekable();
        while let Some(word) = words.peek() {
            let longer = format!("{command} {word}");
            if !self.texts.contains_key(&longer) {
                break;
            }
            command = longer;
            words.next();
        }
        let named = |word: &str| word.starts_with(|c: char| c.is_ascii_lowercase());
        if let Some(word) = words.peek().filter(|word| !self.below(&command).is_empty() && named(word)) {
            return Some(format!("{command} has no sub-command {word}"));
        }
        let options: BTreeSet<&str> = self.texts[&command]
            .split(|c: char| !(c.is_alphanumeric() || c == '-'))
            .filter(|word| word.starts_with("-"))
            .collect();
        words
            .filter(|word| word.starts_with('-') && word.len() > 1)
            .map(|word| word.split('=').next().expect("a split has a first part"))
            .find(|option| !options.contains(option))
            .map(|option| format!("{command} has no option {option}"))
    }
}

/// The words after the name of a program of every call of it in a line of code or a piece of inline code.
pub fn calls<'a>(code: &'a str, program: &str) -> Vec<Vec<&'a str>> {
    let code = code.split(" #").next().unwrap_or(code);
    let mut calls = vec![];
    for part in code.split(['|', ';', '>', '&']) {
        let words: Vec<&str> =
            part.split_whitespace().map(|word| word.trim_matches(['\'', '"', '[', ']', '(', ')'])).collect();
        let called = match words.as_slice() {
            ["cargo", "run", rest @ ..] if !rest.contains(&"--example") && program == "dwell" => {
                rest.iter().position(|word| *word == "--").map(|at| at + 2)
            }
            words => words.iter().take(3).position(|word| word.rsplit('/').next() == Some(program)),
        };
        if let Some(at) = called {
            calls
                .push(words[at + 1..].iter().copied().filter(|word| *word != "\\" && *word != "…").collect());
        }
    }
    calls
}
