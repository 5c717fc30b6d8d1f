//! ResourceClaims of pods: makes those that come from templates, reserves claims for pods that were bound past the scheduler,
//! and gives devices back when nobody uses them any more.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;

use ferry_client::{
    Attempt, Client, Error, Event, EventType, Index, Informer, NamespacedName, Outcome, Queue, Recorder,
    error, reconcile, undecoded,
};
use futures::FutureExt;
use k8s_openapi::api::core::v1::{Pod, PodResourceClaim};
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceClaimConsumerReference, ResourceClaimTemplate};
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ObjectMeta, Patch, PatchParams, PostParams};
use parking_lot::Mutex;
use serde_json::json;

use crate::context::{Context, Running};
use crate::metrics::{self, OF_INFORMERS};
use crate::ownership::{controller_of, controller_ref};
use crate::pods::{is_deleting, is_finished, node_name};

const CONTROLLER: &str = "resourceclaim-controller";
/// Names the entry of a pod's `resourceClaims` that a claim was made for.
const POD_CLAIM: &str = "resource.kubernetes.io/pod-claim-name";
/// On claims that the scheduler makes for extended resources.
const EXTENDED: &str = "resource.kubernetes.io/extended-resource-claim";
const FINALIZER: &str = "resource.kubernetes.io/delete-protection";

/// Nothing of it runs, and nothing will.
fn is_done(pod: &Pod) -> bool {
    is_finished(pod) || is_deleting(pod) && node_name(pod).is_empty()
}

/// The claim of an entry of a pod's list, as far as it is known.
#[derive(Debug, PartialEq)]
enum Name<'p> {
    Known {
        name: &'p str,
        is_generated: bool,
    },
    NotMade(&'p str),
    /// The pod needs none, or asks for it in a way that is not known.
    None,
}

fn name_of<'p>(pod: &'p Pod, entry: &'p PodResourceClaim) -> Name<'p> {
    if let Some(name) = &entry.resource_claim_name {
        return Name::Known { name, is_generated: false };
    }
    let Some(template) = &entry.resource_claim_template_name else { return Name::None };
    let statuses = pod.status.iter().flat_map(|status| status.resource_claim_statuses.iter().flatten());
    let mut own = statuses.filter(|status| status.name == entry.name);
    match own.next().map(|status| status.resource_claim_name.as_deref()) {
        None => Name::NotMade(template),
        Some(None) => Name::None,
        Some(Some(name)) => Name::Known { name, is_generated: true },
    }
}

fn entries(pod: &Pod) -> &[PodResourceClaim] {
    pod.spec.as_ref().and_then(|spec| spec.resource_claims.as_deref()).unwrap_or(&[])
}

/// What a claim was made from, as metrics name it; nothing for one that a user made.
pub fn source(claim: &ResourceClaim) -> &'static str {
    let annotation = |key: &str| claim.annotations().get(key).map_or("", String::as_str);
    if annotation(EXTENDED) == "true" {
        "extended_resource"
    } else if annotation(POD_CLAIM).is_empty() {
        ""
    } else {
        "resource_claim_template"
    }
}

fn is_made_for(claim: &ResourceClaim, pod: &Pod) -> bool {
    controller_of(claim)
        .is_some_and(|owner| owner.kind == "Pod" && Some(&owner.uid) == pod.metadata.uid.as_ref())
}

/// A claim made from a template.
fn made_from(template: &ResourceClaimTemplate, pod: &Pod, entry: &PodResourceClaim) -> ResourceClaim {
    let meta = template.spec.metadata.clone().unwrap_or_default();
    let mut annotations = meta.annotations.unwrap_or_default();
    annotations.insert(POD_CLAIM.into(), entry.name.clone());
    ResourceClaim {
        metadata: ObjectMeta {
            generate_name: Some(generated_name(&pod.name_any(), &entry.name)),
            namespace: pod.namespace(),
            labels: meta.labels,
            annotations: Some(annotations),
            owner_references: Some(vec![controller_ref(pod)]),
            ..Default::default()
        },
        spec: template.spec.spec.clone(),
        status: None,
    }
}

/// Both names, shortened alike so that neither is lost.
fn generated_name(pod: &str, entry: &str) -> String {
    const MOST: usize = 57;
    let whole = format!("{pod}-{entry}-");
    if whole.len() <= MOST {
        return whole;
    }
    // names are ASCII
    let short = |text: &str| text[..text.len() * MOST / whole.len()].to_owned();
    format!("{}-{}", short(pod), short(entry))
}

/// What is known of a pod that a claim is reserved for.
#[derive(Clone, Copy, Debug, PartialEq)]
enum User {
    Uses,
    Gone,
}

/// What to do with a claim, given what became of those it is reserved for; others than pods are not judged.
#[derive(Debug, Default, PartialEq)]
struct Plan {
    /// Those that stay, if some go.
    users: Option<Vec<ResourceClaimConsumerReference>>,
    gives_devices_back: bool,
    removes_finalizer: bool,
}

fn plan(claim: &ResourceClaim, user: impl Fn(&ResourceClaimConsumerReference) -> User) -> Plan {
    let users = claim.status.as_ref().and_then(|status| status.reserved_for.as_deref()).unwrap_or(&[]);
    let remaining: Vec<_> = users.iter().filter(|own| user(own) == User::Uses).cloned().collect();
    let is_protected = claim.finalizers().iter().any(|own| own == FINALIZER);
    let is_allocated = claim.status.as_ref().is_some_and(|status| status.allocation.is_some());
    let is_unused = remaining.is_empty();
    if remaining.len() < users.len() {
        // only with the last user: a claim may be allocated before anybody uses it
        let gives_devices_back = is_unused && is_protected;
        let removes_finalizer = is_protected && (gives_devices_back || !is_allocated);
        return Plan { users: Some(remaining), gives_devices_back, removes_finalizer };
    }
    let leaves = is_protected && is_unused && claim.metadata.deletion_timestamp.is_some();
    Plan { users: None, gives_devices_back: leaves && is_allocated, removes_finalizer: leaves }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Key {
    Pod(NamespacedName),
    Claim(NamespacedName),
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Key::Pod(key) => write!(f, "pod:{key}"),
            Key::Claim(key) => write!(f, "claim:{key}"),
        }
    }
}

impl reconcile::Key for Key {
    fn object(&self) -> Option<&NamespacedName> {
        match self {
            Key::Pod(_) => None,
            Key::Claim(key) => Some(key),
        }
    }
}

/// A claim that was created for an entry of `spec.resourceClaims` of a pod.
struct GeneratedClaim {
    /// The pod's uid.
    pod: String,
    entry: String,
    claim: String,
}

struct Controller {
    client: Client,
    pods: Informer<Pod>,
    by_template: Index<Pod>,
    by_claim: Index<Pod>,
    claims: Informer<ResourceClaim>,
    of_pod: Index<ResourceClaim>,
    templates: Informer<ResourceClaimTemplate>,
    /// Claims made for a pod that the informer may not show yet.
    made: Mutex<HashMap<NamespacedName, Vec<GeneratedClaim>>>,
    recorder: Recorder,
}

pub fn start(context: &Context) -> Running {
    let builder = context.controller(CONTROLLER);
    let (pods, claims) = (builder.informer::<Pod>(), builder.informer::<ResourceClaim>());
    let templates = builder.informer::<ResourceClaimTemplate>();
    let queue: Queue<Key> = builder.queue();
    let controller = Arc::new(Controller {
        client: context.client.clone(),
        by_template: pods.index("resource claim template", |pod| {
            let names = entries(pod).iter().filter_map(|entry| entry.resource_claim_template_name.as_deref());
            names.map(|name| in_namespace_of(pod, name).to_string()).collect()
        }),
        by_claim: pods
            .index("resource claim", |pod| claim_keys(pod).iter().map(ToString::to_string).collect()),
        of_pod: claims.index("pod", ferry_client::informer::controller_uid),
        pods: pods.clone(),
        claims: claims.clone(),
        templates: templates.clone(),
        made: Mutex::default(),
        recorder: context.recorder("resource_claim"),
    });
    OF_INFORMERS.follow_claims(Some(claims.clone()));
    let work = builder
        .over("resourceclaims", queue, controller)
        .watches(&pods, |_, event| pod_changed(event))
        .watches(&claims, |controller, event| controller.claim_changed(event))
        .watches(&templates, |controller, event| {
            let waiting = controller.by_template.get(&event.key().to_string());
            waiting.iter().map(|pod| Key::Pod(NamespacedName::of(&**pod))).collect()
        })
        .run(Controller::reconcile);
    work.inspect(|()| OF_INFORMERS.follow_claims(None)).boxed()
}

fn in_namespace_of(pod: &Pod, name: &str) -> NamespacedName {
    NamespacedName::new(pod.metadata.namespace.clone().unwrap_or_default(), name)
}

/// The claims of a pod that are known by name.
pub fn claim_keys(pod: &Pod) -> Vec<NamespacedName> {
    let names = entries(pod).iter().filter_map(|entry| match name_of(pod, entry) {
        Name::Known { name, .. } => Some(in_namespace_of(pod, name)),
        _ => None,
    });
    names.collect()
}

/// The claim that the scheduler made for the pod's extended resources.
fn extended_claim_key(pod: &Pod) -> Option<NamespacedName> {
    let status = pod.status.as_ref()?.extended_resource_claim_status.as_ref()?;
    Some(in_namespace_of(pod, &status.resource_claim_name))
}

/// A pod that goes wakes its claims, one that comes itself.
fn pod_changed(event: &Event<Pod>) -> Vec<Key> {
    let pod = event.object();
    let extended = extended_claim_key(pod);
    if entries(pod).is_empty() && extended.is_none() {
        return Vec::new();
    }
    if event.is_deleted() || is_done(pod) {
        let claims = claim_keys(pod).into_iter().chain(extended).map(Key::Claim);
        return claims.chain([Key::Pod(event.key())]).collect();
    }
    vec![Key::Pod(event.key())]
}

impl Controller {
    fn claim_changed(&self, event: &Event<ResourceClaim>) -> Vec<Key> {
        // a pod may wait for a claim that is there only now, or was deleted under it
        let pods = self.by_claim.get(&event.key().to_string());
        let mut keys: Vec<Key> = pods.iter().map(|pod| Key::Pod(NamespacedName::of(&**pod))).collect();
        match event.is_deleted() {
            false => keys.push(Key::Claim(event.key())),
            true => keys
                .extend(ferry_client::controller::owner::<Pod>(&**event.object()).into_iter().map(Key::Pod)),
        }
        keys
    }

    async fn reconcile(self: Arc<Self>, key: Key) -> Result<Outcome, Error> {
        match key {
            Key::Pod(key) => self.reconcile_pod(&key).await,
            Key::Claim(key) => self.reconcile_claim(&key).await,
        }
    }

    async fn reconcile_pod(&self, key: &NamespacedName) -> Result<Outcome, Error> {
        let Some(pod) = self.pods.get(key).filter(|pod| !is_deleting(pod) && !is_finished(pod)) else {
            self.made.lock().remove(key);
            return Ok(Outcome::Done);
        };
        let mut made: BTreeMap<&str, String> = BTreeMap::new();
        for entry in entries(&pod) {
            match self.make(&pod, entry).await {
                Ok(Some(name)) => drop(made.insert(&entry.name, name)),
                Ok(None) => {}
                Err(failure) => {
                    let note = format!("PodResourceClaim {}: {failure}", entry.name);
                    self.recorder.event(
                        &*pod,
                        EventType::Warning,
                        "FailedResourceClaimCreation",
                        "Create",
                        note,
                    );
                    return match failure {
                        Failure::Api(error) => Err(error),
                        // its arrival wakes the pod
                        Failure::NoTemplate(_) => Ok(Outcome::Done),
                    };
                }
            }
        }
        if !made.is_empty() {
            self.write_pod_status(&pod, key, &made).await?;
            return Ok(Outcome::Done);
        }
        if node_name(&pod).is_empty() {
            return Ok(Outcome::Done);
        }
        for claim in claim_keys(&pod) {
            if let Some(claim) = self.claims.get(&claim) {
                self.reserve(&claim, &pod).await?;
            }
        }
        Ok(Outcome::Done)
    }

    /// The claim of an entry whose name the pod's status does not say yet.
    async fn make(&self, pod: &Pod, entry: &PodResourceClaim) -> Result<Option<String>, Failure> {
        match name_of(pod, entry) {
            Name::None | Name::Known { is_generated: false, .. } => return Ok(None),
            Name::Known { name, is_generated: true } => {
                let claim = self.claims.get(&in_namespace_of(pod, name));
                if claim.is_some_and(|claim| is_made_for(&claim, pod)) {
                    return Ok(None);
                }
            }
            Name::NotMade(_) => {}
        }
        let uid = pod.metadata.uid.as_deref().unwrap_or("");
        let made = self.of_pod.get(uid);
        let mut made = made.iter().filter(|claim| claim.annotations().get(POD_CLAIM) == Some(&entry.name));
        // made before, and not told
        if let Some(claim) = made.next() {
            return Ok(Some(claim.name_any()));
        }
        if let Name::NotMade(_) = name_of(pod, entry)
            && let Some(made) = self.made.lock().get(&NamespacedName::of(pod))
            && let Some(made) = made.iter().find(|made| made.pod == uid && made.entry == entry.name)
        {
            return Ok(Some(made.claim.clone()));
        }
        let template = entry.resource_claim_template_name.as_deref().unwrap_or("");
        let Some(template) = self.templates.get(&in_namespace_of(pod, template)) else {
            return Err(Failure::NoTemplate(template.to_owned()));
        };
        let claim = made_from(&template, pod, entry);
        let api: Api<ResourceClaim> =
            Api::namespaced(self.client.clone(), pod.metadata.namespace.as_deref().unwrap_or(""));
        let created = api.create(&PostParams::default(), &claim).await;
        metrics::claim_created(&claim, created.is_ok());
        let name = created.attempting("create ResourceClaim").map_err(Failure::Api)?.name_any();
        let noted = GeneratedClaim { pod: uid.to_owned(), entry: entry.name.clone(), claim: name.clone() };
        self.made.lock().entry(NamespacedName::of(pod)).or_default().push(noted);
        Ok(Some(name))
    }

    /// Writes the names of a pod's claims into its status.
    async fn write_pod_status(
        &self,
        pod: &Pod,
        key: &NamespacedName,
        made: &BTreeMap<&str, String>,
    ) -> Result<(), Error> {
        let statuses: Vec<_> =
            made.iter().map(|(entry, claim)| json!({"name": entry, "resourceClaimName": claim})).collect();
        let patch =
            json!({"metadata": {"uid": pod.metadata.uid}, "status": {"resourceClaimStatuses": statuses}});
        let request = kube::core::Request::new(<Pod as kube::Resource>::url_path(&(), Some(&key.namespace)))
            .patch_subresource("status", &key.name, &PatchParams::default(), &Patch::Strategic(patch));
        let patched = undecoded::send(&self.client, request).await;
        error::ignore_not_found(patched).attempting("write the claims of a pod")?;
        Ok(())
    }

    /// Reserves a claim for a pod that has a node already: no scheduler has done it.
    async fn reserve(&self, claim: &ResourceClaim, pod: &Pod) -> Result<(), Error> {
        let Some(status) = claim.status.as_ref().filter(|status| status.allocation.is_some()) else {
            return Ok(());
        };
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        if status.reserved_for.iter().flatten().any(|user| user.uid == uid) {
            return Ok(());
        }
        let mut claim = claim.clone();
        let users = claim.status.get_or_insert_default().reserved_for.get_or_insert_default();
        let (api_group, resource) = (None, "pods".into());
        users.push(ResourceClaimConsumerReference { api_group, resource, name: pod.name_any(), uid });
        let api: Api<ResourceClaim> =
            Api::namespaced(self.client.clone(), pod.metadata.namespace.as_deref().unwrap_or(""));
        let written = api.replace_status(&claim.name_any(), &PostParams::default(), &claim).await;
        written.attempting("reserve claim")?;
        Ok(())
    }

    async fn reconcile_claim(&self, key: &NamespacedName) -> Result<Outcome, Error> {
        let Some(claim) = self.claims.get(key) else { return Ok(Outcome::Done) };
        let users = claim.status.as_ref().and_then(|status| status.reserved_for.as_deref()).unwrap_or(&[]);
        let mut gone: Vec<&str> = Vec::new();
        for user in users.iter().filter(|user| user.api_group.as_deref().unwrap_or("").is_empty()) {
            if user.resource == "pods" && self.is_gone(key, user).await? {
                gone.push(&user.uid);
            }
        }
        let judge = |user: &ResourceClaimConsumerReference| {
            if gone.contains(&user.uid.as_str()) { User::Gone } else { User::Uses }
        };
        let plan = plan(&claim, judge);
        let remaining = plan.users.as_ref().map_or(users.len(), Vec::len);
        self.apply(key, &claim, plan).await?;
        if remaining == 0 {
            self.delete_if_unneeded(key, &claim).await?;
        }
        Ok(Outcome::Done)
    }

    /// Whether a pod will not use its claim any more. One that the informer does not know may be new.
    async fn is_gone(
        &self,
        key: &NamespacedName,
        user: &ResourceClaimConsumerReference,
    ) -> Result<bool, Error> {
        let name = NamespacedName::new(key.namespace.clone(), user.name.clone());
        if let Some(pod) = self.pods.get(&name) {
            return Ok(pod.metadata.uid.as_deref() != Some(&user.uid) || is_done(&pod));
        }
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &key.namespace);
        let live = api.get_opt(&user.name).await.attempting("look a claim's pod up")?;
        Ok(live.is_none_or(|pod| pod.metadata.uid.as_deref() != Some(&user.uid)))
    }

    async fn apply(&self, key: &NamespacedName, claim: &ResourceClaim, plan: Plan) -> Result<(), Error> {
        let api: Api<ResourceClaim> = Api::namespaced(self.client.clone(), &key.namespace);
        let mut claim = claim.clone();
        if plan.users.is_some() || plan.gives_devices_back {
            let status = claim.status.get_or_insert_default();
            if let Some(users) = plan.users {
                status.reserved_for = Some(users).filter(|users| !users.is_empty());
            }
            if plan.gives_devices_back {
                status.allocation = None;
                // what drivers said of devices that the claim has no more
                status.devices = None;
            }
            // with its version: somebody may have begun to use it
            let written = api.replace_status(&key.name, &PostParams::default(), &claim).await;
            let Some(written) = error::ignore_not_found(written).attempting("release claim")? else {
                return Ok(());
            };
            claim = written;
        }
        if plan.removes_finalizer {
            claim.metadata.finalizers.iter_mut().for_each(|own| own.retain(|name| name != FINALIZER));
            let written = api.replace(&key.name, &PostParams::default(), &claim).await;
            error::ignore_not_found(written).attempting("remove finalizer of claim")?;
        }
        Ok(())
    }

    /// A claim that was made for a pod goes when the pod is done, though the pod itself may stay for long.
    async fn delete_if_unneeded(&self, key: &NamespacedName, claim: &ResourceClaim) -> Result<(), Error> {
        let Some(owner) = controller_of(claim).filter(|owner| owner.kind == "Pod") else { return Ok(()) };
        let name = NamespacedName::new(key.namespace.clone(), owner.name.clone());
        // one that is not known may be new, or is the garbage collector's
        let Some(pod) = self.pods.get(&name) else { return Ok(()) };
        let is_unneeded = pod.metadata.uid.as_ref() != Some(&owner.uid) || is_done(&pod);
        if is_unneeded && claim.metadata.deletion_timestamp.is_none() {
            let api: Api<ResourceClaim> = Api::namespaced(self.client.clone(), &key.namespace);
            let deleted = undecoded::delete(&api, &key.name, &DeleteParams::default()).await;
            error::ignore_not_found(deleted).attempting("delete unused generated claim")?;
        }
        Ok(())
    }
}

/// Why a claim was not made.
#[derive(Debug)]
enum Failure {
    Api(Error),
    NoTemplate(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Api(error) => error.fmt(f),
            Failure::NoTemplate(name) => {
                write!(
                    f,
                    "resource claim template {name:?}: resourceclaimtemplate.resource.k8s.io {name:?} not found"
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::testing::{deleting, pod};

    fn claim(finalizers: Value, status: Value, deleted: bool) -> ResourceClaim {
        let mut metadata = json!({"name": "c", "namespace": "n", "finalizers": finalizers});
        if deleted {
            metadata["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        }
        serde_json::from_value(json!({"metadata": metadata, "spec": {}, "status": status})).unwrap()
    }

    #[test]
    fn devices_are_given_back_with_the_last_user() {
        let user = |uid: &str| json!({"resource": "pods", "name": uid, "uid": uid});
        let check = |finalizers: Value,
                     users: Value,
                     allocated: bool,
                     deleted: bool,
                     expected: (Option<usize>, bool, bool)| {
            let allocation = if allocated { json!({}) } else { Value::Null };
            let status = json!({"reservedFor": users, "allocation": allocation});
            let judge = |user: &ResourceClaimConsumerReference| match user.uid.starts_with("gone") {
                true => User::Gone,
                false => User::Uses,
            };
            let plan = plan(&claim(finalizers, status, deleted), judge);
            let found =
                (plan.users.map(|users| users.len()), plan.gives_devices_back, plan.removes_finalizer);
            assert_eq!(found, expected);
        };
        let ours = || json!([FINALIZER]);
        check(ours(), json!([user("a"), user("gone")]), true, false, (Some(1), false, false));
        check(ours(), json!([user("gone")]), true, false, (Some(0), true, true));
        check(ours(), json!([]), true, false, (None, false, false));
        check(ours(), json!([user("a")]), true, true, (None, false, false));
        check(ours(), json!([]), true, true, (None, true, true));
        check(ours(), json!([]), false, true, (None, false, true));
        check(json!([]), json!([user("gone")]), true, false, (Some(0), false, false));
    }

    #[test]
    fn a_generated_name_keeps_something_of_both() {
        assert_eq!(generated_name("web", "gpu"), "web-gpu-");
        let long = generated_name(&"p".repeat(60), &"c".repeat(20));
        assert!(long.len() <= 57 && long.starts_with("ppp") && long.ends_with("ccc"), "{long}");
    }

    #[test]
    fn a_pod_names_its_claims_itself_or_in_its_status() {
        let mut owner = pod("web", "", "Pending", None);
        let entry = |name: &str, more: Value| -> PodResourceClaim {
            let mut entry = json!({"name": name});
            entry.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            serde_json::from_value(entry).unwrap()
        };
        let statuses = json!([{"name": "made", "resourceClaimName": "web-made-x"}, {"name": "unneeded"}]);
        owner.status.get_or_insert_default().resource_claim_statuses =
            serde_json::from_value(statuses).unwrap();
        let check =
            |entry: PodResourceClaim, expected: Name<'_>| assert_eq!(name_of(&owner, &entry), expected);
        check(
            entry("a", json!({"resourceClaimName": "own"})),
            Name::Known { name: "own", is_generated: false },
        );
        let template = json!({"resourceClaimTemplateName": "t"});
        check(entry("new", template.clone()), Name::NotMade("t"));
        check(entry("made", template.clone()), Name::Known { name: "web-made-x", is_generated: true });
        check(entry("unneeded", template), Name::None);
    }

    #[test]
    fn a_claim_tells_what_it_was_made_from() {
        let check = |annotations: Value, expected: &str| {
            let claim = json!({"metadata": {"name": "c", "annotations": annotations}, "spec": {}});
            assert_eq!(source(&serde_json::from_value(claim).unwrap()), expected);
        };
        check(json!({}), "");
        check(json!({POD_CLAIM: "gpu"}), "resource_claim_template");
        check(json!({EXTENDED: "true"}), "extended_resource");
        check(json!({EXTENDED: "false"}), "");
    }

    #[test]
    fn a_claim_from_a_template_belongs_to_the_pod() {
        let template: ResourceClaimTemplate = serde_json::from_value(json!({
            "metadata": {"name": "t"},
            "spec": {"metadata": {"labels": {"a": "b"}}, "spec": {"devices": {"requests": [{"name": "r"}]}}},
        }))
        .unwrap();
        let owner = pod("web", "", "Pending", None);
        let entry = PodResourceClaim { name: "gpu".into(), ..Default::default() };
        let claim = made_from(&template, &owner, &entry);
        assert!(is_made_for(&claim, &owner));
        assert_eq!(claim.labels()["a"], "b");
        assert_eq!(claim.annotations()[POD_CLAIM], "gpu");
        assert_eq!(claim.spec, template.spec.spec);
    }

    #[test]
    fn a_pod_that_was_deleted_before_it_had_a_node_is_done() {
        assert!(!is_done(&pod("a", "", "Pending", None)));
        assert!(is_done(&deleting(pod("a", "", "Pending", None))));
        assert!(!is_done(&deleting(pod("a", "n", "Running", None))));
        assert!(is_done(&pod("a", "n", "Succeeded", None)));
    }
}
