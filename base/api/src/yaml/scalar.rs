//! What a plain scalar means. Kubernetes' tools read YAML 1.1 (octal `0644`, `yes`, `on`), with
//! timestamps left as text.

use serde_json::{Number, Value};

pub fn resolve(text: &str) -> Value {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Value::Null,
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => {
            return Value::Bool(true);
        }
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => {
            return Value::Bool(false);
        }
        _ => {}
    }
    number(text).unwrap_or_else(|| Value::String(text.to_string()))
}

/// As [`resolve`], with only the words of YAML 1.2 for true and false.
pub fn resolve_core(text: &str) -> Value {
    match (resolve(text), text) {
        (Value::Bool(given), "true" | "True" | "TRUE" | "false" | "False" | "FALSE") => Value::Bool(given),
        (Value::Bool(_), _) => Value::String(text.to_string()),
        (value, _) => value,
    }
}

/// Whether the text, written without quotes, would be read as something else than itself.
pub fn needs_quotes(text: &str) -> bool {
    !matches!(resolve(text), Value::String(_)) || is_timestamp(text) || is_base60(text) || is_special(text)
}

/// Words that mean no JSON value but would not be read as text either.
fn is_special(text: &str) -> bool {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    matches!(unsigned, ".inf" | ".Inf" | ".INF") || matches!(text, ".nan" | ".NaN" | ".NAN" | "<<")
}

fn number(text: &str) -> Option<Value> {
    if !text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '.')) || is_timestamp(text) {
        return None;
    }
    let plain =
        if text.contains('_') && !text.starts_with('.') { text.replace('_', "") } else { text.into() };
    integer(&plain).or_else(|| float(&plain))
}

fn integer(text: &str) -> Option<Value> {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let negative = text.starts_with('-');
    let (radix, digits) = match unsigned.as_bytes() {
        [b'0', b'x' | b'X', ..] => (16, &unsigned[2..]),
        [b'0', b'o' | b'O', ..] => (8, &unsigned[2..]),
        [b'0', b'b' | b'B', ..] => (2, &unsigned[2..]),
        [b'0', _, ..] => (8, &unsigned[1..]),
        _ => (10, unsigned),
    };
    if digits.starts_with(['+', '-']) {
        return None;
    }
    let magnitude = u64::from_str_radix(digits, radix).ok()?;
    if negative {
        return 0i64.checked_sub_unsigned(magnitude).map(Value::from);
    }
    Some(Value::from(magnitude))
}

/// `[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?`
fn float(text: &str) -> Option<Value> {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let (mantissa, exponent) = unsigned.split_once(['e', 'E']).unwrap_or((unsigned, "0"));
    let exponent = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = |part: &str| part.bytes().all(|b| b.is_ascii_digit());
    let formed = digits(whole)
        && digits(fraction)
        && digits(exponent)
        && !exponent.is_empty()
        && (!whole.is_empty() || !fraction.is_empty());
    if !formed {
        return None;
    }
    text.parse().ok().and_then(Number::from_f64).map(Value::Number)
}

/// `YYYY-M-D`, alone or with a time of day.
fn is_timestamp(text: &str) -> bool {
    let (date, time) = match text.find(['T', 't', ' ']) {
        Some(at) => (&text[..at], Some(&text[at + 1..])),
        None => (text, None),
    };
    let mut parts = date.split('-');
    let year = parts.next().is_some_and(|part| part.len() == 4 && part.bytes().all(|b| b.is_ascii_digit()));
    let short = |part: Option<&str>| {
        part.is_some_and(|part| matches!(part.len(), 1 | 2) && part.bytes().all(|b| b.is_ascii_digit()))
    };
    let date_formed = year && short(parts.next()) && short(parts.next()) && parts.next().is_none();
    date_formed
        && time.is_none_or(|time| time.starts_with(|c: char| c.is_ascii_digit()) && time.contains(':'))
}

/// `1:30`: a number of base 60 to old readers, text to us, so it is written in quotes.
fn is_base60(text: &str) -> bool {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let whole = unsigned.split_once('.').map_or(unsigned, |(whole, fraction)| {
        if fraction.bytes().all(|b| b.is_ascii_digit() || b == b'_') { whole } else { "" }
    });
    let mut parts = whole.split(':');
    let first = parts.next().unwrap_or("");
    let mut count = 0;
    let formed = first.starts_with(|c: char| c.is_ascii_digit())
        && first.bytes().all(|b| b.is_ascii_digit() || b == b'_')
        && parts.all(|part| {
            count += 1;
            matches!(part.as_bytes(), [b'0'..=b'9'] | [b'0'..=b'5', b'0'..=b'9'])
        });
    formed && count > 0
}
