//! Past templates of StatefulSets and DaemonSets, as ControllerRevisions: for rolling back, and
//! for telling which pods are new.

use std::sync::Arc;

use ferry_client::{Attempt, Client, Error, error, undecoded};
use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::runtime::RawExtension;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ObjectMeta, PostParams};
use serde_json::{Value, json};

use crate::ownership::{Namespaced, controller_ref};
use crate::template_hash::hash;

/// Where the hash is on a revision (StatefulSet) and on pods.
const HASH: &str = "controller.kubernetes.io/hash";

/// What a revision holds: a strategic merge patch that brings the template back.
pub fn data(template: &PodTemplateSpec) -> Value {
    let mut template = serde_json::to_value(template).expect("a template is plain data");
    template["$patch"] = json!("replace");
    json!({"spec": {"template": template}})
}

pub fn template_of(revision: &ControllerRevision) -> Option<PodTemplateSpec> {
    let template = revision.data.as_ref()?.0.pointer("/spec/template")?.clone();
    serde_json::from_value(template).ok()
}

fn same_data(revision: &ControllerRevision, data: &Value) -> bool {
    revision.data.as_ref().is_some_and(|known| known.0 == *data)
}

/// The hash in a revision's labels, by which pods are told to be of it.
pub fn hash_of<'a>(revision: &'a ControllerRevision, label: &str) -> &'a str {
    let labels = revision.labels();
    labels.get(label).or_else(|| labels.get(HASH)).map_or("", String::as_str)
}

/// What to do so that the newest revision holds the present template.
#[derive(Debug, PartialEq)]
pub enum Step {
    /// It does.
    Use(Box<ControllerRevision>),
    /// An older one does (a rollback): it becomes the newest.
    Renumber(Box<ControllerRevision>),
    Create(Box<ControllerRevision>),
}

/// `label` is where the hash goes; `collisions` makes another name for the same template.
pub fn plan<O: Namespaced>(
    owner: &O,
    template: &PodTemplateSpec,
    known: &[Arc<ControllerRevision>],
    label: &str,
    collisions: Option<i32>,
) -> Step {
    let data = data(template);
    let newest = known.iter().map(|revision| revision.revision).max().unwrap_or(0);
    let mut equal: Vec<&Arc<ControllerRevision>> =
        known.iter().filter(|revision| same_data(revision, &data)).collect();
    equal.sort_by_key(|revision| revision.revision);
    if let Some(latest) = equal.last() {
        let mut found = (***latest).clone();
        if found.revision == newest {
            return Step::Use(Box::new(found));
        }
        found.revision = newest + 1;
        return Step::Renumber(Box::new(found));
    }
    let hash = hash(&serde_json::to_vec(&data).expect("is plain data"), collisions);
    let meta = template.metadata.clone().unwrap_or_default();
    let mut labels = meta.labels.unwrap_or_default();
    labels.insert(label.into(), hash.clone());
    Step::Create(Box::new(ControllerRevision {
        metadata: ObjectMeta {
            name: Some(format!("{}-{hash}", owner.name_any())),
            namespace: owner.namespace(),
            labels: Some(labels),
            annotations: owner.meta().annotations.clone().map(|mut annotations| {
                annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
                annotations
            }),
            owner_references: Some(vec![controller_ref(owner)]),
            ..Default::default()
        },
        data: Some(RawExtension(data)),
        revision: newest + 1,
    }))
}

/// The outcome of [`apply`].
pub enum Applied {
    Current(Box<ControllerRevision>),
    /// Another revision has this name: try again with one collision more.
    Collision,
}

pub async fn apply(client: &Client, namespace: &str, step: Step) -> Result<Applied, Error> {
    let api: Api<ControllerRevision> = Api::namespaced(client.clone(), namespace);
    match step {
        Step::Use(revision) => Ok(Applied::Current(revision)),
        Step::Renumber(revision) => {
            let written = api.replace(&revision.name_any(), &PostParams::default(), &revision).await;
            Ok(Applied::Current(Box::new(written.attempting("renumber revision")?)))
        }
        Step::Create(revision) => match api.create(&PostParams::default(), &revision).await {
            Ok(created) => Ok(Applied::Current(Box::new(created))),
            Err(refused) if error::is_already_exists(&refused) => {
                let existing = api.get(&revision.name_any()).await.attempting("read revision that exists")?;
                let ours = existing.metadata.owner_references == revision.metadata.owner_references;
                let same = revision.data.as_ref().is_some_and(|data| same_data(&existing, &data.0));
                Ok(if ours && same { Applied::Current(Box::new(existing)) } else { Applied::Collision })
            }
            Err(failed) => Err(Error::new("create revision", failed)),
        },
    }
}

/// Revisions beyond the limit that no pod is of, oldest first.
pub fn surplus(
    known: &[Arc<ControllerRevision>],
    limit: i32,
    in_use: &dyn Fn(&ControllerRevision) -> bool,
) -> Vec<String> {
    let mut unused: Vec<&Arc<ControllerRevision>> =
        known.iter().filter(|revision| !in_use(revision)).collect();
    unused.sort_by_key(|revision| revision.revision);
    let count = unused.len().saturating_sub(limit.max(0) as usize);
    unused[..count].iter().map(|revision| revision.name_any()).collect()
}

pub async fn delete(client: &Client, namespace: &str, names: Vec<String>) -> Result<(), Error> {
    let api: Api<ControllerRevision> = Api::namespaced(client.clone(), namespace);
    for name in names {
        error::ignore_not_found(undecoded::delete(&api, &name, &DeleteParams::default()).await)
            .attempting("delete revision")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::apps::v1::StatefulSet;

    use super::*;
    use crate::testing::{labels, named};

    fn template(image: &str) -> PodTemplateSpec {
        let metadata = ObjectMeta { annotations: Some(labels(&[("image", image)])), ..Default::default() };
        PodTemplateSpec { metadata: Some(metadata), spec: None }
    }

    fn step(image: &str, known: &[Arc<ControllerRevision>]) -> Step {
        let set: StatefulSet = named("set");
        plan(&set, &template(image), known, HASH, None)
    }

    #[test]
    fn a_template_has_one_revision_and_a_rollback_renumbers_it() {
        let Step::Create(first) = step("v1", &[]) else { panic!("v1 is new") };
        assert_eq!((first.revision, template_of(&first)), (1, Some(template("v1"))));
        let first = Arc::new(*first);
        assert!(matches!(step("v1", std::slice::from_ref(&first)), Step::Use(_)));
        let Step::Create(second) = step("v2", std::slice::from_ref(&first)) else { panic!("v2 is new") };
        let known = [first, Arc::new(*second)];
        let Step::Renumber(back) = step("v1", &known) else { panic!("v1 is known") };
        assert_eq!(back.revision, 3);
    }

    #[test]
    fn only_unused_revisions_beyond_the_limit_go() {
        let known: Vec<Arc<ControllerRevision>> = (1..=4)
            .map(|number| {
                let mut revision: ControllerRevision = named(&format!("r{number}"));
                revision.revision = number;
                Arc::new(revision)
            })
            .collect();
        assert_eq!(surplus(&known, 1, &|revision| revision.revision == 1), ["r2", "r3"]);
        assert!(surplus(&known, 10, &|_| false).is_empty());
    }
}
