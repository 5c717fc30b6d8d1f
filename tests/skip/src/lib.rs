//! Reports what a test cannot check on this machine.
//!
//! `cargo xtask test` passes the name of a file in [`FILE`]; it prints each line that a test writes there at the end of the
//! run. With `CI=true` a test fails if something is missing that could be installed, because nobody would read the report.
//!
//! This crate has no dependencies, so that tests of any crate can use it.

use std::io::Write;

/// Names the file that the lines go to. Not `FERRY_…`: those are options of the programs under test.
pub const FILE: &str = "TEST_NOT_CHECKED";

/// The test checks nothing, for want of what could be there: a program, a package, a right, the facts of upstream.
#[track_caller]
pub fn missing(what: &str) {
    note("skipped", what);
    assert!(!is_ci(), "missing: {what}");
}

/// The test checks nothing, since this machine cannot do it.
pub fn unsupported(why: &str) {
    note("skipped", why);
}

/// The test goes on without checking this.
pub fn unchecked(what: &str) {
    note("unchecked", what);
}

fn is_ci() -> bool {
    std::env::var_os("CI").is_some_and(|value| value == "true" || value == "1")
}

fn note(kind: &str, words: &str) {
    eprintln!("{kind}: {words}");
    let Some(file) = std::env::var_os(FILE) else { return };
    let thread = std::thread::current();
    let line = line(thread.name().unwrap_or_default(), kind, words);
    let file = std::fs::OpenOptions::new().create(true).append(true).open(file);
    // one write: other tests write to the same file
    let written = file.and_then(|mut file| file.write_all(line.as_bytes()));
    written.expect("the file that counts what is not checked can be written");
}

/// The test, what kind of gap it is, and why; the runner reads it back.
fn line(test: &str, kind: &str, words: &str) -> String {
    format!("{test}\t{kind}\t{}\n", words.replace(['\t', '\n'], " "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_one_line() {
        assert_eq!(line("a::b", "skipped", "no\tetcd\nhere"), "a::b\tskipped\tno etcd here\n");
    }
}
