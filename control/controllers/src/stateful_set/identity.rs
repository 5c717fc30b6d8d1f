//! What makes a pod of a StatefulSet the one it is: ordinal, name, claims.

use std::ops::Range;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{
    PersistentVolumeClaim, PersistentVolumeClaimVolumeSource, Pod, PodTemplateSpec, Volume,
};
use kube::ResourceExt;

use crate::ownership::controller_ref;
use crate::pods::from_template;
use crate::template_hash::CONTROLLER_REVISION_HASH;

const POD_NAME: &str = "statefulset.kubernetes.io/pod-name";
const POD_INDEX: &str = "apps.kubernetes.io/pod-index";

/// The number at the end of a pod's name, if the rest is the set's.
pub fn ordinal(set: &StatefulSet, pod: &Pod) -> Option<i32> {
    let name = pod.name_any();
    let number = name.strip_prefix(&set.name_any())?.strip_prefix('-')?;
    number.parse().ok().filter(|ordinal: &i32| *ordinal >= 0 && ordinal.to_string() == number)
}

/// Those of the pods that there are to be.
pub fn ordinals(set: &StatefulSet) -> Range<i32> {
    let spec = set.spec.as_ref();
    let start = spec.and_then(|spec| spec.ordinals.as_ref()).and_then(|ordinals| ordinals.start).unwrap_or(0);
    start..start.saturating_add(spec.and_then(|spec| spec.replicas).unwrap_or(1))
}

pub fn pod_name(set: &StatefulSet, ordinal: i32) -> String {
    format!("{}-{ordinal}", set.name_any())
}

/// The claims a pod of this ordinal has, from the set's templates.
pub fn claims(set: &StatefulSet, ordinal: i32) -> Vec<PersistentVolumeClaim> {
    let spec = set.spec.clone().unwrap_or_default();
    let labels = spec.selector.match_labels.unwrap_or_default();
    let templates = spec.volume_claim_templates.unwrap_or_default();
    templates
        .into_iter()
        .map(|mut claim| {
            claim.metadata.name = Some(format!("{}-{}", claim.name_any(), pod_name(set, ordinal)));
            claim.metadata.namespace = set.namespace();
            claim.labels_mut().extend(labels.clone());
            claim.status = None;
            claim
        })
        .collect()
}

/// Which revision a pod was made from.
pub fn revision_of(pod: &Pod) -> &str {
    pod.labels().get(CONTROLLER_REVISION_HASH).map_or("", String::as_str)
}

pub fn make_pod(set: &StatefulSet, template: &PodTemplateSpec, revision: &str, ordinal: i32) -> Pod {
    let mut pod =
        from_template(template, &set.namespace().unwrap_or_default(), &set.name_any(), controller_ref(set));
    let name = pod_name(set, ordinal);
    pod.metadata.generate_name = None;
    pod.metadata.name = Some(name.clone());
    let labels = pod.labels_mut();
    labels.insert(CONTROLLER_REVISION_HASH.into(), revision.into());
    labels.insert(POD_NAME.into(), name.clone());
    labels.insert(POD_INDEX.into(), ordinal.to_string());
    let spec = pod.spec.get_or_insert_default();
    spec.hostname = Some(name);
    spec.subdomain =
        set.spec.as_ref().and_then(|spec| spec.service_name.clone()).filter(|name| !name.is_empty());
    let templates =
        set.spec.as_ref().and_then(|spec| spec.volume_claim_templates.clone()).unwrap_or_default();
    let volumes = spec.volumes.get_or_insert_default();
    for (template, claim) in templates.iter().zip(claims(set, ordinal)) {
        // A volume of the same name in the template gives way to the claim.
        volumes.retain(|volume| volume.name != template.name_any());
        volumes.push(Volume {
            name: template.name_any(),
            persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
                claim_name: claim.name_any(),
                read_only: None,
            }),
            ..Default::default()
        });
    }
    pod
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::named;

    #[test]
    fn a_pods_ordinal_is_the_number_after_the_sets_name() {
        let set: StatefulSet = named("web");
        let check =
            |name: &str, expected: Option<i32>| assert_eq!(ordinal(&set, &named(name)), expected, "{name}");
        check("web-0", Some(0));
        check("web-12", Some(12));
        check("web-01", None);
        check("web-x", None);
        check("webs-1", None);
        check("other-1", None);
    }

    #[test]
    fn a_pod_has_its_name_its_claims_and_its_domain() {
        let mut set: StatefulSet = named("web");
        let spec = set.spec.get_or_insert_default();
        spec.service_name = Some("headless".into());
        let mut claim = PersistentVolumeClaim::default();
        claim.metadata.name = Some("data".into());
        spec.volume_claim_templates = Some(vec![claim]);
        let pod = make_pod(&set, &PodTemplateSpec::default(), "web-abc", 2);
        let spec = pod.spec.clone().unwrap();
        assert_eq!(
            (pod.name_any(), spec.hostname.as_deref(), spec.subdomain.as_deref()),
            ("web-2".into(), Some("web-2"), Some("headless"))
        );
        let volumes = spec.volumes.unwrap();
        assert_eq!(volumes[0].persistent_volume_claim.as_ref().unwrap().claim_name, "data-web-2");
        assert_eq!((ordinal(&set, &pod), revision_of(&pod)), (Some(2), "web-abc"));
    }
}
