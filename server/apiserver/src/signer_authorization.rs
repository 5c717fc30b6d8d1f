//! Authorization of writes to the status of a PodCertificateRequest (KEP-4317). Beside the right to the status, whoever ends a request
//! needs the right to sign for its signer.

use ferry_api::{FieldErrors, Object, Status};
use ferry_auth::Attributes;
use ferry_registry::verbs::Call;

use crate::api::Api;

const GROUP: &str = "certificates.k8s.io";

/// Refuses a change of the status that its writer has no right to.
pub async fn check(api: &Api, call: &Call<'_>, new: &Object, old: Option<&Object>) -> Result<(), Status> {
    let kind = call.kind;
    let is_status = call.subresource == "status";
    let is_about_requests = is_status && kind.group == GROUP && kind.plural == "podcertificaterequests";
    let Some(old) = old.filter(|_| is_about_requests) else { return Ok(()) };
    if new.get(&["status"]) == old.get(&["status"]) {
        return Ok(());
    }
    // The right for this very signer, or for all of its domain.
    let signer = old.text_at(&["spec", "signerName"]);
    let domain = format!("{}/*", signer.split('/').next().unwrap_or(""));
    for name in [signer, &domain] {
        let attributes = Attributes { name, ..Attributes::resource(call.user, "sign", GROUP, "signers") };
        if api.authorization.authorize(&attributes).await.is_allowed() {
            return Ok(());
        }
    }
    let mut errors = FieldErrors::default();
    let why = format!("User {:?} is not permitted to \"sign\" for signer {signer:?}", call.user.name);
    errors.forbidden("spec.signerName", &why);
    Err(Status::invalid(&kind.group, &kind.kind, new.name(), &errors))
}
