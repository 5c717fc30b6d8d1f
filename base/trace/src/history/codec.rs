//! Records as bytes: variable-length numbers, differences instead of times and revisions, and each text once a segment.
//!
//! Deflate then finds little more than what repeats in the shape; a span of a server takes some 40 bytes.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use crate::context::{SpanId, TraceId};
use crate::ring::Record;
use crate::value::Value;

const HAS_PARENT: u64 = 1;
const HAS_OBJECT: u64 = 1 << 1;
const HAS_COMMITTED: u64 = 1 << 2;
const HAS_ERROR: u64 = 1 << 3;
const HAS_SOURCE: u64 = 1 << 4;

const INTEGER: u64 = 0;
const FALSE: u64 = 1;
const TRUE: u64 = 2;
const TEXT: u64 = 3;

/// What the reader of a segment knows at this point of it; the writer keeps the same.
#[derive(Default)]
pub struct Encoder {
    texts: HashMap<Box<str>, u64, foldhash::fast::RandomState>,
    traces: HashMap<TraceId, u64, foldhash::fast::RandomState>,
    start: u64,
    revision: i64,
}

impl Encoder {
    pub fn encode(&mut self, record: &Record, out: &mut Vec<u8>) {
        let flag = |is_set: bool, flag: u64| if is_set { flag } else { 0 };
        let flags = flag(record.parent.is_some(), HAS_PARENT)
            | flag(record.object.is_some(), HAS_OBJECT)
            | flag(record.committed.is_some(), HAS_COMMITTED)
            | flag(record.error.is_some(), HAS_ERROR)
            | flag(record.source.is_some(), HAS_SOURCE);
        number(out, flags);
        self.text(out, &record.name);
        self.trace(out, record.trace);
        out.extend(record.span.to_bytes());
        if let Some(parent) = record.parent {
            out.extend(parent.to_bytes());
        }
        signed(out, record.start.wrapping_sub(self.start) as i64);
        self.start = record.start;
        number(out, record.duration);
        for text in [&record.object, &record.error, &record.source].into_iter().flatten() {
            self.text(out, text);
        }
        if let Some(revision) = record.committed {
            self.revision(out, revision);
        }
        number(out, record.causes.len() as u64);
        for &cause in &record.causes {
            self.revision(out, cause);
        }
        number(out, record.attributes.len() as u64);
        for (key, value) in &record.attributes {
            self.text(out, key);
            match (value.as_i64(), value.as_bool(), value.as_str()) {
                (Some(integer), ..) => {
                    number(out, INTEGER);
                    signed(out, integer);
                }
                (None, Some(truth), _) => number(out, if truth { TRUE } else { FALSE }),
                (None, None, text) => {
                    number(out, TEXT);
                    self.text(out, text.unwrap_or_default());
                }
            }
        }
    }

    /// Its number, or 0 and the text itself the first time.
    fn text(&mut self, out: &mut Vec<u8>, text: &str) {
        if let Some(known) = self.texts.get(text) {
            return number(out, *known);
        }
        self.texts.insert(text.into(), self.texts.len() as u64 + 1);
        number(out, 0);
        number(out, text.len() as u64);
        out.extend(text.as_bytes());
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
        signed(out, revision.wrapping_sub(self.revision));
        self.revision = revision;
    }
}

#[derive(Default)]
pub struct Decoder {
    texts: Vec<Arc<str>>,
    traces: Vec<TraceId>,
    start: u64,
    revision: i64,
}

impl Decoder {
    /// Nothing if the bytes are none of an encoder's. A batch is checked by its sum before it comes here, so that is a
    /// newer version's, or a mistake of ours.
    pub fn decode(&mut self, from: &mut &[u8]) -> Option<Record> {
        let flags = take_number(from)?;
        let name = self.text(from)?;
        let trace = self.trace(from)?;
        let span = SpanId::from_bytes(take(from)?)?;
        let parent = match flags & HAS_PARENT {
            0 => None,
            _ => Some(SpanId::from_bytes(take(from)?)?),
        };
        self.start = self.start.wrapping_add(take_signed(from)? as u64);
        let duration = take_number(from)?;
        let mut optional = |flag: u64| -> Option<Option<Box<str>>> {
            if flags & flag == 0 { Some(None) } else { Some(Some((*self.text(from)?).into())) }
        };
        let (object, error, source) = (optional(HAS_OBJECT)?, optional(HAS_ERROR)?, optional(HAS_SOURCE)?);
        let committed = if flags & HAS_COMMITTED == 0 { None } else { Some(self.revision(from)?) };
        let mut causes = Vec::new();
        for _ in 0..take_number(from)? {
            causes.push(self.revision(from)?);
        }
        let mut attributes = Vec::new();
        for _ in 0..take_number(from)? {
            let key = self.text(from)?;
            let value = match take_number(from)? {
                INTEGER => Value::from(take_signed(from)?),
                FALSE => Value::from(false),
                TRUE => Value::from(true),
                TEXT => Value::from(&*self.text(from)?),
                _ => return None,
            };
            attributes.push((Cow::Owned(key.to_string()), value));
        }
        Some(Record {
            name: Cow::Owned(name.to_string()),
            trace,
            span,
            parent,
            start: self.start,
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

    fn text(&mut self, from: &mut &[u8]) -> Option<Arc<str>> {
        match take_number(from)? {
            0 => {
                let length = usize::try_from(take_number(from)?).ok()?;
                let (text, rest) = from.split_at_checked(length)?;
                let text: Arc<str> = std::str::from_utf8(text).ok()?.into();
                *from = rest;
                self.texts.push(text.clone());
                Some(text)
            }
            known => self.texts.get(usize::try_from(known - 1).ok()?).cloned(),
        }
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
        self.revision = self.revision.wrapping_add(take_signed(from)?);
        Some(self.revision)
    }
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
    use crate::ring::tests::record;

    #[test]
    fn every_field_survives() {
        let mut full = record("kubelet.sync", 1_700_000_000_000_000_000);
        full.parent = Some(SpanId::generate());
        full.object = Some("pods/default/é".into());
        full.causes = vec![5, 3, i64::MAX];
        full.committed = Some(-1);
        full.error = Some("no".into());
        full.source = Some("node".into());
        full.duration = u64::MAX;
        full.attributes = vec![
            (Cow::Borrowed("count"), Value::from(i64::MIN)),
            (Cow::Borrowed("yes"), Value::from(true)),
            (Cow::Borrowed("no"), Value::from(false)),
            (Cow::Borrowed("text"), Value::from("")),
        ];
        let earlier = Record { trace: full.trace, object: full.object.clone(), ..record("kubelet.sync", 3) };
        let records = [record("one", 0), full, earlier];
        let (mut encoder, mut bytes) = (Encoder::default(), Vec::new());
        records.iter().for_each(|record| encoder.encode(record, &mut bytes));
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
        Encoder::default().encode(&record("step", 7), &mut bytes);
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
