//! Labels and fields of objects that this server is writing. The log follower takes them from here when the write arrives
//! instead of parsing the stored bytes again, which is a tenth of a write's cost. Writes of other servers are parsed.

use std::collections::HashMap;

use bytes::Bytes;
use parking_lot::Mutex;

use super::peek::Peeked;

/// Keyed by the address of the bytes, which the store passes on without copying. The map keeps the bytes alive, so no other
/// value gets the same address meanwhile.
#[derive(Default)]
pub struct PendingWrites(Mutex<HashMap<usize, (Bytes, Peeked)>>);

/// Removes the entry when the write is over, whether it was committed or not.
pub struct PendingWrite<'a> {
    all: &'a PendingWrites,
    place: usize,
}

impl PendingWrites {
    pub fn add(&self, stored: Bytes, peeked: Peeked) -> PendingWrite<'_> {
        let place = stored.as_ptr() as usize;
        self.0.lock().insert(place, (stored, peeked));
        PendingWrite { all: self, place }
    }

    /// The labels and fields of exactly these bytes.
    pub fn take(&self, stored: &Bytes) -> Option<Peeked> {
        let mut pending = self.0.lock();
        let place = stored.as_ptr() as usize;
        pending.get(&place).filter(|(bytes, _)| bytes.len() == stored.len())?;
        pending.remove(&place).map(|(_, peeked)| peeked)
    }
}

impl Drop for PendingWrite<'_> {
    fn drop(&mut self) {
        self.all.0.lock().remove(&self.place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peeked() -> Peeked {
        Peeked { uninitialized: false, labels: Box::default(), fields: Box::default() }
    }

    #[test]
    fn only_the_very_bytes_are_known_and_only_while_they_are_written() {
        let pending_writes = PendingWrites::default();
        let stored = Bytes::from(b"{}".to_vec());
        let pending = pending_writes.add(stored.clone(), peeked());
        assert!(pending_writes.take(&Bytes::from(b"{}".to_vec())).is_none(), "others wrote the same");
        assert!(pending_writes.take(&stored.slice(..1)).is_none(), "not all of it");
        assert!(pending_writes.take(&stored).is_some());
        assert!(pending_writes.take(&stored).is_none(), "it is taken once");
        drop(pending);
        drop(pending_writes.add(stored.clone(), peeked()));
        assert!(pending_writes.take(&stored).is_none(), "the write is over");
    }
}
