//! The part of a kubelet that answers the API server: a container's log, line by line as the test writes it, and what the
//! node uses. It serves with a certificate of the cluster's authority.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use bytes::Bytes;
use ferry_auth::pki::{Pki, PkiConfig};
use futures::StreamExt;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Frame;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::broadcast;
use tokio_rustls::TlsAcceptor;

pub struct ServingKubelet {
    lines: broadcast::Sender<String>,
    task: tokio::task::JoinHandle<()>,
}

/// In cores and in GiB.
const CPU: f64 = 0.24;
const MEMORY: f64 = 3.0;

impl ServingKubelet {
    /// Serves for a node, whose status says where from then on.
    pub async fn start(directory: &Path, client: &Client, node: &str) -> ServingKubelet {
        let (pki, _) = Pki::open(directory.join("pki"), PkiConfig::new("cluster.local", ["127.0.0.1"]))
            .expect("the server's keys");
        let names = BTreeSet::from(["127.0.0.1".to_owned()]);
        let user = format!("system:node:{node}");
        let pair = pki
            .serving_certificate(&user, &["system:nodes"], &names, SystemTime::now())
            .expect("a certificate");
        let chain = CertificateDer::pem_slice_iter(pair.certificate.as_bytes());
        let chain = chain.collect::<Result<Vec<_>, _>>().expect("PEM");
        let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).expect("PEM");
        let tls =
            rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
                .with_safe_default_protocol_versions()
                .expect("known protocols")
                .with_no_client_auth()
                .with_single_cert(chain, key)
                .expect("a pair");
        let acceptor = TlsAcceptor::from(Arc::new(tls));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("it listens").port();
        let (lines, _) = broadcast::channel(16);
        let (said, began) = (lines.clone(), Instant::now());
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, said) = (acceptor.clone(), said.clone());
                connections.spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else { return };
                    let service = service_fn(move |request: http::Request<hyper::body::Incoming>| {
                        let body = answer(request.uri().path(), &said, began);
                        std::future::ready(Ok::<_, Infallible>(http::Response::new(body)))
                    });
                    // A server that goes away is no failure of the kubelet.
                    let _ = hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service)
                        .await;
                });
            }
        });
        let status = json!({ "status": {
            "addresses": [{ "type": "InternalIP", "address": "127.0.0.1" }],
            "daemonEndpoints": { "kubeletEndpoint": { "Port": port } },
        } });
        let nodes: Api<Node> = Api::all(client.clone());
        nodes
            .patch_status(node, &PatchParams::default(), &Patch::Strategic(status))
            .await
            .expect("the node says where its kubelet is");
        ServingKubelet { lines, task }
    }

    /// Writes a line to the logs that are followed, once somebody follows one.
    pub async fn write(&self, line: &str) {
        super::until("somebody follows the log", || async { self.lines.send(format!("{line}\n")).ok() })
            .await;
    }
}

impl Drop for ServingKubelet {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn answer(path: &str, lines: &broadcast::Sender<String>, began: Instant) -> BoxBody<Bytes, Infallible> {
    if path == "/metrics/resource" {
        // Around these, now a little more and now a little less: a plot of it is a curve.
        let seconds = began.elapsed().as_secs_f64();
        let cpu = seconds * CPU - (seconds / 8.0).cos() * 0.3;
        let memory = ((MEMORY + (seconds / 10.0).sin() * 0.4) * f64::from(1 << 30)).round();
        let page = format!("node_cpu_usage_seconds_total {cpu}\nnode_memory_working_set_bytes {memory}\n");
        return Full::from(page).boxed();
    }
    let first = futures::stream::once(std::future::ready("listening on :80\n".to_owned()));
    let followed = futures::stream::unfold(lines.subscribe(), |mut lines| async move {
        let line = lines.recv().await.ok()?;
        Some((line, lines))
    });
    let frames = first.chain(followed).map(|line| Ok(Frame::data(Bytes::from(line))));
    BodyExt::boxed(StreamBody::new(frames))
}
