//! Somebody whom the server asks: a webhook, an identity provider. It answers on loopback, in this process.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use rustls::pki_types::PrivateKeyDer;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinHandle;

pub struct Responder {
    address: SocketAddr,
    /// The certificate it serves with is its own authority.
    pub ca_pem: String,
    asked: tokio::sync::Mutex<mpsc::UnboundedReceiver<Asked>>,
    task: JoinHandle<()>,
}

/// What is said to a question.
pub enum Reply {
    Json(u16, Value),
    /// Any bytes with any code.
    Raw(u16, Vec<u8>),
    /// Nothing, ever.
    Hang,
    /// The same as `Raw`, once the semaphore is closed.
    Late(Arc<Semaphore>, u16, Vec<u8>),
}

/// What it was asked.
#[derive(Debug, Clone)]
pub struct Asked {
    pub path: String,
    /// The path, and what follows it.
    pub uri: String,
    pub body: Bytes,
}

impl Asked {
    /// The body, or null where it is no JSON.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or(Value::Null)
    }
}

impl Responder {
    /// Answers every request with what `answer` makes of it: a code and JSON.
    pub async fn start(answer: impl Fn(&Asked) -> (u16, Value) + Send + Sync + 'static) -> Responder {
        let answer = move |asked: &Asked| {
            let (code, value) = answer(asked);
            Reply::Json(code, value)
        };
        Responder::start_as(&["127.0.0.1".into()], answer).await
    }

    /// With a certificate for these names, and with answers of any sort.
    pub async fn start_as(
        names: &[String],
        answer: impl Fn(&Asked) -> Reply + Send + Sync + 'static,
    ) -> Responder {
        let pair = rcgen::generate_simple_self_signed(names.to_vec()).expect("a certificate");
        let ca_pem = pair.cert.pem();
        let key = PrivateKeyDer::Pkcs8(pair.signing_key.serialize_der().into());
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("known protocols")
            .with_no_client_auth()
            .with_single_cert(vec![pair.cert.der().clone()], key)
            .expect("a pair");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it listens");
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(tls));
        let (tell, asked) = mpsc::unbounded_channel();
        let answer = Arc::new(answer);
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, tell, answer) = (acceptor.clone(), tell.clone(), answer.clone());
                connections.spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else { return };
                    let service = service_fn(move |request| respond(request, answer.clone(), tell.clone()));
                    let server = auto::Builder::new(TokioExecutor::new());
                    // A client that goes away is no failure of the server.
                    let _ = server.serve_connection(TokioIo::new(stream), service).await;
                });
            }
        });
        Responder { address, ca_pem, asked: tokio::sync::Mutex::new(asked), task }
    }

    pub fn port(&self) -> u16 {
        self.address.port()
    }

    pub fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    /// The next question, once there is one.
    pub async fn asked(&self) -> Asked {
        let mut asked = self.asked.lock().await;
        let next = tokio::time::timeout(std::time::Duration::from_secs(30), asked.recv()).await;
        next.expect("it is asked in time").expect("the responder lives")
    }

    /// A kubeconfig that leads to it, as webhook flags take one.
    pub fn kubeconfig(&self) -> String {
        use base64::Engine;
        let ca = base64::prelude::BASE64_STANDARD.encode(&self.ca_pem);
        format!(
            "apiVersion: v1\nkind: Config\nclusters:\n- name: hook\n  cluster:\n    server: {}\n    certificate-authority-data: {ca}\nusers:\n- name: server\n  user: {{}}\ncontexts:\n- name: hook\n  context: {{cluster: hook, user: server}}\ncurrent-context: hook\n",
            self.url()
        )
    }
}

async fn respond(
    request: hyper::Request<hyper::body::Incoming>,
    answer: Arc<impl Fn(&Asked) -> Reply>,
    tell: mpsc::UnboundedSender<Asked>,
) -> Result<hyper::Response<Full<Bytes>>, Infallible> {
    let (path, uri) = (request.uri().path().to_string(), request.uri().to_string());
    let body = request.into_body().collect().await.map(|body| body.to_bytes());
    let asked = Asked { path, uri, body: body.unwrap_or_else(|_| Bytes::new()) };
    let reply = answer(&asked);
    // Whoever listened may have seen enough.
    let _ = tell.send(asked);
    let (code, body) = match reply {
        Reply::Json(code, value) => (code, value.to_string().into_bytes()),
        Reply::Raw(code, body) => (code, body),
        Reply::Hang => std::future::pending().await,
        Reply::Late(until, code, body) => {
            // It has no permits: this ends with its closing.
            let _ = until.acquire().await;
            (code, body)
        }
    };
    let response = hyper::Response::builder().status(code).header("content-type", "application/json");
    Ok(response.body(Full::new(body.into())).expect("a well-formed answer"))
}

impl Drop for Responder {
    fn drop(&mut self) {
        self.task.abort();
    }
}
