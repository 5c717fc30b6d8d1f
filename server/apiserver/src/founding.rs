//! The first start on an empty store: what every cluster has is written in a few transactions. As many requests as there are
//! objects took two thirds of the time until such a server was ready.

use ferry_api::{FieldValidation, GroupResource, GroupVersionKind, Status, kinds};
use ferry_auth::User;
use ferry_registry::verbs::Call;
use jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::admission::NoAdmission;
use crate::api::Api;
use crate::request;

/// An object of a new cluster, and who its fields belong to.
pub struct FirstObject {
    pub manager: &'static str,
    pub object: Value,
}

impl FirstObject {
    /// Owned by whoever gives no name, as the server's own requests do.
    pub fn of_server(object: Value) -> FirstObject {
        FirstObject { manager: request::UNNAMED_MANAGER, object }
    }
}

/// Whether nobody has started a server on this store. With an audit log each object is a request of its own, which is
/// written down.
pub fn is_due(api: &Api) -> bool {
    let is_empty = |group: &'static str, plural: &'static str| {
        let resource = api.registry.resource(&GroupResource::new(group, plural));
        resource.is_none_or(|resource| resource.cache.is_empty())
    };
    let empty = is_empty("", "namespaces") && is_empty("rbac.authorization.k8s.io", "clusterroles");
    empty && api.audit.is_none()
}

/// Creates the objects in the name of `user`, and says whether all of them were. Otherwise another server does the same, or a
/// kind of theirs is not served.
pub async fn found(api: &Api, user: &User, objects: Vec<FirstObject>) -> Result<bool, Status> {
    let mut span = ferry_trace::span("apiserver.found");
    span.set("objects", objects.len());
    span.in_scope(create(api, user, objects)).await
}

async fn create(api: &Api, user: &User, first: Vec<FirstObject>) -> Result<bool, Status> {
    let (mut places, mut objects) = (Vec::with_capacity(first.len()), Vec::with_capacity(first.len()));
    for FirstObject { manager, object } in first {
        let text = |field: &str| object[field].as_str().unwrap_or_default();
        let gvk = GroupVersionKind::from_api_version(text("apiVersion"), text("kind"));
        let kind = kinds::builtin_row(&gvk)
            .ok_or_else(|| Status::internal(format!("a new cluster cannot have a {gvk}")))?;
        let Some(resource) = api.registry.resource(&kind.group_resource()) else { return Ok(false) };
        let object = kind.decode_json(object.to_string().as_bytes(), FieldValidation::Strict)?.object;
        let object = request::complete(object, kind, &resource);
        places.push((manager, kind, resource, object.namespace().to_owned()));
        objects.push(object);
    }
    let (options, now) = (json!({"apiVersion": "meta.k8s.io/v1", "kind": "CreateOptions"}), Timestamp::now());
    let (warnings, annotations) = (Mutex::default(), Mutex::default());
    let calls = places.iter().map(|(manager, kind, resource, namespace)| Call {
        resource,
        kind,
        namespace,
        name: "",
        subresource: "",
        object_kind: None,
        user,
        manager,
        dry_run: false,
        options: &options,
        include_uninitialized: true,
        patience: api.limits.request_timeout,
        now,
        admission: &NoAdmission,
        warnings: &warnings,
        annotations: &annotations,
    });
    api.registry.create_together(calls.zip(objects).collect()).await
}
