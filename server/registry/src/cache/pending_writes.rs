//! What a request knows of the object it writes, for the follower that takes the write in a moment later: it would
//! otherwise read the same labels and fields out of the bytes again, which is a tenth of a write's cost. Writes of
//! others (another server on the same etcd) are read.

use std::collections::HashMap;

use bytes::Bytes;
use parking_lot::Mutex;

use super::peek::Peeked;

/// By the place of the bytes in memory, which the store hands on as they are. They are held here, so no other value can
/// come to lie in that place meanwhile.
#[derive(Default)]
pub struct Foretold(Mutex<HashMap<usize, (Bytes, Peeked)>>);

/// Forgets what was foretold when its write is over, whether it came about or not.
pub struct Telling<'a> {
    foretold: &'a Foretold,
    place: usize,
}

impl Foretold {
    pub fn tell(&self, stored: Bytes, peeked: Peeked) -> Telling<'_> {
        let place = stored.as_ptr() as usize;
        self.0.lock().insert(place, (stored, peeked));
        Telling { foretold: self, place }
    }

    /// What was foretold of exactly these bytes.
    pub fn take(&self, stored: &Bytes) -> Option<Peeked> {
        let mut told = self.0.lock();
        let place = stored.as_ptr() as usize;
        told.get(&place).filter(|(bytes, _)| bytes.len() == stored.len())?;
        told.remove(&place).map(|(_, peeked)| peeked)
    }
}

impl Drop for Telling<'_> {
    fn drop(&mut self) {
        self.foretold.0.lock().remove(&self.place);
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
        let foretold = Foretold::default();
        let stored = Bytes::from(b"{}".to_vec());
        let telling = foretold.tell(stored.clone(), peeked());
        assert!(foretold.take(&Bytes::from(b"{}".to_vec())).is_none(), "others wrote the same");
        assert!(foretold.take(&stored.slice(..1)).is_none(), "not all of it");
        assert!(foretold.take(&stored).is_some());
        assert!(foretold.take(&stored).is_none(), "it is taken once");
        drop(telling);
        drop(foretold.tell(stored.clone(), peeked()));
        assert!(foretold.take(&stored).is_none(), "the write is over");
    }
}
