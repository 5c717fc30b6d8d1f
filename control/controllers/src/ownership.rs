//! Who controls what: one controllerRef per object, taken and given back by selector.

use std::fmt::Debug;
use std::sync::Arc;

use ferry_client::informer::Object;
use ferry_client::{Attempt, Client, Error, Event, Informer, NamespacedName, error};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, OwnerReference};
use kube::api::{Api, Patch, PatchParams};
use kube::core::{NamespaceResourceScope, Selector, SelectorExt};
use kube::{Resource, ResourceExt};
use serde_json::json;

/// The owner that controls an object, if any.
pub fn controller_of<K: Resource>(object: &K) -> Option<&OwnerReference> {
    object.meta().owner_references.iter().flatten().find(|owner| owner.controller == Some(true))
}

pub fn is_controlled_by<K: Resource>(object: &K, uid: &str) -> bool {
    controller_of(object).is_some_and(|owner| owner.uid == uid)
}

/// The reference by which an owner controls what it makes.
pub fn controller_ref<O: Resource<DynamicType = ()>>(owner: &O) -> OwnerReference {
    OwnerReference {
        api_version: O::api_version(&()).into(),
        kind: O::kind(&()).into(),
        name: owner.meta().name.clone().unwrap_or_default(),
        uid: owner.meta().uid.clone().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

/// A label selector ready to match; None where it is malformed, which validation prevents and
/// which must select nothing rather than everything.
pub fn selector(selector: &LabelSelector) -> Option<Selector> {
    selector.clone().try_into().ok()
}

pub fn selects<K: Resource>(selector: &Selector, object: &K) -> bool {
    selector.matches(object.meta().labels.as_ref().unwrap_or(&Default::default()))
}

/// The owners that may want an object which nobody controls: once it is there, has other labels, or was let go.
pub fn adopters<O: Namespaced, K: Namespaced>(
    owners: &Informer<O>,
    selector: impl Fn(&O) -> Option<Selector>,
    event: &Event<K>,
) -> Vec<NamespacedName> {
    let object = &**event.object();
    let is_orphan = !event.is_deleted() && controller_of(object).is_none();
    let is_new = |old: &K| old.meta().labels != object.meta().labels || controller_of(old).is_some();
    if !is_orphan || !event.old().is_none_or(|old| is_new(old)) {
        return Vec::new();
    }
    let mut owners = owners.list_namespace(&event.key().namespace);
    owners.retain(|owner| selector(owner).is_some_and(|selector| selects(&selector, object)));
    owners.iter().map(|owner| NamespacedName::of(&**owner)).collect()
}

/// What an owner does about an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// It is ours and stays so.
    Keep,
    /// It has no owner and fits.
    Adopt,
    /// It is ours and no longer fits.
    Release,
    /// It is someone else's, or does not fit, or one of the two is going away.
    Ignore,
}

pub fn claim<O: Resource, K: Resource>(owner: &O, selector: &Selector, object: &K) -> Claim {
    let fits = selects(selector, object);
    let owner_leaving = owner.meta().deletion_timestamp.is_some();
    match controller_of(object) {
        Some(current) if Some(&current.uid) != owner.meta().uid.as_ref() => Claim::Ignore,
        Some(_) if fits => Claim::Keep,
        Some(_) if owner_leaving => Claim::Ignore,
        Some(_) => Claim::Release,
        None if !fits || owner_leaving || object.meta().deletion_timestamp.is_some() => Claim::Ignore,
        None => Claim::Adopt,
    }
}

/// What a controller may own and be.
pub trait Namespaced: Object<DynamicType = (), Scope = NamespaceResourceScope> {}

impl<K: Object<DynamicType = (), Scope = NamespaceResourceScope>> Namespaced for K {}

/// Takes and gives back what the selector says, and returns what is the owner's afterwards.
///
/// Each write names the object's uid, so that a namesake is never touched; of two owners that
/// take the same object the server lets one win.
pub async fn claim_all<O: Namespaced, K: Namespaced>(
    client: &Client,
    owner: &O,
    selector: &Selector,
    candidates: Vec<Arc<K>>,
) -> Result<Vec<Arc<K>>, Error> {
    claim_held(client, owner, selector, candidates, &[]).await
}

/// The same for an owner that holds its objects by finalizers: it lets go of what it gives back.
pub async fn claim_held<O: Namespaced, K: Namespaced>(
    client: &Client,
    owner: &O,
    selector: &Selector,
    candidates: Vec<Arc<K>>,
    finalizers: &[&str],
) -> Result<Vec<Arc<K>>, Error> {
    let api: Api<K> = Api::namespaced(client.clone(), &owner.namespace().unwrap_or_default());
    let mut claimed = Vec::with_capacity(candidates.len());
    let mut may_adopt = None;
    for object in candidates {
        match claim(owner, selector, &*object) {
            Claim::Ignore => {}
            Claim::Keep => claimed.push(object),
            Claim::Release => release(&api, owner, &*object, finalizers).await?,
            Claim::Adopt => {
                if may_adopt.is_none() {
                    may_adopt = Some(is_still_there(client, owner).await?);
                }
                if may_adopt == Some(true) && adopt(&api, owner, &*object).await? {
                    claimed.push(object);
                }
            }
        }
    }
    Ok(claimed)
}

/// The informer may be behind: an owner that is being deleted must adopt nothing, or what it
/// adopts is collected with it. Asked of the server, once.
async fn is_still_there<O: Namespaced>(client: &Client, owner: &O) -> Result<bool, Error> {
    let owners: Api<O> = Api::namespaced(client.clone(), &owner.namespace().unwrap_or_default());
    let fresh = owners.get_opt(&owner.name_any()).await.attempting("read owner before adopting")?;
    Ok(fresh.is_some_and(|fresh| {
        fresh.meta().uid == owner.meta().uid && fresh.meta().deletion_timestamp.is_none()
    }))
}

async fn adopt<O: Namespaced, K: Namespaced>(api: &Api<K>, owner: &O, object: &K) -> Result<bool, Error> {
    let patch = json!({"metadata": {"uid": object.uid(), "ownerReferences": [controller_ref(owner)]}});
    write(api, object, &patch, "adopt").await
}

async fn release<O: Namespaced, K: Namespaced>(
    api: &Api<K>,
    owner: &O,
    object: &K,
    finalizers: &[&str],
) -> Result<(), Error> {
    let reference = json!({"$patch": "delete", "uid": owner.uid()});
    let mut patch = json!({"metadata": {"uid": object.uid(), "ownerReferences": [reference]}});
    if !finalizers.is_empty() {
        patch["metadata"]["$deleteFromPrimitiveList/finalizers"] = finalizers.into();
    }
    write(api, object, &patch, "release").await.map(|_| ())
}

/// False if the object is gone, or was replaced by a namesake, meanwhile.
async fn write<K: Namespaced>(
    api: &Api<K>,
    object: &K,
    patch: &(impl serde::Serialize + Debug),
    verb: &str,
) -> Result<bool, Error> {
    match api.patch(&object.name_any(), &PatchParams::default(), &Patch::Strategic(patch)).await {
        Ok(_) => Ok(true),
        Err(refused) if error::is_not_found(&refused) => Ok(false),
        Err(kube::Error::Api(status)) if status.is_invalid() => Ok(false),
        Err(failed) => {
            Err(Error::new(format!("{verb} {} {}", K::kind(&()).to_lowercase(), object.name_any()), failed))
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::apps::v1::ReplicaSet;
    use k8s_openapi::api::core::v1::Pod;

    use super::*;
    use crate::testing::{deleting, labels, named, owned_by};

    #[test]
    fn an_object_is_taken_and_given_back_by_selector() {
        let set: ReplicaSet = named("set");
        let leaving: ReplicaSet = deleting(named("set"));
        let web =
            selector(&LabelSelector { match_labels: Some(labels(&[("app", "web")])), ..Default::default() })
                .unwrap();
        let check = |owner: &ReplicaSet, app: &str, controller: Option<&str>, gone: bool, expected: Claim| {
            let mut pod: Pod = named("pod");
            pod.metadata.labels = Some(labels(&[("app", app)]));
            if let Some(uid) = controller {
                pod = owned_by(pod, uid);
            }
            if gone {
                pod = deleting(pod);
            }
            assert_eq!(claim(owner, &web, &pod), expected, "{app} {controller:?} {gone}");
        };
        check(&set, "web", Some("uid-set"), false, Claim::Keep);
        check(&set, "web", Some("uid-set"), true, Claim::Keep);
        check(&set, "db", Some("uid-set"), false, Claim::Release);
        check(&set, "web", Some("uid-other"), false, Claim::Ignore);
        check(&set, "web", None, false, Claim::Adopt);
        check(&set, "web", None, true, Claim::Ignore);
        check(&set, "db", None, false, Claim::Ignore);
        check(&leaving, "web", None, false, Claim::Ignore);
        check(&leaving, "db", Some("uid-set"), false, Claim::Ignore);
    }
}
