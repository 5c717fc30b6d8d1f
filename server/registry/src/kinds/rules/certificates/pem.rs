//! PEM blocks as Go's `encoding/pem` finds them, which decides what upstream accepts: what is no block is skipped, lines
//! with a colon before the data are headers.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;

#[derive(Debug, PartialEq, Eq)]
pub struct Block {
    pub label: String,
    pub has_headers: bool,
    pub bytes: Vec<u8>,
}

/// The blocks of a text, in order.
pub fn blocks(text: &str) -> Blocks<'_> {
    Blocks { rest: text }
}

pub struct Blocks<'a> {
    rest: &'a str,
}

const BEGIN: &str = "-----BEGIN ";
const END: &str = "-----END ";
const DASHES: &str = "-----";

impl Iterator for Blocks<'_> {
    type Item = Block;

    /// From the first end, back to the last beginning before it: text is looked at once, however many beginnings have no end.
    fn next(&mut self) -> Option<Block> {
        loop {
            let text = self.rest;
            let end = match text.starts_with(END) {
                true => 0,
                false => text.find("\n-----END ")? + 1,
            };
            let (last, after) = line(&text[end + END.len()..]);
            self.rest = after;
            if let Some(block) = block(&text[..end], last) {
                return Some(block);
            }
        }
    }
}

/// The block whose last line is `-----END LAST`, and which begins somewhere in the text before it.
fn block(text: &str, last: &str) -> Option<Block> {
    let begin = text.rfind(BEGIN)?;
    if begin > 0 && !text[..begin].ends_with('\n') {
        return None;
    }
    let (first, mut body) = line(&text[begin + BEGIN.len()..]);
    let label = first.strip_suffix(DASHES).filter(|label| last.strip_suffix(DASHES) == Some(label))?;
    let mut has_headers = false;
    loop {
        let (header, after) = line(body);
        if !header.contains(':') {
            break;
        }
        (body, has_headers) = (after, true);
    }
    if has_headers && body.is_empty() {
        return None;
    }
    let digits: Vec<u8> = body.bytes().filter(|byte| !b" \t\r\n".contains(byte)).collect();
    let bytes = BASE64_STANDARD.decode(digits).ok()?;
    Some(Block { label: label.to_owned(), has_headers, bytes })
}

/// The first line without the white space at its end, and the rest.
fn line(text: &str) -> (&str, &str) {
    let (first, rest) = text.split_once('\n').unwrap_or((text, ""));
    (first.trim_end_matches([' ', '\t', '\r']), rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_found_between_other_text() {
        let check = |text: &str, expected: &[(&str, bool, &[u8])]| {
            let found: Vec<Block> = blocks(text).collect();
            let expected = expected.iter().map(|(label, has_headers, bytes)| Block {
                label: (*label).to_owned(),
                has_headers: *has_headers,
                bytes: bytes.to_vec(),
            });
            assert_eq!(found, expected.collect::<Vec<_>>(), "{text:?}");
        };
        check("", &[]);
        check("no block\n", &[]);
        check("-----BEGIN A-----\nYQ==\n-----END A-----\n", &[("A", false, b"a")]);
        check("x\n-----BEGIN A----- \r\nYQ\n ==\n-----END A-----", &[("A", false, b"a")]);
        check("-----BEGIN A-----\n-----END A-----\n", &[("A", false, b"")]);
        check("-----BEGIN A-----\nK: v\n\nYQ==\n-----END A-----\n", &[("A", true, b"a")]);
        check("-----BEGIN A-----\nK: v\n-----END A-----\n", &[]);
        check("-----BEGIN A-----\nYQ==\n-----END B-----\n", &[]);
        check(
            "-----BEGIN A-----\n!\n-----END A-----\n-----BEGIN B-----\nYg==\n-----END B-----",
            &[("B", false, b"b")],
        );
        check("x -----BEGIN A-----\nYQ==\n-----END A-----\n", &[]);
        check("-----BEGIN A-----\nYQ==", &[]);
    }

    #[test]
    fn a_beginning_counts_for_the_end_that_follows_it() {
        let labels = |text: &str| blocks(text).map(|block| block.label).collect::<Vec<_>>();
        assert_eq!(labels("-----BEGIN A-----\n-----BEGIN B-----\nYg==\n-----END B-----\n"), ["B"]);
        assert!(labels("-----END A-----\n-----END A-----\n").is_empty());
    }

    /// As many as a trust bundle may hold. Looking for the end of each would take minutes.
    #[test]
    fn beginnings_and_ends_without_number_are_read_once() {
        for line in [
            "-----BEGIN A-----\n",
            "-----END A-----\n",
            "-----BEGIN A-----\nK: v\n",
            "-----BEGIN A-----\n!\n-----END A-----\n",
        ] {
            let text = line.repeat((1 << 20) / line.len());
            assert_eq!(blocks(&text).count(), 0);
            assert!(blocks(&(text + "-----END A-----\n")).count() <= 1);
        }
    }
}
