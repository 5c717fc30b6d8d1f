//! Cron expressions: `*/5 0 1-7 * MON`, `@hourly`, `@every 1h30m`.

use std::time::Duration;

use jiff::civil::Date;
use jiff::tz::{AmbiguousOffset, TimeZone};
use jiff::{Timestamp, ToSpan};

/// When something recurs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Schedule {
    Fields(Fields),
    Every(Duration),
}

/// A bit for each value of a field that matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fields {
    minutes: u64,
    hours: u64,
    days: u64,
    months: u64,
    weekdays: u64,
    /// Days of month and week both restrict, and then either is enough; unless one is a star.
    any_day: bool,
    any_weekday: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadSchedule(String);

const MONTHS: [&str; 12] =
    ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
const WEEKDAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];

impl Schedule {
    pub fn parse(text: &str) -> Result<Schedule, BadSchedule> {
        let text = text.trim();
        let text = match text {
            "@yearly" | "@annually" => "0 0 1 1 *",
            "@monthly" => "0 0 1 * *",
            "@weekly" => "0 0 * * 0",
            "@daily" | "@midnight" => "0 0 * * *",
            "@hourly" => "0 * * * *",
            other => other,
        };
        if let Some(period) = text.strip_prefix("@every ") {
            return Ok(Schedule::Every(duration(period)?));
        }
        let fields: Vec<&str> = text.split_whitespace().collect();
        let [minutes, hours, days, months, weekdays] = fields[..] else {
            return Err(BadSchedule(format!(
                "expected exactly 5 fields, found {}: [{}]",
                fields.len(),
                fields.join(" ")
            )));
        };
        Ok(Schedule::Fields(Fields {
            minutes: field(minutes, 0, 59, &[])?,
            hours: field(hours, 0, 23, &[])?,
            days: field(days, 1, 31, &[])?,
            months: field(months, 1, 12, &MONTHS)?,
            // 7 is another name for Sunday.
            weekdays: field(weekdays, 0, 7, &WEEKDAYS).map(|bits| (bits | (bits >> 7)) & 0x7f)?,
            any_day: is_star(days),
            any_weekday: is_star(weekdays),
        }))
    }

    /// The first time after `after`; None if there is none within the next years (30 February).
    pub fn next(&self, after: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        match self {
            Schedule::Every(period) => {
                let whole = Timestamp::from_second(after.as_second()).ok()?;
                whole.checked_add(*period).ok()
            }
            Schedule::Fields(fields) => fields.next(after, zone),
        }
    }
}

impl Fields {
    fn next(&self, after: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        let mut date = after.to_zoned(zone.clone()).date();
        for _ in 0..366 * 5 {
            if self.matches_date(date)
                && let Some(found) = self.next_on(date, after, zone)
            {
                return Some(found);
            }
            date = date.checked_add(1.day()).ok()?;
        }
        None
    }

    fn matches_date(&self, date: Date) -> bool {
        let has = |bits: u64, value: i8| bits & (1 << value) != 0;
        let (day, weekday) =
            (has(self.days, date.day()), has(self.weekdays, date.weekday().to_sunday_zero_offset()));
        let day_fits = if self.any_day || self.any_weekday { day && weekday } else { day || weekday };
        has(self.months, date.month()) && day_fits
    }

    fn next_on(&self, date: Date, after: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        let times = (0..24).filter(|hour| self.hours & (1 << hour) != 0).flat_map(|hour| {
            let minutes = (0..60).filter(|minute| self.minutes & (1 << minute) != 0);
            minutes.map(move |minute| (hour, minute))
        });
        times
            .filter_map(|(hour, minute)| {
                let ambiguous = zone.to_ambiguous_zoned(date.at(hour, minute, 0, 0));
                // A time that the clock skips never comes; one it shows twice comes at its first.
                if matches!(ambiguous.offset(), AmbiguousOffset::Gap { .. }) {
                    return None;
                }
                ambiguous.earlier().ok().map(|zoned| zoned.timestamp())
            })
            .find(|time| *time > after)
    }
}

fn is_star(field: &str) -> bool {
    field.split(',').any(|part| part.starts_with('*') || part.starts_with('?'))
}

/// `*`, `3`, `1-5`, `*/2`, `MON-FRI`, and lists of them.
fn field(text: &str, min: u32, max: u32, names: &[&str]) -> Result<u64, BadSchedule> {
    let bad = |what: &str| BadSchedule(format!("{what}: {text}"));
    let value = |part: &str| -> Result<u32, BadSchedule> {
        let lower = part.to_lowercase();
        match names.iter().position(|name| *name == lower) {
            Some(position) => Ok(position as u32 + min),
            None => part.parse().map_err(|_| bad("failed to parse int from")),
        }
    };
    let mut bits = 0;
    for part in text.split(',') {
        let (range, step) = match part.split_once('/') {
            Some((range, step)) => (range, Some(step.parse::<u32>().map_err(|_| bad("bad step in"))?)),
            None => (part, None),
        };
        let (first, last) = match (range, range.split_once('-')) {
            ("*" | "?", _) => (min, max),
            (_, Some((first, last))) => (value(first)?, value(last)?),
            // A single value with a step means from there on.
            (single, None) => (value(single)?, if step.is_some() { max } else { value(single)? }),
        };
        let step = step.unwrap_or(1);
        if first < min || last > max || first > last || step == 0 {
            return Err(bad("value out of range in"));
        }
        (first..=last).step_by(step as usize).for_each(|value| bits |= 1 << value);
    }
    Ok(bits)
}

/// Go's way to write a duration, in whole seconds: `1h30m`.
fn duration(text: &str) -> Result<Duration, BadSchedule> {
    let bad = || BadSchedule(format!("failed to parse duration @every {text}"));
    let mut seconds = 0u64;
    let mut rest = text.trim();
    while !rest.is_empty() {
        let digits = rest.find(|character: char| !character.is_ascii_digit()).ok_or_else(bad)?;
        let number: u64 = rest[..digits].parse().map_err(|_| bad())?;
        let unit = rest[digits..].chars().next().ok_or_else(bad)?;
        let factor = match unit {
            'h' => 3600,
            'm' => 60,
            's' => 1,
            _ => return Err(bad()),
        };
        seconds = number.checked_mul(factor).and_then(|part| seconds.checked_add(part)).ok_or_else(bad)?;
        rest = &rest[digits + 1..];
    }
    if seconds == 0 { Err(bad()) } else { Ok(Duration::from_secs(seconds)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next(schedule: &str, zone: &str, after: &str) -> Option<String> {
        let zone = TimeZone::get(zone).unwrap();
        let found = Schedule::parse(schedule).unwrap().next(after.parse().unwrap(), &zone)?;
        Some(found.to_string())
    }

    #[test]
    fn the_next_time_is_the_first_that_matches() {
        let check = |schedule: &str, after: &str, expected: &str| {
            assert_eq!(next(schedule, "UTC", after).as_deref(), Some(expected), "{schedule}");
        };
        check("* * * * *", "2026-01-01T00:00:30Z", "2026-01-01T00:01:00Z");
        check("*/15 * * * *", "2026-01-01T00:45:00Z", "2026-01-01T01:00:00Z");
        check("0 3 * * *", "2026-01-01T03:00:00Z", "2026-01-02T03:00:00Z");
        check("0 0 29 2 *", "2026-01-01T00:00:00Z", "2028-02-29T00:00:00Z");
        check("30 8 * * MON-FRI", "2026-01-02T09:00:00Z", "2026-01-05T08:30:00Z");
        check("0 0 * * 7", "2026-01-01T00:00:00Z", "2026-01-04T00:00:00Z");
        check("0 0 13 * FRI", "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z");
        check("5/20 * * * *", "2026-01-01T00:06:00Z", "2026-01-01T00:25:00Z");
        check("@hourly", "2026-01-01T00:00:00Z", "2026-01-01T01:00:00Z");
        check("@every 1h30m", "2026-01-01T00:00:00.5Z", "2026-01-01T01:30:00Z");
        assert_eq!(next("0 0 30 2 *", "UTC", "2026-01-01T00:00:00Z"), None);
    }

    #[test]
    fn a_time_zone_moves_with_its_summer() {
        let check = |schedule: &str, after: &str, expected: &str| {
            assert_eq!(
                next(schedule, "Europe/Berlin", after).as_deref(),
                Some(expected),
                "{schedule} {after}"
            );
        };
        check("0 9 * * *", "2026-01-15T00:00:00Z", "2026-01-15T08:00:00Z");
        check("0 9 * * *", "2026-07-15T00:00:00Z", "2026-07-15T07:00:00Z");
        // 02:30 does not exist on 29 March 2026 and comes once on 25 October.
        check("30 2 * * *", "2026-03-28T12:00:00Z", "2026-03-30T00:30:00Z");
        check("30 2 * * *", "2026-10-24T12:00:00Z", "2026-10-25T00:30:00Z");
        check("30 2 * * *", "2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z");
    }

    #[test]
    fn nonsense_is_refused() {
        for bad in [
            "",
            "* * * *",
            "* * * * * *",
            "60 * * * *",
            "* 24 * * *",
            "* * 0 * *",
            "x * * * *",
            "*/0 * * * *",
            "5-1 * * * *",
            "@every",
            "@every x",
            "@sometimes",
        ] {
            assert!(Schedule::parse(bad).is_err(), "{bad}");
        }
    }
}
