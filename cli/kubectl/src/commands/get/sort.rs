//! `--sort-by`: rows of a table or objects, by one field.

use std::cmp::Ordering;

use ferry_api::quantity::Quantity;
use serde_json::Value;

use crate::error::{Error, Result};
use crate::fields::Fields;
use crate::selection::Info;
use ferry_api::json_path::Template;

pub fn sort(infos: &mut [Info], field: &str) -> Result<()> {
    let path = Template::parse_relaxed(field).map_err(Error::message)?;
    if infos.iter().all(|info| info.object.kind() == "Table") {
        for info in infos {
            let Some(rows) = info.object.get_mut("rows").and_then(Value::as_array_mut) else { continue };
            let mut keyed = Vec::new();
            for row in rows.drain(..) {
                keyed.push((key(&path, row.at("object"), field)?, row));
            }
            check_found(&keyed, field)?;
            by_keys(&mut keyed);
            rows.extend(keyed.into_iter().map(|(_, row)| row));
        }
        return Ok(());
    }
    let mut keyed = Vec::new();
    for info in infos.iter() {
        keyed.push((key(&path, &info.object, field)?, info.clone()));
    }
    check_found(&keyed, field)?;
    by_keys(&mut keyed);
    for (place, (_, info)) in infos.iter_mut().zip(keyed) {
        *place = info;
    }
    Ok(())
}

fn key(path: &Template, object: &Value, field: &str) -> Result<Option<Value>> {
    let values =
        path.evaluate(object, true).map_err(|reason| Error::message(format!("{field}: {reason}")))?.values();
    Ok(values.into_iter().next())
}

fn check_found<T>(keyed: &[(Option<Value>, T)], field: &str) -> Result<()> {
    // One row is in order, whatever it is asked for.
    if keyed.len() <= 1 || keyed.iter().any(|(key, _)| key.is_some()) {
        return Ok(());
    }
    Err(Error::message(format!(
        "couldn't find any field with path \"{{{}}}\" in the list of objects",
        dotted(field)
    )))
}

fn dotted(field: &str) -> String {
    let inner = field.trim_start_matches('{').trim_end_matches('}');
    format!(".{}", inner.trim_start_matches('.'))
}

/// Texts are compared as quantities where all of them are some. Pair by pair they would have no order, at which a sort
/// may panic: what is sorted is anybody's.
fn by_keys<T>(keyed: &mut [(Option<Value>, T)]) {
    let is_amount = |key: &Value| key.as_str().is_none_or(|text| Quantity::parse(text).is_ok());
    let as_amounts = keyed.iter().filter_map(|(key, _)| key.as_ref()).all(is_amount);
    keyed.sort_by(|(a, _), (b, _)| compare(a.as_ref(), b.as_ref(), as_amounts));
}

/// What is missing comes first, then sort by sort of value.
fn compare(a: Option<&Value>, b: Option<&Value>, as_amounts: bool) -> Ordering {
    let rank = |value: Option<&Value>| match value {
        None => 0,
        Some(Value::Null) => 1,
        Some(Value::Bool(_)) => 2,
        Some(Value::Number(_)) => 3,
        Some(Value::String(_)) => 4,
        Some(Value::Array(_) | Value::Object(_)) => 5,
    };
    rank(a).cmp(&rank(b)).then_with(|| match (a, b) {
        (Some(Value::Number(a)), Some(Value::Number(b))) => {
            a.as_f64().unwrap_or(0.0).total_cmp(&b.as_f64().unwrap_or(0.0))
        }
        (Some(Value::String(a)), Some(Value::String(b))) => match (Quantity::parse(a), Quantity::parse(b)) {
            (Ok(a), Ok(b)) if as_amounts => a.cmp(&b),
            _ => natural(a, b),
        },
        (Some(Value::Bool(a)), Some(Value::Bool(b))) => a.cmp(b),
        (Some(a), Some(b)) => a.to_string().cmp(&b.to_string()),
        _ => Ordering::Equal,
    })
}

/// Numbers inside names count as numbers: `web-2` before `web-10`.
pub fn natural(a: &str, b: &str) -> Ordering {
    let (mut a, mut b) = (a.as_bytes(), b.as_bytes());
    loop {
        match (a.first(), b.first()) {
            (None, None) => return Ordering::Equal,
            (None, Some(_)) => return Ordering::Less,
            (Some(_), None) => return Ordering::Greater,
            (Some(left), Some(right)) if left.is_ascii_digit() && right.is_ascii_digit() => {
                let (left, rest_a) = digits(a);
                let (right, rest_b) = digits(b);
                let order = left.len().cmp(&right.len()).then_with(|| left.cmp(right));
                if order.is_ne() {
                    return order;
                }
                (a, b) = (rest_a, rest_b);
            }
            (Some(left), Some(right)) if left == right => (a, b) = (&a[1..], &b[1..]),
            (Some(left), Some(right)) => return left.cmp(right),
        }
    }
}

fn digits(text: &[u8]) -> (&[u8], &[u8]) {
    let end = text.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(text.len());
    let zeros = text[..end].iter().take_while(|byte| **byte == b'0').count();
    (&text[zeros..end], &text[end..])
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn fields_sort_by_their_meaning() {
        let check = |a: Value, b: Value| {
            let mut keyed = [(Some(b.clone()), ()), (Some(a.clone()), ())];
            by_keys(&mut keyed);
            assert_eq!(keyed[0].0, Some(a), "{b}");
        };
        check(json!("web-2"), json!("web-10"));
        check(json!("500Mi"), json!("1Gi"));
        check(json!(2), json!(10));
        check(json!("2024-01-02T00:00:00Z"), json!("2024-02-01T00:00:00Z"));
        assert_eq!(compare(None, Some(&json!(1)), false), Ordering::Less);
    }

    /// Quantities and names among each other, 3 before 1k before 2a before 3.
    #[test]
    fn any_fields_can_be_sorted() {
        let texts = ["3", "1k", "2a", "0.5", "1Ki", "900", "m", "1e3", "x1", "-1"];
        let mut keyed: Vec<(Option<Value>, usize)> = (0..500)
            .map(|number| match number % 13 {
                10 => (None, number),
                11 => (Some(json!(number)), number),
                12 => (Some(json!([number])), number),
                at => (Some(json!(format!("{}{}", texts[at], number % 7))), number),
            })
            .collect();
        by_keys(&mut keyed);
        assert_eq!(keyed.len(), 500);
    }
}
