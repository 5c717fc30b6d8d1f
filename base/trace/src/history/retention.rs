//! How much of the history stays: `256MB,7d`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Whichever is less. Both at zero: nothing is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    pub bytes: u64,
    pub age: Duration,
}

impl Default for Retention {
    fn default() -> Self {
        Retention { bytes: 256 << 20, age: Duration::from_secs(7 * DAY) }
    }
}

impl Retention {
    pub fn is_off(&self) -> bool {
        self.bytes == 0 || self.age.is_zero()
    }
}

const DAY: u64 = 24 * 3600;
const BYTES: [(&str, u64); 6] =
    [("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("KB", 1 << 10), ("MB", 1 << 20), ("GB", 1 << 30)];
const TIMES: [(&str, u64); 4] = [("d", DAY), ("h", 3600), ("m", 60), ("s", 1)];

#[derive(Debug, PartialEq, Eq)]
pub struct RetentionError(String);

impl fmt::Display for RetentionError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "{:?} is neither a size (64MB, 1GB), an age (12h, 7d), both (256MB,7d) nor 0",
            self.0
        )
    }
}

impl std::error::Error for RetentionError {}

impl FromStr for Retention {
    type Err = RetentionError;

    /// What is left out keeps its default; `0` turns the history off.
    fn from_str(text: &str) -> Result<Self, RetentionError> {
        let refused = || RetentionError(text.to_owned());
        if text.trim() == "0" {
            return Ok(Retention { bytes: 0, age: Duration::ZERO });
        }
        let mut retention = Retention::default();
        let (mut has_bytes, mut has_age) = (false, false);
        for part in text.split(',').map(str::trim) {
            if let Some(bytes) = amount(part, &BYTES)
                && !std::mem::replace(&mut has_bytes, true)
            {
                retention.bytes = bytes;
            } else if let Some(seconds) = amount(part, &TIMES)
                && !std::mem::replace(&mut has_age, true)
            {
                retention.age = Duration::from_secs(seconds);
            } else {
                return Err(refused());
            }
        }
        Ok(retention)
    }
}

fn amount(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let (number, unit) = units.iter().find_map(|(unit, times)| Some((text.strip_suffix(unit)?, times)))?;
    number.trim().parse::<u64>().ok()?.checked_mul(*unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_ages_are_read_and_nonsense_is_refused() {
        fn check(text: &str, expected: Option<(u64, u64)>) {
            let read = text.parse::<Retention>().ok();
            assert_eq!(read.map(|read| (read.bytes, read.age.as_secs())), expected, "{text}");
        }
        check("256MB,7d", Some((256 << 20, 7 * DAY)));
        check("1GB", Some((1 << 30, 7 * DAY)));
        check("12h", Some((256 << 20, 12 * 3600)));
        check("2d, 64MiB", Some((64 << 20, 2 * DAY)));
        check("0", Some((0, 0)));
        check("0MB,7d", Some((0, 7 * DAY)));
        for nonsense in ["", "7", "x", "7d,8d", "1MB,2MB", "-1d", "1.5d", "99999999999999999999MB"] {
            check(nonsense, None);
        }
        assert!("0".parse::<Retention>().unwrap().is_off() && "0MB".parse::<Retention>().unwrap().is_off());
        assert!(!Retention::default().is_off());
    }
}
