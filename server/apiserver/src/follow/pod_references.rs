//! The objects that a pod lets its node read, extracted from the pod's JSON text without decoding it, since most changes of
//! a pod do not affect them.

use std::sync::LazyLock;

use ferry_api::read::members;
use ferry_api::{GroupVersionKind, kinds, view};
use ferry_registry::cache::Entry;
use k8s_openapi::api::core::v1::{
    Container, EnvFromSource, EnvVar, EphemeralContainer, LocalObjectReference, Pod, PodResourceClaim,
    PodSpec, PodStatus, Volume,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::object_of;

/// What a change of a pod means for what its node may read.
pub enum PodChange {
    None,
    Set(Box<Pod>),
    Gone,
}

impl PodChange {
    /// A pod matters from when it is bound, and then when it refers to something else than before.
    pub fn between(pod: &Entry, previous: Option<&Entry>) -> PodChange {
        let previous = previous.filter(|previous| is_bound(previous));
        match (is_bound(pod), previous) {
            (false, None) => return PodChange::None,
            // Another pod of the same name.
            (false, Some(_)) => return PodChange::Gone,
            (true, _) => {}
        }
        let read = match References::of(pod) {
            // Written by others, in a form of their own.
            None => object_of(pod),
            Some(references) if previous.and_then(References::of).as_ref() == Some(&references) => {
                return PodChange::None;
            }
            Some(references) => references
                .read(pod)
                .inspect_err(|error| tracing::error!(key = %pod.key, %error, "a pod cannot be read"))
                .ok(),
        };
        read.map_or(PodChange::Gone, |pod| PodChange::Set(Box::new(pod)))
    }
}

/// A pod without a node lets no node read anything.
fn is_bound(pod: &Entry) -> bool {
    static NODE_NAME: LazyLock<Option<usize>> = LazyLock::new(|| {
        let row = kinds::builtin_row(&GroupVersionKind::new("", "v1", "Pod"))?;
        let selectable = ferry_registry::kinds::strategy(row).selectable();
        selectable.iter().position(|field| field.field == "spec.nodeName")
    });
    NODE_NAME.is_none_or(|at| !pod.fields[at].is_empty())
}

/// What a pod lets its node read follows from its spec, from the claims made for it, and from whether it is a mirror. A
/// pod's status changes often; finding out that nothing else did is far cheaper than reading the pod.
#[derive(PartialEq)]
struct References<'a> {
    spec: &'a [u8],
    annotations: Option<&'a [u8]>,
    claims: Option<&'a [u8]>,
    extended_claim: Option<&'a [u8]>,
}

impl<'a> References<'a> {
    fn of(pod: &'a Entry) -> Option<References<'a>> {
        let [metadata, spec, status] = members(&pod.json, ["metadata", "spec", "status"])?;
        let [annotations] = members(metadata?, ["annotations"])?;
        let claims = ["resourceClaimStatuses", "extendedResourceClaimStatus"];
        let [claims, extended_claim] = members(status.unwrap_or(b"{}"), claims)?;
        Some(References { spec: spec?, annotations, claims, extended_claim })
    }

    fn read(&self, pod: &Entry) -> Result<Pod, serde_json::Error> {
        fn part<T: DeserializeOwned>(json: Option<&[u8]>) -> Result<Option<T>, serde_json::Error> {
            json.map(view::of_json).transpose()
        }
        Ok(Pod {
            metadata: ObjectMeta {
                name: Some(pod.name().to_string()),
                namespace: Some(pod.namespace().to_string()),
                annotations: part(self.annotations)?,
                ..ObjectMeta::default()
            },
            spec: Some(view::of_json::<ReferencingSpec>(self.spec)?.into()),
            status: Some(PodStatus {
                resource_claim_statuses: part(self.claims)?,
                extended_resource_claim_status: part(self.extended_claim)?,
                ..PodStatus::default()
            }),
        })
    }
}

/// What of a pod's spec names other objects. Probes, resources and all the rest are two thirds of it, and passed over.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ReferencingSpec {
    node_name: Option<String>,
    service_account_name: Option<String>,
    image_pull_secrets: Option<Vec<LocalObjectReference>>,
    volumes: Option<Vec<Volume>>,
    resource_claims: Option<Vec<PodResourceClaim>>,
    containers: Option<Vec<Environment>>,
    init_containers: Option<Vec<Environment>>,
    ephemeral_containers: Option<Vec<Environment>>,
}

/// A container's.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Environment {
    env: Option<Vec<EnvVar>>,
    env_from: Option<Vec<EnvFromSource>>,
}

impl From<ReferencingSpec> for PodSpec {
    fn from(spec: ReferencingSpec) -> PodSpec {
        let container = |Environment { env, env_from }| Container { env, env_from, ..Container::default() };
        let ephemeral = |Environment { env, env_from }| EphemeralContainer {
            env,
            env_from,
            ..EphemeralContainer::default()
        };
        PodSpec {
            node_name: spec.node_name,
            service_account_name: spec.service_account_name,
            image_pull_secrets: spec.image_pull_secrets,
            volumes: spec.volumes,
            resource_claims: spec.resource_claims,
            containers: spec.containers.into_iter().flatten().map(container).collect(),
            init_containers: spec.init_containers.map(|all| all.into_iter().map(container).collect()),
            ephemeral_containers: spec
                .ephemeral_containers
                .map(|all| all.into_iter().map(ephemeral).collect()),
            ..PodSpec::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferry_registry::cache::peek::Paths;
    use ferry_store::Revision;
    use serde_json::{Value, json};

    fn pod(spec: Value, status: Value) -> Entry {
        let row = kinds::builtin_row(&GroupVersionKind::new("", "v1", "Pod")).expect("a row");
        let paths = Paths::new(ferry_registry::kinds::strategy(row).selectable());
        let stored =
            json!({"metadata": {"name": "p", "namespace": "ns"}, "spec": spec, "status": status}).to_string();
        Entry::from_stored("ns/p".into(), &stored.into(), Revision(1), &paths).expect("JSON")
    }

    fn changed_pod(pod: &Entry, previous: Option<&Entry>) -> Option<Pod> {
        match PodChange::between(pod, previous) {
            PodChange::Set(pod) => Some(*pod),
            PodChange::None => None,
            PodChange::Gone => panic!("{} is there", pod.key),
        }
    }

    #[test]
    fn a_pod_that_lets_nothing_be_read_any_more_is_gone() {
        let bound = pod(json!({"containers": [], "nodeName": "n"}), json!({}));
        let another = pod(json!({"containers": []}), json!({}));
        let unreadable = pod(json!({"containers": 5, "nodeName": "n"}), json!({}));
        assert!(matches!(PodChange::between(&another, Some(&bound)), PodChange::Gone));
        assert!(matches!(PodChange::between(&unreadable, Some(&bound)), PodChange::Gone));
        assert!(matches!(PodChange::between(&another, None), PodChange::None));
    }

    #[test]
    fn a_pod_is_read_when_it_is_bound_or_refers_to_something_else() {
        let spec = |node: &str| json!({"containers": [], "nodeName": node, "serviceAccountName": "a"});
        let pending = pod(spec(""), json!({}));
        let bound = pod(spec("n"), json!({"phase": "Pending"}));
        let running = pod(spec("n"), json!({"phase": "Running"}));
        let claiming =
            pod(spec("n"), json!({"resourceClaimStatuses": [{"name": "c", "resourceClaimName": "made"}]}));

        assert!(changed_pod(&pending, None).is_none(), "no node reads it");
        let read = changed_pod(&bound, Some(&pending)).expect("it was bound");
        let whole: Pod = object_of(&bound).expect("a pod");
        let metadata = ObjectMeta { resource_version: None, ..whole.metadata };
        assert_eq!((read.spec, read.metadata), (whole.spec, metadata));
        assert!(changed_pod(&bound, None).is_some(), "it was there when the server started");
        assert!(changed_pod(&running, Some(&bound)).is_none(), "only its status changed");
        let read =
            changed_pod(&claiming, Some(&running)).and_then(|pod| pod.status).expect("a claim was made");
        let claims = read.resource_claim_statuses.expect("claims");
        assert_eq!(claims[0].resource_claim_name.as_deref(), Some("made"));
    }

    #[test]
    fn all_that_names_another_object_is_read() {
        let env = json!([{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]);
        let container = json!([{"name": "c", "image": "i", "env": env, "envFrom": [{"configMapRef": {"name": "m"}}],
            "livenessProbe": {"httpGet": {"port": 80}}, "resources": {"limits": {"cpu": "1"}}}]);
        let bound = pod(
            json!({"nodeName": "n", "serviceAccountName": "a", "imagePullSecrets": [{"name": "p"}], "priority": 1,
                "containers": container, "initContainers": container, "ephemeralContainers": container,
                "volumes": [{"name": "v", "secret": {"secretName": "t"}}],
                "resourceClaims": [{"name": "r", "resourceClaimName": "claim"}]}),
            json!({}),
        );
        let whole = object_of::<Pod>(&bound).and_then(|pod| pod.spec).expect("a pod");
        let read = changed_pod(&bound, None).and_then(|pod| pod.spec).expect("it is bound");
        let environment = |of: &Container| (of.env.clone(), of.env_from.clone());
        let main = |spec: &PodSpec| spec.containers.iter().map(environment).collect::<Vec<_>>();
        assert_eq!(main(&read), main(&whole));
        let initial =
            |spec: &PodSpec| spec.init_containers.iter().flatten().map(environment).collect::<Vec<_>>();
        assert_eq!(initial(&read), initial(&whole));
        let ephemeral = |spec: &PodSpec| {
            let all = spec.ephemeral_containers.iter().flatten();
            all.map(|of| (of.env.clone(), of.env_from.clone())).collect::<Vec<_>>()
        };
        assert_eq!(ephemeral(&read), ephemeral(&whole));
        let others = |spec: &PodSpec| {
            let PodSpec {
                node_name, service_account_name, image_pull_secrets, volumes, resource_claims, ..
            } = spec.clone();
            (node_name, service_account_name, image_pull_secrets, volumes, resource_claims)
        };
        assert_eq!(others(&read), others(&whole));
    }
}
