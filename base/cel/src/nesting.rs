//! How deep an expression nests, before and after it is parsed. The parser bounds brackets, but a chain of operators or
//! members (`1+1+1`, `a.b.c`) nests as deep as it is long, and parser, checker, interpreter and even the drop of the
//! tree recurse along it.

use cel::common::ast::{EntryExpr, Expr, IdedExpr};

/// Links of chains around each other; upstream's parser has the same limit.
pub const MAX_LINKS: usize = 250;
/// Of the parsed tree, in which a macro is several levels.
pub const MAX_LEVELS: usize = 300;
/// For the parser, which goes on after errors and joins the chains before and after them, up to thirty times.
const PARSER_STACK: usize = 128 << 20;
/// What the interpreter takes for a level of the tree, at most.
const LEVEL_STACK: usize = if cfg!(debug_assertions) { 64 << 10 } else { 16 << 10 };

/// Runs the parser and what walks the tree it makes.
pub fn on_parser_stack<T>(parse: impl FnOnce() -> T) -> T {
    stacker::grow(PARSER_STACK, parse)
}

/// Runs the interpreter over a tree of so many levels: on this stack if there is room, as a rule.
pub fn on_stack_for<T>(levels: usize, evaluate: impl FnOnce() -> T) -> T {
    let needed = (levels + 4) * LEVEL_STACK;
    stacker::maybe_grow(needed, needed, evaluate)
}

/// The links of the chains that are open at the deepest place, counted without parsing: never fewer than the parser makes
/// of it. `&&` and `||` start a chain anew, as the parser balances them.
pub fn links(source: &str) -> usize {
    let bytes = source.as_bytes();
    let mut at = 0;
    // What the brackets around have, and how long the chain at hand is.
    let mut open: Vec<usize> = Vec::new();
    let (mut around, mut chain, mut deepest) = (0, 0, 0);
    while let Some(&byte) = bytes.get(at) {
        let rest = &bytes[at..];
        let mut taken = 1;
        match byte {
            b'/' if rest.get(1) == Some(&b'/') => {
                taken = rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len());
            }
            b'"' | b'\'' => match string_length(rest, false) {
                Some(length) => taken = length,
                None => return deepest.max(around + chain + possible_links(rest)),
            },
            b'_' | b'a'..=b'z' | b'A'..=b'Z' => match prefixed_string_length(rest) {
                Some(length) => taken = length,
                None => {
                    let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
                    taken = rest.iter().position(|byte| !is_part(byte)).unwrap_or(rest.len());
                    chain += usize::from(&rest[..taken] == b"in");
                }
            },
            b'(' | b'[' | b'{' => {
                chain += 1;
                open.push(chain);
                around += chain;
                chain = 0;
            }
            b')' | b']' | b'}' => {
                chain = open.pop().unwrap_or(chain);
                around = around.saturating_sub(chain);
            }
            b',' | b':' => chain = 0,
            b'&' | b'|' if rest.get(1) == Some(&byte) => {
                chain = 0;
                taken = 2;
            }
            b'+' | b'-' | b'*' | b'/' | b'%' | b'.' | b'<' | b'>' | b'=' | b'!' => chain += 1,
            _ => {}
        }
        deepest = deepest.max(around + chain);
        at += taken;
    }
    deepest
}

/// Of text whose strings cannot be told: whatever could be a link.
fn possible_links(bytes: &[u8]) -> usize {
    let links = bytes.iter().filter(|byte| b"+-*/%.<>=!([{".contains(byte)).count();
    links + bytes.windows(2).filter(|pair| pair == b"in").count()
}

/// With `r`, `b` or both before it. `None` where an identifier begins.
fn prefixed_string_length(bytes: &[u8]) -> Option<usize> {
    let quote = bytes.iter().take(3).position(|byte| matches!(byte, b'"' | b'\''))?;
    let is_raw = match &bytes[..quote] {
        b"r" | b"R" => true,
        b"b" | b"B" => false,
        [b'b' | b'B', b'r' | b'R'] => true,
        _ => return None,
    };
    Some(quote + string_length(&bytes[quote..], is_raw)?)
}

/// Of a string that begins with its quote, which may be three. `None` where it does not end.
fn string_length(bytes: &[u8], is_raw: bool) -> Option<usize> {
    let quote = bytes[0];
    let ends = |closing: &[u8], has_lines: bool| {
        let mut at = closing.len();
        while !bytes.get(at..)?.starts_with(closing) {
            match bytes.get(at)? {
                b'\\' if !is_raw => at += escape_length(&bytes[at..])?,
                b'\n' | b'\r' if !has_lines => return None,
                _ => at += 1,
            }
        }
        Some(at + closing.len())
    };
    let three = [quote; 3];
    let long = if bytes.starts_with(&three) { ends(&three, true) } else { None };
    long.or_else(|| ends(&[quote], false))
}

fn escape_length(bytes: &[u8]) -> Option<usize> {
    let are = |digits: std::ops::Range<usize>, is_digit: fn(&u8) -> bool| {
        bytes.get(digits.clone())?.iter().all(is_digit).then_some(digits.end)
    };
    match bytes.get(1)? {
        b'a' | b'b' | b'f' | b'n' | b'r' | b't' | b'v' | b'"' | b'\'' | b'\\' | b'?' | b'`' => Some(2),
        b'x' | b'X' => are(2..4, u8::is_ascii_hexdigit),
        b'u' => are(2..6, u8::is_ascii_hexdigit),
        b'U' => are(2..10, u8::is_ascii_hexdigit),
        b'0'..=b'3' => are(2..4, |digit| matches!(digit, b'0'..=b'7')),
        _ => None,
    }
}

/// Of the parsed tree.
pub fn levels(expression: &IdedExpr) -> usize {
    let entry = |entry: &EntryExpr| match entry {
        EntryExpr::MapEntry(entry) => levels(&entry.key).max(levels(&entry.value)),
        EntryExpr::StructField(field) => levels(&field.value),
    };
    let inner = match &expression.expr {
        Expr::Call(call) => call.target.as_deref().into_iter().chain(&call.args).map(levels).max(),
        Expr::Select(select) => Some(levels(&select.operand)),
        Expr::List(list) => list.elements.iter().map(levels).max(),
        Expr::Map(map) => map.entries.iter().map(|given| entry(&given.expr)).max(),
        Expr::Struct(object) => object.entries.iter().map(|given| entry(&given.expr)).max(),
        Expr::Comprehension(looped) => {
            let parts =
                [&looped.iter_range, &looped.accu_init, &looped.loop_cond, &looped.loop_step, &looped.result];
            parts.into_iter().map(levels).max()
        }
        Expr::Ident(_) | Expr::Literal(_) | Expr::Unspecified => None,
    };
    1 + inner.unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chains_are_counted_with_those_around_them() {
        for (source, expected) in [
            ("1", 0),
            ("1 + 1 + 1", 2),
            ("a.b.c && a.b || a.b.c.d", 3),
            ("a.b[c.d.e].f", 4),
            ("[1 + 1, 1 + 1, 1]", 2),
            ("a in b in c", 2),
            ("f(1) + '+++ && \\'...' + r'\\' + \"\"\"a\"b\"\"\" + '' // + 1 + 1\n + br'\\'", 6),
            ("xr'a\\'.b' + 1", 1),
            ("'a' + 'b + c .. + d", 5),
            ("'a\\q' + 1 + 1, 1 + 1 && 1", 3),
        ] {
            assert_eq!(links(source), expected, "{source}");
        }
    }
}
