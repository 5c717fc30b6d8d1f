//! The documents that promise something name the tests that show it: each such test has to be there. A test that is renamed
//! or removed would leave a promise that nothing checks.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result, bail};

const DOCUMENTS: [&str; 2] = ["docs/security.md", "docs/reliability.md"];
const ROOMS: [&str; 9] = ["base", "bin", "cli", "client", "control", "node", "server", "tests", "xtask"];

pub fn check() -> Result<()> {
    println!("==> the tests that promises name");
    let mut names = BTreeSet::new();
    for room in ROOMS {
        add_functions(Path::new(room), &mut names)?;
    }
    let mut missing = Vec::new();
    for document in DOCUMENTS {
        let text = std::fs::read_to_string(document).with_context(|| format!("read {document}"))?;
        let tests = named(&text).into_iter().filter(|test| !names.contains(*test));
        missing.extend(tests.map(|test| format!("{document}: {test}")));
    }
    match missing.is_empty() {
        true => Ok(()),
        false => bail!("there are no such tests:\n  {}", missing.join("\n  ")),
    }
}

/// Tests have names like sentences: four words at least. Metrics and fields that documents speak of have fewer, or are not
/// in a table.
fn named(text: &str) -> Vec<&str> {
    let rows = text.lines().filter(|line| line.starts_with("| "));
    let words = rows.flat_map(|row| row.split('`').skip(1).step_by(2));
    let is_name = |word: &&str| {
        let is_of_words = word.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_'));
        is_of_words && word.matches('_').count() >= 3
    };
    words.filter(is_name).collect()
}

fn add_functions(directory: &Path, names: &mut BTreeSet<String>) -> Result<()> {
    let entries = std::fs::read_dir(directory).with_context(|| format!("read {}", directory.display()))?;
    for entry in entries {
        let path = entry?.path();
        if path.is_dir() {
            add_functions(&path, names)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let source =
                std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
            names.extend(source.split("fn ").skip(1).filter_map(|rest| rest.split_once('(')).map(name));
        }
    }
    Ok(())
}

fn name((name, _): (&str, &str)) -> String {
    name.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_told_from_metrics_and_fields() {
        let text = "
| keys | `ferry_storage_no` | keys: `every_certificate_renews_while_the_server_runs`; bin/ferry: `items.rs`, `a_link_is_followed` |
In prose `a_test_that_nobody_looks_for` is none.
";
        assert_eq!(named(text), ["every_certificate_renews_while_the_server_runs", "a_link_is_followed"]);
    }
}
