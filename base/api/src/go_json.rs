//! JSON as Go's encoder writes it: sorted keys, four spaces, `<`, `>` and `&` escaped.

use serde_json::Value;
use std::fmt::Write;

/// What Go's decoder calls a JSON value that it cannot use.
pub fn json_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// Indented, with the newline a printer ends with.
pub fn pretty(value: &Value) -> String {
    pretty_in_order(value, &|_| Vec::new())
}

/// As `pretty`, with the keys of the map at each path in the order `order` gives; the rest follows
/// sorted. Lists do not count in paths.
pub fn pretty_in_order(value: &Value, order: &dyn Fn(&[&str]) -> Vec<String>) -> String {
    let mut out = String::new();
    write_value(&mut out, value, Some(0), &mut Vec::new(), order);
    out.push('\n');
    out
}

/// On one line, as annotations hold it.
pub fn compact(value: &Value) -> String {
    let mut out = String::new();
    write_value(&mut out, value, None, &mut Vec::new(), &|_| Vec::new());
    out
}

fn write_value<'a>(
    out: &mut String,
    value: &'a Value,
    indent: Option<usize>,
    path: &mut Vec<&'a str>,
    order: &dyn Fn(&[&str]) -> Vec<String>,
) {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(flag) => out.push_str(if *flag { "true" } else { "false" }),
        Value::Number(number) => out.push_str(&number_text(number)),
        Value::String(text) => write_string(out, text),
        Value::Array(items) if items.is_empty() => out.push_str("[]"),
        Value::Object(map) if map.is_empty() => out.push_str("{}"),
        Value::Array(items) => {
            out.push('[');
            let inner = indent.map(|depth| depth + 1);
            for (position, item) in items.iter().enumerate() {
                if position > 0 {
                    out.push(',');
                }
                new_line(out, inner);
                write_value(out, item, inner, path, order);
            }
            new_line(out, indent);
            out.push(']');
        }
        Value::Object(map) => {
            out.push('{');
            let inner = indent.map(|depth| depth + 1);
            let first = order(path);
            let rank = |key: &String| first.iter().position(|name| name == key).unwrap_or(usize::MAX);
            let mut keys: Vec<&String> = map.keys().collect();
            keys.sort_by(|a, b| rank(a).cmp(&rank(b)).then_with(|| a.cmp(b)));
            for (position, key) in keys.into_iter().enumerate() {
                if position > 0 {
                    out.push(',');
                }
                new_line(out, inner);
                write_string(out, key);
                out.push_str(if indent.is_some() { ": " } else { ":" });
                path.push(key);
                write_value(out, &map[key], inner, path, order);
                path.pop();
            }
            new_line(out, indent);
            out.push('}');
        }
    }
}

fn new_line(out: &mut String, depth: Option<usize>) {
    if let Some(depth) = depth {
        out.push('\n');
        out.extend(std::iter::repeat_n("    ", depth));
    }
}

fn write_string(out: &mut String, text: &str) {
    out.push('"');
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' | '\u{0}'..='\u{1f}' => {
                write!(out, "\\u{:04x}", u32::from(character)).expect("writing to a String cannot fail");
            }
            other => out.push(other),
        }
    }
    out.push('"');
}

/// Whole floats lose their point, as Go prints them.
pub fn number_text(number: &serde_json::Number) -> String {
    match number.as_f64() {
        Some(float) if number.is_f64() && float.fract() == 0.0 && float.abs() < 1e21 => format!("{float:.0}"),
        _ => number.to_string(),
    }
}

/// The object as Go's `%#v` shows a decoded one; only failure messages use it.
pub fn go_syntax(value: &Value) -> String {
    match value {
        Value::Null => "interface {}(nil)".to_owned(),
        Value::Bool(flag) => flag.to_string(),
        Value::Number(number) => number_text(number),
        Value::String(text) => format!("{text:?}"),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(go_syntax).collect();
            format!("[]interface {{}}{{{}}}", items.join(", "))
        }
        Value::Object(map) => {
            let mut keys: Vec<&String> = map.keys().collect();
            keys.sort();
            let entries: Vec<String> =
                keys.into_iter().map(|key| format!("{key:?}:{}", go_syntax(&map[key]))).collect();
            format!("map[string]interface {{}}{{{}}}", entries.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn json_is_gos() {
        let value = json!({"b": [1, 2.0, "a<b>&"], "a": {}, "c": [], "d": null});
        assert_eq!(compact(&value), r#"{"a":{},"b":[1,2,"a\u003cb\u003e\u0026"],"c":[],"d":null}"#);
        assert_eq!(pretty(&json!({"a": [1]})), "{\n    \"a\": [\n        1\n    ]\n}\n");
    }
}
