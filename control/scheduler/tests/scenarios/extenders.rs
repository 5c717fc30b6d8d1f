//! Extenders: a program outside has its say in where pods go.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use ferry_scheduler::{Config, configuration_file};
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use kube::api::DeleteParams;
use serde_json::{Value, json};
use tokio_rustls::TlsAcceptor;

use super::cluster::{Cluster, node};

type Answer = dyn Fn(&str, &Value) -> Option<Value> + Send + Sync;

/// An extender that answers by verb, and remembers what it was asked.
struct Extender {
    address: SocketAddr,
    asked: Arc<Mutex<Vec<(String, Value)>>>,
    serving: tokio::task::JoinHandle<()>,
}

impl Drop for Extender {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Extender {
    /// Where `answer` has none, the request fails.
    async fn start(answer: impl Fn(&str, &Value) -> Option<Value> + Send + Sync + 'static) -> Self {
        Extender::start_behind(None, answer).await
    }

    /// The same behind TLS, if given; who comes without a certificate it asks for is turned away.
    async fn start_behind(
        tls: Option<TlsAcceptor>,
        answer: impl Fn(&str, &Value) -> Option<Value> + Send + Sync + 'static,
    ) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let asked: Arc<Mutex<Vec<(String, Value)>>> = Arc::default();
        let (answer, log): (Arc<Answer>, _) = (Arc::new(answer), asked.clone());
        let serving = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (answer, log) = (answer.clone(), log.clone());
                let service = hyper::service::service_fn(move |request: Request<Incoming>| {
                    serve(request, answer.clone(), log.clone())
                });
                let tls = tls.clone();
                tokio::spawn(async move {
                    let server = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
                    let Some(tls) = tls else {
                        let _ = server.serve_connection(TokioIo::new(stream), service).await;
                        return;
                    };
                    if let Ok(stream) = tls.accept(stream).await {
                        let _ = server.serve_connection(TokioIo::new(stream), service).await;
                    }
                });
            }
        });
        Extender { address, asked, serving }
    }

    /// A configuration of one extender, at this address, with these further lines.
    fn config(&self, lines: &str) -> Config {
        self.config_by("http", lines)
    }

    fn config_by(&self, scheme: &str, lines: &str) -> Config {
        let text = format!(
            "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\nextenders:\n\
             - urlPrefix: {scheme}://{}/scheduler\n{lines}",
            self.address
        );
        configuration_file::read(&text, Config::default()).expect("a sound configuration")
    }

    fn asked(&self, verb: &str) -> Vec<Value> {
        let asked = self.asked.lock().unwrap();
        asked.iter().filter(|(own, _)| own == verb).map(|(_, body)| body.clone()).collect()
    }
}

async fn serve(
    request: Request<Incoming>,
    answer: Arc<Answer>,
    log: Arc<Mutex<Vec<(String, Value)>>>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let verb = request.uri().path().trim_start_matches("/scheduler/").to_owned();
    let body = request.into_body().collect().await.expect("the body arrives").to_bytes();
    let body: Value = serde_json::from_slice(&body).expect("is JSON");
    log.lock().unwrap().push((verb.clone(), body.clone()));
    let answered = answer(&verb, &body);
    let mut response = Response::new(Full::from(answered.clone().unwrap_or_default().to_string()));
    if answered.is_none() {
        *response.status_mut() = http::StatusCode::INTERNAL_SERVER_ERROR;
    }
    Ok(response)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_extender_filters_and_scores_the_nodes_it_is_told_by_name() {
    let extender = Extender::start(|verb, body| {
        let names: Vec<&str> = body["NodeNames"].as_array()?.iter().filter_map(Value::as_str).collect();
        match verb {
            "filter" => Some(json!({
                "NodeNames": names.iter().filter(|name| **name != "a").collect::<Vec<_>>(),
                "FailedNodes": {"a": "node(s) had no free lunch"},
            })),
            "rank" => Some(json!(
                names
                    .iter()
                    .map(|n| json!({"Host": n, "Score": i64::from(*n == "c") * 10}))
                    .collect::<Vec<_>>()
            )),
            _ => None,
        }
    })
    .await;
    let lines = "  filterVerb: filter\n  prioritizeVerb: rank\n  weight: 50\n  nodeCacheCapable: true\n";
    let cluster = Cluster::start_with(extender.config(lines)).await;
    for name in ["a", "b", "c"] {
        cluster.node(name, "4", json!({})).await;
    }
    for number in 0..4 {
        let name = format!("p{number}");
        cluster.pod(&name, "100m", json!({})).await;
        assert_eq!(cluster.bound(&name).await, "c");
    }
    assert_eq!(extender.asked("filter")[0]["Pod"]["metadata"]["name"], "p0");
    assert_eq!(extender.asked("filter")[0]["Nodes"], Value::Null);

    cluster.pod("hungry", "100m", json!({"spec": {"nodeSelector": {"kubernetes.io/hostname": "a"}}})).await;
    cluster
        .refused(
            "hungry",
            "0/3 nodes are available: 1 node(s) had no free lunch, 2 node(s) didn't match Pod's node \
             affinity/selector. no new claims to deallocate, preemption: 0/3 nodes are available: 1 No \
             preemption victims found for incoming pod, 2 Preemption is not helpful for scheduling.",
        )
        .await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_extender_is_asked_only_about_what_it_manages_and_binds_that_itself() {
    let extender =
        Extender::start(|verb, _| (verb == "bind").then(|| json!({"Error": "no devices today"}))).await;
    let lines =
        "  bindVerb: bind\n  managedResources:\n  - name: example.com/device\n    ignoredByScheduler: true\n";
    let cluster = Cluster::start_with(extender.config(lines)).await;
    cluster.node("n", "4", json!({})).await;
    cluster.pod("plain", "100m", json!({})).await;
    assert_eq!(cluster.bound("plain").await, "n");
    assert!(extender.asked("bind").is_empty());
    let resources = json!({"requests": {"example.com/device": "1"}, "limits": {"example.com/device": "1"}});
    let containers = json!([{"name": "c", "image": "i", "resources": resources}]);
    cluster.pod("device", "0", json!({"spec": {"containers": containers}})).await;
    cluster
        .until("device", |pod| {
            let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
            let mut messages = conditions.into_iter().flatten().filter_map(|own| own.message.as_deref());
            messages.any(|message| message.contains("no devices today"))
        })
        .await;
    assert_eq!(extender.asked("bind")[0]["PodName"], "device");
    assert_eq!(extender.asked("bind")[0]["Node"], "n");
    assert_eq!(node(&cluster.pods().get("device").await.unwrap()), None);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_fails_holds_pods_back_unless_it_may_be_ignored() {
    let extender = Extender::start(|_, _| None).await;
    let cluster = Cluster::start_with(extender.config("  filterVerb: filter\n")).await;
    cluster.node("n", "4", json!({})).await;
    cluster.pod("waits", "100m", json!({})).await;
    cluster
        .until("waits", |pod| {
            let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
            conditions.into_iter().flatten().any(|own| own.reason.as_deref() == Some("SchedulerError"))
        })
        .await;
    cluster.stop().await;

    let config = extender.config("  filterVerb: filter\n  ignorable: true\n");
    let cluster = Cluster::start_with(config).await;
    cluster.node("n", "4", json!({})).await;
    cluster.pod("goes", "100m", json!({})).await;
    assert_eq!(cluster.bound("goes").await, "n");
    cluster.stop().await;
}

/// An authority, and what it has signed: the extender's certificate and ours, as files.
struct Authority {
    directory: tempfile::TempDir,
    acceptor: TlsAcceptor,
}

impl Authority {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let write =
            |name: &str, text: &str| std::fs::write(directory.path().join(name), text).expect("a file");
        let mut parameters = rcgen::CertificateParams::default();
        parameters.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let key = rcgen::KeyPair::generate().expect("a key");
        let ca = parameters.self_signed(&key).expect("an authority");
        let issuer = rcgen::Issuer::from_params(&parameters, &key);
        let signed = |name: &str| {
            let parameters = rcgen::CertificateParams::new(vec![name.to_owned()]).expect("a name");
            let key = rcgen::KeyPair::generate().expect("a key");
            (parameters.signed_by(&key, &issuer).expect("a certificate"), key)
        };
        let ((served, key), (shown, own_key)) = (signed("127.0.0.1"), signed("scheduler"));
        write("ca.pem", &ca.pem());
        write("client.pem", &shown.pem());
        write("client.key", &own_key.serialize_pem());

        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut roots = rustls::RootCertStore::empty();
        roots.add(ca.der().clone()).expect("an authority");
        let clients =
            rustls::server::WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone());
        let tls = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("known protocols")
            .with_client_cert_verifier(clients.build().expect("an authority"))
            .with_single_cert(
                vec![served.der().clone()],
                rustls::pki_types::PrivateKeyDer::try_from(key.serialize_der()).expect("a key"),
            )
            .expect("a certificate and its key");
        Authority { directory, acceptor: TlsAcceptor::from(Arc::new(tls)) }
    }

    fn file(&self, name: &str) -> String {
        self.directory.path().join(name).display().to_string()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_extender_behind_tls_is_known_by_its_authority_and_we_by_our_certificate() {
    let authority = Authority::new();
    let extender = Extender::start_behind(Some(authority.acceptor.clone()), |verb, body| {
        (verb == "filter").then(|| json!({"NodeNames": body["NodeNames"]}))
    })
    .await;
    let (ca, cert, key) =
        (authority.file("ca.pem"), authority.file("client.pem"), authority.file("client.key"));
    for (tls, welcome) in [
        (format!("{{caFile: {ca}, certFile: {cert}, keyFile: {key}}}"), true),
        (format!("{{insecure: true, certFile: {cert}, keyFile: {key}}}"), true),
        (format!("{{certFile: {cert}, keyFile: {key}}}\n  enableHTTPS: true"), true),
        (format!("{{certFile: {cert}, keyFile: {key}}}"), false),
        (format!("{{caFile: {ca}}}"), false),
    ] {
        let lines = format!("  filterVerb: filter\n  nodeCacheCapable: true\n  tlsConfig: {tls}\n");
        let config = extender.config_by("https", &lines);
        let cluster = Cluster::start_with(config).await;
        cluster.node("n", "4", json!({})).await;
        cluster.pod("p", "100m", json!({})).await;
        if welcome {
            assert_eq!(cluster.bound("p").await, "n", "{tls}");
        } else {
            cluster
                .until("p", |pod| {
                    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
                    conditions
                        .into_iter()
                        .flatten()
                        .any(|own| own.reason.as_deref() == Some("SchedulerError"))
                })
                .await;
        }
        cluster.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_extender_has_a_say_in_who_must_go() {
    let extender = Extender::start(|verb, body| {
        (verb == "preempt").then(|| {
            let victims = body["NodeNameToVictims"]["kept"].clone();
            assert!(victims.is_object(), "both nodes are offered: {body}");
            let uid = body["NodeNameToVictims"]["given"]["Pods"][0]["metadata"]["uid"].clone();
            json!({"NodeNameToMetaVictims": {"given": {"Pods": [{"UID": uid}], "NumPDBViolations": 0}}})
        })
    })
    .await;
    let cluster = Cluster::start_with(extender.config("  preemptVerb: preempt\n")).await;
    let class = json!({"metadata": {"name": "high"}, "value": 1000});
    cluster.server.post("/apis/scheduling.k8s.io/v1/priorityclasses", &class).await.expect(201);
    for name in ["kept", "given"] {
        cluster.node(name, "4", json!({})).await;
        let here = json!({"spec": {"nodeSelector": {"kubernetes.io/hostname": name}}});
        cluster.pod(&format!("on-{name}"), "3", here).await;
        cluster.bound(&format!("on-{name}")).await;
    }
    cluster.pod("greater", "3", json!({"spec": {"priorityClassName": "high", "priority": 1000}})).await;
    cluster.until("on-given", |pod| pod.metadata.deletion_timestamp.is_some()).await;
    let _ = cluster.pods().delete("on-given", &DeleteParams::default().grace_period(0)).await;
    assert_eq!(cluster.bound("greater").await, "given");
    cluster.pods().get("on-kept").await.expect("stays");
    cluster.stop().await;
}
