//! Columns of `kubectl get`: what a Table shows of an object. The name comes first by itself; the
//! cells after it are read off the object's JSON by pure functions.

use ferry_api::Object;
use jiff::Timestamp;
use serde_json::Value;

pub struct Column {
    pub name: &'static str,
    pub kind: &'static str,
    pub format: &'static str,
    /// 0 is always shown, more only with `-o wide`.
    pub priority: u8,
    pub cell: fn(&Object, Timestamp) -> Value,
}

impl Column {
    pub const fn text(name: &'static str, cell: fn(&Object, Timestamp) -> Value) -> Column {
        Column { name, kind: "string", format: "", priority: 0, cell }
    }

    pub const fn integer(name: &'static str, cell: fn(&Object, Timestamp) -> Value) -> Column {
        Column { name, kind: "integer", format: "", priority: 0, cell }
    }

    pub const fn wide(mut self) -> Column {
        self.priority = 1;
        self
    }
}

/// The columns of a kind that brings none of its own are Name and Created At.
pub static AGE_ONLY: &[Column] =
    &[Column { name: "Created At", kind: "date", format: "", priority: 0, cell: created_at }];

pub const AGE: Column =
    Column::text("Age", |object, now| age(object.meta_text("creationTimestamp"), now).into());

fn created_at(object: &Object, _: Timestamp) -> Value {
    object.meta_text("creationTimestamp").into()
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
