//! Service account tokens: TokenRequests, TokenReviews, and the documents with which other programs verify tokens. The
//! registry's caches resolve the objects that a token refers to.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ferry_api::{Codec, FieldErrors, GroupResource, GroupVersionKind, Kind, Object, Status, User};
use ferry_auth::MaybeReady;
use ferry_auth::authenticate::AuthenticationResult;
use ferry_auth::authenticate::service_account::{
    BoundKind, BoundObject, BoundObjects, BoundTo, KeptToken, Reference, TokenRequest,
};
use ferry_registry::{Registry, metadata};
use jiff::civil::Date;
use jiff::tz::TimeZone;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::admission::admit_unstored;
use crate::api::Api;
use crate::body::Response;
use crate::metrics::{self, KeptTokenUse};
use crate::request::Request;
use crate::verbs::Target;
use crate::{respond, subresources};

const SHORTEST: i64 = 600;
const LONGEST: i64 = 1 << 32;

const LAST_USED: &str = "kubernetes.io/legacy-token-last-used";
/// Uses that wait to be noted. One that finds no room is not noted; the token's next one is.
const UNNOTED: usize = 64;

/// Looks up what tokens are bound to, and tells which tokens of Secrets were used on a day for the first time.
pub struct CachedObjects {
    registry: Arc<Registry>,
    used: mpsc::Sender<UsedToken>,
}

/// A token that a Secret keeps was used on a day.
pub struct UsedToken {
    namespace: String,
    secret: String,
    day: Date,
}

impl CachedObjects {
    pub fn new(registry: Arc<Registry>) -> (CachedObjects, mpsc::Receiver<UsedToken>) {
        let (used, uses) = mpsc::channel(UNNOTED);
        (CachedObjects { registry, used }, uses)
    }
}

/// The next day counts too: servers' clocks may be on either side of midnight.
fn is_noted(secret: &Object, day: Date) -> bool {
    let is_label = |day: Date| secret.label(LAST_USED) == Some(&*day.to_string());
    is_label(day) || day.tomorrow().is_ok_and(is_label)
}

/// Labels Secrets with the day on which their tokens were used last, until `stop`.
pub async fn note_uses(
    registry: Arc<Registry>,
    client: kube::Client,
    mut uses: mpsc::Receiver<UsedToken>,
    stop: CancellationToken,
) {
    loop {
        let used = tokio::select! {
            used = uses.recv() => used,
            () = stop.cancelled() => None,
        };
        let Some(UsedToken { namespace, secret, day }) = used else { return };
        // Requests that came together tell of the same use.
        let Some(object) = lookup(&registry, "secrets", &namespace, &secret) else { continue };
        if is_noted(&object, day) {
            continue;
        }
        let patch = json!({"metadata": {"uid": object.uid(), "labels": {LAST_USED: day.to_string()}}});
        let secrets: kube::Api<Secret> = kube::Api::namespaced(client.clone(), &namespace);
        let patched = secrets.patch(&secret, &PatchParams::default(), &Patch::Merge(patch)).await;
        if let Err(error) = ferry_client::error::ignore_not_found(patched) {
            tracing::warn!(%error, namespace, secret, "cannot record the use of a token");
        }
    }
}

impl BoundObjects for CachedObjects {
    fn find<'a>(
        &'a self,
        kind: BoundKind,
        namespace: &'a str,
        name: &'a str,
    ) -> MaybeReady<'a, Option<BoundObject>> {
        let (plural, namespace) = match kind {
            BoundKind::ServiceAccount => ("serviceaccounts", namespace),
            BoundKind::Pod => ("pods", namespace),
            BoundKind::Secret => ("secrets", namespace),
            BoundKind::Node => ("nodes", ""),
        };
        MaybeReady::Now(lookup(&self.registry, plural, namespace, name).map(|object| bound_object(&object)))
    }

    fn kept_token_used(&self, token: KeptToken<'_>, now: SystemTime) {
        let KeptToken { namespace, secret, service_account, is_refused } = token;
        metrics::kept_token_used(match is_refused {
            true => KeptTokenUse::Refused,
            false if is_generated(&self.registry, namespace, service_account, secret) => {
                KeptTokenUse::Generated
            }
            false => KeptTokenUse::Manual,
        });
        let Ok(now) = jiff::Timestamp::try_from(now) else { return };
        let day = now.to_zoned(TimeZone::UTC).date();
        let noted =
            lookup(&self.registry, "secrets", namespace, secret).is_some_and(|object| is_noted(&object, day));
        if !noted {
            let used = UsedToken { namespace: namespace.to_owned(), secret: secret.to_owned(), day };
            // Full: see UNNOTED. Closed: the server ends.
            let _ = self.used.try_send(used);
        }
    }
}

/// Whether an account got the Secret by itself, as accounts did up to Kubernetes 1.23: it names it.
fn is_generated(registry: &Registry, namespace: &str, account: &str, secret: &str) -> bool {
    let account = lookup(registry, "serviceaccounts", namespace, account);
    let secrets = account.as_ref().and_then(|account| account.get(&["secrets"])).and_then(Value::as_array);
    secrets.into_iter().flatten().any(|one| one.get("name").and_then(Value::as_str) == Some(secret))
}

/// What is written down of a request whose token a Secret keeps, and what its client is told.
pub fn about_kept_token(
    registry: &Registry,
    user: &User,
    secret: &str,
) -> (&'static str, Option<&'static str>) {
    let account = user.name.strip_prefix("system:serviceaccount:").and_then(|rest| rest.split_once(':'));
    match account.is_some_and(|(namespace, name)| is_generated(registry, namespace, name, secret)) {
        true => (
            "authentication.k8s.io/legacy-token-autogenerated-secret",
            Some(
                "Use tokens from the TokenRequest API or manually created secret-based tokens instead of auto-generated \
                 secret-based tokens.",
            ),
        ),
        false => ("authentication.k8s.io/legacy-token-manual-secret", None),
    }
}

fn lookup(registry: &Registry, plural: &'static str, namespace: &str, name: &str) -> Option<Object> {
    let resource = registry.resource(&GroupResource::new("", plural))?;
    let entry = resource.cache.get(&resource.key(namespace, name))?;
    entry.read_object().ok()
}

fn bound_object(object: &Object) -> BoundObject {
    use base64::Engine;
    let deleted = metadata::seconds_of(object.meta_text("deletionTimestamp"))
        .and_then(|seconds| u64::try_from(seconds).ok())
        .map(|seconds| UNIX_EPOCH + Duration::from_secs(seconds));
    let token = base64::prelude::BASE64_STANDARD
        .decode(object.text_at(&["data", "token"]))
        .unwrap_or_else(|_| Vec::new());
    BoundObject {
        uid: object.uid().to_string(),
        deleted,
        token,
        invalidated: object.label("kubernetes.io/legacy-token-invalid-since").is_some(),
    }
}

impl Api {
    pub(crate) fn openid_configuration(&self) -> Result<Response, Status> {
        let document = self.service_accounts.openid_configuration(&self.jwks_uri);
        Ok(respond::json_bytes(200, document.into()))
    }

    pub(crate) fn openid_keys(&self) -> Result<Response, Status> {
        let builder =
            http::Response::builder().header(http::header::CONTENT_TYPE, "application/jwk-set+json");
        Ok(respond::finish(builder, self.service_accounts.jwks().into_bytes().into()))
    }

    /// The status of a TokenReview: who the token is.
    pub(crate) async fn review_token(&self, review: &Object) -> Result<Value, Status> {
        let token = review.text_at(&["spec", "token"]);
        if token.is_empty() {
            return Err(Status::bad_request("token is required for TokenReview in authentication"));
        }
        let asked = subresources::texts(review.get(&["spec", "audiences"]));
        let failed = |why: &dyn std::fmt::Display| json!({"error": why.to_string(), "user": {}});
        Ok(match self.tokens.review(token, &asked, SystemTime::now()).await {
            Ok(AuthenticationResult::Authenticated(identity)) => {
                let mut status = json!({"authenticated": true, "user": user(&identity.user)});
                if !identity.audiences.is_empty() {
                    status["audiences"] = json!(identity.audiences);
                }
                status
            }
            Ok(AuthenticationResult::NotMine) => failed(&"invalid bearer token"),
            Err(error) => failed(&error),
        })
    }

    /// TokenRequest: a new token for the account of the URL.
    pub(crate) async fn request_token(&self, target: Target<'_>) -> Result<Object, Status> {
        let gvk = GroupVersionKind::new("authentication.k8s.io", "v1", "TokenRequest");
        let row = Kind {
            group: "authentication.k8s.io".into(),
            kind: "TokenRequest".into(),
            codec: Codec::builtin(&gvk),
            storage_version: gvk.clone(),
            ..(**target.kind).clone()
        };
        let options = target.request.write_options("CreateOptions")?;
        let mut request = target.request.decode_as(&row, options.validation)?;
        let info = &target.request.info;
        let account = lookup(&self.registry, "serviceaccounts", &info.namespace, &info.name)
            .ok_or_else(|| Status::not_found(&GroupResource::new("", "serviceaccounts"), &info.name))?;
        admit_unstored(&target.call(&options), &gvk, &mut request).await?;
        let mut audiences = subresources::texts(request.get(&["spec", "audiences"]));
        if audiences.is_empty() {
            audiences = self.service_accounts.api_audiences().to_vec();
        }
        let seconds = request.get(&["spec", "expirationSeconds"]).and_then(Value::as_i64).unwrap_or(3600);
        check_lifetime(seconds)?;
        let seconds = self.shortened(seconds, target.request);
        let reference = BoundReference::find(self, &request, &info.namespace, &info.name)?;
        let issued = self
            .service_accounts
            .issue(
                &TokenRequest {
                    namespace: &info.namespace,
                    service_account: Reference { name: account.name(), uid: account.uid() },
                    bound_to: reference.bound_to(),
                    audiences: &audiences,
                    lifetime: Duration::from_secs(seconds as u64),
                    warn_after: None,
                },
                SystemTime::now(),
            )
            .map_err(|error| Status::internal(error.to_string()))?;
        let expires = issued.expires.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        request.set_meta("name", info.name.as_str());
        request.set_meta("namespace", info.namespace.as_str());
        request.set_meta("creationTimestamp", metadata::timestamp(jiff::Timestamp::now().as_second()));
        let spec = request.section_mut("spec");
        spec.insert("audiences".into(), json!(audiences));
        spec.insert("expirationSeconds".into(), seconds.into());
        let status =
            json!({"token": issued.token, "expirationTimestamp": metadata::timestamp(expires as i64)});
        request.0.insert("status".into(), status);
        Ok(request)
    }
}

impl Api {
    fn shortened(&self, seconds: i64, request: &Request) -> i64 {
        let longest = self.limits.token_life.and_then(|life| i64::try_from(life.as_secs()).ok());
        match longest.filter(|longest| *longest > 0 && seconds > *longest) {
            Some(longest) => {
                request.warn([format!(
                    "requested expiration of {seconds} seconds shortened to {longest} seconds"
                )]);
                longest
            }
            None => seconds,
        }
    }
}

fn check_lifetime(seconds: i64) -> Result<(), Status> {
    let mut errors = FieldErrors::default();
    if seconds < SHORTEST {
        errors.invalid("spec.expirationSeconds", seconds, "may not specify a duration less than 10 minutes");
    }
    if seconds > LONGEST {
        errors.invalid(
            "spec.expirationSeconds",
            seconds,
            "may not specify a duration larger than 2^32 seconds",
        );
    }
    if errors.is_empty() {
        Ok(())
    } else {
        Err(Status::invalid("authentication.k8s.io", "TokenRequest", "", &errors))
    }
}

/// The object that a token is bound to, as it is now.
enum BoundReference {
    Nothing,
    Pod(Object, Option<Object>),
    Secret(Object),
    Node(Object),
}

impl BoundReference {
    fn find(api: &Api, request: &Object, namespace: &str, account: &str) -> Result<BoundReference, Status> {
        let Some(reference) = request.get(&["spec", "boundObjectRef"]) else {
            return Ok(BoundReference::Nothing);
        };
        let text = |field: &str| reference.get(field).and_then(Value::as_str).unwrap_or("");
        // An empty reference is how some clients write none.
        if text("kind").is_empty() && text("name").is_empty() {
            return Ok(BoundReference::Nothing);
        }
        let (plural, place) = match text("kind") {
            "Pod" => ("pods", namespace),
            "Secret" => ("secrets", namespace),
            "Node" => ("nodes", ""),
            other => {
                return Err(Status::bad_request(format!(
                    "cannot bind token to object of type {}, Kind={other}",
                    text("apiVersion")
                )));
            }
        };
        let name = text("name");
        let object = lookup(&api.registry, plural, place, name)
            .ok_or_else(|| Status::not_found(&GroupResource::new("", plural), name))?;
        if !text("uid").is_empty() && text("uid") != object.uid() {
            return Err(Status::conflict(
                &GroupResource::new("", text("kind").to_string()),
                name,
                format!(
                    "the UID in the bound object reference ({}) does not match the UID in record. The object might have been deleted and then recreated",
                    text("uid")
                ),
            ));
        }
        Ok(match plural {
            "pods" if account_of(&object) != account => {
                return Err(Status::bad_request(format!(
                    "cannot bind token for serviceaccount {account:?} to pod running with different serviceaccount name."
                )));
            }
            "pods" => {
                let node = object.text_at(&["spec", "nodeName"]);
                let node = (!node.is_empty()).then(|| lookup(&api.registry, "nodes", "", node)).flatten();
                BoundReference::Pod(object, node)
            }
            "secrets" => BoundReference::Secret(object),
            _ => BoundReference::Node(object),
        })
    }

    fn bound_to(&self) -> BoundTo<'_> {
        fn reference(object: &Object) -> Reference<'_> {
            Reference { name: object.name(), uid: object.uid() }
        }
        match self {
            BoundReference::Nothing => BoundTo::Nothing,
            BoundReference::Pod(pod, node) => {
                BoundTo::Pod { pod: reference(pod), node: node.as_ref().map(reference) }
            }
            BoundReference::Secret(secret) => BoundTo::Secret(reference(secret)),
            BoundReference::Node(node) => BoundTo::Node(reference(node)),
        }
    }
}

/// A pod that names no account runs as its namespace's default one.
fn account_of(pod: &Object) -> &str {
    match pod.text_at(&["spec", "serviceAccountName"]) {
        "" => "default",
        name => name,
    }
}

fn user(user: &ferry_auth::User) -> Value {
    subresources::user_info(user)
}
