//! Writing documents in the style of `kubectl -o yaml`: sorted keys, lists not indented below their
//! key, block literals for text with lines, long plain text folded at 80 columns.

use std::cmp::Ordering;
use std::fmt::Write;

use serde_json::{Map, Value};

use super::scalar;

/// A break is put in at the first space beyond this column.
const WIDTH: usize = 80;
/// A key longer than this, or of several lines, is written with `?`.
const SIMPLE_KEY: usize = 128;

pub fn document(value: &Value) -> String {
    let mut out = Writer::default();
    match value {
        Value::Object(map) if !map.is_empty() => out.mapping(map, 0),
        Value::Array(items) if !items.is_empty() => out.sequence(items, 0),
        value => {
            out.scalar(value, 0);
            out.newline();
        }
    }
    out.text
}

pub fn mapping_document(map: &Map<String, Value>) -> String {
    if map.is_empty() {
        return "{}\n".into();
    }
    let mut out = Writer::default();
    out.mapping(map, 0);
    out.text
}

/// A list without its items, as what stands before and behind them; `items` is the field that they are in. Each is then
/// written by [`item`].
pub fn around_items(list: &Map<String, Value>, items: &str) -> (String, String) {
    let (mut before, mut behind) = (Map::new(), Map::new());
    for (key, value) in list.iter().filter(|(key, _)| *key != items) {
        let part = if natural_order(key, items).is_lt() { &mut before } else { &mut behind };
        part.insert(key.clone(), value.clone());
    }
    let text =
        |part: &Map<String, Value>| if part.is_empty() { String::new() } else { mapping_document(part) };
    (format!("{}{items}:", text(&before)), text(&behind))
}

/// An item of a list that stands in a field of a document.
pub fn item(item: &Map<String, Value>) -> String {
    let mut out = Writer::default();
    out.text.push_str("- ");
    match item.is_empty() {
        true => {
            out.text.push_str("{}");
            out.newline();
        }
        false => out.mapping(item, 2),
    }
    out.text
}

#[derive(Default)]
struct Writer {
    text: String,
    /// Where the line that is being written began.
    line: usize,
}

impl Writer {
    fn column(&self) -> usize {
        self.text[self.line..].chars().count()
    }

    fn newline(&mut self) {
        self.text.push('\n');
        self.line = self.text.len();
    }

    fn indent(&mut self, indent: usize) {
        self.text.extend(std::iter::repeat_n(' ', indent));
    }

    /// Entries, one a line. The first stands where the line is already, the others at `indent`.
    fn mapping(&mut self, map: &Map<String, Value>, indent: usize) {
        for (position, (key, value)) in in_order(map).into_iter().enumerate() {
            if position > 0 {
                self.indent(indent);
            }
            if key.len() <= SIMPLE_KEY && !key.contains(is_break) {
                self.string(key, indent, true);
            } else {
                self.text.push_str("? ");
                self.string(key, indent + 2, false);
                self.newline();
                self.indent(indent);
            }
            self.text.push(':');
            match value {
                Value::Object(inner) if !inner.is_empty() => {
                    self.newline();
                    self.indent(indent + 2);
                    self.mapping(inner, indent + 2);
                }
                Value::Array(items) if !items.is_empty() => {
                    self.newline();
                    self.indent(indent);
                    self.sequence(items, indent);
                }
                value => {
                    self.text.push(' ');
                    self.scalar(value, indent + 2);
                    self.newline_after(value);
                }
            }
        }
    }

    fn sequence(&mut self, items: &[Value], indent: usize) {
        for (position, item) in items.iter().enumerate() {
            if position > 0 {
                self.indent(indent);
            }
            self.text.push_str("- ");
            match item {
                Value::Object(inner) if !inner.is_empty() => self.mapping(inner, indent + 2),
                Value::Array(inner) if !inner.is_empty() => self.sequence(inner, indent + 2),
                value => {
                    self.scalar(value, indent + 2);
                    self.newline_after(value);
                }
            }
        }
    }

    /// A block literal that ends in a break has ended its line already.
    fn newline_after(&mut self, value: &Value) {
        let ended =
            value.as_str().is_some_and(|text| style(text, false) == Style::Literal && text.ends_with('\n'));
        if !ended {
            self.newline();
        }
    }

    fn scalar(&mut self, value: &Value, indent: usize) {
        match value {
            Value::Null => self.text.push_str("null"),
            Value::Bool(given) => self.text.push_str(if *given { "true" } else { "false" }),
            Value::Number(number) => self.number(number),
            Value::String(text) => self.string(text, indent, false),
            Value::Array(_) => self.text.push_str("[]"),
            Value::Object(_) => self.text.push_str("{}"),
        }
    }

    fn number(&mut self, number: &serde_json::Number) {
        let _ = match number.as_f64() {
            Some(float) if number.is_f64() && float.fract() == 0.0 && float.abs() < 1e21 => {
                write!(self.text, "{float}")
            }
            _ => write!(self.text, "{number}"),
        };
    }

    fn string(&mut self, text: &str, indent: usize, is_key: bool) {
        match style(text, is_key) {
            Style::Plain => self.folded(text, indent, !is_key, 0, |out, c| out.push(c)),
            Style::SingleQuoted => {
                self.text.push('\'');
                self.folded(text, indent, !is_key, 1, |out, c| {
                    if c == '\'' {
                        out.push('\'');
                    }
                    out.push(c);
                });
                self.text.push('\'');
            }
            Style::DoubleQuoted => self.double_quoted(text, indent, !is_key),
            Style::Literal => self.literal(text, indent),
        }
    }

    /// Writes text, breaking the line at single spaces once it is too long. `margin` is how many
    /// characters at either end must stay with their neighbours.
    fn folded(
        &mut self,
        text: &str,
        indent: usize,
        may_break: bool,
        margin: usize,
        put: impl Fn(&mut String, char),
    ) {
        let mut after_space = false;
        for (at, c) in text.char_indices() {
            let inside = at >= margin && at + margin < text.len();
            if c == ' ' {
                let single = !after_space && !text[at + 1..].starts_with(' ');
                if may_break && single && inside && self.column() > WIDTH {
                    self.newline();
                    self.indent(indent);
                } else {
                    self.text.push(' ');
                }
                after_space = true;
            } else {
                put(&mut self.text, c);
                after_space = false;
            }
        }
    }

    fn double_quoted(&mut self, text: &str, indent: usize, may_break: bool) {
        self.text.push('"');
        let mut after_space = false;
        for (at, c) in text.char_indices() {
            if c == ' ' {
                if may_break && !after_space && at > 0 && at + 1 < text.len() && self.column() > WIDTH {
                    self.newline();
                    self.indent(indent);
                    if text[at + 1..].starts_with(' ') {
                        self.text.push('\\');
                    }
                } else {
                    self.text.push(' ');
                }
                after_space = true;
                continue;
            }
            after_space = false;
            let code = u32::from(c);
            let _ = match c {
                '\0' => write!(self.text, "\\0"),
                '\x07' => write!(self.text, "\\a"),
                '\x08' => write!(self.text, "\\b"),
                '\t' => write!(self.text, "\\t"),
                '\n' => write!(self.text, "\\n"),
                '\x0b' => write!(self.text, "\\v"),
                '\x0c' => write!(self.text, "\\f"),
                '\r' => write!(self.text, "\\r"),
                '\x1b' => write!(self.text, "\\e"),
                '"' => write!(self.text, "\\\""),
                '\\' => write!(self.text, "\\\\"),
                '\u{85}' => write!(self.text, "\\N"),
                '\u{2028}' => write!(self.text, "\\L"),
                '\u{2029}' => write!(self.text, "\\P"),
                c if is_printable(c) => write!(self.text, "{c}"),
                _ if code <= 0xff => write!(self.text, "\\x{code:02X}"),
                _ if code <= 0xffff => write!(self.text, "\\u{code:04X}"),
                _ => write!(self.text, "\\U{code:08X}"),
            };
        }
        self.text.push('"');
    }

    fn literal(&mut self, text: &str, indent: usize) {
        self.text.push('|');
        if text.starts_with([' ', '\n']) {
            self.text.push('2');
        }
        if !text.ends_with('\n') {
            self.text.push('-');
        } else if text == "\n" || text.ends_with("\n\n") {
            self.text.push('+');
        }
        self.newline();
        let body = text.strip_suffix('\n').unwrap_or(text);
        for (position, line) in body.split('\n').enumerate() {
            if position > 0 {
                self.newline();
            }
            if !line.is_empty() {
                self.indent(indent);
                self.text.push_str(line);
            }
        }
        if text.ends_with('\n') {
            self.newline();
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Style {
    Plain,
    SingleQuoted,
    DoubleQuoted,
    Literal,
}

fn style(text: &str, is_key: bool) -> Style {
    let has_lines = text.contains(is_break);
    let special = !text.chars().all(is_printable);
    let space_before_break = text.contains(" \n");
    if text.contains('\n') {
        let blocked = special || space_before_break || text.ends_with(' ') || is_key;
        return if blocked { Style::DoubleQuoted } else { Style::Literal };
    }
    if scalar::needs_quotes(text) {
        return Style::DoubleQuoted;
    }
    if special || has_lines {
        return Style::DoubleQuoted;
    }
    if text.starts_with(' ') || text.ends_with(' ') || has_indicators(text) {
        return Style::SingleQuoted;
    }
    Style::Plain
}

/// Characters that would mean something else in a plain scalar.
fn has_indicators(text: &str) -> bool {
    let bytes = text.as_bytes();
    let blank_after = |at: usize| matches!(bytes.get(at + 1), None | Some(b' ' | b'\t'));
    let first = match bytes[0] {
        b'#' | b',' | b'[' | b']' | b'{' | b'}' | b'&' | b'*' | b'!' | b'|' | b'>' | b'\'' | b'"' | b'%'
        | b'@' | b'`' => true,
        b'?' | b':' | b'-' => blank_after(0),
        _ => false,
    };
    first
        || text.starts_with("---")
        || text.starts_with("...")
        || bytes.iter().enumerate().skip(1).any(|(at, byte)| match byte {
            b':' => blank_after(at),
            b'#' => matches!(bytes[at - 1], b' ' | b'\t'),
            _ => false,
        })
}

fn is_break(c: char) -> bool {
    matches!(c, '\n' | '\r' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

fn is_printable(c: char) -> bool {
    matches!(c, '\n' | ' '..='~' | '\u{a0}'..='\u{d7ff}' | '\u{e000}'..='\u{fefe}' | '\u{ff00}'..='\u{fffd}')
}

/// The entries in upstream's order. That is no total order (`1b_` before `9.x` before `119` before `1b_`), at which the
/// standard library's sorts may panic: keys are anybody's. A merge gives some order, and the one order where there is one.
fn in_order(map: &Map<String, Value>) -> Vec<(&String, &Value)> {
    let mut runs: Vec<Vec<(&String, &Value)>> = map.iter().map(|entry| vec![entry]).collect();
    while runs.len() > 1 {
        let mut pairs = std::mem::take(&mut runs).into_iter();
        while let Some(first) = pairs.next() {
            runs.push(match pairs.next() {
                Some(second) => merged(first, second),
                None => first,
            });
        }
    }
    runs.pop().unwrap_or_default()
}

fn merged<'m>(
    first: Vec<(&'m String, &'m Value)>,
    second: Vec<(&'m String, &'m Value)>,
) -> Vec<(&'m String, &'m Value)> {
    let mut merged = Vec::with_capacity(first.len() + second.len());
    let (mut first, mut second) = (first.into_iter().peekable(), second.into_iter().peekable());
    while let (Some(one), Some(other)) = (first.peek(), second.peek()) {
        let next = if natural_order(other.0, one.0).is_lt() { second.next() } else { first.next() };
        merged.extend(next);
    }
    merged.extend(first);
    merged.extend(second);
    merged
}

/// Letters after digits, and digits by the number they make: `a2` before `a10`.
fn natural_order(a: &str, b: &str) -> Ordering {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let Some(at) = a.iter().zip(&b).position(|(x, y)| x != y) else { return a.len().cmp(&b.len()) };
    let (x, y) = (a[at], b[at]);
    match (x.is_alphabetic(), y.is_alphabetic()) {
        (true, true) => return x.cmp(&y),
        (true, false) => return Ordering::Greater,
        (false, true) => return Ordering::Less,
        (false, false) => {}
    }
    // Within a number that began before the difference a zero counts as a digit.
    let inside_number =
        (x == '0' || y == '0') && a[..at].iter().rev().take_while(|c| c.is_numeric()).any(|c| *c != '0');
    let number = |text: &[char]| {
        let digits = text[at..].iter().take_while(|c| c.is_ascii_digit());
        let length = digits.clone().count();
        let value = digits.fold(i64::from(inside_number), |n, c| {
            n.wrapping_mul(10).wrapping_add(i64::from(*c as u32 - '0' as u32))
        });
        (value, length)
    };
    number(&a).cmp(&number(&b)).then(x.cmp(&y))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn keys_without_a_total_order_do_not_panic() {
        const SIGNS: &str = "ab0129-._";
        let mut map = Map::new();
        for one in SIGNS.chars() {
            for other in SIGNS.chars() {
                map.extend(SIGNS.chars().map(|third| (format!("{one}{other}{third}"), Value::Null)));
            }
        }
        let written = in_order(&map);
        let mut keys: Vec<&String> = written.iter().map(|(key, _)| *key).collect();
        keys.sort();
        keys.dedup();
        assert_eq!(keys.len(), 9 * 9 * 9);
        let ordered: Map<String, Value> =
            ["b", "a10", "a2", "a", "-", "1"].map(|key| (key.to_string(), Value::Null)).into_iter().collect();
        let keys: Vec<&str> = in_order(&ordered).into_iter().map(|(key, _)| key.as_str()).collect();
        assert_eq!(keys, ["-", "1", "a", "a2", "a10", "b"]);
    }

    #[test]
    fn a_list_in_pieces_is_the_list() {
        let check = |list: Value, field: &str| {
            let map = list.as_object().expect("an object");
            let (before, behind) = around_items(map, field);
            let items = map[field].as_array().expect("items");
            let mut pieces = before;
            pieces.push_str(if items.is_empty() { " []\n" } else { "\n" });
            pieces.extend(items.iter().map(|each| item(each.as_object().expect("an object"))));
            pieces.push_str(&behind);
            assert_eq!(pieces, document(&list));
        };
        let items = json!([{"metadata": {"name": "a", "labels": {"b": "c: d"}}, "data": {"x": "l\nm\n"}}, {}, {"a": []}]);
        check(
            json!({"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": "7"}, "items": items}),
            "items",
        );
        check(json!({"apiVersion": "v1", "kind": "List", "metadata": {}, "items": []}), "items");
        check(json!({"columnDefinitions": [{"name": "Name"}], "kind": "Table", "rows": items}), "rows");
    }
}
