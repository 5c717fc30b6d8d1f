//! CertificateSigningRequests: approving what kubelets ask for themselves, signing what is
//! approved, removing what is over.

mod request;
mod sign;

pub use sign::check;

use std::sync::Arc;
use std::time::Duration;

use ferry_api::certificate_request::CertificateRequest;
use ferry_client::controller::Builder;
use ferry_client::{Attempt, Client, Error, Informer, NamespacedName, Outcome, error};
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use k8s_openapi::api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestCondition};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, PostParams};

use crate::cidr::Cidr;
use crate::config::Config;
use crate::context::{Context, Running};
use request::{Asker, CLIENT, KUBELET_CLIENT, KUBELET_SERVING, LEGACY};

/// Until a request to serve is looked at again; the cleaner removes what nobody approves.
const SERVING_RETRY: Duration = Duration::from_secs(5);

fn holds(csr: &CertificateSigningRequest, kind: &str) -> bool {
    let conditions = csr.status.as_ref().and_then(|status| status.conditions.as_ref()).into_iter().flatten();
    conditions.into_iter().any(|condition| condition.type_ == kind && condition.status == "True")
}

fn certificate(csr: &CertificateSigningRequest) -> Option<&[u8]> {
    csr.status
        .as_ref()?
        .certificate
        .as_ref()
        .map(|bytes| bytes.0.as_slice())
        .filter(|bytes| !bytes.is_empty())
}

fn condition(
    kind: &str,
    reason: &str,
    message: String,
    now: Timestamp,
) -> CertificateSigningRequestCondition {
    CertificateSigningRequestCondition {
        type_: kind.into(),
        status: "True".into(),
        reason: Some(reason.into()),
        message: Some(message),
        last_update_time: Some(Time(now)),
        last_transition_time: Some(Time(now)),
    }
}

struct Controller<A> {
    client: Client,
    requests: Informer<CertificateSigningRequest>,
    act: A,
}

impl<A, Fut> Controller<A>
where
    A: Fn(Client, CertificateSigningRequest) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<Outcome, Error>> + Send + 'static,
{
    fn run(context: &Context, builder: &Builder, act: A) -> Running {
        let requests = builder.informer::<CertificateSigningRequest>();
        let controller = Controller { client: context.client.clone(), requests: requests.clone(), act };
        builder.of(&requests, Arc::new(controller)).run(Self::reconcile)
    }

    async fn reconcile(self: Arc<Self>, key: NamespacedName) -> Result<Outcome, Error> {
        match self.requests.get(&key) {
            Some(csr) => (self.act)(self.client.clone(), (*csr).clone()).await,
            None => Ok(Outcome::Done),
        }
    }
}

pub fn start_approving(context: &Context) -> Running {
    let builder = context.controller("certificatesigningrequest-approving-controller");
    let serving = context.config.approve_kubelet_serving.then(|| Serving {
        nodes: builder.informer(),
        endpoint_slices: builder.informer(),
        config: context.config.clone(),
    });
    Controller::run(context, &builder, move |client, csr| {
        let serving = serving.clone();
        async move { approve(client, csr, serving.as_ref()).await }
    })
}

/// What requests to serve are judged by.
#[derive(Clone)]
struct Serving {
    nodes: Informer<Node>,
    endpoint_slices: Informer<EndpointSlice>,
    config: Arc<Config>,
}

impl Serving {
    fn may_serve(&self, csr: &CertificateSigningRequest, parsed: &CertificateRequest, node: &str) -> bool {
        let Some(node) = self.nodes.get(&NamespacedName::new("", node)) else { return false };
        let ranges = self.config.cluster_cidrs.iter().chain(&self.config.service_cidrs);
        let Ok(ranges) = ranges.map(|range| range.parse()).collect::<Result<Vec<Cidr>, _>>() else {
            return false;
        };
        let mut api_servers = self.config.api_server_names.0();
        for slice in self.endpoint_slices.list().iter().filter(|slice| is_of_api_server(slice)) {
            api_servers
                .extend(slice.endpoints.iter().flatten().flat_map(|endpoint| endpoint.addresses.clone()));
        }
        let nodes = self.nodes.list();
        let reserved = request::Reserved { api_servers, ranges: &ranges, nodes: &nodes };
        request::serves_itself(csr, parsed, &node, &reserved)
    }
}

/// The API servers' addresses, as they publish them themselves.
fn is_of_api_server(slice: &EndpointSlice) -> bool {
    let labels = slice.metadata.labels.as_ref();
    slice.metadata.namespace.as_deref() == Some("default")
        && labels
            .and_then(|labels| labels.get("kubernetes.io/service-name"))
            .is_some_and(|name| name == "kubernetes")
}

/// Approves a kubelet's request where whoever asks is allowed to, and with `serving` also what a node wants
/// to serve with under its own name and addresses.
async fn approve(
    client: Client,
    csr: CertificateSigningRequest,
    serving: Option<&Serving>,
) -> Result<Outcome, Error> {
    if certificate(&csr).is_some() || holds(&csr, "Approved") || holds(&csr, "Denied") {
        return Ok(Outcome::Done);
    }
    let Ok(parsed) = CertificateRequest::read(&csr.spec.request.0) else { return Ok(Outcome::Done) };
    if let (Some(serving), KUBELET_SERVING, Some(node)) =
        (serving, csr.spec.signer_name.as_str(), request::node_name(&parsed))
    {
        if serving.may_serve(&csr, &parsed, node) {
            let message = "Auto approving kubelet serving certificate for the node's own addresses.";
            return write_approval(client, csr, message).await;
        }
        // The node may be about to say what its addresses are.
        return Ok(Outcome::After(SERVING_RETRY));
    }
    let (subresource, message) = match request::recognize(&csr, &parsed) {
        None => return Ok(Outcome::Done),
        Some(Asker::SelfNode) => {
            ("selfnodeclient", "Auto approving self kubelet client certificate after SubjectAccessReview.")
        }
        Some(Asker::Node) => {
            ("nodeclient", "Auto approving kubelet client certificate after SubjectAccessReview.")
        }
    };
    if !may_create(&client, &csr, subresource).await? {
        return Ok(Outcome::Done);
    }
    write_approval(client, csr, message).await
}

async fn write_approval(
    client: Client,
    mut csr: CertificateSigningRequest,
    message: &str,
) -> Result<Outcome, Error> {
    let approved = condition("Approved", "AutoApproved", message.into(), Timestamp::now());
    csr.status.get_or_insert_default().conditions.get_or_insert_default().push(approved);
    let api: Api<CertificateSigningRequest> = Api::all(client);
    let written = api.replace_subresource("approval", &csr.name_any(), &PostParams::default(), &csr).await;
    error::ignore_not_found(written).attempting("approve request")?;
    Ok(Outcome::Done)
}

async fn may_create(
    client: &Client,
    csr: &CertificateSigningRequest,
    subresource: &str,
) -> Result<bool, Error> {
    let review = SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: csr.spec.username.clone(),
            uid: csr.spec.uid.clone(),
            groups: csr.spec.groups.clone(),
            extra: csr.spec.extra.clone(),
            resource_attributes: Some(ResourceAttributes {
                group: Some("certificates.k8s.io".into()),
                version: Some("*".into()),
                resource: Some("certificatesigningrequests".into()),
                subresource: Some(subresource.into()),
                verb: Some("create".into()),
                ..Default::default()
            }),
            ..Default::default()
        },
        ..Default::default()
    };
    let api: Api<SubjectAccessReview> = Api::all(client.clone());
    let answered =
        api.create(&PostParams::default(), &review).await.attempting("review access of requester")?;
    Ok(answered.status.is_some_and(|status| status.allowed))
}

pub fn start_signing(context: &Context) -> Running {
    let Some(ca) = context.config.signing_ca.clone() else {
        tracing::info!("no signing authority is configured; requests are not signed");
        return Box::pin(std::future::ready(()));
    };
    let longest = context.config.certificate_duration;
    let builder = context.controller("certificatesigningrequest-signing-controller");
    Controller::run(context, &builder, move |client, csr| {
        let ca = ca.clone();
        async move {
            let Some(next) = signed(&ca, csr, longest, Timestamp::now()) else { return Ok(Outcome::Done) };
            let api: Api<CertificateSigningRequest> = Api::all(client);
            let written = api.replace_status(&next.name_any(), &PostParams::default(), &next).await;
            error::ignore_not_found(written).attempting("write certificate")?;
            Ok(Outcome::Done)
        }
    })
}

/// The request with its certificate, or with the reason why it gets none; None if there is
/// nothing to do.
fn signed(
    ca: &crate::config::SigningCa,
    mut csr: CertificateSigningRequest,
    longest: Duration,
    now: Timestamp,
) -> Option<CertificateSigningRequest> {
    let known = [KUBELET_CLIENT, KUBELET_SERVING, CLIENT, LEGACY].contains(&csr.spec.signer_name.as_str());
    if !known
        || !holds(&csr, "Approved")
        || holds(&csr, "Failed")
        || holds(&csr, "Denied")
        || certificate(&csr).is_some()
    {
        return None;
    }
    let usages = csr.spec.usages.clone().unwrap_or_default();
    let outcome = CertificateRequest::read(&csr.spec.request.0)
        .map_err(|malformed| malformed.to_string())
        .and_then(|parsed| {
            request::check(&csr.spec.signer_name, &parsed, &usages)?;
            // The signing library keeps one value per kind of name; signing less than was asked
            // for would be worse than saying so.
            if parsed.organizations.len() > 1 || parsed.unusual_subject || parsed.other_names > 0 {
                return Err("a subject with repeated or unusual attributes is not supported".into());
            }
            let lifetime = sign::lifetime(csr.spec.expiration_seconds, longest);
            sign::sign(ca, &parsed, &usages, lifetime).map_err(|error| error.to_string())
        });
    let status = csr.status.get_or_insert_default();
    match outcome {
        Ok(pem) => status.certificate = Some(ByteString(pem.into_bytes())),
        Err(why) => status.conditions.get_or_insert_default().push(condition(
            "Failed",
            "SignerValidationFailure",
            why,
            now,
        )),
    }
    Some(csr)
}

pub fn start_cleaning(context: &Context) -> Running {
    let builder = context.controller("certificatesigningrequest-cleaner-controller");
    Controller::run(context, &builder, |client, csr| async move {
        match expires_in(&csr, Timestamp::now()) {
            left if !left.is_zero() => Ok(Outcome::After(left)),
            _ => {
                let api: Api<CertificateSigningRequest> = Api::all(client);
                error::ignore_not_found(api.delete(&csr.name_any(), &DeleteParams::default()).await)
                    .attempting("remove request")?;
                Ok(Outcome::Done)
            }
        }
    })
}

/// How long a request is kept: an hour once it is decided, a day while nobody has.
fn expires_in(csr: &CertificateSigningRequest, now: Timestamp) -> Duration {
    const DECIDED: Duration = Duration::from_secs(3600);
    const PENDING: Duration = Duration::from_secs(24 * 3600);
    let since = |time: Option<&Time>| {
        time.map_or(Duration::ZERO, |time| {
            Duration::try_from(now.duration_since(time.0)).unwrap_or(Duration::ZERO)
        })
    };
    let conditions = csr.status.as_ref().and_then(|status| status.conditions.as_ref()).into_iter().flatten();
    let decided = conditions
        .into_iter()
        .filter(|condition| ["Approved", "Denied", "Failed"].contains(&condition.type_.as_str()));
    let latest = decided.filter_map(|condition| condition.last_update_time.as_ref()).max();
    let waits_for_signature = holds(csr, "Approved") && certificate(csr).is_none() && !holds(csr, "Failed");
    match latest {
        Some(latest) if !waits_for_signature => DECIDED.saturating_sub(since(Some(latest))),
        _ => PENDING.saturating_sub(since(csr.metadata.creation_timestamp.as_ref())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{at, named};

    fn csr(conditions: &[&str]) -> CertificateSigningRequest {
        let mut csr: CertificateSigningRequest = named("csr");
        csr.spec.signer_name = KUBELET_CLIENT.into();
        csr.status.get_or_insert_default().conditions =
            Some(conditions.iter().map(|kind| condition(kind, "", String::new(), at(0))).collect());
        csr
    }

    #[test]
    fn requests_are_kept_as_long_as_they_matter() {
        let check = |csr: &CertificateSigningRequest, now: i64, left: u64| {
            assert_eq!(expires_in(csr, at(now)), Duration::from_secs(left))
        };
        check(&csr(&[]), 3600, 23 * 3600);
        check(&csr(&["Denied"]), 600, 3000);
        check(&csr(&["Denied"]), 4000, 0);
        check(&csr(&["Approved"]), 3600, 23 * 3600);
        let mut issued = csr(&["Approved"]);
        issued.status.as_mut().unwrap().certificate = Some(ByteString(b"PEM".to_vec()));
        check(&issued, 4000, 0);
    }

    #[test]
    fn only_approved_requests_of_known_signers_are_touched_and_malformed_ones_told() {
        let ca = crate::config::SigningCa { certificate: Vec::new(), key: Vec::new() };
        let longest = Duration::from_secs(60);
        assert!(signed(&ca, csr(&[]), longest, at(0)).is_none());
        assert!(signed(&ca, csr(&["Approved", "Denied"]), longest, at(0)).is_none());
        let mut foreign = csr(&["Approved"]);
        foreign.spec.signer_name = "example.com/mine".into();
        assert!(signed(&ca, foreign, longest, at(0)).is_none());
        let told = signed(&ca, csr(&["Approved"]), longest, at(0)).expect("is told");
        assert!(holds(&told, "Failed"));
        assert!(signed(&ca, told, longest, at(0)).is_none());
    }

    /// One PEM text in which one reader finds a node's request and another an administrator's.
    #[test]
    fn ambiguous_certificate_requests_are_neither_approved_nor_signed() {
        let body = |organization: &str, name: &str| {
            let mut params = rcgen::CertificateParams::default();
            params.distinguished_name = rcgen::DistinguishedName::new();
            params.distinguished_name.push(rcgen::DnType::OrganizationName, organization);
            params.distinguished_name.push(rcgen::DnType::CommonName, name);
            let key = rcgen::KeyPair::generate().unwrap();
            let der = params.serialize_request(&key).unwrap().der().to_vec();
            base64::Engine::encode(&base64::prelude::BASE64_STANDARD, der)
        };
        let (begin, end) = ("-----BEGIN CERTIFICATE REQUEST-----", "-----END CERTIFICATE REQUEST-----");
        let (masters, node) = (body("system:masters", "root"), body("system:nodes", "system:node:n1"));
        let mut csr = csr(&["Approved"]);
        csr.spec.usages = Some(vec!["digital signature".into(), "client auth".into()]);
        csr.spec.request = ByteString(format!("{begin}{masters}{end}\n{node}\n{end}\n").into_bytes());
        assert!(CertificateRequest::read(&csr.spec.request.0).is_err());
        let mut authority = rcgen::CertificateParams::default();
        authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let key = rcgen::KeyPair::generate().unwrap();
        let ca = crate::config::SigningCa {
            certificate: authority.self_signed(&key).unwrap().pem().into_bytes(),
            key: key.serialize_pem().into_bytes(),
        };
        let told = signed(&ca, csr.clone(), Duration::from_secs(3600), at(0)).expect("it is told");
        assert!(certificate(&told).is_none() && holds(&told, "Failed"));
        // The node's request alone is signed.
        csr.spec.request = ByteString(format!("{begin}\n{node}\n{end}\n").into_bytes());
        let told = signed(&ca, csr, Duration::from_secs(3600), at(0)).expect("it is told");
        assert!(certificate(&told).is_some() && !holds(&told, "Failed"));
    }
}
