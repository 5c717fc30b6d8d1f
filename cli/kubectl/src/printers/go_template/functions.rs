//! The functions a template may call: Go's own, and kubectl's two.

use std::cmp::Ordering;

use base64::Engine;
use serde_json::Value;

use super::format;

const KNOWN: [&str; 21] = [
    "and",
    "base64decode",
    "call",
    "eq",
    "exists",
    "ge",
    "gt",
    "html",
    "index",
    "js",
    "le",
    "len",
    "lt",
    "ne",
    "not",
    "or",
    "print",
    "printf",
    "println",
    "slice",
    "urlquery",
];

pub fn is_known(name: &str) -> bool {
    KNOWN.contains(&name)
}

pub enum Failure {
    /// It cannot be called so.
    Arguments(String),
    /// It was called, and failed.
    Call(String),
}

pub fn call(name: &str, arguments: &[Value]) -> Result<Value, Failure> {
    let at_least = |wanted: usize| match arguments.len() >= wanted {
        true => Ok(()),
        false => Err(Failure::Arguments(format!(
            "wrong number of args for {name}: want at least {wanted} got {}",
            arguments.len()
        ))),
    };
    let exactly = |wanted: usize| match arguments.len() == wanted {
        true => Ok(()),
        false => Err(Failure::Arguments(format!(
            "wrong number of args for {name}: want {wanted} got {}",
            arguments.len()
        ))),
    };
    match name {
        // Whoever would have decided has; the last one is left.
        "and" | "or" => at_least(1).map(|()| arguments[arguments.len() - 1].clone()),
        "not" => exactly(1).map(|()| (!truth(&arguments[0])).into()),
        "len" => exactly(1).and_then(|()| length(&arguments[0])),
        "index" => at_least(1).and_then(|()| index(arguments)),
        "slice" => at_least(1).and_then(|()| slice(arguments)),
        "exists" => at_least(1).map(|()| exists(arguments).into()),
        "eq" => at_least(2).and_then(|()| equal_to_any(arguments)),
        "ne" => exactly(2).and_then(|()| Ok((!equal(&arguments[0], &arguments[1])?).into())),
        "lt" | "le" | "gt" | "ge" => exactly(2).and_then(|()| {
            let order = compare(&arguments[0], &arguments[1])?;
            let holds = match name {
                "lt" => order == Ordering::Less,
                "le" => order != Ordering::Greater,
                "gt" => order == Ordering::Greater,
                _ => order != Ordering::Less,
            };
            Ok(holds.into())
        }),
        "print" => Ok(format::print(arguments).into()),
        "println" => {
            let words: Vec<String> = arguments.iter().map(format::nested).collect();
            Ok(format!("{}\n", words.join(" ")).into())
        }
        "printf" => at_least(1).and_then(|()| match &arguments[0] {
            Value::String(pattern) => Ok(format::printf(pattern, &arguments[1..]).into()),
            other => Err(Failure::Arguments(format!("expected string; found {}", format::shown(other)))),
        }),
        "html" => Ok(html(&format::print(arguments)).into()),
        "js" => Ok(js(&format::print(arguments)).into()),
        "urlquery" => Ok(urlquery(&format::print(arguments)).into()),
        "base64decode" => exactly(1).and_then(|()| base64decode(&arguments[0])),
        _ => Err(Failure::Call("call of nil".to_owned())),
    }
}

pub fn truth(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(truth) => *truth,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Object(map) => !map.is_empty(),
    }
}

fn length(value: &Value) -> Result<Value, Failure> {
    Ok(match value {
        Value::String(text) => text.len().into(),
        Value::Array(items) => items.len().into(),
        Value::Object(map) => map.len().into(),
        Value::Null => return Err(Failure::Call("len of nil pointer".to_owned())),
        other => return Err(Failure::Call(format!("len of type {}", format::type_of(other)))),
    })
}

/// `index x 1 "a"` is `x[1]["a"]`.
fn index(arguments: &[Value]) -> Result<Value, Failure> {
    let mut value = arguments[0].clone();
    for by in &arguments[1..] {
        value = match (&value, by) {
            (Value::Array(items), Value::Number(number)) => {
                let item = number.as_u64().and_then(|at| items.get(usize::try_from(at).ok()?));
                item.cloned().ok_or_else(|| Failure::Call(format!("index out of range: {number}")))?
            }
            (Value::Object(map), Value::String(key)) => map.get(key).cloned().unwrap_or(Value::Null),
            (Value::String(text), Value::Number(number)) => {
                let byte = number.as_u64().and_then(|at| text.as_bytes().get(usize::try_from(at).ok()?));
                let byte =
                    byte.ok_or_else(|| Failure::Call("reflect: string index out of range".to_owned()))?;
                (*byte).into()
            }
            (Value::Array(_) | Value::String(_), by) => {
                return Err(Failure::Call(format!(
                    "cannot index slice/array with type {}",
                    format::type_of(by)
                )));
            }
            (Value::Object(_), by) => {
                let kind = format::type_of(by);
                return Err(Failure::Call(format!("value has type {kind}; should be string")));
            }
            (Value::Null, _) => return Err(Failure::Call("index of untyped nil".to_owned())),
            (other, _) => {
                return Err(Failure::Call(format!("can't index item of type {}", format::type_of(other))));
            }
        };
    }
    Ok(value)
}

fn exists(arguments: &[Value]) -> bool {
    let mut value = &arguments[0];
    arguments[1..].iter().all(|by| {
        let found = match (value, by) {
            (Value::Object(map), Value::String(key)) => map.get(key),
            (Value::Array(items), Value::Number(number)) => {
                number.as_u64().and_then(|at| items.get(usize::try_from(at).ok()?))
            }
            _ => None,
        };
        found.is_some_and(|found| {
            value = found;
            true
        })
    })
}

fn slice(arguments: &[Value]) -> Result<Value, Failure> {
    let bounds: Vec<usize> = arguments[1..]
        .iter()
        .map(|bound| bound.as_u64().and_then(|bound| usize::try_from(bound).ok()))
        .collect::<Option<_>>()
        .ok_or_else(|| Failure::Call("cannot slice with anything but a number".to_owned()))?;
    let within = |length: usize| {
        let (start, end) = (bounds.first().copied().unwrap_or(0), bounds.get(1).copied().unwrap_or(length));
        match start <= end && end <= length {
            true => Ok((start, end)),
            false => Err(Failure::Call(format!("invalid slice index: {start} > {end}"))),
        }
    };
    match &arguments[0] {
        Value::String(text) => {
            let (start, end) = within(text.len())?;
            let part = text.get(start..end).map(Value::from);
            part.ok_or_else(|| Failure::Call("a character is cut in two".to_owned()))
        }
        Value::Array(items) => {
            let (start, end) = within(items.len())?;
            Ok(Value::Array(items[start..end].to_vec()))
        }
        other => Err(Failure::Call(format!("can't slice item of type {}", format::type_of(other)))),
    }
}

fn equal_to_any(arguments: &[Value]) -> Result<Value, Failure> {
    for other in &arguments[1..] {
        if equal(&arguments[0], other)? {
            return Ok(true.into());
        }
    }
    Ok(false.into())
}

fn equal(one: &Value, other: &Value) -> Result<bool, Failure> {
    match (one, other) {
        (Value::Array(_) | Value::Object(_), _) | (_, Value::Array(_) | Value::Object(_)) => {
            Err(Failure::Call("incompatible types for comparison".to_owned()))
        }
        (Value::Null, _) | (_, Value::Null) => Ok(one == other),
        _ => compare(one, other).map(|order| order == Ordering::Equal),
    }
}

fn compare(one: &Value, other: &Value) -> Result<Ordering, Failure> {
    let incompatible = || Failure::Call("incompatible types for comparison".to_owned());
    match (one, other) {
        (Value::String(one), Value::String(other)) => Ok(one.cmp(other)),
        (Value::Bool(one), Value::Bool(other)) => Ok(one.cmp(other)),
        (Value::Number(one), Value::Number(other)) => match (one.as_i64(), other.as_i64()) {
            (Some(one), Some(other)) => Ok(one.cmp(&other)),
            (None, None) => one.as_f64().partial_cmp(&other.as_f64()).ok_or_else(incompatible),
            // An integer and a floating-point number are two types.
            _ => Err(incompatible()),
        },
        _ => Err(incompatible()),
    }
}

fn html(text: &str) -> String {
    let mut out = String::new();
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&#34;"),
            '\'' => out.push_str("&#39;"),
            '\0' => out.push('\u{FFFD}'),
            other => out.push(other),
        }
    }
    out
}

fn js(text: &str) -> String {
    let mut out = String::new();
    for character in text.chars() {
        match character {
            '\\' | '\'' | '"' => out.extend(['\\', character]),
            '<' | '>' | '&' | '=' => out.push_str(&format!("\\u{:04X}", u32::from(character))),
            other if other < ' ' => out.push_str(&format!("\\u{:04X}", u32::from(other))),
            other => out.push(other),
        }
    }
    out
}

fn urlquery(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        match byte {
            b' ' => out.push('+'),
            b'-' | b'_' | b'.' | b'~' => out.push(char::from(byte)),
            byte if byte.is_ascii_alphanumeric() => out.push(char::from(byte)),
            byte => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

fn base64decode(value: &Value) -> Result<Value, Failure> {
    let Value::String(text) = value else {
        return Err(Failure::Arguments(format!(
            "wrong type for value; expected string; got {}",
            format::type_of(value)
        )));
    };
    match base64::engine::general_purpose::STANDARD.decode(text) {
        Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned().into()),
        Err(error) => Err(Failure::Call(format!("base64 decode failed: {error}"))),
    }
}
