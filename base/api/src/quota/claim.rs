//! A PersistentVolumeClaim against a quota, by itself and within its storage class.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;

use super::{Amounts, Requirement, one, read, selects};
use crate::quantity::Quantity;

const COUNT: &str = "count/persistentvolumeclaims";
const CLAIMS: &str = "persistentvolumeclaims";
const STORAGE: &str = "requests.storage";
const OF_CLASS: &str = ".storageclass.storage.k8s.io/";
const OLD_CLASS: &str = "volume.beta.kubernetes.io/storage-class";

pub fn tracks(name: &str) -> bool {
    let of_class = || name.split_once(OF_CLASS).is_some_and(|(_, rest)| [CLAIMS, STORAGE].contains(&rest));
    [COUNT, CLAIMS, STORAGE].contains(&name) || of_class()
}

pub fn usage(claim: &PersistentVolumeClaim) -> Amounts {
    let mut usage = Amounts::from([(COUNT.to_string(), one()), (CLAIMS.to_string(), one())]);
    let class = storage_class(claim);
    if let Some(class) = class {
        usage.insert(format!("{class}{OF_CLASS}{CLAIMS}"), one());
    }
    if let Some(storage) = storage(claim) {
        usage.insert(STORAGE.into(), storage);
        if let Some(class) = class {
            usage.insert(format!("{class}{OF_CLASS}{STORAGE}"), storage);
        }
    }
    usage
}

fn storage_class(claim: &PersistentVolumeClaim) -> Option<&str> {
    let old = claim.metadata.annotations.as_ref().and_then(|annotations| annotations.get(OLD_CLASS));
    let class = old.or_else(|| claim.spec.as_ref()?.storage_class_name.as_ref())?;
    (!class.is_empty()).then_some(class)
}

/// What is asked for, or what an expansion that failed still holds, in whole bytes.
fn storage(claim: &PersistentVolumeClaim) -> Option<Quantity> {
    let resources = claim.spec.as_ref()?.resources.as_ref();
    let asked = read(resources.and_then(|resources| resources.requests.as_ref())).remove("storage")?;
    let status = claim.status.as_ref();
    let held = read(status.and_then(|status| status.allocated_resources.as_ref())).remove("storage");
    let most = held.map_or(asked, |held| held.max(asked));
    let whole = Quantity::from_value(most.value(), most.format());
    Some(if whole == most { most } else { whole })
}

/// Claims are within one scope: the class of the attributes they have, had or wait for.
pub fn has_scope(claim: &PersistentVolumeClaim, scope: &Requirement) -> bool {
    if scope.scope_name != "VolumeAttributesClass" {
        return false;
    }
    let asked = claim.spec.as_ref().and_then(|spec| spec.volume_attributes_class_name.as_deref());
    let status = claim.status.as_ref();
    let current = status.and_then(|status| status.current_volume_attributes_class_name.as_deref());
    let target = status
        .and_then(|status| status.modify_volume_status.as_ref())
        .and_then(|modify| modify.target_volume_attributes_class_name.as_deref());
    let names: Vec<&str> =
        [asked, current, target].into_iter().flatten().filter(|name| !name.is_empty()).collect();
    selects(scope, &names)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_claim_is_charged_to_itself_and_to_its_class() {
        let check = |claim: Value, expected: &[&str]| {
            let claim: PersistentVolumeClaim = serde_json::from_value(claim).expect("a claim");
            let usage = usage(&claim);
            let shown: Vec<String> = usage.iter().map(|(name, amount)| format!("{name}={amount}")).collect();
            assert_eq!(shown, expected);
            assert!(usage.keys().all(|name| tracks(name)));
        };
        check(
            json!({"spec": {"storageClassName": "gold", "resources": {"requests": {"storage": "1Gi"}}}}),
            &[
                "count/persistentvolumeclaims=1",
                "gold.storageclass.storage.k8s.io/persistentvolumeclaims=1",
                "gold.storageclass.storage.k8s.io/requests.storage=1Gi",
                "persistentvolumeclaims=1",
                "requests.storage=1Gi",
            ],
        );
        check(
            json!({
                "spec": {"resources": {"requests": {"storage": "1Gi"}}},
                "status": {"allocatedResources": {"storage": "2Gi"}},
            }),
            &["count/persistentvolumeclaims=1", "persistentvolumeclaims=1", "requests.storage=2Gi"],
        );
    }

    #[test]
    fn a_claim_is_within_the_classes_of_its_attributes() {
        let claim: PersistentVolumeClaim = serde_json::from_value(json!({
            "spec": {"volumeAttributesClassName": "fast"},
            "status": {"currentVolumeAttributesClassName": "slow"},
        }))
        .expect("a claim");
        let scope = |operator: &str, value: &str| Requirement {
            scope_name: "VolumeAttributesClass".into(),
            operator: operator.into(),
            values: Some(vec![value.into()]),
        };
        assert!(has_scope(&claim, &scope("In", "slow")));
        assert!(has_scope(&claim, &scope("In", "fast")));
        assert!(!has_scope(&claim, &scope("In", "other")));
        assert!(!has_scope(&claim, &Requirement { scope_name: "Terminating".into(), ..scope("Exists", "") }));
    }
}
