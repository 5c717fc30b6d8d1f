//! An admission webhook as someone outside would write it. What it answers is a function of the review.

use std::sync::Arc;

use base64::Engine;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use crate::responder::{self, Responder};

pub struct WebhookServer {
    pub url: String,
    pub port: u16,
    /// What a configuration's `caBundle` has to be.
    pub ca_bundle: String,
    /// Every review so far.
    pub reviews: Arc<Mutex<Vec<Value>>>,
    _responder: Responder,
}

/// What a webhook does with a review.
pub enum Reply {
    /// The `response` of the review; its uid is filled in.
    Response(Value),
    /// Any bytes with any code.
    Raw(u16, Vec<u8>),
    /// Nothing, ever.
    Hang,
    /// The same as `Raw`, once the semaphore is closed.
    Late(Arc<Semaphore>, u16, Vec<u8>),
}

impl WebhookServer {
    pub async fn start(answer: impl Fn(&Value) -> Reply + Send + Sync + 'static) -> WebhookServer {
        WebhookServer::start_as(&["127.0.0.1".into()], answer).await
    }

    /// With a certificate for these names.
    pub async fn start_as(
        names: &[String],
        answer: impl Fn(&Value) -> Reply + Send + Sync + 'static,
    ) -> WebhookServer {
        let reviews: Arc<Mutex<Vec<Value>>> = Arc::default();
        let seen = reviews.clone();
        let responder = Responder::start_as(names, move |asked| {
            let mut review = asked.json();
            let reply = answer(&review);
            let (uid, version) = (review["request"]["uid"].clone(), review["apiVersion"].clone());
            review["path"] = asked.uri.clone().into();
            seen.lock().push(review);
            match reply {
                Reply::Response(mut response) => {
                    response["uid"] = uid;
                    let review =
                        json!({"apiVersion": version, "kind": "AdmissionReview", "response": response});
                    responder::Reply::Json(200, review)
                }
                Reply::Raw(code, body) => responder::Reply::Raw(code, body),
                Reply::Hang => responder::Reply::Hang,
                Reply::Late(until, code, body) => responder::Reply::Late(until, code, body),
            }
        })
        .await;
        WebhookServer {
            url: format!("{}/review", responder.url()),
            port: responder.port(),
            ca_bundle: base64::engine::general_purpose::STANDARD.encode(&responder.ca_pem),
            reviews,
            _responder: responder,
        }
    }

    pub fn count(&self) -> usize {
        self.reviews.lock().len()
    }

    pub fn last(&self) -> Value {
        self.reviews.lock().last().cloned().expect("a review")
    }

    /// A webhook of a configuration that calls this server about creations of config maps.
    pub fn webhook(&self, name: &str) -> Value {
        json!({
            "name": name,
            "clientConfig": {"url": self.url, "caBundle": self.ca_bundle},
            "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}],
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
            "timeoutSeconds": 5,
        })
    }
}

pub fn allow() -> Reply {
    Reply::Response(json!({"allowed": true}))
}

pub fn deny(message: &str) -> Reply {
    Reply::Response(
        json!({"allowed": false, "status": {"message": message, "code": 403, "reason": "Forbidden"}}),
    )
}

pub fn patch(operations: &Value) -> Reply {
    let patch = base64::engine::general_purpose::STANDARD.encode(operations.to_string());
    Reply::Response(json!({"allowed": true, "patchType": "JSONPatch", "patch": patch}))
}

/// A configuration of either sort, as it is posted.
pub fn configuration(kind: &str, name: &str, webhooks: Vec<Value>) -> Value {
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": kind,
        "metadata": {"name": name}, "webhooks": webhooks,
    })
}
