//! The identity a span carries across processes: W3C Trace Context, `traceparent`.

use std::cell::Cell;
use std::fmt;
use std::num::NonZero;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// One causal unit of work. Never zero.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct TraceId(NonZero<u128>);

/// One step of it. Never zero, so that a span that may have no parent takes no more room for it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct SpanId(NonZero<u64>);

/// What is handed from a caller to the called: which trace, which span, and whether the
/// caller records it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Context {
    pub trace: TraceId,
    pub span: SpanId,
    pub sampled: bool,
}

/// A `traceparent`, trace id or span id that the specification tells us to ignore.
#[derive(Debug, PartialEq, Eq)]
pub struct MalformedTraceparent;

impl Context {
    /// The header's name, in lower case as HTTP/2 wants it.
    pub const HEADER: &'static str = "traceparent";

    /// A new trace and its first span.
    pub fn generate() -> Self {
        Context { trace: TraceId::generate(), span: SpanId::generate(), sampled: true }
    }
}

impl fmt::Display for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{}-{}-{:02x}", self.trace, self.span, u8::from(self.sampled))
    }
}

impl FromStr for Context {
    type Err = MalformedTraceparent;

    /// Version 00 must match exactly; a later version may have more fields after a dash,
    /// which are ignored; version ff is forbidden.
    fn from_str(text: &str) -> Result<Self, MalformedTraceparent> {
        let version = lower_hex(text.get(..2).ok_or(MalformedTraceparent)?)?;
        let rest = text.get(55..).ok_or(MalformedTraceparent)?;
        let well_ended =
            if version == 0 { rest.is_empty() } else { rest.is_empty() || rest.starts_with('-') };
        let dashes = [2, 35, 52].iter().all(|&at| text.as_bytes()[at] == b'-');
        if version == 0xff || !well_ended || !dashes {
            return Err(MalformedTraceparent);
        }
        let field = |range| text.get(range).ok_or(MalformedTraceparent);
        Ok(Context {
            trace: field(3..35)?.parse()?,
            span: field(36..52)?.parse()?,
            sampled: lower_hex(field(53..55)?)? & 1 == 1,
        })
    }
}

impl fmt::Display for MalformedTraceparent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("malformed traceparent")
    }
}

impl std::error::Error for MalformedTraceparent {}

/// Upper case is malformed by the specification, so `from_str_radix` alone is too kind; it
/// also takes a sign.
fn lower_hex(text: &str) -> Result<u128, MalformedTraceparent> {
    if !text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte)) {
        return Err(MalformedTraceparent);
    }
    u128::from_str_radix(text, 16).map_err(|_| MalformedTraceparent)
}

macro_rules! identifier {
    ($name:ident, $number:ty, $digits:literal, $random:expr) => {
        impl $name {
            pub fn generate() -> Self {
                loop {
                    if let Some(number) = NonZero::new($random) {
                        return $name(number);
                    }
                }
            }

            pub(crate) fn to_bytes(self) -> [u8; size_of::<$number>()] {
                self.0.get().to_be_bytes()
            }

            /// Nothing if it is zero, which no identifier is.
            pub(crate) fn from_bytes(bytes: [u8; size_of::<$number>()]) -> Option<Self> {
                NonZero::new(<$number>::from_be_bytes(bytes)).map($name)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!("{:0", $digits, "x}"), self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl FromStr for $name {
            type Err = MalformedTraceparent;

            fn from_str(text: &str) -> Result<Self, MalformedTraceparent> {
                let number = lower_hex(text)? as $number;
                NonZero::new(number).filter(|_| text.len() == $digits).map($name).ok_or(MalformedTraceparent)
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> String {
                id.to_string()
            }
        }

        impl TryFrom<String> for $name {
            type Error = MalformedTraceparent;

            fn try_from(text: String) -> Result<Self, MalformedTraceparent> {
                text.parse()
            }
        }
    };
}

identifier!(TraceId, u128, 32, (u128::from(random()) << 64) | u128::from(random()));
identifier!(SpanId, u64, 16, random());

/// Identifiers need to be unique, not secret: a row per thread (SplitMix64) that begins where the system's randomness says.
/// It comes back to a number after all others.
fn random() -> u64 {
    thread_local! {
        static STATE: Cell<u64> = Cell::new(rand::random());
    }
    let state = STATE.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
    STATE.set(state);
    let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, well_formed: bool) {
        let parsed = text.parse::<Context>();
        assert_eq!(parsed.is_ok(), well_formed, "{text}: {parsed:?}");
    }

    #[test]
    fn traceparent_is_read_as_the_specification_says() {
        check("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", true);
        check("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00", true);
        check("cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-later-fields", true);
        check("cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01.later", false);
        check("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more", false);
        check("ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", false);
        check("00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01", false);
        check("00-00000000000000000000000000000000-00f067aa0ba902b7-01", false);
        check("00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01", false);
        check("00-4bf92f3577b34da6a3ce929d0e0e473-600f067aa0ba902b7-01", false);
        check("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0", false);
        check("00-4bf92f3577b34da6a3ce929d0e0e4736-+0f067aa0ba902b7-01", false);
        check("00-4bf92f3577b34da6a3ce929d0e0e47é-00f067aa0ba902b7-01", false);
        check("", false);
    }

    #[test]
    fn what_is_printed_is_read_back() {
        for sampled in [true, false] {
            let context = Context { sampled, ..Context::generate() };
            assert_eq!(context.to_string().parse(), Ok(context));
        }
    }
}
