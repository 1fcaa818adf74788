//! The README and the book: links lead somewhere, command lines exist, and the command reference is the program's help.
//!
//! `DWELL_UPDATE_DOCS=1 cargo test -p dwell --test it docs::` writes the command reference anew.

#[path = "../../src/changes.rs"]
mod changes;

use dwell_testing::help::{Help, Line, calls, inline_code, lines};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Component, Path, PathBuf};

/// The folder of the workspace.
fn root() -> PathBuf {
    normal(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."))
}

/// The path without `.` and `..`, as text alone.
fn normal(path: &Path) -> PathBuf {
    let mut parts = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    parts
}

fn markdown_below(folder: &Path, found: &mut BTreeSet<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("the folder can be read") {
        let path = entry.expect("the entry can be read").path();
        if path.is_dir() {
            markdown_below(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            found.insert(path);
        }
    }
}

/// Pages of the book.
fn book() -> BTreeSet<PathBuf> {
    let mut pages = BTreeSet::new();
    markdown_below(&root().join("docs/src"), &mut pages);
    pages
}

/// Pages of the book, and those at the root, in the folders of the crates, and about experiments.
fn pages() -> BTreeSet<PathBuf> {
    let mut pages = book();
    for folder in [root(), root().join("experiments")].into_iter().chain(crates()) {
        for entry in std::fs::read_dir(&folder).expect("the folder can be read") {
            let path = entry.expect("the entry can be read").path();
            if path.extension().is_some_and(|extension| extension == "md") {
                pages.insert(path);
            }
        }
    }
    pages
}

fn crates() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(root().join("crates")).expect("the folder can be read");
    let entries = entries.map(|entry| entry.expect("the entry can be read").path());
    let lab = [root().join("lab"), root().join("lab/blk")];
    entries.filter(|path| path.is_dir()).chain(lab).collect()
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("cannot read {}: {error}", path.display()))
}

fn short(path: &Path) -> String {
    path.strip_prefix(root()).unwrap_or(path).display().to_string()
}

/// Targets of links and images, those in inline code left out.
fn links(line: &str) -> Vec<String> {
    let prose: String = line.split('`').step_by(2).collect::<Vec<_>>().join("code");
    prose
        .split("](")
        .skip(1)
        .filter_map(|rest| rest.split_once(')'))
        .map(|(target, _)| target.to_owned())
        .collect()
}

/// Anchors of a page, as mdBook and code forges make them of headings.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = lines(text).into_iter().filter_map(|line| match line {
        Line::Prose(line) if line.starts_with('#') => Some(line.trim_start_matches('#').trim()),
        _ => None,
    });
    headings
        .map(|heading| {
            let kept = heading
                .to_lowercase()
                .chars()
                .filter(|c| c.is_alphanumeric() || " -_".contains(*c))
                .collect::<String>();
            kept.replace(' ', "-")
        })
        .collect()
}

#[test]
fn links_lead_somewhere() {
    let in_book = root().join("docs/src");
    let (mut wrong, mut checked) = (String::new(), 0);
    for page in pages() {
        let text = read(&page);
        let targets = lines(&text).into_iter().filter_map(|line| match line {
            Line::Prose(line) => Some(links(line)),
            Line::Code(..) => None,
        });
        for target in targets.flatten().filter(|target| !target.contains("://")) {
            checked += 1;
            let (file, anchor) =
                target.split_once('#').map_or((target.as_str(), None), |(file, anchor)| (file, Some(anchor)));
            let path =
                if file.is_empty() { page.clone() } else { normal(&page.parent().unwrap().join(file)) };
            if !path.exists() {
                writeln!(wrong, "{}: {target}: no such file", short(&page)).unwrap();
            } else if page.starts_with(&in_book) && !path.starts_with(&in_book) {
                writeln!(wrong, "{}: {target}: not in the book, so not in its HTML", short(&page)).unwrap();
            } else if anchor.is_some_and(|anchor| !anchors(&read(&path)).contains(anchor)) {
                writeln!(wrong, "{}: {target}: no such heading", short(&page)).unwrap();
            }
        }
    }
    for page in book() {
        for target in read(&page)
            .split("{{#include ")
            .skip(1)
            .filter_map(|rest| rest.split_once("}}"))
            .map(|(target, _)| target)
        {
            checked += 1;
            let (file, anchor) = target.split_once(':').unwrap_or((target, ""));
            let text =
                std::fs::read_to_string(normal(&page.parent().unwrap().join(file))).unwrap_or_default();
            if text.is_empty()
                || !text.lines().any(|line| line.trim_start() == format!("// ANCHOR: {anchor}"))
            {
                writeln!(wrong, "{}: {target}: no such file or anchor", short(&page)).unwrap();
            }
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
    assert!(checked > 50, "only {checked} links found");
    println!("{checked} links");
}

/// The names of the workspace's crates on which a manifest depends, without `dwell-`; not those for tests.
fn dependencies(manifest: &str) -> BTreeSet<String> {
    let mut section = "";
    let mut found = BTreeSet::new();
    for line in manifest.lines() {
        if line.starts_with('[') {
            section = line;
        } else if section.ends_with("dependencies]") && !section.contains("dev-") {
            let name = line.strip_prefix("dwell-").and_then(|rest| rest.split(['.', ' ', '=']).next());
            found.extend(name.map(str::to_owned));
        }
    }
    found
}

#[test]
fn crates_use_only_lower_ones() {
    let page = read(&root().join("docs/src/crates.md"));
    let layers = page.split("```layers\n").nth(1).and_then(|rest| rest.split("```").next()).expect("a block");
    let layers: Vec<Vec<&str>> = layers.lines().map(|line| line.split_whitespace().collect()).collect();
    let layer_of = |name: &str| layers.iter().position(|layer| layer.contains(&name));
    let mut arrows = 0;
    for path in crates() {
        let name = path.file_name().and_then(|name| name.to_str()).expect("UTF-8").to_owned();
        // Helpers of tests are below nothing and above nothing.
        if name == "testing" {
            continue;
        }
        let above = layer_of(&name).unwrap_or_else(|| panic!("crates.md has no layer for {name}"));
        for used in dependencies(&read(&path.join("Cargo.toml"))) {
            if used == "testing" {
                continue;
            }
            let below = layer_of(&used).unwrap_or_else(|| panic!("crates.md has no layer for {used}"));
            assert!(above < below, "{name} uses {used}");
            arrows += 1;
        }
    }
    assert!(arrows > 30, "{arrows}");
}

/// A VMM is no part of what users run, and what users run needs none.
#[test]
fn the_product_does_not_use_the_lab() {
    for path in crates().into_iter().filter(|path| path.starts_with(root().join("crates"))) {
        let used = dependencies(&read(&path.join("Cargo.toml")));
        let of_lab = ["lab", "blk"].into_iter().find(|name| used.contains(*name));
        // What is fuzzed is of both.
        assert!(of_lab.is_none() || path.ends_with("fuzzing"), "{} uses {of_lab:?}", short(&path));
    }
}

/// The text between two words of a page, in one line.
fn between(page: &str, from: &str, to: &str) -> String {
    let text = read(&root().join(page));
    let words: Vec<&str> = text.split_whitespace().collect();
    let text = words.join(" ");
    let rest = text.split_once(from).unwrap_or_else(|| panic!("{page} does not have: {from}")).1;
    rest.split_once(to).unwrap_or_else(|| panic!("{page} does not have: {to}")).0.to_owned()
}

#[test]
fn the_commands_that_change_settings_are_those_that_can() {
    // Of the other program, which has no such list.
    let others = BTreeSet::from(["dwell-lab guest"]);
    for page in ["README.md", "SECURITY.md"] {
        let told = between(page, "* Only ", " change settings.");
        let told: BTreeSet<&str> =
            inline_code(&told).into_iter().filter(|code| !code.starts_with('-')).collect();
        let told: BTreeSet<&str> = told.difference(&others).copied().collect();
        assert_eq!(told, BTreeSet::from(changes::CHANGES), "{page}");
    }
    let help = Help::read(Path::new(env!("CARGO_BIN_EXE_dwell")));
    for command in changes::CHANGES {
        assert_eq!(help.check(&command.split(' ').chain(["--help"]).collect::<Vec<_>>()), None, "{command}");
    }
}

/// Whether a file of source code has unsafe code of its own: tests and comments apart.
fn is_unsafe(source: &str) -> bool {
    let code = source.split("#[cfg(test)]").next().unwrap_or_default();
    code.lines().any(|line| {
        let line = line.trim_start();
        line.starts_with("#[allow(unsafe_code)]") || line.starts_with("#![allow(unsafe_code)]")
    })
}

fn sources_below(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            sources_below(&path, found);
        } else if path.extension().is_some_and(|end| end == "rs") && !path.ends_with("tests.rs") {
            found.push(path);
        }
    }
}

/// The workspace denies unsafe code, so that a crate that has it allows it by name.
#[test]
fn the_crates_with_unsafe_code_are_those_of_the_security_page() {
    assert!(read(&root().join("Cargo.toml")).contains("unsafe_code = \"deny\""));
    let mut found = BTreeSet::new();
    for path in crates() {
        let manifest = read(&path.join("Cargo.toml"));
        assert!(
            manifest.contains("[lints]\nworkspace = true"),
            "{}: not the lints of the workspace",
            short(&path)
        );
        let name =
            manifest.split_once("name = \"").and_then(|(_, rest)| rest.split_once('"')).expect("a name").0;
        let mut sources = vec![];
        sources_below(&path.join("src"), &mut sources);
        // What is only for tests is no part of a program.
        if name != "dwell-testing" && sources.iter().any(|source| is_unsafe(&read(source))) {
            found.insert(name.to_owned());
        }
    }
    let told = between("SECURITY.md", "* `unsafe` code is in", ". Each block has a `SAFETY` comment");
    let told: BTreeSet<String> = inline_code(&told).into_iter().map(str::to_owned).collect();
    assert_eq!(told, found);
}

/// A command is arguments, the work, and what is shown: each fits into a file that is read at once.
#[test]
fn files_of_commands_are_short() {
    let mut sources = vec![];
    sources_below(&root().join("crates/dwell/src/command"), &mut sources);
    assert!(sources.len() > 50);
    for source in sources {
        let lines = read(&source).lines().count();
        assert!(lines <= 300, "{} has {lines} lines; cut it by sense", short(&source));
    }
}

/// Texts name as many cases as there are.
#[test]
fn the_cases_of_the_models_are_counted() {
    let number = |name: &str| {
        let path = root().join("crates/policy/tests/vectors").join(format!("{name}.jsonl"));
        read(&path).lines().filter(|line| !line.trim().is_empty()).count()
    };
    let layers = [
        ("host", number("kvm")),
        ("guest", number("haltpoll")),
        ("timer", number("lapic-advance")),
        ("iothread", number("aio-classic") + number("aio-weighted")),
        ("exits", number("perf-kvm-stat")),
    ];
    let models = read(&root().join("docs/src/models.md"));
    for (layer, cases) in layers {
        let row = models.lines().find(|line| line.starts_with(&format!("| {layer} | "))).unwrap();
        assert!(row.contains(&format!("| {cases} cases")), "{cases}: {row}");
    }
    let all: usize = layers.iter().map(|(_, cases)| cases).sum();
    let of_rules = all - number("perf-kvm-stat");
    for (page, told) in [
        ("README.md", format!("{all} cases")),
        ("crates/policy/README.md", format!("{of_rules} cases of rules")),
    ] {
        assert!(read(&root().join(page)).contains(&told), "{page}: {told}");
    }
}

/// What the pages show of advice on a bundled recording, abridged, is what the program prints.
#[test]
fn the_advice_that_is_shown_is_what_is_printed() {
    for page in ["README.md", "docs/src/tuning.md"] {
        let command = between(page, "$ dwell tune ", " …");
        let printed = std::process::Command::new(env!("CARGO_BIN_EXE_dwell"))
            .arg("tune")
            .args(command.split(' '))
            .current_dir(root())
            .output()
            .expect("the program runs");
        let printed = String::from_utf8(printed.stdout).expect("text");
        let printed = printed.split_whitespace().collect::<Vec<_>>().join(" ");
        for part in between(page, "Advice: ", " … ```").split(" … ") {
            assert!(printed.contains(part), "{page}: `dwell tune {command}` does not print: {part}");
        }
    }
}

#[test]
fn every_page_is_in_the_summary() {
    let summary = root().join("docs/src/SUMMARY.md");
    let listed: BTreeSet<PathBuf> = read(&summary)
        .lines()
        .flat_map(links)
        .map(|link| normal(&summary.parent().unwrap().join(link)))
        .collect();
    let mut pages = book();
    pages.remove(&summary);
    assert_eq!(pages, listed);
}

#[test]
fn command_lines_exist() {
    let help = Help::read(Path::new(env!("CARGO_BIN_EXE_dwell")));
    let (mut wrong, mut checked) = (String::new(), 0);
    for page in pages() {
        // The changelog has names as they were.
        if page.ends_with("CHANGELOG.md") || page.starts_with(root().join("docs/src/reference")) {
            continue;
        }
        let text = read(&page);
        let code = lines(&text).into_iter().flat_map(|line| match line {
            Line::Prose(line) => {
                inline_code(line).into_iter().filter(|code| code.starts_with("dwell ")).collect()
            }
            Line::Code("rust" | "toml" | "json", _) => vec![],
            Line::Code(_, line) => vec![line],
        });
        for call in code.flat_map(|code| calls(code, "dwell")) {
            checked += 1;
            if let Some(problem) = help.check(&call) {
                writeln!(wrong, "{}: {}: {problem}", short(&page), call.join(" ")).unwrap();
            }
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
    assert!(checked > 100, "only {checked} command lines found");
    println!("{checked} command lines");
}

/// Help in a page: trailing blanks are not kept.
fn section(text: &str) -> String {
    let lines: Vec<&str> = text.trim_end().lines().map(str::trim_end).collect();
    format!("```text\n{}\n```\n", lines.join("\n"))
}

#[test]
fn the_command_reference_is_the_help() {
    let help = Help::read(Path::new(env!("CARGO_BIN_EXE_dwell")));
    let folder = root().join("docs/src/reference");
    let mut wanted = BTreeMap::new();
    let mut index =
        format!("# Commands\n\nThe output of `--help`, by command.\n\n{}", section(&help.texts["dwell"]));
    for command in help.below("dwell") {
        let name = command.split(' ').nth(1).expect("a command has a name");
        writeln!(index, "{}* [`{command}`]({name}.md)", if index.ends_with("```\n") { "\n" } else { "" })
            .unwrap();
        let mut page = format!("# {command}\n\n{}", section(&help.texts[command]));
        for sub in help.below(command) {
            write!(page, "\n## {sub}\n\n{}", section(&help.texts[sub])).unwrap();
        }
        wanted.insert(folder.join(format!("{name}.md")), page);
    }
    wanted.insert(folder.join("index.md"), index);

    let mut present = BTreeSet::new();
    markdown_below(&folder, &mut present);
    if std::env::var_os("DWELL_UPDATE_DOCS").is_some() {
        for old in present.iter().filter(|path| !wanted.contains_key(*path)) {
            std::fs::remove_file(old).expect("the page can be removed");
        }
        for (path, text) in &wanted {
            std::fs::write(path, text).expect("the page can be written");
        }
        return;
    }
    let how = "the help has changed: read the difference, then run DWELL_UPDATE_DOCS=1 cargo test -p dwell --test it docs::";
    assert_eq!(present, wanted.keys().cloned().collect(), "{how}");
    for (path, text) in &wanted {
        let found = read(path);
        let differs = found.lines().zip(text.lines()).find(|(found, wanted)| found != wanted);
        assert!(&found == text, "{}: {how}; first difference: {differs:?}", short(path));
    }
}
