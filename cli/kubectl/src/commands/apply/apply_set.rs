//! `--applyset` (KEP 3659): what an apply reached is kept at an object, the set's parent. Each member
//! carries a label with the parent's ID; the parent's annotations say which kinds and namespaces hold
//! members, so that pruning lists those and no others.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use base64::Engine as _;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::cli::{Cli, VERSION};
use crate::commands::delete::{Options, delete_all};
use crate::discovery::Resource;
use crate::error::{Error, Result};
use crate::fields::{self, Fields};
use crate::selection::{Info, items};
use crate::transport::{APPLY_PATCH, Query, Request};
use crate::write::{DryRun, PatchTarget, Writer};

/// The environment variable that turns the flag on, with the value `true`.
pub const GATE: &str = "KUBECTL_APPLYSET";

const TOOL: &str = "kubectl";
const FIELD_MANAGER: &str = "kubectl-applyset";

const ID: &str = "applyset.kubernetes.io/id";
const PART_OF: &str = "applyset.kubernetes.io/part-of";
const IS_PARENT_TYPE: &str = "applyset.kubernetes.io/is-parent-type";
const TOOLING: &str = "applyset.kubernetes.io/tooling";
const NAMESPACES: &str = "applyset.kubernetes.io/additional-namespaces";
const KINDS: &str = "applyset.kubernetes.io/contains-group-kinds";
/// What `KINDS` was called before, with plural names in place of kinds. It is read, and leaves with the next apply.
const RESOURCES: &str = "applyset.kubernetes.io/contains-group-resources";

/// What the members of a set are: kinds, by their `Kind.group`, and namespaces.
#[derive(Debug, Clone, Default)]
struct Reach {
    kinds: BTreeMap<String, Rc<Resource>>,
    namespaces: BTreeSet<String>,
}

impl Reach {
    fn add(&mut self, resource: &Rc<Resource>, namespace: &str) {
        self.kinds.entry(group_kind(resource)).or_insert_with(|| resource.clone());
        if resource.namespaced && !namespace.is_empty() {
            self.namespaces.insert(namespace.to_owned());
        }
    }

    fn with(&self, other: &Reach) -> Reach {
        let mut both = self.clone();
        both.kinds.extend(other.kinds.iter().map(|(key, resource)| (key.clone(), resource.clone())));
        both.namespaces.extend(other.namespaces.iter().cloned());
        both
    }
}

pub struct ApplySet {
    parent: Rc<Resource>,
    namespace: String,
    name: String,
    /// As the parent said it when the command began.
    before: Reach,
    /// As it is once the command is through.
    after: Reach,
}

impl ApplySet {
    /// The set that the flag names, as `[RESOURCE][.GROUP]/NAME`; a Secret unless it says otherwise.
    pub async fn from_flag(cli: &Cli) -> Result<Option<ApplySet>> {
        let reference = cli.args.text("applyset");
        if reference.is_empty() {
            return Ok(None);
        }
        let (word, name) = reference.split_once('/').unwrap_or(("secrets", reference));
        let invalid =
            |reason: String| Error::message(format!("invalid parent reference {reference:?}: {reason}"));
        if name.is_empty() {
            return Err(invalid("name cannot be blank".to_owned()));
        }
        let parent = cli.resource(word).await.map_err(|error| match error {
            Error::NoMatch { .. } => {
                let (resource, group) = word.split_once('.').unwrap_or((word, ""));
                let resource = resource.to_lowercase();
                invalid(match group {
                    "" => format!("no matches for /, Resource={resource}"),
                    group => format!("no matches for {group}/, Resource={resource}"),
                })
            }
            other => other,
        })?;
        // the namespace has to be given by flag: that of the kubeconfig may be another one tomorrow
        let current = cli.namespace()?;
        let namespace = if parent.namespaced && current.explicit { current.name } else { String::new() };
        Ok(Some(ApplySet {
            parent,
            namespace,
            name: name.to_owned(),
            before: Reach::default(),
            after: Reach::default(),
        }))
    }

    /// Whether the parent may be one.
    pub async fn check(&self, cli: &Cli) -> Result<()> {
        let mut errors = Vec::new();
        if self.parent.namespaced && self.namespace.is_empty() {
            errors.push(Error::message("namespace is required to use namespace-scoped ApplySet"));
        }
        if !self.is_builtin() {
            match custom_parents(cli).await {
                Ok(permitted) if permitted.contains(&self.parent.qualified()) => {}
                outcome => {
                    if let Err(error) = outcome {
                        errors.push(Error::message(format!(
                            "identifying allowed custom resource parent types: {error}"
                        )));
                    }
                    let Resource { group, version, name, .. } = &*self.parent;
                    errors.push(Error::message(format!(
                        "resource \"{group}/{version}, Resource={name}\" is not permitted as an ApplySet parent"
                    )));
                }
            }
        }
        Error::collect(errors)
    }

    fn is_builtin(&self) -> bool {
        let Resource { group, version, name, .. } = &*self.parent;
        group.is_empty() && version == "v1" && (name == "secrets" || name == "configmaps")
    }

    /// The label's value: a hash of what the parent is, in characters that a label may have.
    fn id(&self) -> String {
        let Resource { kind, group, .. } = &*self.parent;
        let hash = Sha256::digest(format!("{}.{}.{kind}.{group}", self.name, self.namespace));
        format!("applyset-{}-v1", base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(hash))
    }

    /// The parent as the flag names it, quoted.
    fn quoted(&self) -> String {
        format!("\"{}.{}/{}\"", self.parent.name, self.parent.group, self.name)
    }

    /// Makes objects members.
    pub fn label(&self, infos: &mut [Info]) -> Result<()> {
        for info in infos {
            if info.object.map("metadata.labels").is_some_and(|labels| labels.contains_key(PART_OF)) {
                return Err(Error::message(format!("ApplySet label {PART_OF:?} already set in input data")));
            }
            fields::set_keyed(&mut info.object, "metadata.labels", PART_OF, self.id());
        }
        Ok(())
    }

    /// Has the parent cover both what is there and what will be: whatever happens on the way, the
    /// next apply finds every member.
    pub async fn before_apply(&mut self, writer: &Writer<'_>, infos: &[Info]) -> Result<()> {
        self.before = self.read_parent(writer.cli).await?;
        for info in infos {
            self.after.add(&info.resource, &info.namespace);
        }
        self.write_parent(writer, &self.before.with(&self.after)).await
    }

    async fn read_parent(&self, cli: &Cli) -> Result<Reach> {
        let path = self.parent.object_path(&self.namespace, &self.name);
        let parent = match cli.client()?.get_json(&path).await {
            Ok(parent) => parent,
            Err(error) if error.is_not_found() && self.is_builtin() => return Ok(Reach::default()),
            Err(error) if error.is_not_found() => {
                return Err(Error::message(
                    "custom resource ApplySet parents cannot be created automatically",
                ));
            }
            Err(error) => {
                return Err(Error::message(format!(
                    "failed to fetch ApplySet parent object {}: {error}",
                    self.quoted()
                )));
            }
        };
        self.check_parent(&parent).map_err(Error::message)?;
        let mut reach = Reach { kinds: self.kinds_of(cli, &parent).await?, ..Reach::default() };
        let listed = parent.keyed("metadata.annotations", NAMESPACES);
        reach.namespaces.extend(listed.split(',').filter(|name| !name.is_empty()).map(str::to_owned));
        if self.parent.namespaced {
            reach.namespaces.insert(self.namespace.clone());
        }
        Ok(reach)
    }

    /// Whether the live parent is this set's, and this tool's.
    fn check_parent(&self, parent: &Value) -> std::result::Result<(), String> {
        let quoted = self.quoted();
        let value = |map: &str, key: &str| {
            parent.map(map).and_then(|map| map.get(key)).and_then(Value::as_str).map(str::to_owned)
        };
        let Some(tooling) = value("metadata.annotations", TOOLING) else {
            return Err(format!(
                "ApplySet parent object {quoted} already exists and is missing required annotation {TOOLING:?}"
            ));
        };
        let tool = tooling.rsplit_once('/').map_or(tooling.as_str(), |(tool, _)| tool);
        if tool != TOOL {
            return Err(format!(
                "ApplySet parent object {quoted} already exists and is managed by tooling {tool:?} instead of {TOOL:?}"
            ));
        }
        let Some(id) = value("metadata.labels", ID) else {
            return Err(format!(
                "ApplySet parent object {quoted} exists and does not have required label {ID}"
            ));
        };
        if id != self.id() {
            return Err(format!(
                "ApplySet parent object {quoted} exists and has incorrect value for label {ID:?} (got: {id}, want: {})",
                self.id()
            ));
        }
        Ok(())
    }

    async fn kinds_of(&self, cli: &Cli, parent: &Value) -> Result<BTreeMap<String, Rc<Resource>>> {
        let annotations = parent.map("metadata.annotations");
        let listed = |key: &str| annotations.and_then(|map| map.get(key)).and_then(Value::as_str);
        let parsing = |reason: String| {
            Error::message(format!("parsing ApplySet annotation on {}: {reason}", self.quoted()))
        };
        let mut kinds = BTreeMap::new();
        match (listed(KINDS), listed(RESOURCES).filter(|text| !text.is_empty())) {
            (Some(text), _) => {
                for entry in text.split(',').filter(|_| !text.is_empty()) {
                    let (kind, group) = entry.split_once('.').unwrap_or((entry, ""));
                    let resource = cli
                        .look_up(|discovery| {
                            discovery.for_group_kind(group, kind).map(|found| Rc::new(found.clone())).ok_or_else(|| {
                                parsing(format!(
                                    "could not find mapping for kind in {KINDS:?} annotation: no matches for kind {kind:?} in group {group:?}"
                                ))
                            })
                        })
                        .await?;
                    kinds.insert(group_kind(&resource), resource);
                }
            }
            (None, Some(text)) => {
                for entry in text.split(',') {
                    let resource = cli.resource(entry).await.map_err(|error| {
                        let (name, group) = entry.split_once('.').unwrap_or((entry, ""));
                        match error {
                            Error::NoMatch { .. } => parsing(format!(
                                "invalid group resource in {RESOURCES:?} annotation: no matches for {group}/, Resource={name}"
                            )),
                            other => other,
                        }
                    })?;
                    kinds.insert(group_kind(&resource), resource);
                }
            }
            (None, None) => {
                return Err(parsing(format!(
                    "kubectl requires the {KINDS:?} annotation to be set on all ApplySet parent objects"
                )));
            }
        }
        Ok(kinds)
    }

    async fn write_parent(&self, writer: &Writer<'_>, reach: &Reach) -> Result<()> {
        if writer.dry_run == DryRun::Client {
            return Ok(());
        }
        let parent = self.manifest(reach);
        let target = PatchTarget {
            resource: &self.parent,
            namespace: &self.namespace,
            name: &self.name,
            subresource: "",
        };
        let query = |force: &str| {
            Query::new()
                .with("dryRun", if writer.dry_run == DryRun::Server { "All" } else { "" })
                .with("fieldManager", FIELD_MANAGER)
                .with("fieldValidation", writer.validation())
                .with("force", force)
        };
        let mut outcome = writer.patch_with(target, APPLY_PATCH, &parent, query("false")).await;
        if let Err(error) = &outcome
            && error.is_conflict()
        {
            eprintln!(
                "WARNING: failed to update ApplySet: {error}\nApplySet field manager {FIELD_MANAGER} should own these fields. Retrying with conflicts forced."
            );
            outcome = writer.patch_with(target, APPLY_PATCH, &parent, query("true")).await;
        }
        outcome.map(drop).map_err(|error| Error::message(format!("failed to update ApplySet: {error}")))
    }

    /// What this tool says of the parent; server-side apply takes away what it said before and leaves out now.
    fn manifest(&self, reach: &Reach) -> Value {
        let kinds: Vec<&str> = reach.kinds.keys().map(String::as_str).collect();
        let namespaces = reach.namespaces.iter().filter(|name| **name != self.namespace);
        let namespaces: Vec<&str> = namespaces.map(String::as_str).collect();
        let mut metadata = json!({
            "name": self.name,
            "annotations": {
                TOOLING: format!("{TOOL}/{VERSION}"),
                KINDS: kinds.join(","),
                NAMESPACES: namespaces.join(","),
            },
            "labels": {ID: self.id()},
        });
        if !self.namespace.is_empty() {
            metadata["namespace"] = json!(self.namespace);
        }
        json!({"apiVersion": self.parent.group_version(), "kind": self.parent.kind, "metadata": metadata})
    }

    /// Deletes the members that were not applied now. If that fails the parent stays as it is, and
    /// still covers what is left.
    pub async fn prune(&self, writer: &Writer<'_>, applied: &[Info]) -> Result<()> {
        let cli = writer.cli;
        let options = Options::for_pruning(&cli.args)?;
        for info in self.surplus(cli, applied).await? {
            if writer.dry_run != DryRun::Client {
                let mut errors = Vec::new();
                delete_all(cli, std::slice::from_ref(&info), &options, false, &mut errors).await?;
                Error::collect(errors).map_err(|error| {
                    let place = if info.namespace.is_empty() { "" } else { "/" };
                    Error::message(format!(
                        "pruning {} {}{place}{}: {error}",
                        group_kind(&info.resource),
                        info.namespace,
                        info.name
                    ))
                })?;
            }
            writer.report(&info.object, "pruned")?;
        }
        self.write_parent(writer, &self.after).await.map_err(|error| {
            Error::message(format!("apply and prune succeeded, but ApplySet update failed: {error}"))
        })
    }

    async fn surplus(&self, cli: &Cli, applied: &[Info]) -> Result<Vec<Info>> {
        let uids: Vec<&str> = applied.iter().map(|info| info.object.text("metadata.uid")).collect();
        let query = Query::new().with("labelSelector", &format!("{PART_OF}={}", self.id()));
        let mut found = Vec::new();
        for resource in self.before.kinds.values() {
            let places: Vec<&str> = match resource.namespaced {
                true => self.before.namespaces.iter().map(String::as_str).collect(),
                false => vec![""],
            };
            for namespace in places {
                let path = format!("{}{query}", resource.path(namespace));
                let list = cli.client()?.json(Request::get(&path)).await.map_err(|error| {
                    let Resource { group, version, kind, .. } = &**resource;
                    Error::message(format!(
                        "listing {group}/{version}, Kind={kind} objects for pruning: {error}"
                    ))
                })?;
                let members = items(list, resource).into_iter();
                found.extend(members.filter(|info| !uids.contains(&info.object.text("metadata.uid"))));
            }
        }
        Ok(found)
    }
}

/// `Deployment.apps`, or `ConfigMap` for the core group.
fn group_kind(resource: &Resource) -> String {
    match resource.group.as_str() {
        "" => resource.kind.clone(),
        group => format!("{}.{group}", resource.kind),
    }
}

/// The custom resources whose definition says that they may be parents, as `plural.group`.
async fn custom_parents(cli: &Cli) -> Result<Vec<String>> {
    let query = Query::new().with("labelSelector", IS_PARENT_TYPE);
    let path = format!("/apis/apiextensions.k8s.io/v1/customresourcedefinitions{query}");
    let list = cli.client()?.get_json(&path).await?;
    Ok(list.list("items").iter().map(|item| item.name().to_owned()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resource(group: &str, kind: &str) -> Rc<Resource> {
        Rc::new(Resource {
            group: group.to_owned(),
            version: "v1".to_owned(),
            name: format!("{}s", kind.to_lowercase()),
            kind: kind.to_owned(),
            namespaced: true,
            ..Resource::default()
        })
    }

    fn set() -> ApplySet {
        ApplySet {
            parent: resource("", "Secret"),
            namespace: "my-namespace".to_owned(),
            name: "my-set".to_owned(),
            before: Reach::default(),
            after: Reach::default(),
        }
    }

    #[test]
    fn the_id_is_the_hash_of_what_the_parent_is() {
        // printf my-set.my-namespace.Secret. | sha256sum, in base64 for URLs
        assert_eq!(set().id(), "applyset-tvW_LC7cMvyZ6adDBW_BqUozyRL6LYEB90aQLf21Fd4-v1");
    }

    #[test]
    fn the_parent_covers_what_was_there_and_what_will_be() {
        let mut before = Reach::default();
        before.add(&resource("apps", "Deployment"), "other");
        let mut after = Reach::default();
        after.add(&resource("", "ConfigMap"), "my-namespace");
        let annotations = |reach: &Reach| {
            let manifest = set().manifest(reach);
            let value = |key: &str| manifest.keyed("metadata.annotations", key).to_owned();
            (value(KINDS), value(NAMESPACES))
        };
        assert_eq!(annotations(&before.with(&after)), ("ConfigMap,Deployment.apps".into(), "other".into()));
        assert_eq!(annotations(&after), ("ConfigMap".into(), String::new()));
    }

    #[test]
    fn a_parent_of_somebody_else_is_refused() {
        let refusal = |metadata: Value| set().check_parent(&json!({"metadata": metadata})).unwrap_err();
        assert!(
            refusal(json!({})).ends_with("is missing required annotation \"applyset.kubernetes.io/tooling\"")
        );
        assert!(
            refusal(json!({"annotations": {TOOLING: "a/helm/v3"}}))
                .ends_with("managed by tooling \"a/helm\" instead of \"kubectl\"")
        );
        let ours = json!({TOOLING: "kubectl/v1.27"});
        assert!(
            refusal(json!({"annotations": ours}))
                .ends_with("does not have required label applyset.kubernetes.io/id")
        );
        assert!(
            refusal(json!({"annotations": ours, "labels": {ID: "x"}})).contains("(got: x, want: applyset-")
        );
        let fine = json!({"metadata": {"annotations": ours, "labels": {ID: set().id()}}});
        assert_eq!(set().check_parent(&fine), Ok(()));
    }

    #[test]
    fn members_are_labelled_once() {
        let info = |labels: Value| Info {
            resource: resource("", "ConfigMap"),
            namespace: "n".to_owned(),
            name: "m".to_owned(),
            object: json!({"metadata": {"labels": labels}}),
            source: String::new(),
        };
        let mut infos = vec![info(json!({"a": "b"}))];
        set().label(&mut infos).unwrap();
        assert_eq!(infos[0].object.keyed("metadata.labels", PART_OF), set().id());
        assert_eq!(infos[0].object.keyed("metadata.labels", "a"), "b");
        assert!(set().label(&mut infos).is_err());
    }
}
