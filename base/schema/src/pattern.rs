//! Regular expressions of schemas: written for Go's engine, run by ours. Both take time linear in the text.
//!
//! A compiled expression is much larger than its text, so the process keeps a bounded number of those that
//! were used last, for all schemas together, and compiles the others again.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use parking_lot::RwLock;
use regex::{Regex, RegexBuilder};

/// The most memory that one compiled expression may take; upstream's limits (1,000 repetitions, nested ones
/// multiplied) lie in the same order.
const SIZE_LIMIT: usize = 2 << 20;
/// Compiled expressions that are kept.
const KEPT: usize = 256;

/// The compiled expression, or why it is none.
pub fn compile(pattern: &str) -> Result<Arc<Regex>, String> {
    static CACHE: LazyLock<RwLock<HashMap<Box<str>, Arc<Regex>>>> = LazyLock::new(RwLock::default);
    if let Some(found) = CACHE.read().get(pattern) {
        return Ok(found.clone());
    }
    let compiled = RegexBuilder::new(&translate(pattern))
        .size_limit(SIZE_LIMIT)
        .dfa_size_limit(SIZE_LIMIT)
        .build()
        .map_err(|error| error_text(&error, pattern))?;
    let compiled = Arc::new(compiled);
    let mut cache = CACHE.write();
    if cache.len() >= KEPT {
        cache.clear();
    }
    cache.insert(pattern.into(), compiled.clone());
    Ok(compiled)
}

/// What is wrong with an expression, in Go's words for what is wrong most often.
fn error_text(error: &regex::Error, pattern: &str) -> String {
    let text = error.to_string();
    let last = text.lines().last().unwrap_or(&text);
    let last = last.strip_prefix("error: ").unwrap_or(last);
    let why = match last {
        "unclosed group" => format!("missing closing ): `{pattern}`"),
        "unopened group" => format!("unexpected ): `{pattern}`"),
        "unclosed character class" => {
            let class = pattern.rfind('[').map_or(pattern, |at| &pattern[at..]);
            format!("missing closing ]: `{class}`")
        }
        "repetition operator missing expression" if pattern.starts_with(['*', '+', '?']) => {
            format!("missing argument to repetition operator: `{}`", &pattern[..1])
        }
        other => other.to_string(),
    };
    format!("error parsing regexp: {why}")
}

/// The expression in our engine's syntax. Where the two differ: classes (`\d`, `\w`, `\s`, `\b`) are of ASCII in
/// Go; a brace that repeats nothing stands for itself; a bracket inside a class does, too; `\Q…\E` quotes.
fn translate(pattern: &str) -> String {
    let mut out = String::with_capacity(pattern.len() + 16);
    let mut rest = pattern;
    let mut class = false;
    while let Some(char) = rest.chars().next() {
        let tail = &rest[char.len_utf8()..];
        rest = match char {
            '\\' => escape(&mut out, tail, class),
            '[' if !class => {
                class = true;
                open_class(&mut out, tail)
            }
            '[' => match tail.strip_prefix(':').and_then(|tail| tail.split_once(":]")) {
                Some((name, after)) if name.chars().all(|char| char.is_ascii_alphabetic() || char == '^') => {
                    out.push_str("[:");
                    out.push_str(name);
                    out.push_str(":]");
                    after
                }
                _ => {
                    out.push_str("\\[");
                    tail
                }
            },
            ']' if class => {
                class = false;
                out.push(']');
                tail
            }
            '&' | '~' if class => {
                out.push('\\');
                out.push(char);
                tail
            }
            '{' if !class && !repeats(tail) => {
                out.push_str("\\{");
                tail
            }
            '}' if !class && !open_brace(&out) => {
                out.push_str("\\}");
                tail
            }
            other => {
                out.push(other);
                tail
            }
        };
    }
    out
}

/// What follows the bracket that opens a class.
fn open_class<'p>(out: &mut String, mut tail: &'p str) -> &'p str {
    out.push('[');
    if let Some(after) = tail.strip_prefix('^') {
        out.push('^');
        tail = after;
    }
    // First in a class it is one of the characters.
    if let Some(after) = tail.strip_prefix(']') {
        out.push_str("\\]");
        tail = after;
    }
    tail
}

/// What follows a backslash.
fn escape<'p>(out: &mut String, tail: &'p str, class: bool) -> &'p str {
    let Some(char) = tail.chars().next() else {
        out.push('\\');
        return tail;
    };
    let after = &tail[char.len_utf8()..];
    let (digits, words, spaces) = ("0-9", "0-9A-Za-z_", r"\t\n\x0C\r ");
    let mut listed = |set: &str, negated: bool| match (class, negated) {
        (true, false) => out.push_str(set),
        (_, true) => out.push_str(&format!("[^{set}]")),
        (false, false) => out.push_str(&format!("[{set}]")),
    };
    match char {
        'd' => listed(digits, false),
        'D' => listed(digits, true),
        'w' => listed(words, false),
        'W' => listed(words, true),
        's' => listed(spaces, false),
        'S' => listed(spaces, true),
        'b' | 'B' => out.push_str(&format!(r"(?-u:\{char})")),
        '<' | '>' => out.push(char),
        'Q' => {
            let (quoted, after) = after.split_once("\\E").unwrap_or((after, ""));
            out.push_str(&regex::escape(quoted));
            return after;
        }
        // `\p{…}` and `\x{…}` have braces of their own.
        'p' | 'P' | 'x' if after.starts_with('{') => {
            let end = after.find('}').map_or(after.len(), |at| at + 1);
            out.push('\\');
            out.push(char);
            out.push_str(&after[..end]);
            return &after[end..];
        }
        other => {
            out.push('\\');
            out.push(other);
        }
    }
    after
}

/// `3}`, `3,}` or `3,5}`.
fn repeats(tail: &str) -> bool {
    let Some((inside, _)) = tail.split_once('}') else { return false };
    let (least, most) = inside.split_once(',').unwrap_or((inside, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    !least.is_empty() && digits(least) && digits(most)
}

/// The brace before belongs to a repetition that is still open.
fn open_brace(out: &str) -> bool {
    let open = out.rfind('{');
    open.is_some_and(|open| {
        !out[open..].contains('}')
            && !out[..open].ends_with('\\')
            && out[open + 1..].bytes().all(|byte| byte.is_ascii_digit() || byte == b',')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(pattern: &str, matches: &[&str], others: &[&str]) {
        let compiled = compile(pattern).unwrap_or_else(|why| panic!("{pattern}: {why}"));
        matches.iter().for_each(|text| assert!(compiled.is_match(text), "{pattern} matches {text:?}"));
        others.iter().for_each(|text| assert!(!compiled.is_match(text), "{pattern} does not match {text:?}"));
    }

    #[test]
    fn expressions_mean_what_they_mean_in_go() {
        check(r"^\d+$", &["12"], &["١٢", "a"]);
        check(r"^\w+\s\S$", &["a_1 b"], &["é b"]);
        check(r"^[\d\-\w]+$", &["1-a"], &["é", " "]);
        check(r"^a{2}$", &["aa"], &["a"]);
        check(r"^a{$", &["a{"], &["a"]);
        check(r"^{a}$", &["{a}"], &["a"]);
        check(r"^a{,2}$", &["a{,2}"], &["aa"]);
        check(r"^[[]$", &["["], &["]"]);
        check(r"^[]]$", &["]"], &["["]);
        check(r"^[[:alpha:]]$", &["a"], &["1"]);
        check(r"^[a&&b]+$", &["a&b"], &["c"]);
        check(r"^\Qa.b\E$", &["a.b"], &["axb"]);
        check(r"^\p{L}{2}$", &["éa"], &["1"]);
        check(r"\bfoo\b", &["a foo"], &["afoo"]);
        check(r"^\/\<$", &["/<"], &["x"]);
        check(r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?)?$", &["", "a-b"], &["-a"]);
    }

    #[test]
    fn an_expression_that_would_grow_is_refused() {
        assert!(compile("((((a{100}){100}){100}){100}){100}").is_err());
        assert!(compile("(").is_err());
        let why = |pattern: &str| compile(pattern).expect_err("no pattern");
        assert_eq!(why("a("), "error parsing regexp: missing closing ): `a(`");
        assert_eq!(why("a)"), "error parsing regexp: unexpected ): `a)`");
        assert_eq!(why("a[b"), "error parsing regexp: missing closing ]: `[b`");
        assert_eq!(why("+"), "error parsing regexp: missing argument to repetition operator: `+`");
        // Linear, however often it could be split.
        let compiled = compile("^(a+)+$").expect("fine");
        assert!(!compiled.is_match(&format!("{}b", "a".repeat(100_000))));
    }

    #[test]
    fn the_cache_stays_bounded() {
        for at in 0..KEPT * 2 {
            compile(&format!("^x{{{}}}$", at % 900)).expect("fine");
        }
        assert!(compile("^x{3}$").is_ok());
    }
}
