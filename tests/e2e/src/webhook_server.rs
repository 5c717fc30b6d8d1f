//! An admission webhook as someone outside would write it: HTTPS on a free port of the loopback, with a
//! certificate of an authority of its own. What it answers is a function of the review.

use std::convert::Infallible;
use std::sync::Arc;

use base64::Engine;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use parking_lot::Mutex;
use rustls_pki_types::PrivateKeyDer;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

pub struct WebhookServer {
    pub url: String,
    pub port: u16,
    /// What a configuration's `caBundle` has to be.
    pub ca_bundle: String,
    /// Every review so far.
    pub reviews: Arc<Mutex<Vec<Value>>>,
    serving: JoinHandle<()>,
}

/// What a webhook does with a review.
pub enum Reply {
    /// The `response` of the review; its uid is filled in.
    Response(Value),
    /// Any bytes with any code.
    Raw(u16, Vec<u8>),
    /// Nothing, ever.
    Hang,
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
        let key = rcgen::KeyPair::generate().expect("a key");
        let certificate = rcgen::CertificateParams::new(names.to_vec())
            .and_then(|params| params.self_signed(&key))
            .expect("a certificate");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("TLS versions")
            .with_no_client_auth()
            .with_single_cert(
                vec![certificate.der().clone()],
                PrivateKeyDer::Pkcs8(key.serialize_der().into()),
            )
            .expect("a usable certificate");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let reviews: Arc<Mutex<Vec<Value>>> = Arc::default();
        let (answer, seen) = (Arc::new(answer), reviews.clone());
        let acceptor = TlsAcceptor::from(Arc::new(tls));
        let serving = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, answer, seen) = (acceptor.clone(), answer.clone(), seen.clone());
                tokio::spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else { return };
                    let service = service_fn(move |request| handle(request, answer.clone(), seen.clone()));
                    let server = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
                    // A client that goes away is no failure of the server.
                    let _ = server.serve_connection(TokioIo::new(stream), service).await;
                });
            }
        });
        WebhookServer {
            url: format!("https://127.0.0.1:{port}/review"),
            port,
            ca_bundle: base64::engine::general_purpose::STANDARD.encode(certificate.pem()),
            reviews,
            serving,
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

impl Drop for WebhookServer {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn handle(
    request: hyper::Request<Incoming>,
    answer: Arc<impl Fn(&Value) -> Reply>,
    seen: Arc<Mutex<Vec<Value>>>,
) -> Result<hyper::Response<Full<Bytes>>, Infallible> {
    let path = request.uri().to_string();
    let body =
        request.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_else(|_| Bytes::new());
    let mut review: Value = serde_json::from_slice(&body).unwrap_or(Value::Null);
    let reply = answer(&review);
    let (uid, version) = (review["request"]["uid"].clone(), review["apiVersion"].clone());
    review["path"] = path.into();
    seen.lock().push(review);
    let (code, body) = match reply {
        Reply::Response(mut response) => {
            response["uid"] = uid;
            let review = json!({"apiVersion": version, "kind": "AdmissionReview", "response": response});
            (200, review.to_string().into_bytes())
        }
        Reply::Raw(code, body) => (code, body),
        Reply::Hang => std::future::pending().await,
    };
    let response = hyper::Response::builder().status(code).header("content-type", "application/json");
    Ok(response.body(Full::new(body.into())).expect("a well-formed answer"))
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
