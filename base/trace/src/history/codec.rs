//! Records as bytes: variable-length numbers, differences instead of times and revisions, each text once a segment and only
//! what differs from the one before it.
//!
//! That is all the compression there is: what is left is mostly identifiers, which are random. Deflate made a quarter less
//! of it, for half of what the history cost. A span of a server takes some 50 bytes.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use super::texts::Texts;
use crate::context::{SpanId, TraceId};
use crate::facts::{Reader, Said, Told};
use crate::record::{Kept, Record};
use crate::value::Value;

const HAS_PARENT: u8 = 1;
const HAS_OBJECT: u8 = 1 << 1;
const HAS_COMMITTED: u8 = 1 << 2;
const HAS_ERROR: u8 = 1 << 3;
const HAS_SOURCE: u8 = 1 << 4;
/// The trace of the record before it.
const SAME_TRACE: u8 = 1 << 5;
/// The record before it was called by this span: spans end before what called them.
const IS_CALLER: u8 = 1 << 6;
/// It was called by the span that called the record before it.
const SAME_PARENT: u8 = 1 << 7;

const INTEGER: u64 = 0;
const FALSE: u64 = 1;
const TRUE: u64 = 2;
const TEXT: u64 = 3;

/// A text that is not known yet: how much of the last one in its column it begins with, and the rest.
const NEW: u64 = 0;
/// The same for a uid, as the number that it is.
const NEW_UID: u64 = 1;
const KNOWN: u64 = 2;

/// How much of a text another one can share with it: a few bytes of a damaged packet must not become megabytes.
const MAX_SHARED: usize = 1024;

/// Texts of one column resemble each other: objects of one set, paths of one kind.
#[derive(Clone, Copy)]
enum Column {
    Word,
    Object,
    Value,
}

/// What stands before a record.
#[derive(Default)]
struct Before {
    trace: Option<TraceId>,
    parent: Option<SpanId>,
    start: u64,
    revision: i64,
    texts: [Vec<u8>; 3],
}

/// What the reader of a segment knows at this point of it; the writer keeps the same.
#[derive(Default)]
pub struct Encoder {
    texts: Texts,
    traces: HashMap<TraceId, u64, foldhash::fast::RandomState>,
    before: Before,
}

/// What of a span's facts stands in a place of its own.
#[derive(Default)]
struct Placed<'a> {
    name: &'a [u8],
    object: Option<&'a [u8]>,
    error: Option<&'a [u8]>,
    source: Option<&'a [u8]>,
    committed: Option<i64>,
    causes: u64,
    attributes: u64,
}

impl<'a> Placed<'a> {
    fn of(kept: Kept<'a>) -> Placed<'a> {
        let mut placed = Placed { name: kept.head.name.as_bytes(), ..Placed::default() };
        for said in Reader(kept.facts) {
            match said {
                Said::Name(name) => placed.name = name,
                Said::Object(object) => placed.object = Some(object),
                Said::Error(error) => placed.error = Some(error),
                Said::Source(source) => placed.source = Some(source),
                Said::Committed(revision) => placed.committed = Some(revision),
                Said::Cause(_) => placed.causes += 1,
                Said::Attribute(..) => placed.attributes += 1,
            }
        }
        placed
    }
}

impl Encoder {
    pub fn encode(&mut self, kept: Kept<'_>, out: &mut Vec<u8>) {
        let (head, placed) = (kept.head, Placed::of(kept));
        let before = &self.before;
        let flag = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
        let flags = flag(head.parent.is_some(), HAS_PARENT)
            | flag(placed.object.is_some(), HAS_OBJECT)
            | flag(placed.committed.is_some(), HAS_COMMITTED)
            | flag(placed.error.is_some(), HAS_ERROR)
            | flag(placed.source.is_some(), HAS_SOURCE)
            | flag(before.trace == Some(head.trace), SAME_TRACE)
            | flag(before.parent == Some(head.span), IS_CALLER)
            | flag(head.parent.is_some() && before.parent == head.parent, SAME_PARENT);
        out.push(flags);
        self.text(out, Column::Word, placed.name);
        if flags & SAME_TRACE == 0 {
            self.trace(out, head.trace);
        }
        if flags & IS_CALLER == 0 {
            out.extend(head.span.to_bytes());
        }
        if let Some(parent) = head.parent.filter(|_| flags & SAME_PARENT == 0) {
            out.extend(parent.to_bytes());
        }
        signed(out, head.start.wrapping_sub(self.before.start) as i64);
        number(out, head.duration);
        (self.before.trace, self.before.parent) = (Some(head.trace), head.parent);
        self.before.start = head.start;
        let texts =
            [(Column::Object, placed.object), (Column::Value, placed.error), (Column::Word, placed.source)];
        for (column, text) in texts {
            if let Some(text) = text {
                self.text(out, column, text);
            }
        }
        if let Some(revision) = placed.committed {
            self.revision(out, revision);
        }
        self.causes(out, kept, placed.causes);
        self.attributes(out, kept, placed.attributes);
    }

    fn causes(&mut self, out: &mut Vec<u8>, kept: Kept<'_>, count: u64) {
        number(out, count);
        if count > 0 {
            for said in Reader(kept.facts) {
                if let Said::Cause(revision) = said {
                    self.revision(out, revision);
                }
            }
        }
    }

    fn attributes(&mut self, out: &mut Vec<u8>, kept: Kept<'_>, count: u64) {
        number(out, count);
        for said in Reader(kept.facts) {
            let Said::Attribute(key, told) = said else { continue };
            self.text(out, Column::Word, key);
            match told {
                Told::Integer(integer) => {
                    number(out, INTEGER);
                    signed(out, integer);
                }
                Told::Boolean(truth) => number(out, if truth { TRUE } else { FALSE }),
                Told::Text(text) => {
                    number(out, TEXT);
                    self.text(out, Column::Value, text);
                }
            }
        }
    }

    fn text(&mut self, out: &mut Vec<u8>, column: Column, text: &[u8]) {
        if let Some(known) = self.texts.find_or_add(text) {
            return number(out, KNOWN + u64::from(known));
        }
        if let Some(uid) = uid(text) {
            number(out, NEW_UID);
            return out.extend(uid.to_be_bytes());
        }
        let last = &mut self.before.texts[column as usize];
        let alike = last.iter().zip(text).take(MAX_SHARED);
        let shared = alike.take_while(|(one, other)| one == other).count();
        number(out, NEW);
        number(out, shared as u64);
        number(out, (text.len() - shared) as u64);
        out.extend_from_slice(&text[shared..]);
        last.truncate(shared);
        last.extend_from_slice(&text[shared..]);
    }

    fn trace(&mut self, out: &mut Vec<u8>, trace: TraceId) {
        if let Some(known) = self.traces.get(&trace) {
            return number(out, *known);
        }
        self.traces.insert(trace, self.traces.len() as u64 + 1);
        number(out, 0);
        out.extend(trace.to_bytes());
    }

    fn revision(&mut self, out: &mut Vec<u8>, revision: i64) {
        signed(out, revision.wrapping_sub(self.before.revision));
        self.before.revision = revision;
    }
}

#[derive(Default)]
pub struct Decoder {
    texts: Vec<Arc<str>>,
    traces: Vec<TraceId>,
    before: Before,
}

impl Decoder {
    /// Nothing if the bytes are none of an encoder's. A batch is checked by its sum before it comes here, so that is a
    /// newer version's, or a mistake of ours.
    pub fn decode(&mut self, from: &mut &[u8]) -> Option<Record> {
        let [flags] = take(from)?;
        let has = |flag: u8| flags & flag != 0;
        let name = self.text(from, Column::Word)?;
        let trace = if has(SAME_TRACE) { self.before.trace? } else { self.trace(from)? };
        let span = if has(IS_CALLER) { self.before.parent? } else { SpanId::from_bytes(take(from)?)? };
        let parent = match (has(HAS_PARENT), has(SAME_PARENT)) {
            (false, _) => None,
            (true, true) => Some(self.before.parent?),
            (true, false) => Some(SpanId::from_bytes(take(from)?)?),
        };
        (self.before.trace, self.before.parent) = (Some(trace), parent);
        self.before.start = self.before.start.wrapping_add(take_signed(from)? as u64);
        let duration = take_number(from)?;
        let mut optional = |flag: u8, column: Column| -> Option<Option<Box<str>>> {
            if has(flag) { Some(Some((*self.text(from, column)?).into())) } else { Some(None) }
        };
        let object = optional(HAS_OBJECT, Column::Object)?;
        let error = optional(HAS_ERROR, Column::Value)?;
        let source = optional(HAS_SOURCE, Column::Word)?;
        let committed = if has(HAS_COMMITTED) { Some(self.revision(from)?) } else { None };
        let mut causes = Vec::new();
        for _ in 0..take_number(from)? {
            causes.push(self.revision(from)?);
        }
        let mut attributes = Vec::new();
        for _ in 0..take_number(from)? {
            let key = self.text(from, Column::Word)?;
            attributes.push((Cow::Owned(key.to_string()), self.value(from)?));
        }
        Some(Record {
            name: Cow::Owned(name.to_string()),
            trace,
            span,
            parent,
            start: self.before.start,
            duration,
            sequence: 0,
            object,
            causes,
            committed,
            error,
            attributes,
            source,
            is_relayed: false,
        })
    }

    fn value(&mut self, from: &mut &[u8]) -> Option<Value> {
        match take_number(from)? {
            INTEGER => Some(Value::from(take_signed(from)?)),
            FALSE => Some(Value::from(false)),
            TRUE => Some(Value::from(true)),
            TEXT => Some(Value::from(&*self.text(from, Column::Value)?)),
            _ => None,
        }
    }

    fn text(&mut self, from: &mut &[u8], column: Column) -> Option<Arc<str>> {
        let text: Arc<str> = match take_number(from)? {
            NEW => {
                let [shared, length] = [take_number(from)?, take_number(from)?];
                let (rest, left) = from.split_at_checked(usize::try_from(length).ok()?)?;
                *from = left;
                let last = &mut self.before.texts[column as usize];
                let shared = usize::try_from(shared).ok()?;
                last.truncate((shared <= last.len().min(MAX_SHARED)).then_some(shared)?);
                last.extend(rest);
                std::str::from_utf8(last).ok()?.into()
            }
            NEW_UID => text_of_uid(u128::from_be_bytes(take(from)?)).into(),
            known => return self.texts.get(usize::try_from(known - KNOWN).ok()?).cloned(),
        };
        self.texts.push(text.clone());
        Some(text)
    }

    fn trace(&mut self, from: &mut &[u8]) -> Option<TraceId> {
        match take_number(from)? {
            0 => {
                let trace = TraceId::from_bytes(take(from)?)?;
                self.traces.push(trace);
                Some(trace)
            }
            known => self.traces.get(usize::try_from(known - 1).ok()?).copied(),
        }
    }

    fn revision(&mut self, from: &mut &[u8]) -> Option<i64> {
        self.before.revision = self.before.revision.wrapping_add(take_signed(from)?);
        Some(self.before.revision)
    }
}

/// Where the dashes of a uid stand.
const DASHES: [usize; 4] = [8, 13, 18, 23];

/// The number that a text names, if it is a uid and would be written just so.
fn uid(text: &[u8]) -> Option<u128> {
    if text.len() != 36 {
        return None;
    }
    let mut number = 0_u128;
    for (at, byte) in text.iter().copied().enumerate() {
        let digit = match byte {
            b'-' if DASHES.contains(&at) => continue,
            _ if DASHES.contains(&at) => return None,
            b'0'..=b'9' => byte - b'0',
            b'a'..=b'f' => byte - b'a' + 10,
            _ => return None,
        };
        number = number << 4 | u128::from(digit);
    }
    Some(number)
}

fn text_of_uid(number: u128) -> String {
    let mut text = format!("{number:032x}");
    DASHES.iter().for_each(|at| text.insert(*at, '-'));
    text
}

/// LEB128: seven bits a byte, the least first.
fn number(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Small numbers of either sign are short.
fn signed(out: &mut Vec<u8>, value: i64) {
    number(out, ((value << 1) ^ (value >> 63)) as u64);
}

fn take_number(from: &mut &[u8]) -> Option<u64> {
    let mut number = 0_u64;
    for shift in (0..64).step_by(7) {
        let [byte] = take(from)?;
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}

fn take_signed(from: &mut &[u8]) -> Option<i64> {
    let number = take_number(from)?;
    Some((number >> 1) as i64 ^ -((number & 1) as i64))
}

fn take<const N: usize>(from: &mut &[u8]) -> Option<[u8; N]> {
    let (bytes, rest) = from.split_first_chunk()?;
    *from = rest;
    Some(*bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::Block;
    use crate::record::tests::{full, record};

    #[test]
    fn every_field_survives() {
        let full = full();
        let mut caller =
            Record { trace: full.trace, object: full.object.clone(), ..record("kubelet.sync", 3) };
        (caller.span, caller.parent) = (full.parent.unwrap(), Some(SpanId::generate()));
        let mut sibling = record("kubelet.sync", 3);
        (sibling.parent, sibling.object) = (caller.parent, Some("pods/default/è".into()));
        sibling.attributes = [
            "6a1e2f30-93b2-4c5d-8e7f-0123456789ab",
            "6A1E2F30-93b2-4c5d-8e7f-0123456789ab",
            "6a1e2f3093b2-4c5d-8e7f-0123456789abc",
            "00000000-0000-0000-0000-000000000000",
            "6a1e2f30-93b2-4c5d-8e7f-0123456789ab",
        ]
        .map(|uid| (Cow::Borrowed("uid"), Value::from(uid)))
        .into();
        let records = [record("one", 0), full, caller, sibling, record("one", 9)];
        let (mut encoder, mut bytes) = (Encoder::default(), Vec::new());
        Block::of(&records).all().for_each(|kept| encoder.encode(kept, &mut bytes));
        let (mut decoder, mut rest) = (Decoder::default(), bytes.as_slice());
        for expected in records {
            assert_eq!(decoder.decode(&mut rest), Some(expected));
        }
        assert!(rest.is_empty());
        assert_eq!(decoder.decode(&mut rest), None);
    }

    #[test]
    fn bytes_of_nobody_are_no_record_and_no_panic() {
        let mut bytes = Vec::new();
        Block::of(&[record("step", 7)]).all().for_each(|kept| Encoder::default().encode(kept, &mut bytes));
        for cut in 0..bytes.len() {
            assert_eq!(Decoder::default().decode(&mut &bytes[..cut]), None, "cut at {cut}");
        }
        for seed in 0..2_000_u64 {
            let noise: Vec<u8> =
                (0..40_u64).map(|at| (seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (at % 57)) as u8).collect();
            let _ = Decoder::default().decode(&mut noise.as_slice());
        }
    }
}
