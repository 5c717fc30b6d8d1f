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
    if let Some(why) = unknown_to_go(pattern) {
        return Err(format!("error parsing regexp: {why}"));
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

/// The most repetitions that Go's syntax has.
const MOST_REPETITIONS: u32 = 1_000;

/// What our engine would take and Go's does not, or what it would refuse in other words; `None` where both know the same.
fn unknown_to_go(pattern: &str) -> Option<String> {
    let mut rest = pattern;
    // Where the repetition begins that was just read: another one may not follow.
    let mut repetition: Option<&str> = None;
    while let Some(char) = rest.chars().next() {
        let tail = &rest[char.len_utf8()..];
        let operator = match char {
            '*' | '+' | '?' => 1,
            '{' if repeats(tail) => tail.find('}').map_or(1, |end| end + 2),
            _ => 0,
        };
        if operator > 0 {
            if let Some(before) = repetition {
                let both = &before[..before.len() - rest.len() + operator];
                return Some(format!("invalid nested repetition operator: `{both}`"));
            }
            if char == '{' && !is_repeat_count(&rest[1..operator - 1]) {
                return Some(format!("invalid repeat count: `{}`", &rest[..operator]));
            }
            repetition = Some(rest);
            rest = &rest[operator..];
            // It takes as little as it can.
            rest = rest.strip_prefix('?').unwrap_or(rest);
            continue;
        }
        repetition = None;
        rest = match char {
            '\\' => match escape_unknown_to_go(tail) {
                Some(name) => return Some(format!("invalid escape sequence: `\\{name}`")),
                None if tail.starts_with('Q') => tail.split_once("\\E").map_or("", |(_, after)| after),
                None => &tail[tail.chars().next().map_or(0, char::len_utf8)..],
            },
            '[' => after_class(tail),
            '(' if tail.starts_with('?') => {
                let flags = tail[1..].trim_start_matches(['i', 'm', 's', 'U', '-']);
                let named = flags.strip_prefix("P<").or(flags.strip_prefix('<'));
                match named {
                    Some(name) if name.starts_with(['=', '!']) => {
                        return Some(format!("invalid named capture: `{rest}`"));
                    }
                    None if !flags.starts_with([':', ')']) => {
                        let read = rest.len() - flags.len() + flags.chars().next().map_or(0, char::len_utf8);
                        return Some(format!("invalid or unsupported Perl syntax: `{}`", &rest[..read]));
                    }
                    _ => flags,
                }
            }
            _ => tail,
        };
    }
    None
}

fn is_repeat_count(inside: &str) -> bool {
    let (least, most) = inside.split_once(',').unwrap_or((inside, inside));
    let number = |text: &str| text.parse::<u32>().ok().filter(|number| *number <= MOST_REPETITIONS);
    match (number(least), most) {
        (Some(_), "") => true,
        (Some(least), most) => number(most).is_some_and(|most| least <= most),
        (None, _) => false,
    }
}

/// The character after a backslash, where Go's syntax has no such escape.
fn escape_unknown_to_go(tail: &str) -> Option<char> {
    let char = tail.chars().next()?;
    let is_known = match char {
        // A digit alone would mean a group that was matched before.
        '1'..='7' => tail[1..].starts_with(|next| matches!(next, '0'..='7')),
        _ => !char.is_ascii_alphanumeric() || "0xafnrtvAbBzQEdDsSwWpP".contains(char),
    };
    (!is_known).then_some(char)
}

/// What follows a class, whose bracket was read. What is wrong inside our engine says.
fn after_class(mut tail: &str) -> &str {
    tail = tail.strip_prefix('^').unwrap_or(tail);
    tail = tail.strip_prefix(']').unwrap_or(tail);
    loop {
        let Some(char) = tail.chars().next() else { return tail };
        let after = &tail[char.len_utf8()..];
        tail = match char {
            ']' => return after,
            '\\' => &after[after.chars().next().map_or(0, char::len_utf8)..],
            '[' if after.starts_with(':') => match after[1..].split_once(":]") {
                Some((name, after))
                    if name.bytes().all(|byte| byte.is_ascii_alphabetic() || byte == b'^') =>
                {
                    after
                }
                _ => after,
            },
            _ => after,
        };
    }
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
        // Up to three octal digits.
        '0'..='7' => {
            let digits = tail.bytes().take(3).take_while(|byte| (b'0'..=b'7').contains(byte)).count();
            let (octal, after) = tail.split_at(digits);
            let code = u32::from_str_radix(octal, 8).unwrap_or(0);
            out.push_str(&format!(r"\x{{{code:x}}}"));
            return after;
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
        check(r"^a{1000}?$", &[&"a".repeat(1000)], &["a"]);
        check(r"^a*?b+?c??$", &["ab"], &["a"]);
        check(r"^[*+?{}()]+[[:alpha:]*]+(?i)x(?:y)(?P<n>z)(?<m>z)$", &["*+a*XyzZ"], &["a"]);
        check(r"^\101\0?[\]*]+$", &["A]*"], &["101"]);
        check(r"^\Q**\E$", &["**"], &["*"]);
        check(r"^a{,2}{,2}$", &["a{,2}{,2}"], &["aa"]);
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
        // What our engine knows and Go's does not, in the words of a kube-apiserver 1.36.4.
        for (pattern, expected) in [
            ("a{1001}", "invalid repeat count: `{1001}`"),
            ("x{2,1}", "invalid repeat count: `{2,1}`"),
            ("a**", "invalid nested repetition operator: `**`"),
            ("a?+", "invalid nested repetition operator: `?+`"),
            ("a{2}{3}", "invalid nested repetition operator: `{2}{3}`"),
            ("(?=a)", "invalid or unsupported Perl syntax: `(?=`"),
            ("(?x)a b", "invalid or unsupported Perl syntax: `(?x`"),
            ("(?<=a)b", "invalid named capture: `(?<=a)b`"),
            (r"(a)\1", r"invalid escape sequence: `\1`"),
            (r"abc\Z", r"invalid escape sequence: `\Z`"),
            (r"\u0041", r"invalid escape sequence: `\u`"),
        ] {
            assert_eq!(why(pattern), format!("error parsing regexp: {expected}"), "{pattern}");
        }
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
