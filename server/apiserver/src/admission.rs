//! Runs the admission chain for the registry's verbs.

use async_trait::async_trait;
use ferry_admission::{Chain, Reinvocation, Request as AdmissionRequest};
use ferry_api::{GroupVersionKind, Object, Status};
use ferry_auth::Attributes;
use ferry_registry::verbs::{Admission, Call, Operation, Reservation};

use crate::api::Api;
use crate::connection_options::ConnectionOptions;
use crate::filters::permit;
use crate::request::WriteOptions;
use crate::verbs::Target;
use crate::{claim_authorization, escalation, signer_authorization};

pub type AdmissionChain = Chain;

#[async_trait]
impl Admission for Api {
    async fn mutate(
        &self,
        call: &Call<'_>,
        operation: Operation,
        object: &mut Object,
        old: Option<&Object>,
    ) -> Result<(), Status> {
        let name = name_of(call, Some(object), old);
        let generate_name = object.meta_text("generateName").to_string();
        let request = AdmissionRequest { generate_name: &generate_name, ..request(call, operation, &name) };
        self.admission.mutate(&request, object, old).await?;
        // After everything that may change the object. Part of the API: no flag disables it.
        escalation::check(self, call, object, old).await?;
        signer_authorization::check(self, call, object, old).await?;
        claim_authorization::check(self, call, object, old).await
    }

    async fn validate(
        &self,
        call: &Call<'_>,
        operation: Operation,
        object: Option<&Object>,
        old: Option<&Object>,
    ) -> Result<(), Status> {
        let name = name_of(call, object, old);
        self.admission.validate(&request(call, operation, &name), object, old).await
    }

    async fn authorize_create(&self, call: &Call<'_>) -> Result<(), Status> {
        let attributes = Attributes {
            api_version: &call.kind.version,
            namespace: call.namespace,
            name: call.name,
            ..Attributes::resource(call.user, "create", &call.kind.group, &call.kind.plural)
        };
        permit(&attributes, self.authorization.authorize(&attributes).await)
    }

    async fn reserve(
        &self,
        call: &Call<'_>,
        operation: Operation,
        object: &Object,
        old: Option<&Object>,
    ) -> Result<Reservation, Status> {
        let name = name_of(call, Some(object), old);
        self.admission.reserve(&request(call, operation, &name), object, old).await
    }
}

fn request<'a>(call: &'a Call<'a>, operation: Operation, name: &'a str) -> AdmissionRequest<'a> {
    AdmissionRequest { call, operation, name, generate_name: "", reinvocation: Reinvocation::default() }
}

/// Admits the creation of an object that is never stored: a Binding, an Eviction, a TokenRequest.
pub async fn admit_unstored(
    call: &Call<'_>,
    kind: &GroupVersionKind,
    object: &mut Object,
) -> Result<(), Status> {
    let call = Call { object_kind: Some(kind), ..*call };
    call.admission.mutate(&call, Operation::Create, object, None).await?;
    call.admission.validate(&call, Operation::Create, Some(object), None).await
}

/// Admits a connection (exec, attach, port-forward, proxy) before it is made. Admission sees the options that the
/// kubelet is sent.
pub async fn connect(target: Target<'_>, options: &ConnectionOptions) -> Result<(), Status> {
    let subresource = &target.request.info.subresource;
    let Some(sub) = target.kind.subresource(subresource).filter(|_| subresource != "log") else {
        return Ok(());
    };
    let write_options = WriteOptions::default();
    let call = Call { object_kind: Some(&sub.kind), ..target.call(&write_options) };
    let object = options.to_object(&sub.kind);
    target.api.validate(&call, Operation::Connect, Some(&object), None).await
}

/// Admits everything, for writes that follow from a request that was admitted.
pub struct NoAdmission;

#[async_trait]
impl Admission for NoAdmission {
    async fn mutate(
        &self,
        _: &Call<'_>,
        _: Operation,
        _: &mut Object,
        _: Option<&Object>,
    ) -> Result<(), Status> {
        Ok(())
    }

    async fn validate(
        &self,
        _: &Call<'_>,
        _: Operation,
        _: Option<&Object>,
        _: Option<&Object>,
    ) -> Result<(), Status> {
        Ok(())
    }

    async fn authorize_create(&self, _: &Call<'_>) -> Result<(), Status> {
        Ok(())
    }
}

/// The name of the URL. A create names its object in the body, a deletion of a collection in each object.
fn name_of(call: &Call<'_>, object: Option<&Object>, old: Option<&Object>) -> String {
    match call.name {
        "" => object.or(old).map_or_else(String::new, |object| object.name().to_string()),
        name => name.to_string(),
    }
}
