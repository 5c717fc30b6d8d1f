//! `volumesInUse` of the node's status: volumes that must not be detached yet. A volume is among them before it is
//! attached, and until its driver has unpublished and unstaged it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;

use super::record::Paths;

/// Volumes by the name that the node's status gives them, with the pods that use them. Cloning shares.
#[derive(Clone)]
pub struct InUse {
    users: Arc<Mutex<BTreeMap<String, BTreeSet<String>>>>,
    changes: watch::Sender<u64>,
}

impl Default for InUse {
    fn default() -> Self {
        Self { users: Arc::default(), changes: watch::Sender::new(0) }
    }
}

impl InUse {
    /// Takes up what a former kubelet left. Volumes that are staged without a pod are used by nobody that has a name.
    pub fn take_up(&self, paths: &Paths) -> std::io::Result<()> {
        for one in paths.uses()?.into_iter().filter(|one| !one.record.is_ephemeral()) {
            self.add(&one.record.unique_name(), &one.uid);
        }
        for (record, _) in paths.all_staged()? {
            let name = record.unique_name();
            if !self.users.lock().contains_key(&name) {
                self.add(&name, "");
            }
        }
        Ok(())
    }

    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    pub fn names(&self) -> Vec<String> {
        self.users.lock().keys().cloned().collect()
    }

    pub fn add(&self, name: &str, uid: &str) {
        let mut users = self.users.lock();
        let is_new = !users.contains_key(name);
        users.entry(name.into()).or_default().insert(uid.into());
        drop(users);
        if is_new {
            self.changes.send_modify(|count| *count += 1);
        }
    }

    /// A pod uses this one no more.
    pub fn remove(&self, name: &str, uid: &str) {
        self.retain(|other, users| {
            if other == name {
                users.remove(uid);
            }
            !users.is_empty()
        });
    }

    /// A pod uses none any more.
    pub fn release(&self, uid: &str) {
        self.retain(|_, users| {
            users.remove(uid);
            !users.is_empty()
        });
    }

    fn retain(&self, stays: impl FnMut(&String, &mut BTreeSet<String>) -> bool) {
        let mut users = self.users.lock();
        let before = users.len();
        users.retain(stays);
        let is_less = users.len() < before;
        drop(users);
        if is_less {
            self.changes.send_modify(|count| *count += 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_is_in_use_until_the_last_pod_lets_go() {
        let in_use = InUse::default();
        let mut changes = in_use.changes();
        in_use.add("v", "a");
        assert!(changes.has_changed().expect("it is there"));
        changes.mark_unchanged();
        in_use.add("v", "b");
        in_use.release("a");
        assert!(!changes.has_changed().expect("it is there"), "nothing that the node tells");
        assert_eq!(in_use.names(), ["v"]);
        in_use.release("b");
        assert!(changes.has_changed().expect("it is there") && in_use.names().is_empty());
        in_use.add("w", "");
        in_use.release("a");
        assert_eq!(in_use.names(), ["w"], "it is staged still");
        in_use.remove("w", "");
        assert!(in_use.names().is_empty());
    }
}
