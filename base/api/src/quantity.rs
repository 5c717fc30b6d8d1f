//! Quantities: `100m`, `1.5Gi`, `3e6`. Exact decimals with a suffix, compared and added without
//! rounding, and written in the one canonical form that two equal requests share.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt::{self, Display};
use std::str::FromStr;

/// `mantissa · 10^exponent`. Nothing smaller than a nano is kept: parsing rounds away from zero to it,
/// so that a request for very little is never a request for nothing.
#[derive(Debug, Clone, Copy)]
pub struct Quantity {
    mantissa: i128,
    exponent: i32,
    format: Format,
}

/// How the user wrote it, and so how it is written back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// `12e6`
    DecimalExponent,
    /// `12M`
    DecimalSi,
    /// `12Mi`
    BinarySi,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BadQuantity {
    Form,
    Suffix,
}

const NANO: i32 = -9;
/// 10^38 is the largest power of ten that an i128 holds.
const MAX_POWER: u32 = 38;
/// `E`: there is no suffix for more.
const LARGEST_SUFFIX: i32 = 18;
/// Digits are read up to here; a binary suffix has room above it. What is written stays below it too, so that it is read as
/// the same number.
const MAX_MANTISSA: i128 = 1 << 120;

impl Quantity {
    pub const ZERO: Quantity = Quantity { mantissa: 0, exponent: 0, format: Format::DecimalSi };

    pub fn parse(text: &str) -> Result<Quantity, BadQuantity> {
        Ok(read(text)?.0)
    }

    pub fn from_value(value: i64, format: Format) -> Quantity {
        Quantity { mantissa: value.into(), exponent: 0, format }
    }

    pub fn from_milli(milli: i64, format: Format) -> Quantity {
        Quantity { mantissa: milli.into(), exponent: -3, format }
    }

    /// Whole units, rounded away from zero.
    pub fn value(&self) -> i64 {
        self.scaled(0)
    }

    /// Thousandths, rounded away from zero.
    pub fn milli(&self) -> i64 {
        self.scaled(-3)
    }

    pub fn is_zero(&self) -> bool {
        self.mantissa == 0
    }

    pub fn is_negative(&self) -> bool {
        self.mantissa < 0
    }

    pub fn format(&self) -> Format {
        self.format
    }

    fn scaled(&self, exponent: i32) -> i64 {
        let shift = self.exponent.saturating_sub(exponent);
        let exact = if shift >= 0 {
            power(shift as u32)
                .and_then(|power| self.mantissa.checked_mul(power))
                .unwrap_or(if self.mantissa < 0 { i128::MIN } else { i128::MAX })
        } else {
            divide_away(self.mantissa, shift.unsigned_abs())
        };
        exact.clamp(i64::MIN.into(), i64::MAX.into()) as i64
    }
}

/// The form in which the API writes the quantity back: `1000m` becomes `1`. Text that is good as it
/// stands is kept, as clients compare it with what they sent.
pub fn canonical(text: &str) -> Result<Cow<'_, str>, BadQuantity> {
    let (quantity, good_as_it_stands) = read(text)?;
    Ok(if good_as_it_stands { Cow::Borrowed(text) } else { Cow::Owned(quantity.to_string()) })
}

/// Reads the quantity and whether its text may stay as it is.
fn read(text: &str) -> Result<(Quantity, bool), BadQuantity> {
    if text == "0" {
        return Ok((Quantity::ZERO, true));
    }
    read_plain(text).map_or_else(|| read_any(text), Ok)
}

fn read_any(text: &str) -> Result<(Quantity, bool), BadQuantity> {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let negative = text.starts_with('-');
    let number_end =
        unsigned.bytes().position(|b| !b.is_ascii_digit() && b != b'.').unwrap_or(unsigned.len());
    let (number, suffix) = unsigned.split_at(number_end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if fraction.contains('.') || (whole.is_empty() && fraction.is_empty()) || !is_suffix(suffix) {
        return Err(BadQuantity::Form);
    }
    let (base, power_of_base, format) = read_suffix(suffix).ok_or(BadQuantity::Suffix)?;
    let whole = whole.trim_start_matches('0');

    let digits = whole.len() + fraction.len();
    let (mut mantissa, mut exponent, exact) = read_digits(whole, fraction);
    match base {
        2 => mantissa = mantissa.saturating_mul(1 << power_of_base),
        _ => exponent = exponent.saturating_add(power_of_base),
    }
    let good_as_it_stands = match format {
        _ if !exact || mantissa == 0 || digits > 18 => false,
        Format::BinarySi => fraction.is_empty() && read_digits(whole, "").0 & 7 != 0,
        _ => exponent >= NANO && exponent % 3 == 0 && !whole.is_empty() && !number_ends_in_thousands(number),
    };
    if exponent < NANO {
        mantissa = divide_away(mantissa, exponent.abs_diff(NANO));
        exponent = NANO;
    }
    let mut quantity = Quantity { mantissa, exponent, format };
    let largest = Quantity::from_value(i64::MAX, format);
    if format == Format::BinarySi && quantity > largest {
        quantity = largest;
    }
    let quantity = if negative { -quantity } else { quantity };
    let below_one = quantity < Quantity::from_value(1, format) && -quantity < Quantity::from_value(1, format);
    let format = if format == Format::BinarySi && below_one { Format::DecimalSi } else { format };
    Ok((Quantity { format, ..quantity }, good_as_it_stands))
}

/// What nearly all are: a few digits and a suffix.
fn read_plain(text: &str) -> Option<(Quantity, bool)> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    if !(1..=18).contains(&digits) {
        return None;
    }
    let (_, power, format) = read_suffix(&text[digits..])?;
    let number = text.bytes().take(digits).fold(0u64, |number, digit| number * 10 + u64::from(digit - b'0'));
    let quantity = match format {
        Format::BinarySi if number != 0 => {
            let mantissa = (i128::from(number) << power).min(i64::MAX.into());
            Quantity { mantissa, exponent: 0, format }
        }
        Format::DecimalSi => Quantity { mantissa: number.into(), exponent: power, format },
        _ => return None,
    };
    let good_as_it_stands = match format {
        Format::BinarySi => number & 7 != 0,
        _ => !number.is_multiple_of(1000),
    };
    Some((quantity, good_as_it_stands))
}

fn number_ends_in_thousands(number: &str) -> bool {
    number.bytes().rev().filter(|b| *b != b'.').take_while(|b| *b == b'0').count() >= 3
}

/// The digits as one number with its exponent; digits that an i128 cannot hold are cut off, and said so.
fn read_digits(whole: &str, fraction: &str) -> (i128, i32, bool) {
    let mut mantissa: i128 = 0;
    let mut exponent = 0;
    let mut exact = true;
    for (digit, in_fraction) in whole.bytes().map(|b| (b, false)).chain(fraction.bytes().map(|b| (b, true))) {
        let next = mantissa.checked_mul(10).and_then(|m| m.checked_add(i128::from(digit - b'0')));
        match next {
            Some(next) if next < 1 << 66 || !in_fraction && next < MAX_MANTISSA => {
                mantissa = next;
                exponent -= i32::from(in_fraction);
            }
            _ => {
                exact = exact && digit == b'0';
                exponent += i32::from(!in_fraction);
            }
        }
    }
    if !exact && exponent < 0 {
        mantissa += 1;
    }
    (mantissa, exponent, exact)
}

/// `[eEinumkKMGTP]*[-+]?[0-9]*`
fn is_suffix(suffix: &str) -> bool {
    let rest = suffix.trim_start_matches(|c| "eEinumkKMGTP".contains(c));
    rest.strip_prefix(['-', '+']).unwrap_or(rest).bytes().all(|b| b.is_ascii_digit())
}

fn read_suffix(suffix: &str) -> Option<(i32, i32, Format)> {
    Some(match suffix {
        "n" => (10, -9, Format::DecimalSi),
        "u" => (10, -6, Format::DecimalSi),
        "m" => (10, -3, Format::DecimalSi),
        "" => (10, 0, Format::DecimalSi),
        "k" => (10, 3, Format::DecimalSi),
        "M" => (10, 6, Format::DecimalSi),
        "G" => (10, 9, Format::DecimalSi),
        "T" => (10, 12, Format::DecimalSi),
        "P" => (10, 15, Format::DecimalSi),
        "E" => (10, 18, Format::DecimalSi),
        "Ki" => (2, 10, Format::BinarySi),
        "Mi" => (2, 20, Format::BinarySi),
        "Gi" => (2, 30, Format::BinarySi),
        "Ti" => (2, 40, Format::BinarySi),
        "Pi" => (2, 50, Format::BinarySi),
        "Ei" => (2, 60, Format::BinarySi),
        _ => (10, suffix.strip_prefix(['e', 'E'])?.parse().ok()?, Format::DecimalExponent),
    })
}

fn power(exponent: u32) -> Option<i128> {
    (exponent <= MAX_POWER).then(|| 10i128.pow(exponent))
}

/// Divides by a power of ten, rounding away from zero.
fn divide_away(mantissa: i128, exponent: u32) -> i128 {
    match power(exponent) {
        Some(divisor) => mantissa / divisor + i128::from(mantissa % divisor != 0) * mantissa.signum(),
        None => mantissa.signum(),
    }
}

/// Brings two quantities to one exponent; saturates where no i128 could hold the result.
fn aligned(a: &Quantity, b: &Quantity) -> (i128, i128, i32) {
    let exponent = match (a.mantissa, b.mantissa) {
        (0, _) => b.exponent,
        (_, 0) => a.exponent,
        _ => a.exponent.min(b.exponent),
    };
    let lift = |q: &Quantity| {
        if q.mantissa == 0 {
            return 0;
        }
        power(q.exponent.abs_diff(exponent))
            .and_then(|power| q.mantissa.checked_mul(power))
            .unwrap_or(if q.mantissa < 0 { i128::MIN } else { i128::MAX })
    };
    (lift(a), lift(b), exponent)
}

impl Ord for Quantity {
    fn cmp(&self, other: &Quantity) -> Ordering {
        let (a, b, _) = aligned(self, other);
        a.cmp(&b)
    }
}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Quantity) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Quantity) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Quantity {}

/// A sum is written as its first term was, unless that was zero.
impl std::ops::Add for Quantity {
    type Output = Quantity;

    fn add(self, other: Quantity) -> Quantity {
        let (a, b, exponent) = aligned(&self, &other);
        let format = if self.is_zero() { other.format } else { self.format };
        Quantity { mantissa: a.saturating_add(b), exponent, format }
    }
}

impl std::ops::Neg for Quantity {
    type Output = Quantity;

    fn neg(self) -> Quantity {
        Quantity { mantissa: self.mantissa.saturating_neg(), ..self }
    }
}

impl std::ops::Sub for Quantity {
    type Output = Quantity;

    fn sub(self, other: Quantity) -> Quantity {
        self + -other
    }
}

impl std::ops::AddAssign for Quantity {
    fn add_assign(&mut self, other: Quantity) {
        *self = *self + other;
    }
}

impl std::ops::SubAssign for Quantity {
    fn sub_assign(&mut self, other: Quantity) {
        *self = *self - other;
    }
}

impl Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_zero() {
            return f.write_str("0");
        }
        if self.format == Format::BinarySi
            && let Some(whole) = self.whole()
            && whole.unsigned_abs() >= 1024
        {
            let mut number = whole;
            let mut suffix = 0;
            while number % 1024 == 0 && suffix < 6 {
                number /= 1024;
                suffix += 1;
            }
            return write!(f, "{number}{}", ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"][suffix]);
        }
        let mut number = self.mantissa;
        let mut exponent = self.exponent;
        while number % 10 == 0 && exponent < i32::MAX {
            number /= 10;
            exponent += 1;
        }
        let lifted = |excess: i32| {
            let number = power(excess as u32)?.checked_mul(number)?;
            (number.unsigned_abs() < MAX_MANTISSA.unsigned_abs()).then_some((number, exponent - excess))
        };
        let in_thousands = || lifted(exponent.rem_euclid(3));
        let (format, written) = match self.format {
            Format::DecimalSi | Format::BinarySi if exponent > LARGEST_SUFFIX => {
                match lifted(exponent - LARGEST_SUFFIX) {
                    Some(written) => (Format::DecimalSi, Some(written)),
                    // It is read again as such a number, and so has to be written as one.
                    None => (Format::DecimalExponent, in_thousands()),
                }
            }
            format => (format, in_thousands()),
        };
        let Some((number, exponent)) = written else { return write!(f, "{number}e{exponent}") };
        match (format, exponent) {
            (_, 0) => write!(f, "{number}"),
            (Format::DecimalExponent, _) => write!(f, "{number}e{exponent}"),
            (_, -9) => write!(f, "{number}n"),
            (_, -6) => write!(f, "{number}u"),
            (_, -3) => write!(f, "{number}m"),
            _ => write!(
                f,
                "{number}{}",
                ["k", "M", "G", "T", "P", "E"][(exponent / 3 - 1).clamp(0, 5) as usize]
            ),
        }
    }
}

impl Quantity {
    /// The number itself when it has no fraction.
    fn whole(&self) -> Option<i128> {
        if self.exponent >= 0 {
            return self.mantissa.checked_mul(power(self.exponent as u32)?);
        }
        let divisor = power(self.exponent.unsigned_abs())?;
        (self.mantissa % divisor == 0).then(|| self.mantissa / divisor)
    }
}

impl FromStr for Quantity {
    type Err = BadQuantity;

    fn from_str(text: &str) -> Result<Quantity, BadQuantity> {
        Quantity::parse(text)
    }
}

impl Display for BadQuantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            BadQuantity::Form => {
                "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
            }
            BadQuantity::Suffix => "unable to parse quantity's suffix",
        })
    }
}

impl std::error::Error for BadQuantity {}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: &str) {
        assert_eq!(canonical(text).as_deref(), Ok(expected), "{text}");
    }

    #[test]
    fn quantities_are_written_in_canonical_form() {
        for (text, expected) in [
            ("0", "0"),
            ("0Ki", "0"),
            ("1000m", "1"),
            ("100m", "100m"),
            ("0.5", "500m"),
            ("1.5", "1500m"),
            ("1.500", "1.500"),
            ("1000", "1k"),
            ("1500", "1500"),
            ("100000", "100k"),
            ("1024Ki", "1Mi"),
            ("1.5Gi", "1536Mi"),
            ("512Mi", "512Mi"),
            ("1000Ki", "1000Ki"),
            ("2048", "2048"),
            ("1Ki", "1Ki"),
            ("0.5Ki", "512"),
            ("0.5Mi", "512Ki"),
            ("-1.5Gi", "-1536Mi"),
            ("1e3", "1e3"),
            ("1000e3", "1e6"),
            ("12E6", "12E6"),
            ("1E", "1E"),
            ("1000E", "1000E"),
            ("0.0000000001", "1n"),
            ("1.0000000001", "1000000001n"),
            (".5", "500m"),
            ("5.", "5."),
            ("10Ei", "8Ei"),
        ] {
            if text == "10Ei" {
                // beyond what 63 bits hold, binary quantities are capped
                assert_eq!(Quantity::parse(text).map(|q| q.value()), Ok(i64::MAX));
            } else {
                check(text, expected);
            }
        }
    }

    #[test]
    fn numbers_of_many_digits_are_rounded_once() {
        let digits = "1234567890".repeat(6);
        for suffix in ["", "m", "k", "E", "e1", "e20", "e-30", "Ki", "Ei"] {
            for length in 30..=60 {
                for text in
                    [format!("{}{suffix}", &digits[..length]), format!("{}.5{suffix}", &digits[..length])]
                {
                    let written = canonical(&text).expect("a quantity").into_owned();
                    assert_eq!(canonical(&written).as_deref(), Ok(written.as_str()), "{text}");
                }
            }
        }
    }

    #[test]
    fn large_numbers_are_written_with_an_exponent() {
        for zeros in 18..=400 {
            for number in ["1", "-7", "12345", "123456789012345678901234567890123456"] {
                for suffix in ["", "m", "k", "E", "e1", "e2"] {
                    let text = format!("{number}{}{suffix}", "0".repeat(zeros));
                    let written = canonical(&text).expect("a quantity").into_owned();
                    assert_eq!(canonical(&written).as_deref(), Ok(written.as_str()), "{text}");
                    assert_eq!(Quantity::parse(&written), Quantity::parse(&text), "{text}");
                }
            }
        }
        check(&format!("1{}", "0".repeat(200)), "100e198");
        check(&format!("1{}", "0".repeat(30)), "1000000000000E");
    }

    #[test]
    fn the_short_way_reads_as_the_long_one() {
        let suffixes = ["", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
        let numbers =
            (0..=19u32).flat_map(|power| [10u128.pow(power), 10u128.pow(power) - 1, 8 * 10u128.pow(power)]);
        let numbers = numbers.chain(0..2100u128);
        for number in numbers.map(|number| number.to_string()).chain(["007".into(), "000".into()]) {
            for suffix in suffixes {
                let text = format!("{number}{suffix}");
                let Some((plain, stays)) = read_plain(&text) else { continue };
                let (any, any_stays) = read_any(&text).expect("a quantity");
                assert_eq!((plain, stays), (any, any_stays), "{text}");
                assert_eq!((plain.format, plain.to_string()), (any.format, any.to_string()), "{text}");
            }
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for text in ["", "+", ".", "1.2.3", "one", "1 Gi", "0x10", "1Gib", "1--1"] {
            assert_eq!(Quantity::parse(text), Err(BadQuantity::Form), "{text}");
        }
        for text in ["1mm", "1KiB2", "1ee3", "1kk"] {
            assert!(Quantity::parse(text).is_err(), "{text}");
        }
        assert_eq!(Quantity::parse("1mm"), Err(BadQuantity::Suffix));
    }

    #[test]
    fn arithmetic_is_exact() {
        let q = |text| Quantity::parse(text).expect("a quantity");
        assert_eq!((q("100m") + q("0.9")).to_string(), "1");
        assert_eq!((q("1Gi") - q("1Mi")).to_string(), "1023Mi");
        assert_eq!((q("0") + q("1Mi")).to_string(), "1Mi");
        assert!(q("1Gi") > q("1G"));
        assert_eq!(q("1"), q("1000m"));
        assert_eq!(q("1500m").value(), 2);
        assert_eq!(q("1n").milli(), 1);
        assert_eq!(q("-1500m").value(), -2);
        assert_eq!(q("1e300").milli(), i64::MAX);
        assert_eq!(q("1e-300").milli(), 1);
        assert!(q("1e300") > q("9E"));
    }
}
