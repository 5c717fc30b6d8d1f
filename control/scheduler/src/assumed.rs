//! Allocations of devices between their decision and their appearance among the claims that the scheduler has heard of. In
//! between the devices are taken, though no claim says so yet.

use std::collections::HashMap;
use std::sync::Arc;

use k8s_openapi::api::resource::v1::{AllocationResult, ResourceClaim};

/// By the uid of the claim. A clone is a picture of the moment: the scheduler's loop alone changes it.
#[derive(Clone, Default)]
pub struct Assumed(Arc<HashMap<String, Entry>>);

#[derive(Clone)]
struct Entry {
    /// With the allocation.
    claim: Arc<ResourceClaim>,
    /// The revision that has it, once it is written.
    written: Option<i64>,
}

impl Assumed {
    pub fn has(&self, uid: &str) -> bool {
        self.0.contains_key(uid)
    }

    pub fn claims(&self) -> impl Iterator<Item = &Arc<ResourceClaim>> {
        self.0.values().map(|entry| &entry.claim)
    }

    pub fn put(&mut self, claim: &ResourceClaim, allocation: &AllocationResult) {
        let mut claim = claim.clone();
        claim.status.get_or_insert_default().allocation = Some(allocation.clone());
        let uid = claim.metadata.uid.clone().unwrap_or_default();
        Arc::make_mut(&mut self.0).insert(uid, Entry { claim: Arc::new(claim), written: None });
    }

    pub fn written(&mut self, uid: &str, revision: i64) {
        if self.has(uid)
            && let Some(entry) = Arc::make_mut(&mut self.0).get_mut(uid)
        {
            entry.written = Some(revision);
        }
    }

    /// Nothing was or will be written. Whether there was an entry.
    pub fn remove(&mut self, uid: &str) -> bool {
        self.take(uid).is_some()
    }

    /// The same; returns the claim with its allocation.
    pub fn take(&mut self, uid: &str) -> Option<Arc<ResourceClaim>> {
        if !self.has(uid) {
            return None;
        }
        Arc::make_mut(&mut self.0).remove(uid).map(|entry| entry.claim)
    }

    /// Forgets what a claim as it is seen now says itself, or says no more; `seen` is None when the claim is gone, and `name`
    /// is `(namespace, name)`.
    pub fn observe(&mut self, name: (&str, &str), seen: Option<&ResourceClaim>, revision: Option<i64>) {
        let is_settled = |entry: &Entry| {
            let own = &entry.claim.metadata;
            if (own.namespace.as_deref().unwrap_or(""), own.name.as_deref().unwrap_or("")) != name {
                return false;
            }
            let Some(seen) = seen.filter(|seen| seen.metadata.uid == own.uid) else { return true };
            let is_allocated = seen.status.as_ref().is_some_and(|status| status.allocation.is_some());
            // it may have lost the allocation again before it was looked at
            is_allocated || entry.written.is_some_and(|written| revision.is_some_and(|now| now >= written))
        };
        if self.0.values().any(is_settled) {
            Arc::make_mut(&mut self.0).retain(|_, entry| !is_settled(entry));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn claim(uid: &str, allocated: bool) -> ResourceClaim {
        let status = if allocated { json!({"allocation": {}}) } else { json!({}) };
        let metadata = json!({"namespace": "n", "name": "c", "uid": uid});
        serde_json::from_value(json!({"metadata": metadata, "spec": {}, "status": status})).unwrap()
    }

    #[test]
    fn an_allocation_is_assumed_until_it_is_seen() {
        let check = |written: Option<i64>, seen: Option<ResourceClaim>, revision: i64, stays: bool| {
            let mut assumed = Assumed::default();
            assumed.put(&claim("a", false), &AllocationResult::default());
            if let Some(written) = written {
                assumed.written("a", written);
            }
            assumed.observe(("n", "other"), None, None);
            assumed.observe(("n", "c"), seen.as_ref(), Some(revision));
            assert_eq!(assumed.has("a"), stays, "{written:?} {seen:?} {revision}");
        };
        check(None, Some(claim("a", false)), 5, true);
        check(None, Some(claim("a", true)), 5, false);
        check(None, Some(claim("b", false)), 5, false);
        check(None, None, 5, false);
        check(Some(7), Some(claim("a", false)), 6, true);
        check(Some(7), Some(claim("a", false)), 8, false);
    }
}
