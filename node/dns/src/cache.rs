//! Answers from upstreams, for as long as they say, and no longer than half a minute.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use hickory_proto::{
    op::{Message, ResponseCode},
    rr::{Name, RecordType},
};

use crate::answer::least_ttl;

const LONGEST: Duration = Duration::from_secs(30);
/// A full cache takes nothing new until something expires, which is soon.
const CAPACITY: usize = 10_000;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// In lower case.
    pub name: Name,
    pub kind: RecordType,
    pub dnssec_ok: bool,
}

#[derive(Default)]
pub struct Cache {
    entries: HashMap<Key, CachedMessage>,
}

struct CachedMessage {
    message: Message,
    stored: Instant,
    expires: Instant,
}

impl Cache {
    /// The answer, with what is left of its time to live.
    pub fn get(&mut self, key: &Key, now: Instant) -> Option<Message> {
        let entry = self.entries.get(key)?;
        if entry.expires <= now {
            self.entries.remove(key);
            return None;
        }
        let age = u32::try_from(now.duration_since(entry.stored).as_secs()).unwrap_or(u32::MAX);
        let mut message = entry.message.clone();
        let sections = [&mut message.answers, &mut message.authorities, &mut message.additionals];
        for record in sections.into_iter().flatten() {
            record.ttl = record.ttl.saturating_sub(age);
        }
        Some(message)
    }

    pub fn put(&mut self, key: Key, message: &Message, now: Instant) {
        // A failure may be over in a moment.
        let keeps = matches!(message.metadata.response_code, ResponseCode::NoError | ResponseCode::NXDomain);
        let Some(ttl) = least_ttl(message).filter(|ttl| *ttl > 0 && keeps) else { return };
        if self.entries.len() >= CAPACITY {
            self.entries.retain(|_, entry| entry.expires > now);
            if self.entries.len() >= CAPACITY {
                return;
            }
        }
        let expires = now + Duration::from_secs(ttl.into()).min(LONGEST);
        self.entries.insert(key, CachedMessage { message: message.clone(), stored: now, expires });
    }
}

#[cfg(test)]
mod tests {
    use hickory_proto::{
        op::{MessageType, OpCode},
        rr::{RData, Record, rdata::A},
    };

    use super::*;

    #[test]
    fn answers_age_and_expire() {
        let name = Name::from_ascii("example.org.").unwrap();
        let key = Key { name: name.clone(), kind: RecordType::A, dnssec_ok: false };
        let mut message = Message::new(1, MessageType::Response, OpCode::Query);
        message.add_answer(Record::from_rdata(name, 20, RData::A(A([192, 0, 2, 1].into()))));
        let start = Instant::now();
        let mut cache = Cache::default();
        cache.put(key.clone(), &message, start);
        let later = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(cache.get(&key, later(5)).unwrap().answers[0].ttl, 15);
        assert!(cache.get(&key, later(20)).is_none());
        message.metadata.response_code = ResponseCode::ServFail;
        cache.put(key.clone(), &message, start);
        assert!(cache.get(&key, start).is_none());
    }
}
