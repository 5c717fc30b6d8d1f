//! The operations of a transaction on the writer's thread: read the newest state, put and delete, all at one revision.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::State;
use super::frame::{self, FrameBuilder, Record};
use super::index::Version;
use super::log::Log;
use super::segment::Located;
use crate::{Error, Event, EventKind, KeyValue, Result, Revision, Span};

/// What a transaction may write at most, told before it runs: the log makes room for it first.
#[derive(Debug, Clone, Default)]
pub struct Budget {
    pub(super) bytes: usize,
    pub(super) puts: bool,
    pub(super) deletes: Vec<Span>,
}

impl Budget {
    pub fn put(&mut self, key: &[u8], value: &[u8]) {
        self.bytes += frame::record_size(key.len(), value.len());
        self.puts = true;
    }

    /// Bytes of a value that is known only when the transaction runs.
    pub fn reserve(&mut self, value: usize) {
        self.bytes += value;
    }

    pub fn delete(&mut self, keys: Span) {
        self.deletes.push(keys);
    }
}

/// When a key expires.
#[derive(Debug, Clone, Copy)]
pub(super) enum Lifetime {
    Unlimited,
    Time(Duration),
    Lease(i64),
}

/// Reads see what earlier transactions and this one have written, though none of it need be durable yet: who waits for
/// this transaction waits for all of that.
pub struct Transaction<'a> {
    state: &'a mut State,
    frame: &'a mut FrameBuilder,
    log: &'a Log,
    events: &'a mut Vec<Event>,
    expiring: &'a mut Vec<(Duration, Arc<str>, Revision)>,
    /// Of its changes.
    revision: Revision,
    changes: u32,
    /// Where the frame has to end.
    end: usize,
}

impl<'a> Transaction<'a> {
    pub(super) fn new(
        state: &'a mut State,
        frame: &'a mut FrameBuilder,
        log: &'a Log,
        events: &'a mut Vec<Event>,
        expiring: &'a mut Vec<(Duration, Arc<str>, Revision)>,
        revision: Revision,
        room: usize,
    ) -> Self {
        let end = frame.len().saturating_add(room);
        Transaction { state, frame, log, events, expiring, revision, changes: 0, end }
    }

    /// The store's revision as this transaction leaves it, if it ends here.
    pub fn revision(&self) -> Revision {
        if self.changes > 0 { self.revision } else { Revision(self.revision.0 - 1) }
    }

    /// Keys of a span as they are now or were at a revision, `limit` of them, and how many it left out.
    pub fn entries(&self, span: &Span, at: Option<Revision>, limit: usize) -> Result<(Vec<Located>, usize)> {
        let current = self.revision();
        let at = at.unwrap_or(current);
        self.state.check_revision(at, current)?;
        let (found, left) = self.state.index.range(span, None, at, limit, usize::MAX);
        Ok((self.state.locate_all(found), left))
    }

    pub fn get(&self, key: &str) -> Result<Option<KeyValue>> {
        match self.entry(key) {
            Some(entry) => self.read(&entry).map(Some),
            None => Ok(None),
        }
    }

    pub fn entry(&self, key: &str) -> Option<Located> {
        let (key, version) = self.state.index.at(key, self.revision)?;
        Some(self.state.locate(key, version))
    }

    pub fn read(&self, entry: &Located) -> Result<KeyValue> {
        let location = entry.version.location;
        match self.log.unwritten(location) {
            Some(at) => entry.key_value(self.frame.record(at, location.size as usize).to_vec()),
            None => entry.read(),
        }
    }

    /// Puts a key that goes with a lease; zero for none.
    pub fn put(&mut self, key: &Arc<str>, value: &Bytes, lease: i64) -> Result<()> {
        let life = if lease == 0 { Lifetime::Unlimited } else { Lifetime::Lease(lease) };
        self.put_for(key, value, life)
    }

    pub(super) fn put_for(&mut self, key: &Arc<str>, value: &Bytes, life: Lifetime) -> Result<()> {
        let head = self.state.index.head(key);
        let (created, version) = match head {
            Some(head) => (head.created, head.version + 1),
            None => (self.revision, 1),
        };
        let (ttl, lease) = match life {
            Lifetime::Unlimited => (None, 0),
            Lifetime::Time(ttl) => (Some(ttl), 0),
            Lifetime::Lease(lease) => (None, lease),
        };
        let record =
            Record { key, value, revision: self.revision, created, version, sub: self.changes, ttl, lease };
        self.write(key, &record, EventKind::Put, value.clone())?;
        if let Some(ttl) = ttl {
            self.expiring.push((ttl, key.clone(), self.revision));
        }
        Ok(())
    }

    /// False: there is no such key, and nothing has changed.
    pub fn delete(&mut self, key: &Arc<str>) -> Result<bool> {
        if self.state.index.head(key).is_none() {
            return Ok(false);
        }
        let record = Record {
            key,
            value: &[],
            revision: self.revision,
            created: Revision(0),
            version: 0,
            sub: self.changes,
            ttl: None,
            lease: 0,
        };
        self.write(key, &record, EventKind::Delete, Bytes::new())?;
        Ok(true)
    }

    fn write(&mut self, key: &Arc<str>, record: &Record<'_>, kind: EventKind, value: Bytes) -> Result<()> {
        if self.state.index.version(key, self.revision).is_some() {
            return Err(Error::InvalidTransaction { what: format!("{key} is written twice") });
        }
        if self.frame.len() + frame::record_size(key.len(), record.value.len()) > self.end {
            let what = "it writes more than it has said".to_owned();
            return Err(Error::InvalidTransaction { what });
        }
        let at = self.frame.push(record);
        let location = self.log.location(at, self.frame.len() - at);
        let (modified, created, version) = (self.revision, record.created, record.version);
        let sub = self.changes;
        self.state.index.push(key.clone(), Version { modified, created, version, sub, location });
        self.events.push(Event {
            kind,
            kv: KeyValue {
                key: key.clone(),
                value,
                create_revision: created,
                mod_revision: modified,
                version,
                lease: record.lease,
            },
        });
        self.changes += 1;
        Ok(())
    }
}
