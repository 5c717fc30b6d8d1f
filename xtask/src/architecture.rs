//! ARCHITECTURE.md speaks of what is there: every crate has its row, every place to start reading exists, and every
//! invariant names the test or check that keeps it.

use std::path::Path;

use anyhow::{Context, Result, bail};

const DOCUMENT: &str = "ARCHITECTURE.md";

pub fn check() -> Result<()> {
    println!("==> {DOCUMENT} names what is there");
    let text = std::fs::read_to_string(DOCUMENT).with_context(|| format!("read {DOCUMENT}"))?;
    let faults = faults(&text, Path::new("."))?;
    match faults.is_empty() {
        true => Ok(()),
        false => bail!("{DOCUMENT} is not true:\n  {}", faults.join("\n  ")),
    }
}

fn faults(text: &str, root: &Path) -> Result<Vec<String>> {
    let mut faults = Vec::new();
    let mut rows = Vec::new();
    for line in section(text, "## The map").lines().filter(|line| line.starts_with("| ")) {
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        let [rooms, _, start] = cells.as_slice() else { continue };
        let rooms: Vec<&str> = rooms.split(", ").filter(|room| root.join(room).is_dir()).collect();
        for place in code(start) {
            let places = rooms
                .iter()
                .flat_map(|room| ["src", ""].map(|folder| root.join(room).join(folder).join(place)));
            if !places.into_iter().any(|path| path.exists() || path.with_extension("rs").exists()) {
                faults.push(format!("{}: there is no {place}", rooms.join(", ")));
            }
        }
        rows.extend(rooms);
    }
    for plane in ["base", "client", "server", "control", "node", "cli", "bin", "tests"] {
        let entries = std::fs::read_dir(root.join(plane)).with_context(|| format!("read {plane}/"))?;
        for entry in entries {
            let room = format!("{plane}/{}", entry?.file_name().to_string_lossy());
            if root.join(&room).join("Cargo.toml").is_file() && !rows.contains(&room.as_str()) {
                faults.push(format!("{room} has no row in the map"));
            }
        }
    }
    for invariant in invariants(section(text, "## Invariants")) {
        let tests: Vec<(&str, &str)> = code(&invariant).filter_map(|word| word.split_once("::")).collect();
        if tests.is_empty() && !code(&invariant).any(|word| word.starts_with("cargo xtask ")) {
            faults.push(format!("no test is named for {invariant:?}"));
        }
        for (file, test) in tests {
            let source = std::fs::read_to_string(root.join(file)).unwrap_or_default();
            if !source.contains(&format!("fn {test}(")) {
                faults.push(format!("{file} has no test {test}"));
            }
        }
    }
    Ok(faults)
}

fn section<'a>(text: &'a str, title: &str) -> &'a str {
    let after = text.split_once(title).map_or("", |(_, after)| after);
    after.split("\n## ").next().unwrap_or(after)
}

/// Numbered items, each with the lines that go on below it.
fn invariants(text: &str) -> Vec<String> {
    let mut items: Vec<String> = Vec::new();
    for line in text.lines() {
        match line.starts_with(char::is_numeric) {
            true => items.push(line.to_owned()),
            false => {
                if let Some(item) = items.last_mut() {
                    item.push('\n');
                    item.push_str(line);
                }
            }
        }
    }
    items
}

/// What stands between backticks.
fn code(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_is_true() {
        let text = std::fs::read_to_string(Path::new("..").join(DOCUMENT)).expect("the document");
        assert_eq!(faults(&text, Path::new("..")).expect("folders"), [""; 0]);
    }

    #[test]
    fn missing_files_and_tests_of_the_architecture_page_are_found() {
        let text = "## The map\n| base/api | x | `nowhere.rs` |\n## Invariants\n1. **A.** Nothing.\n2. **B.**\n   \
                    (`base/api/tests/depth.rs::no_such_test`)\n";
        let faults = faults(text, Path::new("..")).expect("folders");
        for fault in ["base/api: there is no nowhere.rs", "base/patch has no row in the map"] {
            assert!(faults.contains(&fault.to_owned()), "{faults:?}");
        }
        assert!(
            faults.iter().any(|fault| fault.starts_with("no test is named for \"1. **A.**")),
            "{faults:?}"
        );
        assert!(
            faults.contains(&"base/api/tests/depth.rs has no test no_such_test".to_owned()),
            "{faults:?}"
        );
    }
}
