//! A value that is derived from cached objects (compiled webhooks, compiled policies): computed on first use, and again
//! after a change of one of the caches.

use std::sync::Arc;

use ferry_store::Revision;
use parking_lot::Mutex;

use super::Cache;

pub struct Derived<T, const N: usize>(Mutex<Option<([Revision; N], Arc<T>)>>);

impl<T, const N: usize> Default for Derived<T, N> {
    fn default() -> Derived<T, N> {
        Derived(Mutex::default())
    }
}

impl<T, const N: usize> Derived<T, N> {
    /// `make` reads the caches itself. Their revisions are taken before it does, so a change that comes meanwhile only
    /// has it made once more.
    pub fn get(&self, caches: [&Cache; N], make: impl FnOnce() -> T) -> Arc<T> {
        let mut made = self.0.lock();
        let revisions = caches.map(Cache::revision);
        match &*made {
            Some((of, value)) if *of == revisions => value.clone(),
            _ => {
                let value = Arc::new(make());
                *made = Some((revisions, value.clone()));
                value
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::{Entry, peek::Paths};

    #[test]
    fn a_value_is_made_again_after_every_change_and_only_then() {
        let caches = [(); 2].map(|()| Cache::new(Paths::new(&[]), None));
        let derived = Derived::default();
        let sizes = || *derived.get(caches.each_ref(), || caches.each_ref().map(Cache::len));
        let kept = || *derived.get(caches.each_ref(), || panic!("made twice"));
        let entry = |revision: i64| {
            let json = br#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{}}"#.to_vec().into();
            Entry::from_stored("a".into(), &json, Revision(revision), &Paths::new(&[])).expect("valid")
        };
        assert_eq!((sizes(), kept()), ([0, 0], [0, 0]));
        caches[1].put(entry(5));
        assert_eq!((sizes(), kept()), ([0, 1], [0, 1]));
        caches[0].reset([Ok(entry(5))], Revision(6));
        assert_eq!((sizes(), kept()), ([1, 1], [1, 1]));
        caches[0].reset([], Revision(7));
        caches[1].delete("a", Revision(8));
        assert_eq!((sizes(), kept()), ([0, 0], [0, 0]));
    }
}
