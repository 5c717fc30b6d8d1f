//! Joins the registry's hook and the admission chain: the hook knows the object, this knows the request.

use async_trait::async_trait;
use ferry_admission::{Annotation, Chain, Reinvocation, Request as AdmissionRequest};
use ferry_api::{GroupVersionKind, Kind, Object, Status};
use ferry_auth::{Attributes, User};
use ferry_registry::verbs::{Admission, Charge, Operation};
use parking_lot::Mutex;
use serde_json::Value;

use crate::api::Api;
use crate::connection_options::ConnectionOptions;
use crate::escalation;
use crate::filters::permit;
use crate::request::namespace_of;
use crate::verbs::Target;

pub type AdmissionChain = Chain;

/// One request on its way through admission.
#[derive(Clone, Copy)]
pub struct Admitting<'a> {
    pub api: &'a Api,
    pub kind: &'a Kind,
    pub namespace: &'a str,
    pub name: &'a str,
    pub subresource: &'a str,
    /// Of the object itself, where the subresource has a kind of its own.
    pub object_kind: Option<&'a GroupVersionKind>,
    pub user: &'a User,
    pub dry_run: bool,
    pub options: &'a Value,
    pub warnings: &'a Mutex<Vec<String>>,
    pub annotations: &'a Mutex<Vec<Annotation>>,
}

impl Admitting<'_> {
    /// Asks about the creation of something that only lives for this request: a Binding, an Eviction, a
    /// TokenRequest.
    pub async fn admit_passing(&self, kind: &GroupVersionKind, object: &mut Object) -> Result<(), Status> {
        let admitting = Admitting { object_kind: Some(kind), ..*self };
        admitting.mutate(Operation::Create, object, None).await?;
        admitting.validate(Operation::Create, Some(object), None).await
    }

    fn request<'r>(
        &'r self,
        operation: Operation,
        name: &'r str,
        generate_name: &'r str,
    ) -> AdmissionRequest<'r> {
        AdmissionRequest {
            operation,
            kind: self.kind,
            namespace: self.namespace,
            name,
            generate_name,
            subresource: self.subresource,
            object_kind: self.object_kind,
            user: self.user,
            dry_run: self.dry_run,
            options: self.options,
            warnings: self.warnings,
            annotations: self.annotations,
            reinvocation: Reinvocation::default(),
        }
    }
}

#[async_trait]
impl Admission for Admitting<'_> {
    async fn mutate(
        &self,
        operation: Operation,
        object: &mut Object,
        old: Option<&Object>,
    ) -> Result<(), Status> {
        let name = name_of(self.name, Some(object), old);
        let generate_name = object.meta_text("generateName").to_string();
        self.api.admission.mutate(&self.request(operation, &name, &generate_name), object, old).await?;
        // After all that may change the object; it is part of the API, not a plugin that a flag turns off.
        escalation::check(self, object, old).await
    }

    async fn validate(
        &self,
        operation: Operation,
        object: Option<&Object>,
        old: Option<&Object>,
    ) -> Result<(), Status> {
        let name = name_of(self.name, object, old);
        self.api.admission.validate(&self.request(operation, &name, ""), object, old).await
    }

    async fn authorize_create(&self) -> Result<(), Status> {
        let attributes = Attributes {
            api_version: &self.kind.version,
            namespace: self.namespace,
            name: self.name,
            ..Attributes::resource(self.user, "create", &self.kind.group, &self.kind.plural)
        };
        permit(&attributes, self.api.authorization.authorize(&attributes).await)
    }

    async fn charge(
        &self,
        operation: Operation,
        object: &Object,
        old: Option<&Object>,
    ) -> Result<Charge, Status> {
        let name = name_of(self.name, Some(object), old);
        self.api.admission.charge(&self.request(operation, &name, ""), object, old).await
    }
}

/// Asks about a connection (exec, attach, port-forward, proxy) before it is made. Admission sees the options that the
/// node will be sent.
pub async fn connect(target: Target<'_>, options: &ConnectionOptions) -> Result<(), Status> {
    let info = &target.request.info;
    let Some(sub) = target.kind.subresource(&info.subresource).filter(|_| info.subresource != "log") else {
        return Ok(());
    };
    let admitting = Admitting {
        api: target.api,
        kind: target.kind,
        namespace: namespace_of(target.kind, info),
        name: &info.name,
        subresource: &info.subresource,
        object_kind: Some(&sub.kind),
        user: &target.request.user,
        dry_run: false,
        options: &Value::Null,
        warnings: &target.request.warnings,
        annotations: &target.request.annotations,
    };
    let object = options.to_object(&sub.kind);
    admitting.validate(Operation::Connect, Some(&object), None).await
}

/// What was decided about before: this write is but its consequence.
pub struct Decided;

#[async_trait]
impl Admission for Decided {
    async fn mutate(&self, _: Operation, _: &mut Object, _: Option<&Object>) -> Result<(), Status> {
        Ok(())
    }

    async fn validate(&self, _: Operation, _: Option<&Object>, _: Option<&Object>) -> Result<(), Status> {
        Ok(())
    }

    async fn authorize_create(&self) -> Result<(), Status> {
        Ok(())
    }
}

/// A create names its object in the body, a deletion of many in the object itself.
fn name_of(asked: &str, object: Option<&Object>, old: Option<&Object>) -> String {
    match asked {
        "" => object.or(old).map_or_else(String::new, |object| object.name().to_string()),
        name => name.to_string(),
    }
}
