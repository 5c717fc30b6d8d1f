//! Decoded copies of the objects that were written last. Many objects are written again soon (a pod is created, bound, and
//! its status written three times within a second), and decoding the pod is a quarter of the cost of a binding.

use std::collections::VecDeque;
use std::sync::Arc;

use ferry_api::Object;
use ferry_store::Revision;
use parking_lot::Mutex;

use super::Entry;

/// What a busy server writes in ten milliseconds, and what stays in a processor's own cache: with 128, dropping those
/// that had left it was a fifth of a create's misses.
const KEPT: usize = 32;
/// Larger ones are seldom written twice in a row.
const LARGE: usize = 16 << 10;

/// Newest last, each with the entry that it is the object of.
#[derive(Default)]
pub struct Recent(Mutex<VecDeque<(Arc<Entry>, Object)>>);

impl Recent {
    /// Keeps what was written at `revision`, if that is still what `entry` shows.
    pub fn keep(&self, entry: &Arc<Entry>, mut object: Object, revision: Revision) {
        if entry.revision != revision || entry.size() > LARGE {
            return;
        }
        object.set_meta("resourceVersion", revision.to_string());
        let mut kept = self.0.lock();
        let oldest = (kept.len() == KEPT).then(|| kept.pop_front());
        kept.push_back((entry.clone(), object));
        drop(kept);
        // An object is many pieces: they are given back while nobody waits for the lock.
        drop(oldest);
    }

    /// The object of this very entry. Whoever takes it is about to write the next one.
    pub fn take(&self, entry: &Arc<Entry>) -> Option<Object> {
        let mut kept = self.0.lock();
        let at = kept.iter().rposition(|(have, _)| Arc::ptr_eq(have, entry))?;
        kept.remove(at).map(|(_, object)| object)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::peek::Paths;

    fn entry(revision: i64) -> (Arc<Entry>, Object) {
        let stored = bytes::Bytes::from_static(br#"{"metadata":{"name":"a"}}"#);
        let entry = Entry::from_stored("a".into(), &stored, Revision(revision), &Paths::new(&[]));
        (Arc::new(entry.expect("JSON")), Object::read(&stored).expect("JSON"))
    }

    #[test]
    fn an_object_is_taken_once_and_is_what_its_bytes_say() {
        let recent = Recent::default();
        let ((old, object), (other, _)) = (entry(7), entry(7));
        recent.keep(&old, object, Revision(7));
        assert!(recent.take(&other).is_none(), "it looks the same and is another's");
        assert_eq!(recent.take(&old), old.read_object().ok());
        assert!(recent.take(&old).is_none());
    }

    #[test]
    fn overwritten_objects_are_not_kept() {
        let recent = Recent::default();
        let (newer, object) = entry(8);
        recent.keep(&newer, object, Revision(7));
        assert!(recent.take(&newer).is_none());
    }

    #[test]
    fn the_oldest_goes_first() {
        let recent = Recent::default();
        let all: Vec<_> = (0..=KEPT as i64).map(entry).collect();
        for (entry, object) in &all {
            recent.keep(entry, object.clone(), entry.revision);
        }
        assert!(recent.take(&all[0].0).is_none());
        assert!(all[1..].iter().all(|(entry, _)| recent.take(entry).is_some()));
    }
}
