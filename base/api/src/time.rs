//! Times as the API writes them: RFC 3339 in UTC, whole seconds (`Time`) or microseconds (`MicroTime`).

use std::borrow::Cow;
use std::fmt::{self, Display};

use jiff::Timestamp;
use jiff::fmt::temporal::DateTimePrinter;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Precision {
    Seconds,
    Micros,
}

/// Text that is no RFC 3339 time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadTime {
    text: String,
    precision: Precision,
}

/// `2026-01-02T03:04:05Z`
pub fn format_seconds(time: Timestamp) -> String {
    format(time, Precision::Seconds)
}

/// `2026-01-02T03:04:05.000006Z`
pub fn format_micros(time: Timestamp) -> String {
    format(time, Precision::Micros)
}

pub fn format(time: Timestamp, precision: Precision) -> String {
    const SECONDS: DateTimePrinter = DateTimePrinter::new().precision(Some(0));
    const MICROS: DateTimePrinter = DateTimePrinter::new().precision(Some(6));
    match precision {
        Precision::Seconds => SECONDS.timestamp_to_string(&time),
        Precision::Micros => MICROS.timestamp_to_string(&time),
    }
}

/// Reads any RFC 3339 time.
pub fn parse(text: &str) -> Option<Timestamp> {
    has_rfc3339_shape(text.as_bytes()).then(|| text.parse().ok()).flatten()
}

/// The text as the API writes it back; None for the zero time, which stands for no time at all.
pub fn canonical(text: &str, precision: Precision) -> Result<Option<Cow<'_, str>>, BadTime> {
    let bad = || BadTime { text: text.to_string(), precision };
    let time = parse(text).ok_or_else(bad)?;
    if precision == Precision::Micros && !has_six_digits(text) {
        return Err(bad());
    }
    if is_zero(time) {
        return Ok(None);
    }
    let length = match precision {
        Precision::Seconds => 20,
        Precision::Micros => 27,
    };
    if text.len() == length && text.ends_with('Z') {
        return Ok(Some(Cow::Borrowed(text)));
    }
    Ok(Some(Cow::Owned(format(time, precision))))
}

/// A `MicroTime` is read only as it is written.
fn has_six_digits(text: &str) -> bool {
    let fraction = text[19..].strip_prefix('.').unwrap_or("");
    fraction.find(|c: char| !c.is_ascii_digit()) == Some(6)
}

/// The first instant of year 1 is how a time that was never set looks on the wire.
pub fn is_zero(time: Timestamp) -> bool {
    const YEAR_ONE: i64 = -62_135_596_800;
    time.as_second() == YEAR_ONE && time.subsec_nanosecond() == 0
}

/// `YYYY-MM-DDTHH:MM:SS[.fraction](Z|±HH:MM)`; the numbers themselves are checked by the parser.
fn has_rfc3339_shape(text: &[u8]) -> bool {
    let digits = |range: std::ops::Range<usize>| text[range].iter().all(u8::is_ascii_digit);
    if text.len() < 20
        || !(digits(0..4)
            && digits(5..7)
            && digits(8..10)
            && digits(11..13)
            && digits(14..16)
            && digits(17..19))
        || [text[4], text[7], text[10], text[13], text[16]] != *b"--T::"
    {
        return false;
    }
    let mut rest = &text[19..];
    if rest[0] == b'.' {
        let end = rest[1..].iter().position(|b| !b.is_ascii_digit()).unwrap_or(rest.len() - 1) + 1;
        // more than nine digits say nothing that a timestamp keeps
        if end == 1 || end > 10 {
            return false;
        }
        rest = &rest[end..];
    }
    matches!(rest, [b'Z'] | [b'+' | b'-', _, _, b':', _, _])
}

impl Display for BadTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = &self.text;
        let (layout, rest, element) = match self.precision {
            Precision::Seconds => ("2006-01-02T15:04:05Z07:00", text.as_str(), "2006"),
            Precision::Micros if parse(text).is_some() => {
                ("2006-01-02T15:04:05.000000Z07:00", &text[19..], ".000000")
            }
            Precision::Micros => ("2006-01-02T15:04:05.000000Z07:00", text.as_str(), "2006"),
        };
        write!(f, "parsing time {text:?} as {layout:?}: cannot parse {rest:?} as {element:?}")
    }
}

impl std::error::Error for BadTime {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_in_utc_with_a_fixed_precision() {
        let check = |text: &str, precision, expected: &str| {
            let canonical = canonical(text, precision).expect(text).expect("not zero");
            assert_eq!(canonical, expected, "{text}");
        };
        check("2026-01-02T03:04:05Z", Precision::Seconds, "2026-01-02T03:04:05Z");
        check("2026-01-02T03:04:05+01:00", Precision::Seconds, "2026-01-02T02:04:05Z");
        check("2026-01-02T03:04:05.9Z", Precision::Seconds, "2026-01-02T03:04:05Z");
        check("2026-01-02T03:04:05.123456Z", Precision::Micros, "2026-01-02T03:04:05.123456Z");
        check("2026-01-02T03:04:05.123456+01:00", Precision::Micros, "2026-01-02T02:04:05.123456Z");
        check("1969-01-02T03:04:05.5Z", Precision::Seconds, "1969-01-02T03:04:05Z");
    }

    #[test]
    fn a_time_that_was_never_set_is_none() {
        assert_eq!(canonical("0001-01-01T00:00:00Z", Precision::Seconds), Ok(None));
    }

    #[test]
    fn micro_times_are_read_only_as_they_are_written() {
        assert_eq!(
            canonical("2026-01-02T03:04:05.123Z", Precision::Micros).expect_err("three digits").to_string(),
            "parsing time \"2026-01-02T03:04:05.123Z\" as \"2006-01-02T15:04:05.000000Z07:00\": cannot parse \
             \".123Z\" as \".000000\""
        );
        assert!(canonical("2026-01-02T03:04:05Z", Precision::Micros).is_err());
    }

    #[test]
    fn nonsense_is_refused() {
        for text in [
            "",
            "yesterday",
            "2026-13-02T03:04:05Z",
            "2026-01-02 03:04:05Z",
            "2026-01-02T03:04:05",
            "2026-01-02t03:04:05z",
            "2026-01-02T03:04:05.Z",
            "2026-01-02T25:04:05Z",
        ] {
            assert!(parse(text).is_none(), "{text}");
        }
    }
}
