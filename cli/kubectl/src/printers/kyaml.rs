//! KYAML: YAML that leaves nothing to guess. Maps in braces, lists in brackets, every value that is text in quotes, and
//! a comma after everything, so that lines can be moved.

use std::fmt::Write;

use serde_json::Value;

use ferry_api::go_json;

/// A document, with the line that begins it.
pub fn document(value: &Value) -> String {
    let mut out = String::from("---\n");
    write_value(&mut out, value, 0);
    out.push('\n');
    out
}

fn write_value(out: &mut String, value: &Value, depth: usize) {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(truth) => out.push_str(if *truth { "true" } else { "false" }),
        Value::Number(number) => out.push_str(&go_json::number_text(number)),
        Value::String(text) => write_text(out, text, depth + 1),
        Value::Array(items) if items.is_empty() => out.push_str("[]"),
        Value::Object(map) if map.is_empty() => out.push_str("{}"),
        Value::Array(items) => {
            // Brackets and braces of the elements join those of the list.
            if items.iter().all(|item| item.is_object() || item.is_array()) {
                out.push('[');
                for (at, item) in items.iter().enumerate() {
                    out.push_str(if at > 0 { ", " } else { "" });
                    write_value(out, item, depth);
                }
            } else {
                out.push_str("[\n");
                for item in items {
                    indent(out, depth + 1);
                    write_value(out, item, depth + 1);
                    out.push_str(",\n");
                }
                indent(out, depth);
            }
            out.push(']');
        }
        Value::Object(map) => {
            out.push_str("{\n");
            let mut entries: Vec<_> = map.iter().collect();
            entries.sort_by_key(|(key, _)| *key);
            for (key, value) in entries {
                indent(out, depth + 1);
                write_key(out, key);
                out.push_str(": ");
                write_value(out, value, depth + 1);
                out.push_str(",\n");
            }
            indent(out, depth);
            out.push('}');
        }
    }
}

fn indent(out: &mut String, depth: usize) {
    out.extend(std::iter::repeat_n("  ", depth));
}

/// Keys go without quotes where nobody could take them for something else.
fn write_key(out: &mut String, key: &str) {
    if is_plain(key) {
        return out.push_str(key);
    }
    out.push('"');
    for character in key.chars() {
        match character {
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            other => escape(out, other),
        }
    }
    out.push('"');
}

fn is_plain(key: &str) -> bool {
    let last = key.chars().count().saturating_sub(1);
    let allowed = |(at, character): (usize, char)| {
        let inside = at > 0 && at < last;
        character.is_alphanumeric() || character == '_' || (inside && "-./".contains(character))
    };
    !key.is_empty() && !is_ambiguous(key) && key.chars().enumerate().all(allowed)
}

/// What some reader of YAML takes for a number, a truth, nothing, or a date.
fn is_ambiguous(key: &str) -> bool {
    let words =
        ["null", "true", "t", "y", "yes", "on", "false", "f", "n", "no", "off", "inf", "infinity", "nan"];
    let lower = key.to_ascii_lowercase();
    let digits = key.replace('_', "");
    let based = ["0x", "0o", "0b"].iter().zip([16, 8, 2]).any(|(mark, base)| {
        lower
            .strip_prefix(mark)
            .is_some_and(|digits| i64::from_str_radix(&digits.replace('_', ""), base).is_ok())
    });
    let dated = key.len() >= 8
        && key.as_bytes()[..4].iter().all(u8::is_ascii_digit)
        && key[4..].starts_with('-')
        && key[5..].split('-').all(|part| part.parse::<u8>().is_ok());
    words.contains(&&*lower) || based || dated || digits.parse::<f64>().is_ok()
}

/// Text of several lines is folded, so that each stands on a line of its own.
fn write_text(out: &mut String, text: &str, depth: usize) {
    out.push('"');
    if !text.contains('\n') {
        text.chars().for_each(|character| escape(out, character));
        return out.push('"');
    }
    out.push_str("\\\n");
    for line in text.split_inclusive('\n') {
        indent(out, depth);
        let (line, ends) = match line.strip_suffix('\n') {
            Some(line) => (line, true),
            None => (line, false),
        };
        // Space at the beginning of a line counts only where it is escaped.
        out.push(if line.starts_with(char::is_whitespace) { '\\' } else { ' ' });
        line.chars().for_each(|character| escape(out, character));
        out.push_str(if ends { "\\n\\\n" } else { "\\\n" });
    }
    indent(out, depth);
    out.push('"');
}

fn escape(out: &mut String, character: char) {
    let written = match character {
        '"' => "\\\"",
        '\\' => "\\\\",
        '\t' => "\t",
        '\u{7}' => "\\a",
        '\u{8}' => "\\b",
        '\u{c}' => "\\f",
        '\r' => "\\r",
        '\u{b}' => "\\v",
        '\0' => "\\0",
        '\u{1b}' => "\\e",
        '\u{85}' => "\\N",
        '\u{a0}' => "\\_",
        '\u{2028}' => "\\L",
        '\u{2029}' => "\\P",
        other if other.is_control() => {
            write!(out, "\\x{:02x}", u32::from(other)).expect("writing to a String cannot fail");
            return;
        }
        other => return out.push(other),
    };
    out.push_str(written);
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn braces_brackets_and_quotes() {
        let object = json!({
            "kind": "ConfigMap", "data": {"yes": "no", "a.b": "1", "-x": "", "1": "one", "text": "two\n  lines\n"},
            "list": [1, true, null], "maps": [{"a": []}, {"b": {}}],
        });
        let expected = r#"---
{
  data: {
    "-x": "",
    "1": "one",
    a.b: "1",
    text: "\
       two\n\
      \  lines\n\
      ",
    "yes": "no",
  },
  kind: "ConfigMap",
  list: [
    1,
    true,
    null,
  ],
  maps: [{
    a: [],
  }, {
    b: {},
  }],
}
"#;
        assert_eq!(document(&object), expected);
        // It is YAML, and says the same.
        assert_eq!(ferry_api::yaml::documents(&document(&object)).expect("YAML"), [object]);
    }

    #[test]
    fn keys_that_could_be_something_else_are_quoted() {
        for (key, plain) in [
            ("name", true),
            ("app.kubernetes.io/name", true),
            ("a_b", true),
            ("", false),
            ("true", false),
            ("on", false),
            ("12", false),
            ("0x1F", false),
            ("1.5", false),
            ("2024-01-02", false),
            ("a b", false),
            (".a", false),
            ("a/", false),
        ] {
            assert_eq!(is_plain(key), plain, "{key}");
        }
    }
}
