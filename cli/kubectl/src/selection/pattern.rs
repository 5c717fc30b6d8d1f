//! File name patterns as Go's `filepath.Glob` reads them, since `-f` takes one where no such file exists.
//!
//! `*` and `?` stay within one path segment, `[a-c]` and `[^a-c]` are classes, `\` takes the next character
//! as it is. Braces and `**` have no meaning of their own, and hidden files match like others.

use std::path::{Path, PathBuf};

/// The pattern is malformed: an open class, an empty one, or a `\` at the end.
#[derive(Debug, PartialEq)]
pub struct Malformed;

/// What matches, directory by directory, sorted in each. A directory that cannot be read matches nothing.
pub fn matches(pattern: &str) -> Result<Vec<PathBuf>, Malformed> {
    // The whole pattern is checked first, so that a malformed one is told even where nothing is.
    segment_matches(pattern, "")?;
    let (start, rest) = match pattern.strip_prefix('/') {
        Some(rest) => (PathBuf::from("/"), rest),
        None => (PathBuf::new(), pattern),
    };
    let mut found = vec![start];
    for segment in rest.split('/').filter(|segment| !segment.is_empty()) {
        let mut deeper = Vec::new();
        for directory in found {
            if !segment.contains(['*', '?', '[', '\\']) {
                let path = directory.join(segment);
                if path.symlink_metadata().is_ok() {
                    deeper.push(path);
                }
                continue;
            }
            for name in names(&directory) {
                if segment_matches(segment, &name)? {
                    deeper.push(directory.join(name));
                }
            }
        }
        found = deeper;
    }
    Ok(found)
}

fn names(directory: &Path) -> Vec<String> {
    let directory = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
    let Ok(entries) = std::fs::read_dir(directory) else { return Vec::new() };
    let mut names: Vec<String> =
        entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
    names.sort();
    names
}

enum Token {
    Any,
    One,
    Literal(char),
    Class { negated: bool, ranges: Vec<(char, char)> },
}

fn segment_matches(pattern: &str, name: &str) -> Result<bool, Malformed> {
    let tokens = tokens(pattern)?;
    let name: Vec<char> = name.chars().collect();
    // Greedy with one place to come back to: the last `*` takes one more character whenever the rest does not fit.
    let (mut token, mut at) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while at < name.len() {
        let fits = match tokens.get(token) {
            Some(Token::Any) => {
                star = Some((token, at));
                token += 1;
                continue;
            }
            Some(Token::One) => name[at] != '/',
            Some(Token::Literal(literal)) => name[at] == *literal,
            Some(Token::Class { negated, ranges }) => {
                ranges.iter().any(|(low, high)| (*low..=*high).contains(&name[at])) != *negated
            }
            None => false,
        };
        if fits {
            token += 1;
            at += 1;
        } else if let Some((starred, taken)) = star.filter(|(_, taken)| name[*taken] != '/') {
            star = Some((starred, taken + 1));
            token = starred + 1;
            at = taken + 1;
        } else {
            return Ok(false);
        }
    }
    Ok(tokens[token..].iter().all(|token| matches!(token, Token::Any)))
}

fn tokens(pattern: &str) -> Result<Vec<Token>, Malformed> {
    let mut tokens = Vec::new();
    let mut rest = pattern.chars().peekable();
    while let Some(character) = rest.next() {
        tokens.push(match character {
            '*' => Token::Any,
            '?' => Token::One,
            '\\' => Token::Literal(rest.next().ok_or(Malformed)?),
            '[' => {
                let negated = rest.next_if_eq(&'^').is_some();
                let mut ranges = Vec::new();
                while ranges.is_empty() || rest.next_if_eq(&']').is_none() {
                    let low = bound(&mut rest)?;
                    let high = if rest.next_if_eq(&'-').is_some() { bound(&mut rest)? } else { low };
                    ranges.push((low, high));
                }
                Token::Class { negated, ranges }
            }
            literal => Token::Literal(literal),
        });
    }
    Ok(tokens)
}

/// A character of a class: `-` and `]` stand there only behind a `\`.
fn bound(rest: &mut impl Iterator<Item = char>) -> Result<char, Malformed> {
    match rest.next() {
        None | Some('-' | ']') => Err(Malformed),
        Some('\\') => rest.next().ok_or(Malformed),
        Some(character) => Ok(character),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_matches_as_go_matches_it() {
        let check = |pattern: &str, name: &str, expected: Result<bool, Malformed>| {
            assert_eq!(segment_matches(pattern, name), expected, "{pattern} {name}");
        };
        check("*.x-k8s.*", "gateway.networking.x-k8s.io_meshes.yaml", Ok(true));
        check("*.x-k8s.*", "gateway.networking.k8s.io_gateways.yaml", Ok(false));
        check("*", ".hidden", Ok(true));
        check("a*b*c", "aXbYbZc", Ok(true));
        check("a*b*c", "aXbYbZcd", Ok(false));
        check("a?c", "abc", Ok(true));
        check("a?c", "ac", Ok(false));
        check("a?", "aß", Ok(true));
        check("[a-c]*", "beta", Ok(true));
        check("[^a-c]*", "beta", Ok(false));
        check("[^a-c]*", "delta", Ok(true));
        check(r"[\-\]]", "]", Ok(true));
        check(r"a\*", "a*", Ok(true));
        check(r"a\*", "ab", Ok(false));
        check("{a,b}", "a", Ok(false));
        check("a*", "a/b", Ok(false));
        check("", "", Ok(true));
        check("", "a", Ok(false));
        for malformed in ["[", "[a", "[]", "[]a]", "[-a]", "[a-]", r"a\", "[^", r"[\"] {
            check(malformed, "a", Err(Malformed));
        }
    }
}
