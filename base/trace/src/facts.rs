//! What a span says of itself, as bytes.
//!
//! Each fact is appended as it is said: a tag, for an attribute its key, and the value. Text has its length before it.
//! One buffer takes them all and goes back to its thread when the span has ended, so that saying something allocates
//! nothing, and neither does keeping it: the ring copies the bytes.

use std::borrow::Cow;
use std::cell::RefCell;

use crate::value::{Value, cut};

/// What is among the facts, so that who looks for one need not read the others.
pub(crate) mod mark {
    pub const OBJECT: u8 = 1;
    pub const CAUSE: u8 = 1 << 1;
    pub const COMMITTED: u8 = 1 << 2;
    pub const ERROR: u8 = 1 << 3;
    pub const SOURCE: u8 = 1 << 4;
    pub const NAME: u8 = 1 << 5;
    /// No fact of its own: another server told the span.
    pub const RELAYED: u8 = 1 << 6;
}

const NAME: u8 = 0;
const OBJECT: u8 = 1;
const ERROR: u8 = 2;
const SOURCE: u8 = 3;
const CAUSE: u8 = 4;
const COMMITTED: u8 = 5;
const TEXT: u8 = 6;
const INTEGER: u8 = 7;
const FALSE: u8 = 8;
const TRUE: u8 = 9;

/// A value on its way into a span: borrowed where the caller has it.
pub enum Fact<'a> {
    Integer(i64),
    Boolean(bool),
    Text(Cow<'a, str>),
}

#[derive(Default)]
pub(crate) struct Facts {
    bytes: Vec<u8>,
    marks: u8,
    causes: usize,
}

impl Facts {
    /// More is not taken: a position among the facts of a span has 16 bits.
    const MAX_BYTES: usize = 60_000;
    /// Longer than any name of an object that the API admits.
    const MAX_OBJECT: usize = 1_024;
    pub const MAX_CAUSES: usize = 8;

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub fn marks(&self) -> u8 {
        self.marks
    }

    pub fn attribute(&mut self, key: &str, value: &Fact<'_>) {
        match value {
            Fact::Integer(number) => {
                self.keyed(INTEGER, key, &number.to_le_bytes());
            }
            Fact::Boolean(truth) => {
                self.keyed(if *truth { TRUE } else { FALSE }, key, &[]);
            }
            Fact::Text(text) => {
                let text = cut(text);
                if self.keyed(TEXT, key, &(text.len() as u16).to_le_bytes()) {
                    self.bytes.extend_from_slice(text.as_bytes());
                }
            }
        }
    }

    /// `resource/namespace/name`, in its parts.
    pub fn object(&mut self, parts: &[&str]) {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        if length > Facts::MAX_OBJECT {
            let whole = parts.concat();
            return self.tagged(
                OBJECT,
                mark::OBJECT,
                &[&whole[..whole.floor_char_boundary(Facts::MAX_OBJECT)]],
            );
        }
        self.tagged(OBJECT, mark::OBJECT, parts);
    }

    pub fn name(&mut self, name: &str) {
        self.tagged(NAME, mark::NAME, &[cut(name)]);
    }

    pub fn error(&mut self, error: &str) {
        self.tagged(ERROR, mark::ERROR, &[cut(error)]);
    }

    pub fn source(&mut self, source: &str) {
        self.tagged(SOURCE, mark::SOURCE, &[cut(source)]);
    }

    pub fn cause(&mut self, revision: i64) {
        if self.causes < Facts::MAX_CAUSES {
            self.causes += 1;
            self.number(CAUSE, mark::CAUSE, revision);
        }
    }

    pub fn committed(&mut self, revision: i64) {
        self.number(COMMITTED, mark::COMMITTED, revision);
    }

    pub fn relayed(&mut self) {
        self.marks |= mark::RELAYED;
    }

    fn keyed(&mut self, tag: u8, key: &str, value: &[u8]) -> bool {
        let has_room = self.has_room();
        if has_room {
            let key = &key[..key.floor_char_boundary(usize::from(u8::MAX))];
            self.bytes.extend_from_slice(&[tag, key.len() as u8]);
            self.bytes.extend_from_slice(key.as_bytes());
            self.bytes.extend_from_slice(value);
        }
        has_room
    }

    fn tagged(&mut self, tag: u8, mark: u8, parts: &[&str]) {
        if self.has_room() {
            self.marks |= mark;
            let length: usize = parts.iter().map(|part| part.len()).sum();
            let [low, high] = (length as u16).to_le_bytes();
            self.bytes.extend_from_slice(&[tag, low, high]);
            parts.iter().for_each(|part| self.bytes.extend_from_slice(part.as_bytes()));
        }
    }

    fn number(&mut self, tag: u8, mark: u8, number: i64) {
        if self.has_room() {
            self.marks |= mark;
            self.bytes.push(tag);
            self.bytes.extend_from_slice(&number.to_le_bytes());
        }
    }

    /// The first fact takes a buffer that an ended span has left.
    fn has_room(&mut self) -> bool {
        if self.bytes.capacity() == 0 {
            let idle = IDLE.try_with(|idle| idle.borrow_mut().pop());
            self.bytes = idle.ok().flatten().unwrap_or_else(|| Vec::with_capacity(BUFFER));
        }
        self.bytes.len() <= Facts::MAX_BYTES
    }
}

/// Room for the facts of nearly every span.
const BUFFER: usize = 256;
/// A buffer that has grown beyond this is not kept.
const LARGE_BUFFER: usize = 2_048;
const MAX_IDLE: usize = 32;

thread_local! {
    /// Buffers of spans that ended on this thread.
    static IDLE: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

impl Drop for Facts {
    fn drop(&mut self) {
        if (1..=LARGE_BUFFER).contains(&self.bytes.capacity()) {
            let mut buffer = std::mem::take(&mut self.bytes);
            buffer.clear();
            // A thread that ends has none to keep them.
            let _ = IDLE.try_with(|idle| {
                let mut idle = idle.borrow_mut();
                if idle.len() < MAX_IDLE {
                    idle.push(buffer);
                }
            });
        }
    }
}

/// A fact as it is read back.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Said<'a> {
    Name(&'a [u8]),
    Object(&'a [u8]),
    Error(&'a [u8]),
    Source(&'a [u8]),
    Cause(i64),
    Committed(i64),
    Attribute(&'a [u8], Told<'a>),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Told<'a> {
    Integer(i64),
    Boolean(bool),
    Text(&'a [u8]),
}

impl<'a> Told<'a> {
    pub fn text(self) -> Option<&'a str> {
        match self {
            Told::Text(bytes) => Some(text(bytes)),
            Told::Integer(_) | Told::Boolean(_) => None,
        }
    }
}

/// Facts in the order in which they were said.
pub(crate) struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (bytes, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*bytes)
    }

    fn bytes(&mut self, length: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(bytes)
    }

    fn text(&mut self) -> Option<&'a [u8]> {
        let length = u16::from_le_bytes(self.take()?);
        self.bytes(usize::from(length))
    }

    fn number(&mut self) -> Option<i64> {
        self.take().map(i64::from_le_bytes)
    }
}

impl<'a> Iterator for Reader<'a> {
    type Item = Said<'a>;

    fn next(&mut self) -> Option<Said<'a>> {
        let [tag] = self.take()?;
        match tag {
            NAME => self.text().map(Said::Name),
            OBJECT => self.text().map(Said::Object),
            ERROR => self.text().map(Said::Error),
            SOURCE => self.text().map(Said::Source),
            CAUSE => self.number().map(Said::Cause),
            COMMITTED => self.number().map(Said::Committed),
            _ => {
                let [length] = self.take()?;
                let key = self.bytes(usize::from(length))?;
                let told = match tag {
                    INTEGER => Told::Integer(self.number()?),
                    TEXT => Told::Text(self.text()?),
                    _ => Told::Boolean(tag == TRUE),
                };
                Some(Said::Attribute(key, told))
            }
        }
    }
}

/// Text of a fact.
pub(crate) fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("was copied from a str")
}

impl From<Told<'_>> for Value {
    fn from(told: Told<'_>) -> Value {
        match told {
            Told::Integer(number) => Value::from(number),
            Told::Boolean(truth) => Value::from(truth),
            Told::Text(bytes) => Value::from(text(bytes)),
        }
    }
}

impl<'a> From<&'a Value> for Fact<'a> {
    fn from(value: &'a Value) -> Fact<'a> {
        match (value.as_i64(), value.as_bool(), value.as_str()) {
            (Some(number), ..) => Fact::Integer(number),
            (None, Some(truth), _) => Fact::Boolean(truth),
            (None, None, text) => Fact::Text(Cow::Borrowed(text.unwrap_or_default())),
        }
    }
}

impl<'a> From<&'a str> for Fact<'a> {
    fn from(text: &'a str) -> Fact<'a> {
        Fact::Text(Cow::Borrowed(text))
    }
}

impl<'a> From<&'a String> for Fact<'a> {
    fn from(text: &'a String) -> Fact<'a> {
        Fact::Text(Cow::Borrowed(text))
    }
}

impl From<String> for Fact<'_> {
    fn from(text: String) -> Self {
        Fact::Text(Cow::Owned(text))
    }
}

impl From<bool> for Fact<'_> {
    fn from(truth: bool) -> Self {
        Fact::Boolean(truth)
    }
}

macro_rules! from_integer {
    ($($number:ty)*) => {$(
        impl From<$number> for Fact<'_> {
            fn from(number: $number) -> Self {
                Fact::Integer(i64::try_from(number).unwrap_or(i64::MAX))
            }
        }
    )*};
}

from_integer!(i8 i16 i32 i64 isize u8 u16 u32 u64 u128 usize);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_read_back_in_order() {
        let mut facts = Facts::default();
        facts.attribute("text", &"é".into());
        facts.attribute("count", &i64::MIN.into());
        facts.attribute("yes", &true.into());
        facts.attribute("no", &false.into());
        facts.object(&["pods", "/", "default", "/", "a"]);
        facts.cause(-3);
        facts.committed(i64::MAX);
        facts.error("");
        let read: Vec<Said<'_>> = Reader(facts.bytes()).collect();
        let expected = [
            Said::Attribute(b"text", Told::Text("é".as_bytes())),
            Said::Attribute(b"count", Told::Integer(i64::MIN)),
            Said::Attribute(b"yes", Told::Boolean(true)),
            Said::Attribute(b"no", Told::Boolean(false)),
            Said::Object(b"pods/default/a"),
            Said::Cause(-3),
            Said::Committed(i64::MAX),
            Said::Error(b""),
        ];
        assert_eq!(read, expected);
        assert_eq!(facts.marks(), mark::OBJECT | mark::CAUSE | mark::COMMITTED | mark::ERROR);
        for cut in 0..facts.bytes().len() {
            assert!(Reader(&facts.bytes()[..cut]).count() <= expected.len());
        }
    }

    #[test]
    fn no_caller_fills_the_ring_with_one_span() {
        let mut facts = Facts::default();
        let long = "x".repeat(100_000);
        facts.object(&[&long, "/", &long]);
        (0..1_000).for_each(|_| facts.attribute(&long, &long.as_str().into()));
        (0..1_000).for_each(|revision| facts.cause(revision));
        assert!(facts.bytes().len() <= usize::from(u16::MAX), "{} bytes", facts.bytes().len());
        let said = |wanted: fn(&Said<'_>) -> bool| Reader(facts.bytes()).filter(wanted).count();
        assert_eq!(said(|said| matches!(said, Said::Object(_))), 1);
        assert!(said(|said| matches!(said, Said::Cause(_))) <= Facts::MAX_CAUSES);
    }

    #[test]
    fn a_buffer_is_used_again() {
        let mut first = Facts::default();
        first.name("one");
        let buffer = first.bytes().as_ptr();
        drop(first);
        let mut second = Facts::default();
        second.name("two");
        assert_eq!(second.bytes().as_ptr(), buffer);
        assert_eq!(Reader(second.bytes()).next(), Some(Said::Name(b"two")));
    }
}
