//! What objects cost against a ResourceQuota: which of its resources an object is measured by, how much it
//! uses of each, and whether it is within the quota's scopes.
//!
//! Admission charges by these facts and the quota controller recounts by them, so they stand here once.
//! Nothing is read or written here; the time is handed in.

mod claim;
mod pod;
mod resource_claim;
mod service;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    PersistentVolumeClaim, Pod, ResourceQuotaSpec, ScopedResourceSelectorRequirement, Service,
};

use crate::kinds::GroupResource;
pub use crate::pod_resources::{Amounts, add, read};
use crate::quantity::{Format, Quantity};

pub use pod::{counts, is_terminating};
pub use resource_claim::{ClaimOfDevices, DeviceClasses, may_track as may_count_devices, pod_of};

pub type Requirement = ScopedResourceSelectorRequirement;

/// An object as a quota sees it.
#[derive(Debug, Clone, Copy)]
pub enum Item<'a> {
    Pod(&'a Pod),
    Service(&'a Service),
    Claim(&'a PersistentVolumeClaim),
    ResourceClaim(ClaimOfDevices<'a>),
    /// Any other: it is one.
    Counted(&'a GroupResource),
}

/// Resources that were counted by their plain name before `count/` was invented.
const OLD_COUNTS: [&str; 4] = ["configmaps", "replicationcontrollers", "resourcequotas", "secrets"];

impl Item<'_> {
    /// Is this name of a quota's limits one that the object is measured by?
    pub fn tracks(self, name: &str) -> bool {
        match self {
            Item::Pod(_) => pod::tracks(name),
            Item::Service(_) => service::NAMES.contains(&name),
            Item::Claim(_) => claim::tracks(name),
            Item::ResourceClaim(claim) => resource_claim::tracks(claim, name),
            Item::Counted(resource) => {
                count_name(resource) == name || old_count(resource).is_some_and(|old| old == name)
            }
        }
    }

    /// What the object uses, in all names that it is measured by.
    pub fn usage(self, now: Timestamp) -> Amounts {
        match self {
            Item::Pod(pod) => pod::usage(pod, now),
            Item::Service(service) => service::usage(service),
            Item::Claim(claim) => claim::usage(claim),
            Item::ResourceClaim(claim) => resource_claim::usage(claim, now),
            Item::Counted(resource) => {
                let names = old_count(resource).map(str::to_string).into_iter();
                names.chain([count_name(resource)]).map(|name| (name, one())).collect()
            }
        }
    }

    /// Scopes speak of pods, and one of claims; nothing else is within any.
    pub fn has_scope(self, scope: &Requirement) -> bool {
        match self {
            Item::Pod(pod) => pod::has_scope(pod, scope),
            Item::Claim(claim) => claim::has_scope(claim, scope),
            Item::Service(_) | Item::ResourceClaim(_) | Item::Counted(_) => false,
        }
    }

    /// Why a quota over these resources refuses the object whatever is left: a quota of CPU or memory demands
    /// that every container says what it wants.
    pub fn lacks<'n>(self, names: impl Iterator<Item = &'n str>) -> Option<String> {
        match self {
            Item::Pod(pod) => pod::lacks(pod, names),
            Item::Service(_) | Item::Claim(_) | Item::ResourceClaim(_) | Item::Counted(_) => None,
        }
    }
}

/// All that an object has to be within for the quota to count it.
pub fn scopes(spec: &ResourceQuotaSpec) -> Vec<Requirement> {
    let plain = spec.scopes.iter().flatten().map(|scope| Requirement {
        scope_name: scope.clone(),
        operator: "Exists".into(),
        values: None,
    });
    let selected =
        spec.scope_selector.iter().flat_map(|selector| selector.match_expressions.iter().flatten());
    plain.chain(selected.cloned()).collect()
}

/// `count/deployments.apps`
pub fn count_name(resource: &GroupResource) -> String {
    format!("count/{resource}")
}

/// The resource, written `resource.group`, that a quota counts under this name, where that is all it does.
pub fn counted_resource(name: &str) -> Option<&str> {
    OLD_COUNTS.into_iter().find(|old| *old == name).or_else(|| name.strip_prefix("count/"))
}

fn old_count(resource: &GroupResource) -> Option<&str> {
    (resource.group.is_empty() && OLD_COUNTS.contains(&&*resource.resource)).then_some(&resource.resource)
}

fn one() -> Quantity {
    number(1)
}

fn number(count: usize) -> Quantity {
    Quantity::from_value(i64::try_from(count).unwrap_or(i64::MAX), Format::DecimalSi)
}

/// Is one of the values within a scope that names values?
fn selects(scope: &Requirement, values: &[&str]) -> bool {
    let listed = || scope.values.iter().flatten().any(|wanted| values.contains(&wanted.as_str()));
    match scope.operator.as_str() {
        "In" => listed(),
        "NotIn" => {
            values.is_empty() || values.iter().any(|value| !scope.values.iter().flatten().any(|w| w == value))
        }
        "DoesNotExist" => values.is_empty(),
        _ => !values.is_empty(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_what_is_counted() {
        assert_eq!(counted_resource("configmaps"), Some("configmaps"));
        assert_eq!(counted_resource("count/deployments.apps"), Some("deployments.apps"));
        assert_eq!(counted_resource("requests.cpu"), None);
    }

    #[test]
    fn an_object_counts_under_its_name_and_the_old_one() {
        let check = |group: &'static str, resource: &'static str, name: &str, expected: bool| {
            let resource = GroupResource::new(group, resource);
            let item = Item::Counted(&resource);
            assert_eq!(item.tracks(name), expected, "{resource} {name}");
            assert_eq!(item.usage(Timestamp::UNIX_EPOCH).contains_key(name), expected, "{resource} {name}");
        };
        check("", "secrets", "secrets", true);
        check("", "secrets", "count/secrets", true);
        check("", "endpoints", "endpoints", false);
        check("apps", "deployments", "count/deployments.apps", true);
        check("apps", "deployments", "count/deployments.extensions", false);
    }
}
