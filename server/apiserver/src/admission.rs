//! Joins the registry's hook and the admission chain: the hook knows the object, this knows the request.

use async_trait::async_trait;
use ferry_admission::{Chain, Reinvocation, Request as AdmissionRequest};
use ferry_api::{Kind, Object, Status};
use ferry_auth::User;
use ferry_registry::verbs::{Admission, Charge, Operation};
use parking_lot::Mutex;
use serde_json::Value;

use crate::api::Api;
use crate::escalation;

pub type AdmissionChain = Chain;

/// One request on its way through admission.
pub struct Admitting<'a> {
    pub api: &'a Api,
    pub kind: &'a Kind,
    pub namespace: &'a str,
    pub name: &'a str,
    pub subresource: &'a str,
    pub user: &'a User,
    pub dry_run: bool,
    pub options: &'a Value,
    pub warnings: &'a Mutex<Vec<String>>,
    pub annotations: &'a Mutex<Vec<(String, String)>>,
}

impl Admitting<'_> {
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

/// A create names its object in the body, a deletion of many in the object itself.
fn name_of(asked: &str, object: Option<&Object>, old: Option<&Object>) -> String {
    match asked {
        "" => object.or(old).map_or_else(String::new, |object| object.name().to_string()),
        name => name.to_string(),
    }
}
