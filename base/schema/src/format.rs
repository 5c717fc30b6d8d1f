//! The formats of strings and numbers that a schema may ask for; others say nothing. What fits each is what
//! upstream's validators accept, which is at times less strict than the format's own standard.

use std::net::IpAddr;
use std::sync::LazyLock;

use regex::Regex;

use crate::structural::Kind;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    Int32,
    Int64,
    Float,
    Double,
    BsonObjectId,
    Uri,
    Email,
    Hostname,
    Ipv4,
    Ipv6,
    Cidr,
    Mac,
    Uuid,
    Uuid3,
    Uuid4,
    Uuid5,
    Isbn,
    Isbn10,
    Isbn13,
    CreditCard,
    Ssn,
    HexColor,
    RgbColor,
    Byte,
    Password,
    Date,
    Duration,
    DateTime,
    ShortName,
    LongName,
}

const STRINGS: &[(&str, Format)] = &[
    ("bsonobjectid", Format::BsonObjectId),
    ("uri", Format::Uri),
    ("email", Format::Email),
    ("hostname", Format::Hostname),
    ("ipv4", Format::Ipv4),
    ("ipv6", Format::Ipv6),
    ("cidr", Format::Cidr),
    ("mac", Format::Mac),
    ("uuid", Format::Uuid),
    ("uuid3", Format::Uuid3),
    ("uuid4", Format::Uuid4),
    ("uuid5", Format::Uuid5),
    ("isbn", Format::Isbn),
    ("isbn10", Format::Isbn10),
    ("isbn13", Format::Isbn13),
    ("creditcard", Format::CreditCard),
    ("ssn", Format::Ssn),
    ("hexcolor", Format::HexColor),
    ("rgbcolor", Format::RgbColor),
    ("byte", Format::Byte),
    ("password", Format::Password),
    ("date", Format::Date),
    ("duration", Format::Duration),
    ("datetime", Format::DateTime),
    ("k8sshortname", Format::ShortName),
    ("k8slongname", Format::LongName),
];

impl Format {
    /// The format of this name, for values of this type; no type is said of what may be an integer or a
    /// string. A name of a string's format may have dashes anywhere.
    pub(crate) fn named(name: &str, kind: Option<Kind>) -> Option<Format> {
        match kind.unwrap_or(Kind::Any) {
            Kind::Any | Kind::String => {
                let plain = name.replace('-', "");
                STRINGS.iter().find(|(known, _)| *known == plain).map(|(_, format)| *format)
            }
            Kind::Integer => match name {
                "int32" => Some(Format::Int32),
                "int64" => Some(Format::Int64),
                _ => None,
            },
            Kind::Number => match name {
                "float" => Some(Format::Float),
                "double" => Some(Format::Double),
                _ => None,
            },
            Kind::Object | Kind::Array | Kind::Boolean => None,
        }
    }

    pub fn fits(self, text: &str) -> bool {
        match self {
            Format::Int32 | Format::Int64 | Format::Float | Format::Double | Format::Password => true,
            Format::BsonObjectId => text.len() == 24 && text.bytes().all(|byte| byte.is_ascii_hexdigit()),
            Format::Uri => is_request_uri(text),
            Format::Email => is_email(text),
            Format::Hostname => {
                HOSTNAME.is_match(text) && text.len() <= 255 && text.split('.').all(|label| label.len() <= 63)
            }
            Format::Ipv4 => text.contains('.') && ip(text).is_some(),
            Format::Ipv6 => text.contains(':') && strict_ip(text).is_some(),
            Format::Cidr => is_cidr(text),
            Format::Mac => is_mac(text),
            Format::Uuid => is_uuid(text, None, false),
            Format::Uuid3 => is_uuid(text, Some('3'), false),
            Format::Uuid4 => is_uuid(text, Some('4'), true),
            Format::Uuid5 => is_uuid(text, Some('5'), true),
            Format::Isbn => is_isbn10(text) || is_isbn13(text),
            Format::Isbn10 => is_isbn10(text),
            Format::Isbn13 => is_isbn13(text),
            Format::CreditCard => is_credit_card(text),
            Format::Ssn => text.len() == 11 && SSN.is_match(text),
            Format::HexColor => {
                let digits = text.strip_prefix('#').unwrap_or(text);
                matches!(digits.len(), 3 | 6) && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
            }
            Format::RgbColor => RGB_COLOR.is_match(text),
            Format::Byte => BASE64.is_match(text),
            Format::Date => is_date(text),
            Format::Duration => duration(text).is_some(),
            Format::DateTime => is_date_time(text),
            Format::ShortName => text.len() <= 63 && is_short_name(text),
            Format::LongName => text.len() <= 253 && text.split('.').all(is_short_name),
        }
    }
}

macro_rules! pattern {
    ($name:ident, $text:expr) => {
        static $name: LazyLock<Regex> =
            LazyLock::new(|| Regex::new($text).expect("the expression is part of the program"));
    };
}

pattern!(
    HOSTNAME,
    r"^([a-zA-Z0-9\p{S}\p{L}]((-?[a-zA-Z0-9\p{S}\p{L}]{0,62})?)|([a-zA-Z0-9\p{S}\p{L}](([a-zA-Z0-9\-\p{S}\p{L}]{0,61}[a-zA-Z0-9\p{S}\p{L}])?)(\.)){1,}([a-zA-Z\p{L}]){2,63})$"
);
pattern!(SSN, "^[0-9]{3}[- ]?[0-9]{2}[- ]?[0-9]{4}$");
pattern!(
    RGB_COLOR,
    r"^rgb\([\t\n\f\r ]*(0|[1-9][0-9]?|1[0-9][0-9]?|2[0-4][0-9]|25[0-5])[\t\n\f\r ]*,[\t\n\f\r ]*(0|[1-9][0-9]?|1[0-9][0-9]?|2[0-4][0-9]|25[0-5])[\t\n\f\r ]*,[\t\n\f\r ]*(0|[1-9][0-9]?|1[0-9][0-9]?|2[0-4][0-9]|25[0-5])[\t\n\f\r ]*\)$"
);
pattern!(BASE64, "^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{4})$");
pattern!(
    CREDIT_CARD,
    "^(?:4[0-9]{12}(?:[0-9]{3})?|5[1-5][0-9]{14}|6(?:011|5[0-9][0-9])[0-9]{12}|3[47][0-9]{13}|3(?:0[0-5]|[68][0-9])[0-9]{11}|(?:2131|1800|35[0-9]{3})[0-9]{11})$"
);
pattern!(TIME_OF_DAY, r"^([0-9]{2}):([0-9]{2}):([0-9]{2})(.[0-9]+)?(z|([+-][0-9]{2}:[0-9]{2}))$");
pattern!(SPAN, r"([0-9]+)[\t\n\f\r ]*([A-Za-zµ]+)");

fn is_short_name(text: &str) -> bool {
    ferry_api::names::is_dns1123_label(text)
}

fn is_date(text: &str) -> bool {
    text.len() == 10 && text.parse::<jiff::civil::Date>().is_ok()
}

fn is_date_time(text: &str) -> bool {
    let lower = text.to_lowercase();
    let mut parts = lower.split('t');
    let (Some(date), Some(time)) = (parts.next(), parts.next()) else { return false };
    let Some(time) = TIME_OF_DAY.captures(time).filter(|_| is_date(date)) else { return false };
    &time[1] <= "23" && &time[2] <= "59" && &time[3] <= "59"
}

/// A unit by the beginning of its word (`hours`), or by one of its short forms.
const UNITS: &[(&[&str], &str, i64)] = &[
    (&["ns"], "nano", 1),
    (&["us", "µs"], "micro", 1_000),
    (&["ms"], "milli", 1_000_000),
    (&["s"], "sec", SECOND),
    (&["m"], "min", 60 * SECOND),
    (&["h", "hr"], "hour", 3_600 * SECOND),
    (&["d"], "day", 24 * 3_600 * SECOND),
    (&["w", "wk"], "week", 7 * 24 * 3_600 * SECOND),
];
const SECOND: i64 = 1_000_000_000;

/// Nanoseconds of `1h30m`, or of what words say: `3 days`.
pub fn duration(text: &str) -> Option<i64> {
    if let Some(nanoseconds) = ferry_api::duration::parse(text) {
        return Some(nanoseconds);
    }
    let mut total = None;
    for span in SPAN.captures_iter(text) {
        let count: i64 = span[1].parse().ok()?;
        let unit = span[2].to_lowercase();
        let known = UNITS.iter().find(|(short, long, _)| short.contains(&&*unit) || unit.starts_with(long));
        if let Some((_, _, nanoseconds)) = known {
            total = Some(total.unwrap_or(0i64).wrapping_add(count.wrapping_mul(*nanoseconds)));
        }
    }
    total
}

/// Addresses whose numbers may begin with zeros, as they could before Go 1.17.
fn ip(text: &str) -> Option<IpAddr> {
    let (head, tail) = text.rsplit_once(':').unwrap_or(("", text));
    if !tail.contains('.') {
        return strict_ip(text);
    }
    let mut numbers = Vec::with_capacity(4);
    for part in tail.split('.') {
        if part.is_empty() || part.len() > 8 || !part.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        numbers.push(part.parse::<u8>().ok()?.to_string());
    }
    let separator = if text.contains(':') { ":" } else { "" };
    strict_ip(&format!("{head}{separator}{}", numbers.join(".")))
}

fn strict_ip(text: &str) -> Option<IpAddr> {
    text.parse().ok()
}

fn is_cidr(text: &str) -> bool {
    let Some((address, bits)) = text.split_once('/') else { return false };
    let plain = !bits.is_empty() && bits.len() <= 3 && bits.bytes().all(|byte| byte.is_ascii_digit());
    let most = match ip(address) {
        Some(IpAddr::V4(_)) => 32,
        Some(IpAddr::V6(_)) => 128,
        None => return false,
    };
    plain && bits.parse::<u32>().is_ok_and(|bits| bits <= most)
}

/// 6, 8 or 20 bytes in hexadecimal, by colons, dashes, or by twos with dots.
fn is_mac(text: &str) -> bool {
    let Some(separator) = text.chars().find(|char| !char.is_ascii_hexdigit()) else { return false };
    let wide = match separator {
        ':' | '-' => 2,
        '.' => 4,
        _ => return false,
    };
    let parts: Vec<&str> = text.split(separator).collect();
    let hexadecimal = |part: &&str| part.len() == wide && part.bytes().all(|byte| byte.is_ascii_hexdigit());
    parts.iter().all(hexadecimal) && matches!(parts.len() * wide / 2, 6 | 8 | 20)
}

/// Dashes between the groups may be left out. `variant`: the fourth group begins as RFC 4122 says.
fn is_uuid(text: &str, version: Option<char>, variant: bool) -> bool {
    let mut rest = text;
    for (at, length) in [8, 4, 4, 4, 12].into_iter().enumerate() {
        let Some(group) = rest.get(..length) else { return false };
        if !group.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return false;
        }
        let wrong_version = at == 2 && version.is_some_and(|version| !group.starts_with(version));
        let wrong_variant = at == 3 && variant && !group.starts_with(['8', '9', 'a', 'b', 'A', 'B']);
        if wrong_version || wrong_variant {
            return false;
        }
        rest = &rest[length..];
        if at < 4 {
            rest = rest.strip_prefix('-').unwrap_or(rest);
        }
    }
    rest.is_empty()
}

fn without_spaces_and_dashes(text: &str) -> Vec<u8> {
    text.bytes().filter(|byte| !b"\t\n\x0c\r -".contains(byte)).collect()
}

fn is_isbn10(text: &str) -> bool {
    let digits = without_spaces_and_dashes(text);
    if digits.len() != 10 || !digits[..9].iter().all(u8::is_ascii_digit) {
        return false;
    }
    let last = match digits[9] {
        b'X' => 10,
        digit if digit.is_ascii_digit() => u32::from(digit - b'0'),
        _ => return false,
    };
    let sum: u32 = (1u32..).zip(&digits[..9]).map(|(place, digit)| place * u32::from(digit - b'0')).sum();
    (sum + 10 * last).is_multiple_of(11)
}

fn is_isbn13(text: &str) -> bool {
    let digits = without_spaces_and_dashes(text);
    if digits.len() != 13 || !digits.iter().all(u8::is_ascii_digit) {
        return false;
    }
    let weighed = digits[..12].iter().zip([1, 3].into_iter().cycle());
    let sum: u32 = weighed.map(|(digit, factor)| factor * u32::from(digit - b'0')).sum();
    u32::from(digits[12] - b'0') == (10 - sum % 10) % 10
}

fn is_credit_card(text: &str) -> bool {
    let digits: String = text.chars().filter(char::is_ascii_digit).collect();
    if !CREDIT_CARD.is_match(&digits) {
        return false;
    }
    let doubled = |(at, digit): (usize, u8)| {
        let digit = u32::from(digit - b'0');
        match at % 2 {
            0 => digit,
            _ if digit >= 5 => digit * 2 - 9,
            _ => digit * 2,
        }
    };
    digits.bytes().rev().enumerate().map(doubled).sum::<u32>().is_multiple_of(10)
}

/// An address as mail headers have it: `a@b.c`, or with a name `Ann <a@b.c>`.
fn is_email(text: &str) -> bool {
    let text = text.trim_matches([' ', '\t']);
    let address = match text.strip_suffix('>').and_then(|rest| rest.rsplit_once('<')) {
        Some((name, address)) => {
            let name = name.trim();
            let quoted = name.len() > 1 && name.starts_with('"') && name.ends_with('"');
            if !quoted && name.contains(['<', '>', '@', ',', ';', ':', '"', '(', ')', '[', ']']) {
                return false;
            }
            address
        }
        None => text,
    };
    let Some((local, domain)) = address.rsplit_once('@') else { return false };
    let quoted = local.len() > 2 && local.starts_with('"') && local.ends_with('"');
    if let Some(literal) = domain.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        return (quoted || is_dot_atom(local)) && strict_ip(literal.trim_start_matches("IPv6:")).is_some();
    }
    (quoted || is_dot_atom(local)) && is_dot_atom(domain)
}

fn is_dot_atom(text: &str) -> bool {
    let atom =
        |char: char| !char.is_ascii() || char.is_ascii_alphanumeric() || "!#$%&'*+-/=?^_`{|}~".contains(char);
    !text.is_empty() && text.split('.').all(|part| !part.is_empty() && part.chars().all(atom))
}

/// An absolute URL or an absolute path, as a request line has them.
fn is_request_uri(text: &str) -> bool {
    if text.is_empty() || text.bytes().any(|byte| byte < 0x20 || byte == 0x7f) {
        return false;
    }
    if text == "*" {
        return true;
    }
    let (scheme, rest) = match text.split_once(':') {
        Some((scheme, rest)) if is_scheme(scheme) => (scheme, rest),
        Some(("", _)) => return false,
        _ => ("", text),
    };
    let rest = rest.split_once('?').map_or(rest, |(rest, _)| rest);
    if !rest.starts_with('/') {
        // Opaque: `mailto:a@b.c`.
        return !scheme.is_empty();
    }
    let Some(authority) = rest.strip_prefix("//").filter(|_| !scheme.is_empty()) else {
        return escapes_well(rest);
    };
    let (authority, path) = authority.find('/').map_or((authority, ""), |at| authority.split_at(at));
    is_authority(authority) && escapes_well(path)
}

fn is_scheme(text: &str) -> bool {
    text.starts_with(|char: char| char.is_ascii_alphabetic())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
}

fn is_authority(authority: &str) -> bool {
    let (user, host) = authority.rsplit_once('@').map_or(("", authority), |(user, host)| (user, host));
    let in_user = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:~!$&'()*+,;=%@".contains(&byte);
    if !user.bytes().all(in_user) || !escapes_well(user) {
        return false;
    }
    let (name, port) = match host.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((name, port)) => (name, port),
            None => return false,
        },
        None => match host.rfind(':') {
            Some(at) => host.split_at(at),
            None => (host, ""),
        },
    };
    let port = if port.is_empty() { Some("") } else { port.strip_prefix(':') };
    let in_name =
        |byte: u8| byte >= 0x80 || byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:[]<>\"%".contains(&byte);
    port.is_some_and(|port| port.bytes().all(|byte| byte.is_ascii_digit()))
        && name.bytes().all(in_name)
        && escapes_well(name)
}

/// Each `%` stands before two hexadecimal digits.
fn escapes_well(text: &str) -> bool {
    let mut parts = text.split('%');
    parts.next();
    parts.all(|part| part.len() >= 2 && part.as_bytes()[..2].iter().all(u8::is_ascii_hexdigit))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(name: &str, good: &[&str], bad: &[&str]) {
        let format = Format::named(name, Some(Kind::String)).expect("a known format");
        good.iter().for_each(|text| assert!(format.fits(text), "{name}: {text:?} fits"));
        bad.iter().for_each(|text| assert!(!format.fits(text), "{name}: {text:?} does not fit"));
    }

    #[test]
    fn formats_accept_what_upstream_accepts() {
        check("bsonobjectid", &["507f1f77bcf86cd799439011"], &["507f", "zz7f1f77bcf86cd799439011"]);
        check(
            "uri",
            &["http://a.b/c?d#e", "/a", "mailto:x@y", "*", "http://[::1]:80/", "http://a"],
            &["", "a", "a/b", "http://a:b/", "/%zz", "http://a b/"],
        );
        check("email", &["a@b.c", "Ann <a@b.c>", "\"a b\"@c"], &["a", "@b", "a@", "a b@c", "a..b@c"]);
        check("hostname", &["a", "a.bc", "somewhere.com", "☃.com"], &["", "-a", "a.b-", "a_b.c"]);
        check("ipv4", &["192.168.0.1", "010.0.0.1"], &["::1", "1.2.3", "256.1.1.1", "1.2.3.4.5"]);
        check("ipv6", &["::1", "fe80::1"], &["192.168.0.1", "::g"]);
        check(
            "cidr",
            &["10.0.0.0/8", "::/0", "010.0.0.0/08"],
            &["10.0.0.0", "10.0.0.0/33", "a/8", "10.0.0.0/"],
        );
        check(
            "mac",
            &["01:02:03:04:05:06", "01-02-03-04-05-06", "0102.0304.0506"],
            &["01:02", "01:02:03:04:05:0g", "010203040506"],
        );
        check(
            "uuid",
            &["A987FBC9-4BED-3078-CF07-9141BA07C9F3", "a987fbc94bed3078cf079141ba07c9f3"],
            &["a987", "a987fbc9-4bed-3078-cf07-9141ba07c9f3x"],
        );
        check("uuid3", &["a987fbc9-4bed-3078-cf07-9141ba07c9f3"], &["a987fbc9-4bed-4078-8f07-9141ba07c9f3"]);
        check("uuid4", &["57b73598-8764-4ad0-a76a-679bb6640eb1"], &["57b73598-8764-4ad0-c76a-679bb6640eb1"]);
        check("uuid5", &["987fbc97-4bed-5078-9f07-9141ba07c9f3"], &["987fbc97-4bed-4078-9f07-9141ba07c9f3"]);
        check("isbn", &["0321751043", "978-0321751041"], &["0321751042", "978-0321751042"]);
        check("isbn10", &["0-321-75104-3", "048665088X"], &["978-0321751041"]);
        check("isbn13", &["978 0321751041"], &["0321751043"]);
        check("creditcard", &["4111-1111-1111-1111"], &["4111-1111-1111-1112", "1"]);
        check("ssn", &["111-11-1111"], &["111111111", "111-11-111a"]);
        check("hexcolor", &["#FFF", "ffffff"], &["#ffff", "red"]);
        check("rgbcolor", &["rgb(255, 0,10)"], &["rgb(256,0,0)", "255,0,0"]);
        check("byte", &["TQ==", "aGVsbG8h"], &["", "a", "TQ=", "T-=="]);
        check("password", &["", "x"], &[]);
        check("date", &["2014-12-15"], &["2014-13-15", "2014-12-1", "20141215"]);
        check(
            "date-time",
            &["2014-12-15T19:30:20.000Z", "2014-12-15t19:30:20+01:00"],
            &["2014-12-15", "2014-12-15T24:30:20Z", "2014-12-15T19:30:20"],
        );
        check("duration", &["22 ns", "1h30m", "3 days", "2 wk", "1.5h"], &["", "x", "12", "1 fortnight"]);
        check("k8s-short-name", &["a-b"], &["a.b", "A", ""]);
        check("k8s-long-name", &["a-b.c"], &["a..b", "A"]);
    }

    #[test]
    fn a_format_belongs_to_a_type() {
        assert_eq!(Format::named("int32", Some(Kind::Integer)), Some(Format::Int32));
        assert_eq!(Format::named("int32", Some(Kind::String)), None);
        assert_eq!(Format::named("date", Some(Kind::Integer)), None);
        assert_eq!(Format::named("date", None), Some(Format::Date));
        assert_eq!(Format::named("unheard-of", Some(Kind::String)), None);
    }
}
