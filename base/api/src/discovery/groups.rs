//! The groups that are served, with what discovery says of each. A group that stays as it is brings the text of its
//! entry along, so that one more among a thousand costs its own.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, OnceLock};

use serde_json::{Map, Value, json};

use super::{Remote, aggregated_resource, api_resources};
use crate::kinds::{GroupVersionKind, Kind, api_version, priorities};
use crate::types::Schema;
use crate::write;

/// All groups, in the order that clients prefer them in.
pub struct Groups {
    groups: Vec<Arc<Group>>,
}

struct Group {
    name: String,
    /// The preferred one first.
    versions: Vec<Version>,
    /// Its entry in the aggregated document, in each form that was asked for.
    entries: [OnceLock<Vec<u8>>; 2],
}

struct Version {
    name: String,
    answered: ServedBy,
}

/// By whom.
enum ServedBy {
    Here(Vec<Arc<Kind>>),
    Elsewhere(Remote),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Aggregated {
    V2,
    V2Beta1,
}

impl Groups {
    pub fn new(kinds: &[Arc<Kind>], remotes: Vec<Remote>) -> Groups {
        Groups::after(None, kinds, remotes)
    }

    /// The groups of other kinds; what was written of groups that are the same is kept.
    pub fn after(previous: Option<&Groups>, kinds: &[Arc<Kind>], remotes: Vec<Remote>) -> Groups {
        let groups = previous.map_or(&[][..], |previous| &previous.groups);
        let previous: HashMap<&str, &Arc<Group>> =
            groups.iter().map(|group| (group.name.as_str(), group)).collect();
        let mut groups: Vec<(u32, Arc<Group>)> = by_group(kinds, remotes)
            .into_iter()
            .map(|(name, (priority, versions))| {
                let versions = in_order(versions);
                let before = previous.get(&*name).filter(|group| group.has(&versions));
                let group = before.map_or_else(
                    || Arc::new(Group { name, versions, entries: Default::default() }),
                    |before| Arc::clone(before),
                );
                (priority, group)
            })
            .collect();
        groups.sort_by(|(first, a), (second, b)| second.cmp(first).then_with(|| a.name.cmp(&b.name)));
        Groups { groups: groups.into_iter().map(|(_, group)| group).collect() }
    }

    /// `/apis`: all groups but the core one.
    pub fn list(&self) -> Value {
        let groups = self.groups.iter().filter(|group| !group.name.is_empty());
        let groups: Vec<Value> = groups.map(|group| group.plain().into()).collect();
        json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
    }

    /// `/apis/GROUP`
    pub fn group(&self, name: &str) -> Option<Value> {
        let mut document = Map::new();
        document.insert("kind".into(), "APIGroup".into());
        document.insert("apiVersion".into(), "v1".into());
        document.extend(self.find(name)?.plain());
        Some(document.into())
    }

    /// `/api/v1` and `/apis/GROUP/VERSION`, where this server answers for it.
    pub fn resources(&self, group: &str, version: &str) -> Option<Value> {
        let found = self.find(group)?.versions.iter().find(|one| one.name == version)?;
        match &found.answered {
            ServedBy::Here(kinds) => Some(api_resources(kinds, group, version)),
            ServedBy::Elsewhere(_) => None,
        }
    }

    /// The aggregated document of `/api` (the core group) or `/apis` (all others).
    pub fn aggregated(&self, core: bool, form: Aggregated) -> Vec<u8> {
        let mut out = form.begin();
        let groups = self.groups.iter().filter(|group| group.name.is_empty() == core);
        for (number, group) in groups.enumerate() {
            if number > 0 {
                out.push(b',');
            }
            out.extend_from_slice(group.entry(form));
        }
        out.extend_from_slice(b"]}");
        out
    }

    fn find(&self, name: &str) -> Option<&Group> {
        self.groups.iter().find(|group| group.name == name).map(AsRef::as_ref)
    }
}

impl Group {
    fn has(&self, versions: &[Version]) -> bool {
        self.versions.len() == versions.len()
            && self
                .versions
                .iter()
                .zip(versions)
                .all(|(a, b)| a.name == b.name && a.answered.is_same(&b.answered))
    }

    fn plain(&self) -> Map<String, Value> {
        let version = |version: &Version| {
            let name = &version.name;
            json!({"groupVersion": api_version(&self.name, name), "version": name})
        };
        let versions: Vec<Value> = self.versions.iter().map(version).collect();
        let mut entry = Map::new();
        entry.insert("name".into(), self.name.as_str().into());
        entry.insert("preferredVersion".into(), versions.first().cloned().into());
        entry.insert("versions".into(), versions.into());
        entry
    }

    fn entry(&self, form: Aggregated) -> &[u8] {
        self.entries[form as usize].get_or_init(|| {
            #[cfg(test)]
            tests::WRITTEN.with(|written| written.set(written.get() + 1));
            let mut metadata = Map::new();
            if !self.name.is_empty() {
                metadata.insert("name".into(), self.name.as_str().into());
            }
            let versions: Vec<Value> = self.versions.iter().map(Version::aggregated).collect();
            form.written("APIGroupDiscovery", &json!({"metadata": metadata, "versions": versions}))
        })
    }
}

impl Version {
    fn aggregated(&self) -> Value {
        let (resources, is_current): (Vec<Value>, bool) = match &self.answered {
            ServedBy::Elsewhere(remote) => (remote.resources.clone(), remote.is_current),
            ServedBy::Here(kinds) => {
                let mut kinds: Vec<&Arc<Kind>> = kinds.iter().collect();
                kinds.sort_by(|a, b| a.plural.cmp(&b.plural));
                (kinds.into_iter().map(|kind| aggregated_resource(kind)).collect(), true)
            }
        };
        let freshness = if is_current { "Current" } else { "Stale" };
        json!({"version": self.name, "resources": resources, "freshness": freshness})
    }
}

impl ServedBy {
    fn is_same(&self, other: &ServedBy) -> bool {
        match (self, other) {
            (ServedBy::Here(a), ServedBy::Here(b)) => {
                a.len() == b.len() && a.iter().zip(b).all(|(a, b)| Arc::ptr_eq(a, b))
            }
            (ServedBy::Elsewhere(a), ServedBy::Elsewhere(b)) => a == b,
            _ => false,
        }
    }
}

impl Aggregated {
    fn version(self) -> &'static str {
        match self {
            Aggregated::V2 => "v2",
            Aggregated::V2Beta1 => "v2beta1",
        }
    }

    /// The document up to its first entry.
    fn begin(self) -> Vec<u8> {
        let api_version = format!("apidiscovery.k8s.io/{}", self.version());
        let empty = json!({
            "kind": "APIGroupDiscoveryList", "apiVersion": api_version, "metadata": {}, "items": [],
        });
        let mut text = self.written("APIGroupDiscoveryList", &empty);
        // Entries are the last that is declared.
        text.truncate(text.len() - b"]}".len());
        text
    }

    fn written(self, kind: &str, value: &Value) -> Vec<u8> {
        let kind = GroupVersionKind::new("apidiscovery.k8s.io", self.version(), kind.to_string());
        let schema = Schema::builtin(&kind).expect("the table is part of the program and a test reads it");
        let mut text = Vec::new();
        write::in_declared_order(&mut text, value, &schema);
        text
    }
}

type Versions = BTreeMap<String, (u32, ServedBy)>;

/// Each group's priority and versions. Where several are asked to answer for a version the last one does.
fn by_group(kinds: &[Arc<Kind>], remotes: Vec<Remote>) -> HashMap<String, (u32, Versions)> {
    let mut groups: HashMap<String, (u32, Versions)> = HashMap::new();
    for kind in kinds {
        let (group, version) = (&*kind.group, &*kind.version);
        if !groups.contains_key(group) {
            groups.insert(group.to_string(), (priorities::group_priority(group), Versions::new()));
        }
        let Some((_, versions)) = groups.get_mut(group) else { continue };
        if let Some((_, ServedBy::Here(rows))) = versions.get_mut(version) {
            rows.push(kind.clone());
            continue;
        }
        let priority = priorities::version_priority(group, version);
        versions.insert(version.to_string(), (priority, ServedBy::Here(vec![kind.clone()])));
    }
    for remote in remotes {
        let (highest, versions) = groups.entry(remote.group.clone()).or_default();
        *highest = remote.group_priority.max(*highest);
        versions.insert(remote.version.clone(), (remote.version_priority, ServedBy::Elsewhere(remote)));
    }
    groups
}

fn in_order(versions: Versions) -> Vec<Version> {
    let mut versions: Vec<(String, (u32, ServedBy))> = versions.into_iter().collect();
    versions.sort_by(|(a, (first, _)), (b, (second, _))| {
        Reverse(first).cmp(&Reverse(second)).then_with(|| priorities::compare_versions(b, a))
    });
    versions.into_iter().map(|(name, (_, answered))| Version { name, answered }).collect()
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::kinds;

    thread_local! {
        /// How many entries this thread has written.
        pub static WRITTEN: Cell<usize> = const { Cell::new(0) };
    }

    fn written_by(groups: &Groups) -> usize {
        let before = WRITTEN.get();
        groups.aggregated(false, Aggregated::V2);
        WRITTEN.get() - before
    }

    fn row(number: usize) -> Arc<Kind> {
        let config_map =
            kinds::builtin().iter().find(|kind| kind.kind == "ConfigMap").expect("a built-in kind");
        let mut row = Kind::clone(config_map);
        row.group = format!("g{number}.example.com").into();
        row.generation = Some("uid/1".into());
        Arc::new(row)
    }

    #[test]
    fn a_change_of_one_group_writes_one_entry() {
        for count in [10, 200] {
            let mut rows: Vec<Arc<Kind>> = (0..count).map(row).collect();
            let first = Groups::new(&rows, Vec::new());
            assert_eq!((written_by(&first), written_by(&first)), (count, 0));
            rows.push(row(count));
            let more = Groups::after(Some(&first), &rows, Vec::new());
            assert_eq!(written_by(&more), 1, "one more");
            rows[3] = row(3);
            let changed = Groups::after(Some(&more), &rows, Vec::new());
            assert_eq!(written_by(&changed), 1, "one is another generation");
            rows.remove(3);
            let fewer = Groups::after(Some(&changed), &rows, Vec::new());
            assert_eq!(written_by(&fewer), 0, "one is gone");
        }
    }
}
