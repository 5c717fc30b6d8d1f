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

    fn next(&mut self) -> Option<Block> {
        loop {
            let at = match self.rest.starts_with(BEGIN) {
                true => 0,
                false => self.rest.find("\n-----BEGIN ")? + 1,
            };
            let (first, after) = line(&self.rest[at + BEGIN.len()..]);
            self.rest = after;
            let Some(label) = first.strip_suffix(DASHES) else { continue };
            if let Some((block, after)) = block(label, after) {
                self.rest = after;
                return Some(block);
            }
        }
    }
}

/// A block after its first line, and what follows it.
fn block<'a>(label: &str, text: &'a str) -> Option<(Block, &'a str)> {
    let (mut body, mut has_headers) = (text, false);
    loop {
        let (header, after) = line(body);
        if body.is_empty() {
            return None;
        }
        if !header.contains(':') {
            break;
        }
        (body, has_headers) = (after, true);
    }
    let end = match !has_headers && body.starts_with(END) {
        true => 0,
        false => body.find("\n-----END ")? + 1,
    };
    let (last, after) = line(&body[end + END.len()..]);
    if last.strip_suffix(DASHES)? != label {
        return None;
    }
    let digits: Vec<u8> = body[..end].bytes().filter(|byte| !b" \t\r\n".contains(byte)).collect();
    let bytes = BASE64_STANDARD.decode(digits).ok()?;
    Some((Block { label: label.to_owned(), has_headers, bytes }, after))
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
        check("-----BEGIN A-----\nYQ==\n-----END B-----\n", &[]);
        check(
            "-----BEGIN A-----\n!\n-----END A-----\n-----BEGIN B-----\nYg==\n-----END B-----",
            &[("B", false, b"b")],
        );
        check("x -----BEGIN A-----\nYQ==\n-----END A-----\n", &[]);
        check("-----BEGIN A-----\nYQ==", &[]);
    }
}
