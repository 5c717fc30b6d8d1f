//! OwnerReferencesPermissionEnforcement: changing owner references needs the right to delete the object, since they control
//! its garbage collection. Setting `blockOwnerDeletion` also needs the right to update the owner's finalizers.

use std::sync::Arc;

use async_trait::async_trait;
use ferry_api::{GroupVersionKind, Kind, Object, Status};
use ferry_auth::{Attributes, Authorization};
use ferry_registry::Registry;
use ferry_registry::verbs::Operation;
use serde_json::Value;

use super::Context;
use crate::chain::{Phase, Plugin, Request};

pub fn make(context: &Context) -> Arc<dyn Plugin> {
    Arc::new(OwnerReferences {
        registry: context.registry.clone(),
        authorization: context.authorization.clone(),
    })
}

struct OwnerReferences {
    registry: Arc<Registry>,
    authorization: Authorization,
}

#[async_trait]
impl Plugin for OwnerReferences {
    fn phases(&self) -> &'static [Phase] {
        &[Phase::Validate]
    }

    fn handles(&self, request: &Request<'_>) -> bool {
        request.operation != Operation::Delete && !request.is_sub("", "pods", "status")
    }

    async fn validate(
        &self,
        request: &Request<'_>,
        object: Option<&Object>,
        old: Option<&Object>,
    ) -> Result<(), Status> {
        let Some(new) = object.filter(|new| owners(new) != old.map_or(&[][..], owners)) else {
            return Ok(());
        };
        if request.operation != Operation::Create {
            self.check_delete(request).await?;
        }
        let blocking = newly_blocking(new, old);
        if blocking.is_empty() {
            return Ok(());
        }
        let everything = Attributes {
            api_group: "*",
            api_version: "*",
            subresource: "finalizers",
            name: "*",
            ..Attributes::resource(request.call.user, "update", "", "*")
        };
        if self.authorization.authorize(&everything).await.is_allowed() {
            return Ok(());
        }
        for owner in blocking {
            self.check_finalizers(request, owner).await?;
        }
        Ok(())
    }
}

impl OwnerReferences {
    async fn check_delete(&self, request: &Request<'_>) -> Result<(), Status> {
        let question = Attributes {
            api_group: &request.call.kind.group,
            api_version: &request.call.kind.version,
            subresource: request.call.subresource,
            name: request.name,
            ..Attributes::resource(
                request.call.user,
                "delete",
                request.call.namespace,
                &request.call.kind.plural,
            )
        };
        let decision = self.authorization.authorize(&question).await;
        match decision.is_allowed() {
            true => Ok(()),
            false => Err(request.forbid(format!(
                "cannot set an ownerRef on a resource you can't delete: {}, <nil>",
                decision.reason()
            ))),
        }
    }

    async fn check_finalizers(&self, request: &Request<'_>, owner: &Value) -> Result<(), Status> {
        let text = |field: &str| owner.get(field).and_then(Value::as_str).unwrap_or("");
        let (api_version, kind) = (text("apiVersion"), text("kind"));
        let Some(row) = self.row(api_version, kind) else {
            return Err(request.forbid(format!(
                "cannot set blockOwnerDeletion in this case because cannot find RESTMapping for APIVersion {api_version} Kind {kind}: no matches for kind {kind:?} in version {api_version:?}"
            )));
        };
        let question = Attributes {
            api_group: &row.group,
            api_version: &row.version,
            subresource: "finalizers",
            name: text("name"),
            namespace: if row.is_namespaced() { request.call.namespace } else { "" },
            ..Attributes::resource(request.call.user, "update", "", &row.plural)
        };
        let decision = self.authorization.authorize(&question).await;
        match decision.is_allowed() {
            true => Ok(()),
            false => Err(request.forbid(format!(
                "cannot set blockOwnerDeletion if an ownerReference refers to a resource you can't set finalizers on: {}, <nil>",
                decision.reason()
            ))),
        }
    }

    /// The kind that a reference names; custom ones are among the registry's resources.
    fn row(&self, api_version: &str, kind: &str) -> Option<Arc<Kind>> {
        let gvk = GroupVersionKind::from_api_version(api_version, kind);
        let custom = || {
            let resources = self.registry.resources().into_iter();
            resources
                .map(|resource| resource.stored.clone())
                .find(|row| row.group == gvk.group && row.kind == kind)
        };
        ferry_api::kinds::builtin_row(&gvk).cloned().or_else(custom)
    }
}

fn owners(object: &Object) -> &[Value] {
    object.meta("ownerReferences").and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// References that hold their owner's deletion up, and did not before.
fn newly_blocking<'a>(new: &'a Object, old: Option<&Object>) -> Vec<&'a Value> {
    let blocks = |owner: &Value| owner.get("blockOwnerDeletion") == Some(&Value::Bool(true));
    let blocked = |owner: &Value| {
        let mut before = old.map_or(&[][..], owners).iter();
        before.any(|known| known.get("uid") == owner.get("uid") && blocks(known))
    };
    owners(new).iter().filter(|owner| blocks(owner) && !blocked(owner)).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_what_newly_blocks_is_asked_about() {
        let object = |owners: Value| {
            Object::from_value(json!({"metadata": {"ownerReferences": owners}})).expect("an object")
        };
        let old = object(json!([{"uid": "a", "blockOwnerDeletion": true}, {"uid": "b"}]));
        let new = object(json!([
            {"uid": "a", "blockOwnerDeletion": true},
            {"uid": "b", "blockOwnerDeletion": true},
            {"uid": "c"},
        ]));
        let uids = |found: Vec<&Value>| -> Vec<String> {
            found.iter().map(|owner| owner["uid"].to_string()).collect()
        };
        assert_eq!(uids(newly_blocking(&new, Some(&old))), ["\"b\""]);
        assert_eq!(uids(newly_blocking(&new, None)), ["\"a\"", "\"b\""]);
    }
}
