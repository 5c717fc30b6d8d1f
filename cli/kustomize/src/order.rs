//! The order in which resources are printed.

use std::cmp::Ordering;

use crate::error::{Error, Result};
use crate::id::{FIRST, Id, LAST, kind_rank};
use crate::kustomization::SortOptions;
use crate::resources::Resources;
use crate::schema::Schemas;

/// Sorts as the options say; without any, namespaces come first and webhooks last.
pub fn sort(resources: &mut Resources, options: Option<&SortOptions>, schemas: &Schemas) -> Result<()> {
    let (first, last): (Vec<&str>, Vec<&str>) = match options {
        None => (FIRST.to_vec(), LAST.to_vec()),
        Some(SortOptions { order, legacy_sort_options }) => match (order.as_str(), legacy_sort_options) {
            ("legacy", None) => (FIRST.to_vec(), LAST.to_vec()),
            ("legacy", Some(kinds)) => (
                kinds.order_first.iter().map(String::as_str).collect(),
                kinds.order_last.iter().map(String::as_str).collect(),
            ),
            ("fifo", None) => return Ok(()),
            ("fifo", Some(_)) => {
                return Err(Error::new(
                    "the field 'sortOptions.legacySortOptions' is set but the selected sort order is 'fifo', not 'legacy'",
                ));
            }
            _ => return Err(Error::new("the field 'sortOptions.order' must be one of [fifo, legacy]")),
        },
    };
    resources.0.sort_by_cached_key(|resource| {
        let id = resource.id(schemas);
        Key { rank: kind_rank(&id.gvk.kind, &first, &last), id }
    });
    Ok(())
}

#[derive(PartialEq, Eq)]
struct Key {
    rank: i64,
    id: Id,
}

impl Key {
    fn name_text(&self) -> String {
        let or =
            |text: &str, missing: &str| if text.is_empty() { missing.to_owned() } else { text.to_owned() };
        format!("{}|{}|{}", self.id.gvk, or(&self.id.namespace, "~X"), or(&self.id.name, "~N"))
    }
}

impl Ord for Key {
    fn cmp(&self, other: &Key) -> Ordering {
        let (one, two) = (&self.id.gvk, &other.id.gvk);
        if one == two {
            return self.name_text().cmp(&other.name_text());
        }
        let by_text = one.sort_text().cmp(&two.sort_text());
        let are_namespaces = one.kind == "Namespace"
            && two.kind == "Namespace"
            && (one.group.is_empty() || two.group.is_empty());
        self.rank.cmp(&other.rank).then(if are_namespaces { by_text.reverse() } else { by_text })
    }
}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Key) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
