//! An ended span: as whoever asks reads it ([`Record`]), and as it is kept (a [`Head`] of fixed size, and its
//! [facts](crate::facts)). Both answer what one looks for in a [`Step`].

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::context::{SpanId, TraceId};
use crate::facts::{Facts, Reader, Said, mark, text};
use crate::value::{Value, cut};

/// An ended span.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    pub name: Cow<'static, str>,
    pub trace: TraceId,
    pub span: SpanId,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub parent: Option<SpanId>,
    /// Nanoseconds since 1970.
    pub start: u64,
    /// Nanoseconds, by a clock that does not jump.
    pub duration: u64,
    /// Position in this process' order of ending; what a follower asks to continue from.
    pub sequence: u64,
    /// `resource/namespace/name`, or `resource/name` for cluster scope.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub object: Option<Box<str>>,
    /// The revisions this step answers.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub causes: Vec<i64>,
    /// The revision this step wrote.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub committed: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub error: Option<Box<str>>,
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub attributes: Vec<(Cow<'static, str>, Value)>,
    /// Who sent it, where another process did; this process' own have none.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub source: Option<Box<str>>,
    /// Another server told it, and has told all others too: it is not told again.
    #[serde(skip)]
    pub is_relayed: bool,
}

impl Record {
    pub const MAX_CAUSES: usize = Facts::MAX_CAUSES;
    const MAX_NAME: usize = 64;
    const MAX_ATTRIBUTES: usize = 16;

    pub fn attribute(&self, key: &str) -> Option<&Value> {
        self.attributes.iter().find(|(name, _)| name == key).map(|(_, value)| value)
    }

    /// The attribute, where it is text.
    pub fn text(&self, key: &str) -> Option<&str> {
        self.attribute(key).and_then(Value::as_str)
    }

    /// Nanoseconds since 1970.
    pub fn end(&self) -> u64 {
        self.start.saturating_add(self.duration)
    }

    /// What another process says. Only the server that commits knows which span wrote a revision, so nobody else is
    /// believed about that.
    pub(crate) fn received(mut self, source: &str) -> Self {
        self.committed = None;
        self.source = Some(cut(source).into());
        self.bounded()
    }

    /// What another server says, of itself and of those who handed in their spans there.
    pub(crate) fn relayed(mut self, server: &str) -> Self {
        self.source = Some(cut(self.source.as_deref().unwrap_or(server)).into());
        self.is_relayed = true;
        self.bounded()
    }

    /// Whether this one is told of two records with one id. Whoever hands in spans knows the ids of its own requests and may
    /// use them again; what it sends must not hide what a server recorded.
    pub fn outranks(&self, other: &Record) -> bool {
        let rank = |record: &Record| (record.source.is_none(), record.committed.is_some());
        rank(self) > rank(other)
    }

    /// Within the bounds that our own spans keep by construction.
    fn bounded(mut self) -> Self {
        let shorten = |name: &mut Cow<'static, str>| {
            let cut = name[..name.floor_char_boundary(Self::MAX_NAME)].to_owned();
            *name = Cow::Owned(cut);
        };
        shorten(&mut self.name);
        self.attributes.truncate(Self::MAX_ATTRIBUTES);
        self.attributes.iter_mut().for_each(|(key, _)| shorten(key));
        self.causes.truncate(Self::MAX_CAUSES);
        self.object = self.object.map(|object| cut(&object).into());
        self.error = self.error.map(|error| cut(&error).into());
        self
    }
}

/// What one looks for in an ended span.
pub trait Step {
    fn trace(&self) -> TraceId;

    /// Nanoseconds since 1970.
    fn start(&self) -> u64;

    /// Nanoseconds since 1970.
    fn end(&self) -> u64;

    /// `resource/namespace/name`.
    fn object(&self) -> Option<&str>;

    fn committed(&self) -> Option<i64>;

    /// Shows the revisions that it answers.
    fn each_cause(&self, see: impl FnMut(i64));

    /// The attributes of these names, where they are text.
    fn texts<const N: usize>(&self, keys: [&str; N]) -> [Option<&str>; N];

    /// Whether one of the revisions that it answers is such a one.
    fn is_caused_by(&self, is_such: impl Fn(i64) -> bool) -> bool {
        let mut is_caused = false;
        self.each_cause(|cause| is_caused |= is_such(cause));
        is_caused
    }

    /// The attribute, where it is text.
    fn text(&self, key: &str) -> Option<&str> {
        let [text] = self.texts([key]);
        text
    }
}

impl Step for Record {
    fn trace(&self) -> TraceId {
        self.trace
    }

    fn start(&self) -> u64 {
        self.start
    }

    fn end(&self) -> u64 {
        Record::end(self)
    }

    fn object(&self) -> Option<&str> {
        self.object.as_deref()
    }

    fn committed(&self) -> Option<i64> {
        self.committed
    }

    fn each_cause(&self, see: impl FnMut(i64)) {
        self.causes.iter().copied().for_each(see);
    }

    fn texts<const N: usize>(&self, keys: [&str; N]) -> [Option<&str>; N] {
        keys.map(|key| Record::text(self, key))
    }
}

/// What every span has, and where its facts stand among those of its neighbours.
#[derive(Clone, Copy)]
pub(crate) struct Head {
    /// Empty where the name is none of this program's: then it is a fact.
    pub name: &'static str,
    pub trace: TraceId,
    pub span: SpanId,
    pub parent: Option<SpanId>,
    pub start: u64,
    pub duration: u64,
    pub sequence: u64,
    pub facts_at: u32,
    pub facts_length: u16,
    pub marks: u8,
}

/// A span that is kept.
#[derive(Clone, Copy)]
pub struct Kept<'a> {
    pub(crate) head: &'a Head,
    pub(crate) facts: &'a [u8],
}

impl Kept<'_> {
    fn last<'a, T>(&'a self, mark: u8, wanted: impl Fn(Said<'a>) -> Option<T>) -> Option<T> {
        (self.head.marks & mark != 0).then(|| Reader(self.facts).filter_map(wanted).last()).flatten()
    }

    pub fn record(&self) -> Record {
        let Head { name, trace, span, parent, start, duration, sequence, marks, .. } = *self.head;
        let mut record = Record {
            name: Cow::Borrowed(name),
            trace,
            span,
            parent,
            start,
            duration,
            sequence,
            object: None,
            causes: Vec::new(),
            committed: None,
            error: None,
            attributes: Vec::new(),
            source: None,
            is_relayed: marks & mark::RELAYED != 0,
        };
        for said in Reader(self.facts) {
            match said {
                Said::Name(name) => record.name = Cow::Owned(text(name).to_owned()),
                Said::Object(object) => record.object = Some(text(object).into()),
                Said::Error(error) => record.error = Some(text(error).into()),
                Said::Source(source) => record.source = Some(text(source).into()),
                Said::Cause(revision) => record.causes.push(revision),
                Said::Committed(revision) => record.committed = Some(revision),
                Said::Attribute(key, told) => {
                    record.attributes.push((Cow::Owned(text(key).to_owned()), Value::from(told)));
                }
            }
        }
        record
    }
}

impl Step for Kept<'_> {
    fn trace(&self) -> TraceId {
        self.head.trace
    }

    fn start(&self) -> u64 {
        self.head.start
    }

    fn end(&self) -> u64 {
        self.head.start.saturating_add(self.head.duration)
    }

    fn object(&self) -> Option<&str> {
        self.last(
            mark::OBJECT,
            |said| if let Said::Object(object) = said { Some(text(object)) } else { None },
        )
    }

    fn committed(&self) -> Option<i64> {
        self.last(
            mark::COMMITTED,
            |said| if let Said::Committed(revision) = said { Some(revision) } else { None },
        )
    }

    fn each_cause(&self, mut see: impl FnMut(i64)) {
        if self.head.marks & mark::CAUSE != 0 {
            Reader(self.facts).for_each(|said| {
                if let Said::Cause(revision) = said {
                    see(revision);
                }
            });
        }
    }

    fn texts<const N: usize>(&self, keys: [&str; N]) -> [Option<&str>; N] {
        let mut texts = [None; N];
        for said in Reader(self.facts) {
            let Said::Attribute(name, told) = said else { continue };
            if let Some(at) = keys.iter().position(|key| key.as_bytes() == name)
                && texts[at].is_none()
            {
                texts[at] = told.text();
            }
        }
        texts
    }
}

impl Record {
    /// As it is kept.
    pub(crate) fn take_apart(&self) -> (Head, Facts) {
        let mut facts = Facts::default();
        let name = match self.name {
            Cow::Borrowed(name) => name,
            Cow::Owned(ref name) => {
                facts.name(name);
                ""
            }
        };
        if let Some(object) = &self.object {
            facts.object(&[object]);
        }
        self.causes.iter().for_each(|cause| facts.cause(*cause));
        if let Some(revision) = self.committed {
            facts.committed(revision);
        }
        self.attributes.iter().for_each(|(key, value)| facts.attribute(key, &value.into()));
        if let Some(error) = &self.error {
            facts.error(error);
        }
        if let Some(source) = &self.source {
            facts.source(source);
        }
        if self.is_relayed {
            facts.relayed();
        }
        let Record { trace, span, parent, start, duration, sequence, .. } = *self;
        let (facts_at, facts_length) = (0, facts.bytes().len() as u16);
        let marks = facts.marks();
        (Head { name, trace, span, parent, start, duration, sequence, facts_at, facts_length, marks }, facts)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::context::Context;

    pub(crate) fn record(name: &'static str, start: u64) -> Record {
        let context = Context::generate();
        Record {
            name: Cow::Borrowed(name),
            trace: context.trace,
            span: context.span,
            parent: None,
            start,
            duration: 1,
            sequence: 0,
            object: None,
            causes: Vec::new(),
            committed: None,
            error: None,
            attributes: Vec::new(),
            source: None,
            is_relayed: false,
        }
    }

    /// A record with everything, in which text is no ASCII.
    pub(crate) fn full() -> Record {
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
        full
    }

    #[test]
    fn what_is_taken_apart_is_read_and_looked_for_as_before() {
        let mut relayed = full();
        (relayed.name, relayed.is_relayed) = (Cow::Owned("of.another".into()), true);
        for record in [record("step", 7), full(), relayed] {
            let (head, facts) = record.take_apart();
            let kept = Kept { head: &head, facts: facts.bytes() };
            assert_eq!(kept.record(), record);
            assert_eq!(Step::object(&kept), Step::object(&record));
            assert_eq!(Step::committed(&kept), Step::committed(&record));
            assert_eq!((Step::start(&kept), Step::end(&kept)), (record.start, Step::end(&record)));
            assert_eq!(
                kept.texts(["text", "count", "none"]),
                Step::texts(&record, ["text", "count", "none"])
            );
            for cause in [3, 4] {
                assert_eq!(kept.is_caused_by(|each| each == cause), record.causes.contains(&cause));
            }
        }
    }

    #[test]
    fn a_record_survives_json() {
        let mut original = record("step", 5);
        original.attributes.push((Cow::Borrowed("count"), Value::from(3)));
        original.causes.push(12);
        let json = serde_json::to_string(&original).unwrap();
        assert_eq!(serde_json::from_str::<Record>(&json).unwrap(), original);
    }
}
