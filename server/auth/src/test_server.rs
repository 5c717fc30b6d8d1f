//! A webhook or OpenID provider for tests: answers on loopback, over HTTP or HTTPS.

use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use http_body_util::{BodyExt, Full};
use hyper::{body::Bytes, service::service_fn};
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpListener,
    task::JoinHandle,
};

pub(crate) struct TestServer {
    address: SocketAddr,
    scheme: &'static str,
    count: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

pub(crate) struct TestRequest {
    pub(crate) path: String,
    body: Bytes,
}

impl TestRequest {
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}

type MaybeReady = dyn Fn(TestRequest) -> (u16, String) + Send + Sync;

impl TestServer {
    pub(crate) async fn start(answer: impl Fn(TestRequest) -> (u16, String) + Send + Sync + 'static) -> Self {
        TestServer::listen(None, answer).await
    }

    pub(crate) async fn start_tls(
        tls: Arc<rustls::ServerConfig>,
        answer: impl Fn(TestRequest) -> (u16, String) + Send + Sync + 'static,
    ) -> Self {
        TestServer::listen(Some(tls), answer).await
    }

    async fn listen(
        tls: Option<Arc<rustls::ServerConfig>>,
        answer: impl Fn(TestRequest) -> (u16, String) + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let scheme = if tls.is_some() { "https" } else { "http" };
        let count = Arc::new(AtomicUsize::new(0));
        let answer: Arc<MaybeReady> = Arc::new(answer);
        let task = tokio::spawn({
            let count = count.clone();
            async move {
                let mut connections = tokio::task::JoinSet::new();
                while let Ok((stream, _)) = listener.accept().await {
                    let (tls, answer, count) = (tls.clone(), answer.clone(), count.clone());
                    connections.spawn(async move {
                        match tls {
                            None => serve(stream, answer, count).await,
                            Some(tls) => {
                                if let Ok(stream) = tokio_rustls::TlsAcceptor::from(tls).accept(stream).await
                                {
                                    serve(stream, answer, count).await;
                                }
                            }
                        }
                    });
                }
            }
        });
        TestServer { address, scheme, count, task }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("{}://localhost:{}{path}", self.scheme, self.address.port())
    }

    pub(crate) fn requests(&self) -> usize {
        self.count.load(Ordering::SeqCst)
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    answer: Arc<MaybeReady>,
    count: Arc<AtomicUsize>,
) {
    let service = service_fn(|request: hyper::Request<hyper::body::Incoming>| {
        let (answer, count) = (answer.clone(), count.clone());
        async move {
            count.fetch_add(1, Ordering::SeqCst);
            let path = request.uri().path().to_owned();
            let body = request.into_body().collect().await.unwrap().to_bytes();
            let (code, body) = answer(TestRequest { path, body });
            let response =
                hyper::Response::builder().status(code).body(Full::new(Bytes::from(body))).unwrap();
            Ok::<_, Infallible>(response)
        }
    });
    // A client that hangs up is not this server's failure.
    let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}
