//! The elements of a field path, in the text that stands in `managedFields`:
//!
//! | text | meaning | in messages |
//! | --- | --- | --- |
//! | `f:replicas` | a field of a struct, or a key of a map | `.replicas` |
//! | `k:{"name":"web"}` | the element of a list with these keys | `[name="web"]` |
//! | `v:"a"` | the member of a set | `[="a"]` |
//! | `i:0` | a place in a list | `[0]` |
//!
//! Each element has exactly one such text, so two elements are equal when their texts are.

use std::cmp::Ordering;
use std::fmt::Write;

use ferry_api::{Shape, Types};
use serde_json::{Map, Number, Value};

pub fn field(name: &str) -> String {
    let mut text = String::with_capacity(name.len() + 2);
    text.push_str("f:");
    text.push_str(name);
    text
}

/// The element of an associative list. None where no key is given and none has a default: such an
/// element cannot be told from others.
pub fn keyed(item: &Value, keys: &[Box<str>], element: &Shape, types: &Types) -> Option<String> {
    let item = item.as_object()?;
    let mut text = String::with_capacity(32);
    text.push_str("k:{");
    let mut write = |name: &str| {
        let default;
        let value = match item.get(name) {
            Some(value) => Some(value),
            None => {
                default = default_key(name, element, types);
                default.as_ref()
            }
        };
        if let Some(value) = value {
            if text.len() > 3 {
                text.push(',');
            }
            write_string(&mut text, name);
            text.push(':');
            write_json(&mut text, value);
        }
    };
    if keys.is_sorted() {
        keys.iter().for_each(|name| write(name));
    } else {
        let mut sorted: Vec<&str> = keys.iter().map(AsRef::as_ref).collect();
        sorted.sort_unstable();
        sorted.into_iter().for_each(&mut write);
    }
    if text.len() == 3 {
        return None;
    }
    text.push('}');
    Some(text)
}

/// What stands for a key that is not given: its default, or zero where the field is always written.
fn default_key(name: &str, element: &Shape, types: &Types) -> Option<Value> {
    let Shape::Struct(id) = element else { return None };
    let field = types.get(*id).field(name)?;
    match &field.default {
        Some(default) => Some(default.clone()),
        None if field.keep && !field.pointer => Some(ferry_api::zero::of_shape(&field.shape, types)),
        None => None,
    }
}

/// The member of a set. None for what can be in no set: a list, a map or null.
pub fn member(item: &Value) -> Option<String> {
    if item.is_null() || item.is_array() || item.is_object() {
        return None;
    }
    let mut text = "v:".to_string();
    write_json(&mut text, item);
    Some(text)
}

/// Reads an element and gives its one text back. `Ok(None)` for a kind of element from the future,
/// which is left out.
pub fn canonical(text: &str) -> Result<Option<String>, String> {
    let Some((kind, rest)) = text.split_at_checked(2) else {
        return Err("key must be 2 characters long:".to_string());
    };
    if !kind.ends_with(':') {
        return Err(format!("missing colon: {text}"));
    }
    match kind {
        "f:" => Ok(Some(text.to_string())),
        "i:" => {
            let place: i64 = rest.parse().map_err(|_| format!("no place in a list: {text}"))?;
            Ok(Some(format!("i:{place}")))
        }
        "v:" | "k:" => {
            let value: Value = serde_json::from_str(rest).map_err(|error| error.to_string())?;
            if kind == "k:" && !value.is_object() {
                return Err(format!("no keys: {text}"));
            }
            let mut out = kind.to_string();
            write_json(&mut out, &value);
            Ok(Some(out))
        }
        _ => Ok(None),
    }
}

/// The element as messages show it.
pub fn describe(text: &str) -> String {
    let (kind, rest) = text.split_at_checked(2).unwrap_or((text, ""));
    match kind {
        "f:" => format!(".{rest}"),
        "k:" => match serde_json::from_str::<Map<String, Value>>(rest) {
            Ok(keys) => {
                let shown: Vec<String> =
                    keys.iter().map(|(name, value)| format!("{name}={}", shown(value))).collect();
                format!("[{}]", shown.join(","))
            }
            Err(_) => format!("[{rest}]"),
        },
        "v:" => match serde_json::from_str(rest) {
            Ok(value) => format!("[={}]", shown(&value)),
            Err(_) => format!("[={rest}]"),
        },
        _ => format!("[{rest}]"),
    }
}

fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => format!("{text:?}"),
        other => other.to_string(),
    }
}

/// The order in which upstream writes elements: fields, keys, values, places.
pub fn compare(a: &str, b: &str) -> Ordering {
    let rank = |text: &str| match text.as_bytes().first() {
        Some(b'f') => 0,
        Some(b'k') => 1,
        Some(b'v') => 2,
        _ => 3,
    };
    let rest = |text: &str| -> Option<Value> { serde_json::from_str(text.get(2..)?).ok() };
    rank(a).cmp(&rank(b)).then_with(|| match rank(a) {
        0 => a.cmp(b),
        1 => match (rest(a), rest(b)) {
            (Some(Value::Object(a)), Some(Value::Object(b))) => compare_keys(&a, &b),
            _ => a.cmp(b),
        },
        _ => match (rest(a), rest(b)) {
            (Some(a), Some(b)) => compare_scalars(&a, &b),
            _ => a.cmp(b),
        },
    })
}

fn compare_keys(a: &Map<String, Value>, b: &Map<String, Value>) -> Ordering {
    a.iter()
        .zip(b)
        .map(|((name_a, a), (name_b, b))| name_a.cmp(name_b).then_with(|| compare_scalars(a, b)))
        .find(|order| order.is_ne())
        .unwrap_or_else(|| a.len().cmp(&b.len()))
}

/// Numbers before strings before booleans, as upstream sorts them.
fn compare_scalars(a: &Value, b: &Value) -> Ordering {
    let rank = |value: &Value| match value {
        Value::Number(_) => 0,
        Value::String(_) => 1,
        Value::Bool(_) => 2,
        _ => 3,
    };
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => compare_numbers(a, b),
        (Value::String(a), Value::String(b)) => a.cmp(b),
        (Value::Bool(a), Value::Bool(b)) => a.cmp(b),
        _ => rank(a).cmp(&rank(b)),
    }
}

/// By what they are as floats, then integers before floats and by what they are: one order of all of them, at which no
/// sort panics.
fn compare_numbers(a: &Number, b: &Number) -> Ordering {
    let float = |number: &Number| number.as_f64().unwrap_or(0.0);
    let integer = |number: &Number| number.as_i64().map(i128::from).or(number.as_u64().map(i128::from));
    float(a).total_cmp(&float(b)).then_with(|| match (integer(a), integer(b)) {
        (Some(a), Some(b)) => a.cmp(&b),
        (a, b) => b.is_some().cmp(&a.is_some()),
    })
}

fn write_json(out: &mut String, value: &Value) {
    match value {
        Value::String(text) => write_string(out, text),
        Value::Object(fields) => {
            out.push('{');
            for (index, (name, value)) in fields.iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                write_string(out, name);
                out.push(':');
                write_json(out, value);
            }
            out.push('}');
        }
        other => {
            let _ = write!(out, "{other}");
        }
    }
}

/// A JSON string with upstream's escapes: those that are safe inside HTML, too. They are part of the
/// text by which elements are compared.
fn write_string(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' | '\0'..='\u{1f}' => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_element_has_one_text() {
        let check = |text: &str, expected: Option<&str>| {
            assert_eq!(canonical(text), Ok(expected.map(str::to_string)), "{text}");
        };
        check("f:a", Some("f:a"));
        check("f:", Some("f:"));
        check(r#"k:{"protocol":"TCP", "port":80}"#, Some(r#"k:{"port":80,"protocol":"TCP"}"#));
        check(r#"v:"a<b""#, Some(r#"v:"a\u003cb""#));
        check("i:007", Some("i:7"));
        check("z:what", None);
        for bad in ["", "f", "fa", "é", "k:[1]", "k:", "v:", "i:x"] {
            assert!(canonical(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn keys_take_their_defaults() {
        let types = Types::builtin();
        let port = Shape::Struct(types.by_name("io.k8s.api.core.v1.ContainerPort").expect("ContainerPort"));
        let keys: Vec<Box<str>> = vec!["containerPort".into(), "protocol".into()];
        assert_eq!(
            keyed(&json!({"containerPort": 80}), &keys, &port, types).as_deref(),
            Some(r#"k:{"containerPort":80,"protocol":"TCP"}"#)
        );
        assert_eq!(
            keyed(&json!({"name": "x"}), &["name".into()], &Shape::String, types).as_deref(),
            Some(r#"k:{"name":"x"}"#)
        );
        assert_eq!(keyed(&json!({}), &["name".into()], &Shape::String, types), None);
        assert_eq!(keyed(&json!("x"), &["name".into()], &Shape::String, types), None);
    }

    #[test]
    fn messages_show_paths() {
        assert_eq!(describe("f:spec"), ".spec");
        assert_eq!(describe(r#"k:{"port":80,"protocol":"TCP"}"#), r#"[port=80,protocol="TCP"]"#);
        assert_eq!(describe(r#"v:"x""#), r#"[="x"]"#);
        assert_eq!(describe("i:3"), "[3]");
    }

    #[test]
    fn numbers_have_a_total_order() {
        let texts = [
            "-1",
            "0",
            "9007199254740992",
            "9007199254740993",
            "9007199254740992.0",
            "18446744073709551615",
            "1e300",
        ];
        let numbers: Vec<Value> =
            texts.iter().map(|text| serde_json::from_str(text).expect("a number")).collect();
        for a in &numbers {
            for b in &numbers {
                assert_eq!(compare_scalars(a, b), compare_scalars(b, a).reverse(), "{a} {b}");
                for c in &numbers {
                    let (ab, bc, ac) = (compare_scalars(a, b), compare_scalars(b, c), compare_scalars(a, c));
                    assert!(ab != bc || ab == ac, "{a} {b} {c}");
                    assert!(!ab.is_eq() || bc == ac, "{a} {b} {c}");
                }
            }
        }
    }

    #[test]
    fn elements_are_ordered_by_kind_then_value() {
        let mut texts =
            vec!["v:10", r#"v:"b""#, "v:9", r#"k:{"p":443}"#, r#"k:{"p":80}"#, "f:b", "f:a", "i:2"];
        texts.sort_by(|a, b| compare(a, b));
        assert_eq!(
            texts,
            ["f:a", "f:b", r#"k:{"p":80}"#, r#"k:{"p":443}"#, "v:9", "v:10", r#"v:"b""#, "i:2"]
        );
    }
}
