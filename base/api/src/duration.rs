//! Spans of time as Go writes them (`1m30s`, `250ms`): a string in JSON, nanoseconds on the wire.

const UNITS: [(&str, i64); 7] = [
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("ms", 1_000_000),
    ("s", SECOND),
    ("m", 60 * SECOND),
    ("h", 3600 * SECOND),
];
const SECOND: i64 = 1_000_000_000;

/// Nanoseconds; `None` for what is no duration, or too long to be one.
pub fn parse(text: &str) -> Option<i64> {
    let (sign, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Some(0);
    }
    if rest.is_empty() {
        return None;
    }
    let mut total: i64 = 0;
    while !rest.is_empty() {
        let digits = rest.find(|sign: char| !sign.is_ascii_digit() && sign != '.')?;
        let (number, tail) = rest.split_at(digits);
        let unit_end = tail.find(|sign: char| sign.is_ascii_digit() || sign == '.').unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(unit_end);
        let (_, nanoseconds) = UNITS.iter().find(|(name, _)| *name == unit)?;
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.is_empty() && fraction.is_empty() {
            return None;
        }
        let whole: i64 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
        total = total.checked_add(whole.checked_mul(*nanoseconds)?)?;
        let mut place = *nanoseconds;
        for digit in fraction.chars() {
            place /= 10;
            total = total.checked_add(place * i64::from(digit.to_digit(10)?))?;
        }
        rest = tail;
    }
    Some(sign * total)
}

/// Hours, minutes and seconds with their fraction; below a second the unit that leaves no leading zero.
pub fn format(nanoseconds: i64) -> String {
    if nanoseconds == 0 {
        return "0s".into();
    }
    let sign = if nanoseconds < 0 { "-" } else { "" };
    let rest = nanoseconds.unsigned_abs();
    let second = SECOND.unsigned_abs();
    if rest < second {
        let (unit, size) = match rest {
            ..1_000 => ("ns", 1),
            1_000..1_000_000 => ("µs", 1_000),
            _ => ("ms", 1_000_000),
        };
        return format!("{sign}{}{unit}", decimal(rest, size));
    }
    let (hours, minutes) = (rest / (3600 * second), rest / (60 * second) % 60);
    let seconds = decimal(rest % (60 * second), second);
    match (hours, minutes) {
        (0, 0) => format!("{sign}{seconds}s"),
        (0, _) => format!("{sign}{minutes}m{seconds}s"),
        _ => format!("{sign}{hours}h{minutes}m{seconds}s"),
    }
}

/// `amount / unit` without trailing zeros; `unit` is a power of ten.
fn decimal(amount: u64, unit: u64) -> String {
    let (whole, fraction) = (amount / unit, amount % unit);
    if fraction == 0 {
        return whole.to_string();
    }
    let digits = unit.ilog10() as usize;
    format!("{whole}.{}", format!("{fraction:0digits$}").trim_end_matches('0'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_written_and_read_as_go_does() {
        for (nanoseconds, text) in [
            (0, "0s"),
            (1, "1ns"),
            (1_500, "1.5µs"),
            (250_000_000, "250ms"),
            (15 * SECOND, "15s"),
            (10_042_000_000, "10.042s"),
            (90 * SECOND, "1m30s"),
            (3600 * SECOND, "1h0m0s"),
            (-60 * SECOND, "-1m0s"),
        ] {
            assert_eq!(format(nanoseconds), text);
            assert_eq!(parse(text), Some(nanoseconds), "{text}");
        }
        assert_eq!(parse("1.5h"), Some(5400 * SECOND));
        for bad in ["", "1", "s", "1x", ".s", "1s-", "99999999999999h", "1..5s"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
