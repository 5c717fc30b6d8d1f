//! Ages as kubectl writes them: two units at most, and only while the second one matters.

/// Seconds to `90s`, `5m10s`, `3h`, `2d4h`, `1y30d`.
pub fn human(seconds: i64) -> String {
    if seconds < -1 {
        return "<invalid>".to_owned();
    }
    if seconds < 0 {
        return "0s".to_owned();
    }
    let (minutes, hours) = (seconds / 60, seconds / 3600);
    let (days, years) = (hours / 24, hours / 24 / 365);
    let pair = |large: i64, large_unit: &str, small: i64, small_unit: &str| {
        if small == 0 {
            format!("{large}{large_unit}")
        } else {
            format!("{large}{large_unit}{small}{small_unit}")
        }
    };
    if seconds < 120 {
        format!("{seconds}s")
    } else if minutes < 10 {
        pair(minutes, "m", seconds % 60, "s")
    } else if minutes < 180 {
        format!("{minutes}m")
    } else if hours < 8 {
        pair(hours, "h", minutes % 60, "m")
    } else if hours < 48 {
        format!("{hours}h")
    } else if hours < 192 {
        pair(days, "d", hours % 24, "h")
    } else if days < 365 * 2 {
        format!("{days}d")
    } else if days < 365 * 8 {
        pair(years, "y", days % 365, "d")
    } else {
        format!("{years}y")
    }
}

/// The age of an RFC 3339 time, or `<unknown>`.
pub fn age(timestamp: &str, now: jiff::Timestamp) -> String {
    match timestamp.parse::<jiff::Timestamp>() {
        Ok(then) => human(now.as_second() - then.as_second()),
        Err(_) => "<unknown>".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_keep_two_units_at_most() {
        let check = |seconds: i64, expected: &str| assert_eq!(human(seconds), expected, "{seconds}");
        check(0, "0s");
        check(119, "119s");
        check(120, "2m");
        check(310, "5m10s");
        check(3600, "60m");
        check(3 * 3600, "3h");
        check(3 * 3600 + 120, "3h2m");
        check(9 * 3600 + 120, "9h");
        check(52 * 3600, "2d4h");
        check(9 * 86400, "9d");
        check(800 * 86400, "2y70d");
        check(-5, "<invalid>");
    }
}
