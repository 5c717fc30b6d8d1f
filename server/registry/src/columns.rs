//! Columns of `kubectl get`: the cells of an object in a Table. The name is the first column by default, unless a kind
//! defines its own `Name`. Pure functions read the other cells from the object's JSON.

use std::borrow::Cow;

use ferry_api::Object;
use ferry_api::json_path::{Template, to_text};
use ferry_api::selector::LabelSelector;
use jiff::Timestamp;
use serde_json::Value;

pub const NAME: &str = "Name";

pub struct Column {
    pub name: Cow<'static, str>,
    pub kind: Cow<'static, str>,
    pub format: Cow<'static, str>,
    pub description: Cow<'static, str>,
    /// 0 is always shown, more only with `-o wide`.
    pub priority: i32,
    cell: Cell,
}

/// Where a cell comes from. Paths are field names joined by dots.
enum Cell {
    At {
        path: &'static str,
        absent: Absent,
    },
    Length(&'static str),
    Made(fn(&Object, Timestamp) -> Value),
    /// A custom resource's.
    JsonPath(Template),
}

#[derive(Clone, Copy)]
enum Absent {
    Text(&'static str),
    Zero,
    False,
}

impl Column {
    const fn new(name: &'static str, kind: &'static str, cell: Cell) -> Column {
        Column {
            name: Cow::Borrowed(name),
            kind: Cow::Borrowed(kind),
            format: Cow::Borrowed(""),
            description: Cow::Borrowed(""),
            priority: 0,
            cell,
        }
    }

    pub const fn text(name: &'static str, cell: fn(&Object, Timestamp) -> Value) -> Column {
        Column::new(name, "string", Cell::Made(cell))
    }

    pub const fn integer(name: &'static str, cell: fn(&Object, Timestamp) -> Value) -> Column {
        Column::new(name, "integer", Cell::Made(cell))
    }

    /// The text at a path, "" when there is none.
    pub const fn at(name: &'static str, path: &'static str) -> Column {
        Column::at_or(name, path, "")
    }

    pub const fn at_or(name: &'static str, path: &'static str, absent: &'static str) -> Column {
        Column::new(name, "string", Cell::At { path, absent: Absent::Text(absent) })
    }

    pub const fn number(name: &'static str, path: &'static str) -> Column {
        Column::new(name, "integer", Cell::At { path, absent: Absent::Zero })
    }

    pub const fn boolean(name: &'static str, path: &'static str) -> Column {
        Column::new(name, "boolean", Cell::At { path, absent: Absent::False })
    }

    /// How many elements the list at a path has.
    pub const fn length(name: &'static str, path: &'static str) -> Column {
        Column::new(name, "integer", Cell::Length(path))
    }

    /// A column of a definition, which has its own words for everything. `json_path` was checked with it.
    pub fn custom(
        name: &str,
        kind: &str,
        format: &str,
        description: &str,
        priority: i32,
        path: Template,
    ) -> Column {
        let owned = |text: &str| Cow::Owned(text.to_string());
        Column {
            name: owned(name),
            kind: owned(kind),
            format: owned(format),
            description: owned(description),
            priority,
            cell: Cell::JsonPath(path),
        }
    }

    pub const fn wide(mut self) -> Column {
        self.priority = 1;
        self
    }

    pub const fn typed(mut self, kind: &'static str) -> Column {
        replace(&mut self.kind, kind);
        self
    }

    pub const fn formatted(mut self, format: &'static str) -> Column {
        replace(&mut self.format, format);
        self
    }

    pub fn cell(&self, object: &Object, now: Timestamp) -> Value {
        match &self.cell {
            Cell::JsonPath(path) => json_path_cell(path, &self.kind, object, now),
            Cell::Made(make) => make(object, now),
            Cell::Length(path) => list_at(object, path).len().into(),
            Cell::At { path, absent } => match (at(object, path), *absent) {
                (None | Some(Value::Null), Absent::Text(text)) => text.into(),
                (Some(Value::String(text)), Absent::Text(absent)) if text.is_empty() => absent.into(),
                (None | Some(Value::Null), Absent::Zero) => 0.into(),
                (None | Some(Value::Null), Absent::False) => false.into(),
                (Some(value), _) => value.clone(),
            },
        }
    }
}

/// An assignment that needs no destructor, which constants cannot run. What is replaced was borrowed.
const fn replace(slot: &mut Cow<'static, str>, text: &'static str) {
    std::mem::forget(std::mem::replace(slot, Cow::Borrowed(text)));
}

/// What stands at a path, as its column's type has it: nothing where the path leads nowhere or to another type.
fn json_path_cell(path: &Template, kind: &str, object: &Object, now: Timestamp) -> Value {
    let Some(found) = path.first(&object.0) else { return Value::Null };
    match (kind, found.as_ref()) {
        // As a template of Go's prints it.
        ("string", Value::Null) => "<no value>".into(),
        ("string", value) => to_text(value).into(),
        ("integer", Value::Number(number)) => {
            number.as_i64().or_else(|| number.as_f64().map(|number| number as i64)).into()
        }
        ("number", Value::Number(number)) => number.as_f64().map(written).into(),
        ("boolean", Value::Bool(value)) => (*value).into(),
        ("date", Value::String(text)) => match text.parse::<Timestamp>() {
            Ok(_) => age(text, now).into(),
            Err(_) => "<invalid>".into(),
        },
        _ => Value::Null,
    }
}

/// A floating-point number as Go writes it: a whole one has no fraction.
fn written(number: f64) -> Value {
    match number.fract() == 0.0 && number.abs() < i64::MAX as f64 {
        true => (number as i64).into(),
        false => number.into(),
    }
}

/// The columns of a kind that brings none of its own are Name and Created At.
pub static AGE_ONLY: &[Column] =
    &[Column::text("Created At", |object, _| object.meta_text("creationTimestamp").into()).typed("date")];

pub const AGE: Column =
    Column::text("Age", |object, now| age(object.meta_text("creationTimestamp"), now).into());

/// The value at a path of field names joined by dots.
pub fn at<'a>(object: &'a Object, path: &str) -> Option<&'a Value> {
    let mut fields = path.split('.');
    let first = object.0.get(fields.next()?)?;
    fields.try_fold(first, |value, field| value.get(field))
}

pub fn text_at<'a>(object: &'a Object, path: &str) -> &'a str {
    at(object, path).and_then(Value::as_str).unwrap_or("")
}

pub fn number_at(object: &Object, path: &str) -> i64 {
    at(object, path).and_then(Value::as_i64).unwrap_or(0)
}

/// The elements of the list at a path; none where there is no list.
pub fn list_at<'a>(object: &'a Object, path: &str) -> &'a [Value] {
    at(object, path).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// A field of an element, "" when it has none.
pub fn field<'a>(value: &'a Value, name: &str) -> &'a str {
    value.get(name).and_then(Value::as_str).unwrap_or("")
}

pub fn or_none(text: String) -> Value {
    if text.is_empty() { "<none>".into() } else { text.into() }
}

/// The first `most` of a list, and how many more there are.
pub fn with_more(list: &[String], most: usize) -> Value {
    if list.is_empty() {
        return "<unset>".into();
    }
    match list.len().saturating_sub(most) {
        0 => list.join(",").into(),
        more => format!("{} + {more} more...", list[..most].join(",")).into(),
    }
}

/// A map of labels as `a=b,c=d`.
pub fn labels(map: Option<&Value>) -> Value {
    let entries = map.and_then(Value::as_object).into_iter().flatten();
    let words: Vec<String> =
        entries.map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or(""))).collect();
    or_none(words.join(","))
}

/// A structured selector as people write it.
pub fn selector(structured: Option<&Value>) -> Value {
    match structured {
        None => "<none>".into(),
        some => match LabelSelector::from_structured(some) {
            Ok(selector) => or_none(selector.to_string()),
            Err(_) => "<error>".into(),
        },
    }
}

/// One field of all containers at a path (their names, their images).
pub fn of_containers(object: &Object, path: &str, name: &str) -> Value {
    list_at(object, path).iter().map(|container| field(container, name)).collect::<Vec<_>>().join(",").into()
}

/// The status of a condition.
pub fn condition<'a>(object: &'a Object, kind: &str) -> Option<&'a Value> {
    list_at(object, "status.conditions").iter().find(|condition| field(condition, "type") == kind)
}

pub fn has_condition(object: &Object, kind: &str) -> bool {
    condition(object, kind).is_some_and(|condition| field(condition, "status") == "True")
}

/// The time since a timestamp of the API, `<unknown>` when there is none.
pub fn age(timestamp: &str, now: Timestamp) -> String {
    match timestamp.parse::<Timestamp>() {
        Ok(then) => human_duration(now.as_second() - then.as_second()),
        Err(_) => "<unknown>".into(),
    }
}

/// Seconds as kubectl prints them: the two largest units while they matter.
pub fn human_duration(seconds: i64) -> String {
    let two = |large: i64, unit: char, small: i64, small_unit: char| {
        if small == 0 { format!("{large}{unit}") } else { format!("{large}{unit}{small}{small_unit}") }
    };
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match seconds {
        ..-1 => "<invalid>".into(),
        -1..=0 => "0s".into(),
        1..120 => format!("{seconds}s"),
        120..600 => two(minutes, 'm', seconds % 60, 's'),
        600..10_800 => format!("{minutes}m"),
        10_800..28_800 => two(hours, 'h', minutes % 60, 'm'),
        28_800..172_800 => format!("{hours}h"),
        172_800..691_200 => two(days, 'd', hours % 24, 'h'),
        691_200..63_072_000 => format!("{days}d"),
        63_072_000..252_288_000 => two(days / 365, 'y', days % 365, 'd'),
        _ => format!("{}y", days / 365),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_show_the_units_that_matter() {
        for (seconds, expected) in [
            (0, "0s"),
            (119, "119s"),
            (130, "2m10s"),
            (600, "10m"),
            (10_860, "3h1m"),
            (86_400, "24h"),
            (200_000, "2d7h"),
            (700_000, "8d"),
            (70_000_000, "2y80d"),
        ] {
            assert_eq!(human_duration(seconds), expected, "{seconds}");
        }
    }
}
