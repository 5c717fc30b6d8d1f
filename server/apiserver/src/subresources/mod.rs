//! Subresources: what hangs below an object. Most are the object itself seen from one side; a few are
//! actions (binding, eviction, tokens), and a few are connections to the node that runs the pod.

mod eviction;
mod pod_binding;
mod reviews;

use std::sync::Arc;

use ferry_api::{Kind, Status};

use crate::api::Api;
use crate::body::Response;
use crate::request::Request;
use crate::verbs::{self, Target};

pub async fn dispatch(target: Target<'_>) -> Result<Response, Status> {
    match (&*target.kind.plural, target.request.info.subresource.as_str()) {
        (_, "scale") => verbs::scale(target).await,
        ("pods", "binding") => pod_binding::bind(target).await,
        ("pods", "eviction") => eviction::evict(target).await,
        ("serviceaccounts", "token") => reviews::token(target).await,
        ("pods", "log" | "exec" | "attach" | "portforward" | "proxy") | ("nodes" | "services", "proxy") => {
            target.api.node_connection.connect(target).await
        }
        // status, finalize, approval, ephemeralcontainers, resize: the object, from one side.
        _ => verbs::whole_object(target).await,
    }
}

/// Kinds that are questions: nothing is stored, the answer is the object.
pub async fn review(api: &Arc<Api>, request: &Request, kind: &Arc<Kind>) -> Result<Response, Status> {
    match &*kind.plural {
        "bindings" => pod_binding::bind_by_body(api, request).await,
        _ => reviews::review(api, request, kind).await,
    }
}

pub use reviews::{texts, user_info};
