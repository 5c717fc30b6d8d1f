//! Empties namespaces that are being deleted, and says what keeps them.
//!
//! Pods go first: until they have ended they may still use what else is there.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ferry_client::{
    Attempt, Client, Error, Event, Informer, Metadata, NamespacedName, Outcome, error, undecoded,
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Namespace, NamespaceCondition, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams, PostParams};

use crate::context::{Context, Running};
use crate::discovery::{Discovered, Resource, discover};

const CONTROLLER: &str = "namespace-controller";
/// The finalizer in `spec` that holds a namespace until it is empty.
const FINALIZER: &str = "kubernetes";
/// How soon to look again at content that waits for someone else's finalizer.
const FINALIZER_WAIT: Duration = Duration::from_secs(15);

/// What is left in a namespace after all its objects were deleted.
#[derive(Debug, Default, PartialEq)]
struct RemainingContent {
    discovery_failures: Vec<String>,
    deletion_failures: Vec<String>,
    /// Resource → how many objects are left.
    left: BTreeMap<String, usize>,
    /// Finalizer → on how many objects.
    finalizers: BTreeMap<String, usize>,
    /// The longest time a pod has been given to end.
    grace: Option<Duration>,
}

impl RemainingContent {
    fn is_empty(&self) -> bool {
        self.discovery_failures.is_empty() && self.deletion_failures.is_empty() && self.left.is_empty()
    }

    fn found(&mut self, resource: &str, objects: &[Metadata]) {
        if objects.is_empty() {
            return;
        }
        *self.left.entry(resource.into()).or_default() += objects.len();
        for finalizer in objects.iter().flat_map(|object| object.finalizers()) {
            *self.finalizers.entry(finalizer.clone()).or_default() += 1;
        }
        if resource == "pods" {
            let grace = objects
                .iter()
                .map(|pod| pod.metadata.deletion_grace_period_seconds.unwrap_or(0).max(0) as u64)
                .max();
            self.grace = grace.map(Duration::from_secs);
        }
    }
}

/// The conditions that show what a terminating namespace waits for.
fn conditions(
    current: &[NamespaceCondition],
    remains: &RemainingContent,
    now: Timestamp,
) -> Vec<NamespaceCondition> {
    let fine = [
        ("NamespaceDeletionDiscoveryFailure", "ResourcesDiscovered", "All resources successfully discovered"),
        (
            "NamespaceDeletionGroupVersionParsingFailure",
            "ParsedGroupVersions",
            "All legacy kube types successfully parsed",
        ),
        (
            "NamespaceDeletionContentFailure",
            "ContentDeleted",
            "All content successfully deleted, may be waiting on finalization",
        ),
        ("NamespaceContentRemaining", "ContentRemoved", "All content successfully removed"),
        (
            "NamespaceFinalizersRemaining",
            "ContentHasNoFinalizers",
            "All content-preserving finalizers finished",
        ),
    ];
    let mut next: Vec<NamespaceCondition> = current.to_vec();
    for (kind, fine_reason, fine) in fine {
        let (status, reason, message) = match remains.trouble(kind) {
            Some((reason, message)) => ("True", reason, message),
            None => ("False", fine_reason, fine.to_string()),
        };
        let old = next.iter().find(|condition| condition.type_ == kind).cloned();
        let since =
            old.as_ref().filter(|old| old.status == status).and_then(|old| old.last_transition_time.clone());
        let condition = NamespaceCondition {
            type_: kind.into(),
            status: status.into(),
            reason: Some(reason.into()),
            message: Some(message),
            last_transition_time: since.or(Some(Time(now))),
        };
        match next.iter_mut().find(|condition| condition.type_ == kind) {
            Some(place) => *place = condition,
            None => next.push(condition),
        }
    }
    next
}

impl RemainingContent {
    /// The reason and the message of a condition that is true.
    fn trouble(&self, kind: &str) -> Option<(&'static str, String)> {
        match kind {
            "NamespaceDeletionDiscoveryFailure" if !self.discovery_failures.is_empty() => {
                let (count, failures) = (self.discovery_failures.len(), self.discovery_failures.join(", "));
                let message = format!(
                    "Discovery failed for some groups, {count} failing: unable to retrieve the complete list of server APIs: {failures}"
                );
                Some(("DiscoveryFailed", message))
            }
            "NamespaceDeletionContentFailure" if !self.deletion_failures.is_empty() => {
                let (count, failures) = (self.deletion_failures.len(), self.deletion_failures.join(", "));
                let message = format!("Failed to delete all resource types, {count} remaining: {failures}");
                Some(("ContentDeletionFailed", message))
            }
            "NamespaceContentRemaining" if !self.left.is_empty() => {
                // Upstream writes the core group with its trailing dot.
                let left = self.left.iter().map(|(name, count)| {
                    let dot = if name.contains('.') { "" } else { "." };
                    (format!("{name}{dot}"), *count)
                });
                let left = instances(&left.collect(), " has ");
                Some(("SomeResourcesRemain", format!("Some resources are remaining: {left}")))
            }
            "NamespaceFinalizersRemaining" if !self.finalizers.is_empty() => {
                let finalizers = instances(&self.finalizers, " in ");
                let message = format!("Some content in the namespace has finalizers remaining: {finalizers}");
                Some(("SomeFinalizersRemain", message))
            }
            _ => None,
        }
    }
}

fn instances(counts: &BTreeMap<String, usize>, words: &str) -> String {
    let texts = counts.iter().map(|(name, count)| format!("{name}{words}{count} resource instances"));
    texts.collect::<Vec<_>>().join(", ")
}

struct Controller {
    client: Client,
    namespaces: Informer<Namespace>,
}

pub fn start(context: &Context) -> Running {
    let builder = context.controller(CONTROLLER);
    let namespaces = builder.informer::<Namespace>();
    let controller = Arc::new(Controller { client: context.client.clone(), namespaces: namespaces.clone() });
    // The last pod's end is what most namespaces wait for; nobody has to ask for it.
    let pods = builder.informer::<Pod>();
    builder.of(&namespaces, controller).watches(&pods, Controller::pod_changed).run(Controller::reconcile)
}

impl Controller {
    fn pod_changed(&self, event: &Event<Pod>) -> Vec<NamespacedName> {
        let key = NamespacedName::cluster(event.key().namespace);
        let is_terminating = |namespace: Arc<Namespace>| namespace.metadata.deletion_timestamp.is_some();
        let waits = event.is_deleted() && self.namespaces.get(&key).is_some_and(is_terminating);
        if waits { vec![key] } else { vec![] }
    }

    async fn reconcile(self: Arc<Self>, key: NamespacedName) -> Result<Outcome, Error> {
        let Some(namespace) = self.namespaces.get(&key) else { return Ok(Outcome::Done) };
        let finalizers =
            namespace.spec.as_ref().and_then(|spec| spec.finalizers.as_deref()).unwrap_or_default();
        if namespace.metadata.deletion_timestamp.is_none()
            || !finalizers.iter().any(|finalizer| finalizer == FINALIZER)
        {
            return Ok(Outcome::Done);
        }
        let api: Api<Namespace> = Api::all(self.client.clone());
        let namespace = self.mark_terminating(&api, &namespace).await?;
        let mut span = ferry_trace::span("namespace.empty");
        let remains = span.in_scope(self.empty(&key.name)).await?;
        span.set("left", remains.left.values().sum::<usize>());
        let Some(namespace) = self.write_conditions(&api, namespace, &remains).await? else {
            return Ok(Outcome::Done);
        };
        if !remains.is_empty() {
            let wait = match remains.grace {
                Some(grace) => grace / 2 + Duration::from_secs(1),
                None if remains.finalizers.is_empty() => Duration::from_secs(1),
                None => FINALIZER_WAIT,
            };
            return Ok(Outcome::After(wait));
        }
        self.finalize(&api, namespace).await?;
        Ok(Outcome::Done)
    }

    async fn mark_terminating(
        &self,
        api: &Api<Namespace>,
        namespace: &Namespace,
    ) -> Result<Namespace, Error> {
        let mut next = namespace.clone();
        let status = next.status.get_or_insert_default();
        if status.phase.as_deref() == Some("Terminating") {
            return Ok(next);
        }
        status.phase = Some("Terminating".into());
        api.replace_status(&next.name_any(), &PostParams::default(), &next)
            .await
            .attempting("mark namespace terminating")
    }

    /// Tells everything to go and counts what is still there.
    async fn empty(&self, namespace: &str) -> Result<RemainingContent, Error> {
        let Discovered { resources, failures } =
            discover(&self.client).await.attempting("discover resources")?;
        let mut remains = RemainingContent { discovery_failures: failures, ..Default::default() };
        let deletable =
            |resource: &&Resource| resource.namespaced && resource.can("delete") && resource.can("list");
        let (pods, rest): (Vec<&Resource>, Vec<&Resource>) =
            resources.iter().filter(deletable).partition(|resource| resource.group_resource() == "pods");
        for resource in pods {
            self.remove(namespace, resource, &mut remains).await;
        }
        if remains.left.is_empty() {
            for resource in rest {
                self.remove(namespace, resource, &mut remains).await;
            }
        }
        Ok(remains)
    }

    async fn remove(&self, namespace: &str, resource: &Resource, remains: &mut RemainingContent) {
        let api: Api<Metadata> = Api::namespaced_with(self.client.clone(), namespace, &resource.api);
        match remove_all(&api, resource).await {
            Ok(left) => remains.found(&resource.group_resource(), &left),
            // Removed from discovery meanwhile, and its objects with it.
            Err(gone) if error::is_not_found(&gone) => {}
            Err(failed) => remains.deletion_failures.push(format!(
                "{}: {}",
                resource.group_resource(),
                error::message(&failed)
            )),
        }
    }

    async fn write_conditions(
        &self,
        api: &Api<Namespace>,
        namespace: Namespace,
        remains: &RemainingContent,
    ) -> Result<Option<Namespace>, Error> {
        let mut next = namespace.clone();
        let status = next.status.get_or_insert_default();
        let current = status.conditions.clone().unwrap_or_default();
        // A namespace that was emptied at once need not tell of troubles it never had.
        if remains.is_empty() && current.is_empty() {
            return Ok(Some(namespace));
        }
        status.conditions = Some(conditions(&current, remains, Timestamp::now()));
        if next.status == namespace.status {
            return Ok(Some(namespace));
        }
        let written = api.replace_status(&next.name_any(), &PostParams::default(), &next).await;
        error::ignore_not_found(written).attempting("write namespace conditions")
    }

    async fn finalize(&self, api: &Api<Namespace>, mut namespace: Namespace) -> Result<(), Error> {
        if let Some(finalizers) = namespace.spec.as_mut().and_then(|spec| spec.finalizers.as_mut()) {
            finalizers.retain(|finalizer| finalizer != FINALIZER);
        }
        let written = api
            .replace_subresource("finalize", &namespace.name_any(), &PostParams::default(), &namespace)
            .await;
        error::ignore_not_found(written).attempting("finalize namespace")?;
        Ok(())
    }
}

/// Deletes every object of a resource in a namespace; returns those that are still there.
async fn remove_all(api: &Api<Metadata>, resource: &Resource) -> Result<Vec<Metadata>, kube::Error> {
    let present = api.list(&ListParams::default()).await?.items;
    if present.is_empty() {
        return Ok(present);
    }
    let delete = DeleteParams::background();
    if resource.can("deletecollection") {
        api.delete_collection(&delete, &ListParams::default()).await?;
    } else {
        for object in &present {
            error::ignore_not_found(undecoded::delete(api, &object.name_any(), &delete).await)?;
        }
    }
    Ok(api.list(&ListParams::default()).await?.items)
}

#[cfg(test)]
mod tests {
    use kube::api::ObjectMeta;
    use kube::core::PartialObjectMetaExt;

    use super::*;
    use crate::testing::at;

    fn metadata() -> Metadata {
        ObjectMeta::default().into_response_partial()
    }

    fn message(conditions: &[NamespaceCondition], kind: &str) -> (String, String) {
        let found = conditions.iter().find(|condition| condition.type_ == kind).expect("every kind is told");
        (found.status.clone(), found.message.clone().unwrap())
    }

    #[test]
    fn conditions_name_what_is_left_and_what_holds_it() {
        let mut remains = RemainingContent::default();
        let mut pod = metadata();
        pod.metadata.finalizers = Some(vec!["example.com/hold".into()]);
        pod.metadata.deletion_grace_period_seconds = Some(30);
        remains.found("pods", &[pod.clone(), pod]);
        remains.found("widgets.example.com", &[metadata()]);
        let told = conditions(&[], &remains, at(0));
        assert_eq!(
            message(&told, "NamespaceContentRemaining"),
            ("True".into(), "Some resources are remaining: pods. has 2 resource instances, widgets.example.com has 1 resource instances".into())
        );
        assert_eq!(
            message(&told, "NamespaceFinalizersRemaining"),
            ("True".into(), "Some content in the namespace has finalizers remaining: example.com/hold in 2 resource instances".into())
        );
        assert_eq!(message(&told, "NamespaceDeletionContentFailure").0, "False");
        assert_eq!(remains.grace, Some(Duration::from_secs(30)));
    }

    #[test]
    fn the_time_of_a_condition_changes_with_its_status_only() {
        let mut remains = RemainingContent::default();
        remains.found("pods", &[metadata()]);
        let first = conditions(&[], &remains, at(0));
        remains.found("pods", &[metadata()]);
        let second = conditions(&first, &remains, at(10));
        let time = |conditions: &[NamespaceCondition]| {
            conditions
                .iter()
                .find(|c| c.type_ == "NamespaceContentRemaining")
                .unwrap()
                .last_transition_time
                .clone()
        };
        assert_eq!(time(&first), time(&second));
        let third = conditions(&second, &RemainingContent::default(), at(20));
        assert_eq!(time(&third), Some(Time(at(20))));
    }
}
