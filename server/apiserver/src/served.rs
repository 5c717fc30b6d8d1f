//! An immutable snapshot of everything that is served: every version of every resource, and its implementation. A created,
//! changed or deleted definition produces a new snapshot, which replaces the old one atomically, so a request sees one
//! generation of a resource.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use ferry_api::Kind;
use ferry_registry::{Registry, Resource};

use crate::aggregation::Remote;
use crate::documents::Documents;

pub struct Served {
    pub rows: Vec<Arc<Kind>>,
    /// By version and resource, below their group.
    groups: HashMap<String, HashMap<(String, String), Place>>,
    /// Versions of groups that other API servers answer for, whatever places there are: of their resources this
    /// server knows nothing.
    remotes: Vec<Arc<Remote>>,
    pub documents: Documents,
}

/// A version of a resource.
#[derive(Clone)]
pub struct Place {
    pub kind: Arc<Kind>,
    /// Where the objects are stored; reviews, bindings and resource metrics are not.
    pub resource: Option<Arc<Resource>>,
}

impl Served {
    /// The built-in kinds alone.
    pub fn builtin(registry: &Registry, rows: &[Arc<Kind>]) -> Served {
        let places = rows.iter().filter_map(|row| {
            let resource = registry.resource(&row.group_resource()).filter(|_| row.is_stored());
            (resource.is_some() || !row.is_stored()).then(|| Place { kind: row.clone(), resource })
        });
        let places: Vec<Place> = places.collect();
        Served::of(places, Vec::new(), None)
    }

    /// A new snapshot with these resources.
    pub fn with_places(&self, places: Vec<Place>) -> Served {
        Served::of(places, self.remotes.clone(), Some(self))
    }

    /// A new snapshot with these versions of aggregated API servers.
    pub fn with_remotes(&self, remotes: Vec<Arc<Remote>>) -> Served {
        Served::of(self.places(), remotes, Some(self))
    }

    /// Of two places for the same version of a resource the first is served. Documents of groups and versions that stay
    /// as they are are taken over.
    fn of(places: Vec<Place>, remotes: Vec<Arc<Remote>>, previous: Option<&Served>) -> Served {
        let mut rows: Vec<Arc<Kind>> = Vec::with_capacity(places.len());
        let mut groups: HashMap<String, HashMap<(String, String), Place>> = HashMap::new();
        for place in places {
            let kind = &place.kind;
            let resource = (kind.version.to_string(), kind.plural.to_string());
            if let Entry::Vacant(free) = groups.entry(kind.group.to_string()).or_default().entry(resource) {
                rows.push(place.kind.clone());
                free.insert(place);
            }
        }
        let is_own = |row: &&Arc<Kind>| {
            !remotes.iter().any(|remote| remote.group() == row.group && remote.version() == row.version)
        };
        let own: Vec<Arc<Kind>> = rows.iter().filter(is_own).cloned().collect();
        let documents = Documents::new(own, &remotes, previous.map(|previous| &previous.documents));
        Served { groups, remotes, documents, rows }
    }

    pub fn places(&self) -> Vec<Place> {
        self.rows
            .iter()
            .filter_map(|row| self.place(&row.group, &row.version, &row.plural))
            .cloned()
            .collect()
    }

    pub fn remotes(&self) -> &[Arc<Remote>] {
        &self.remotes
    }

    /// The aggregated API server of a group version. There are few, mostly none.
    pub fn remote(&self, group: &str, version: &str) -> Option<&Arc<Remote>> {
        self.remotes.iter().find(|remote| remote.group() == group && remote.version() == version)
    }

    pub fn has_group(&self, group: &str) -> bool {
        self.groups.contains_key(group)
    }

    /// Whether a group is there by definitions alone. Upstream leaves paths below it that lead nowhere to its last
    /// handler, which answers with a page.
    pub fn is_custom(&self, group: &str) -> bool {
        let places = self.groups.get(group);
        places.is_some_and(|places| places.values().all(|place| place.kind.generation.is_some()))
    }

    pub fn place(&self, group: &str, version: &str, plural: &str) -> Option<&Place> {
        self.groups.get(group)?.get(&(version.to_string(), plural.to_string()))
    }

    pub fn kind(&self, group: &str, version: &str, plural: &str) -> Option<&Arc<Kind>> {
        self.place(group, version, plural).map(|place| &place.kind)
    }
}
