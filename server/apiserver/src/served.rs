//! What the server answers for, as one immutable picture: every version of every resource, and what stands behind
//! it. A definition that comes, changes or goes makes a new picture, which is swapped in at once: a request sees
//! one generation of a resource or another, never a mixture.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use ferry_api::Kind;
use ferry_registry::{Registry, Resource};

use crate::documents::Documents;

pub struct Served {
    pub rows: Vec<Arc<Kind>>,
    /// By version and resource, below their group.
    groups: HashMap<String, HashMap<(String, String), Place>>,
    pub documents: Documents,
}

/// A version of a resource.
#[derive(Clone)]
pub struct Place {
    pub kind: Arc<Kind>,
    pub backend: Backend,
}

#[derive(Clone)]
pub enum Backend {
    /// Objects in the store.
    Stored(Arc<Resource>),
    /// A question whose answer is the object; nothing is stored.
    Review,
    /// Made when somebody asks, from what the nodes measure.
    Measured,
}

impl Served {
    /// The built-in kinds alone.
    pub fn builtin(registry: &Registry, rows: &[Arc<Kind>]) -> Served {
        let places = rows.iter().filter_map(|row| {
            let backend = match () {
                () if row.is_virtual() => Backend::Review,
                () if row.measured => Backend::Measured,
                () => Backend::Stored(registry.resource(&row.group_resource())?),
            };
            Some(Place { kind: row.clone(), backend })
        });
        let places: Vec<Place> = places.collect();
        Served::of(places, None)
    }

    /// The next picture; of two places for the same version of a resource the first is served. Documents of groups
    /// and versions that stay as they are are taken over.
    pub fn of(places: Vec<Place>, previous: Option<&Served>) -> Served {
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
        let documents = match previous {
            Some(previous) => previous.documents.next(&rows),
            None => Documents::new(&rows),
        };
        Served { groups, documents, rows }
    }

    pub fn places(&self) -> Vec<Place> {
        self.rows
            .iter()
            .filter_map(|row| self.place(&row.group, &row.version, &row.plural))
            .cloned()
            .collect()
    }

    pub fn has_group(&self, group: &str) -> bool {
        self.groups.contains_key(group)
    }

    pub fn place(&self, group: &str, version: &str, plural: &str) -> Option<&Place> {
        self.groups.get(group)?.get(&(version.to_string(), plural.to_string()))
    }

    pub fn kind(&self, group: &str, version: &str, plural: &str) -> Option<&Arc<Kind>> {
        self.place(group, version, plural).map(|place| &place.kind)
    }
}
