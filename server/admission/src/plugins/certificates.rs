//! CertificateApproval, CertificateSigning and ClusterTrustBundleAttest: a user who acts for a signer needs the right to do
//! so. CertificateSubjectRestriction: refuses certificates for the group system:masters.

use std::sync::Arc;

use async_trait::async_trait;
use ferry_api::{Object, Status};
use ferry_auth::{Attributes, Authorization};
use ferry_registry::verbs::Operation;

use super::Context;
use crate::certificate_request::requested;
use crate::chain::{Phase, Plugin, Request};

const GROUP: &str = "certificates.k8s.io";
const REQUESTS: &str = "certificatesigningrequests";
const CLIENT_SIGNER: &str = "kubernetes.io/kube-apiserver-client";
const MASTERS: &str = "system:masters";

pub fn make_approval(context: &Context) -> Arc<dyn Plugin> {
    Arc::new(Approval { authorization: context.authorization.clone() })
}

pub fn make_signing(context: &Context) -> Arc<dyn Plugin> {
    Arc::new(Signing { authorization: context.authorization.clone() })
}

pub fn make_attest(context: &Context) -> Arc<dyn Plugin> {
    Arc::new(Attest { authorization: context.authorization.clone() })
}

pub fn make_subject_restriction(_: &Context) -> Arc<dyn Plugin> {
    Arc::new(SubjectRestriction)
}

struct Approval {
    authorization: Authorization,
}

#[async_trait]
impl Plugin for Approval {
    fn phases(&self) -> &'static [Phase] {
        &[Phase::Validate]
    }

    fn handles(&self, request: &Request<'_>) -> bool {
        request.operation == Operation::Update && request.is_sub(GROUP, REQUESTS, "approval")
    }

    async fn validate(
        &self,
        request: &Request<'_>,
        _object: Option<&Object>,
        old: Option<&Object>,
    ) -> Result<(), Status> {
        // The old one's signer: the new one may have been written to claim another.
        let signer = old.map_or("", |old| old.text_at(&["spec", "signerName"]));
        match may(&self.authorization, request, "approve", signer).await {
            true => Ok(()),
            false => {
                Err(request
                    .forbid(format!("user not permitted to approve requests with signerName {signer:?}")))
            }
        }
    }
}

struct Signing {
    authorization: Authorization,
}

#[async_trait]
impl Plugin for Signing {
    fn phases(&self) -> &'static [Phase] {
        &[Phase::Validate]
    }

    fn handles(&self, request: &Request<'_>) -> bool {
        request.operation == Operation::Update && request.is_sub(GROUP, REQUESTS, "status")
    }

    async fn validate(
        &self,
        request: &Request<'_>,
        object: Option<&Object>,
        old: Option<&Object>,
    ) -> Result<(), Status> {
        let (Some(new), Some(old)) = (object, old) else { return Ok(()) };
        let same = |field: &str| new.get(&["status", field]) == old.get(&["status", field]);
        if same("certificate") && same("conditions") {
            return Ok(());
        }
        let signer = old.text_at(&["spec", "signerName"]);
        match may(&self.authorization, request, "sign", signer).await {
            true => Ok(()),
            false => {
                Err(request.forbid(format!("user not permitted to sign requests with signerName {signer:?}")))
            }
        }
    }
}

struct Attest {
    authorization: Authorization,
}

#[async_trait]
impl Plugin for Attest {
    fn phases(&self) -> &'static [Phase] {
        &[Phase::Validate]
    }

    fn handles(&self, request: &Request<'_>) -> bool {
        request.operation != Operation::Delete && request.is_for(GROUP, "clustertrustbundles")
    }

    async fn validate(
        &self,
        request: &Request<'_>,
        object: Option<&Object>,
        old: Option<&Object>,
    ) -> Result<(), Status> {
        let Some(bundle) = object else { return Ok(()) };
        let signer = bundle.text_at(&["spec", "signerName"]);
        let same_content = old.is_some_and(|old| old.get(&["spec"]) == bundle.get(&["spec"]));
        if signer.is_empty() || same_content || may(&self.authorization, request, "attest", signer).await {
            return Ok(());
        }
        Err(request.forbid(format!("user not permitted to attest for signerName {signer:?}")))
    }
}

/// The right for this very signer, or for all of its domain.
async fn may(authorization: &Authorization, request: &Request<'_>, verb: &str, signer: &str) -> bool {
    let domain = format!("{}/*", signer.split('/').next().unwrap_or(""));
    for name in [signer, &domain] {
        let question = Attributes {
            api_group: GROUP,
            name,
            ..Attributes::resource(request.call.user, verb, "", "signers")
        };
        if authorization.authorize(&question).await.is_allowed() {
            return true;
        }
    }
    false
}

struct SubjectRestriction;

#[async_trait]
impl Plugin for SubjectRestriction {
    fn phases(&self) -> &'static [Phase] {
        &[Phase::Validate]
    }

    fn handles(&self, request: &Request<'_>) -> bool {
        request.operation == Operation::Create && request.is_for(GROUP, REQUESTS)
    }

    async fn validate(
        &self,
        request: &Request<'_>,
        object: Option<&Object>,
        _old: Option<&Object>,
    ) -> Result<(), Status> {
        let Some(signing) = object.filter(|o| o.text_at(&["spec", "signerName"]) == CLIENT_SIGNER) else {
            return Ok(());
        };
        let subject = requested(signing.text_at(&["spec", "request"]))
            .map_err(|why| request.forbid(format!("failed to parse CSR: {why}")))?;
        match subject.organizations.iter().any(|group| group == MASTERS) {
            true => {
                Err(request
                    .forbid(format!("use of {CLIENT_SIGNER} signer with {MASTERS} group is not allowed")))
            }
            false => Ok(()),
        }
    }
}
