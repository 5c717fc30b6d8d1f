//! The HTTPS server of every pod: it judges sites, converts them between versions, and says whether it is ready.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use kube::core::Status;
use kube::core::admission::{AdmissionRequest, AdmissionResponse, AdmissionReview};
use kube::core::conversion::{ConversionRequest, ConversionResponse, ConversionReview};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde::Serialize;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use crate::install::Certificate;
use crate::site::{self, Site};

const PORT: u16 = 8443;
/// A review holds an object and what it was before, or a list of objects.
const LARGEST: usize = 16 << 20;
const HANDSHAKE: Duration = Duration::from_secs(10);

/// Whether the pod is ready is the caller's to say.
pub async fn serve(certificate: &Certificate, is_ready: Arc<AtomicBool>) -> Result<()> {
    let chain = CertificateDer::pem_slice_iter(&certificate.certificate).collect::<Result<Vec<_>, _>>()?;
    let key = PrivateKeyDer::from_pem_slice(&certificate.key)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, key)?;
    let acceptor = TlsAcceptor::from(Arc::new(tls));
    let listener = TcpListener::bind(("0.0.0.0", PORT)).await.context("listen for webhooks")?;
    tokio::spawn(async move {
        loop {
            let stream = match listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            };
            let (acceptor, is_ready) = (acceptor.clone(), is_ready.clone());
            tokio::spawn(async move {
                let Ok(Ok(stream)) = tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await else {
                    return;
                };
                let service = service_fn(move |request| respond(request, is_ready.clone()));
                let server = auto::Builder::new(TokioExecutor::new());
                if let Err(error) = server.serve_connection(TokioIo::new(stream), service).await {
                    tracing::debug!(error, "a connection ended");
                }
            });
        }
    });
    Ok(())
}

async fn respond(
    request: Request<Incoming>,
    is_ready: Arc<AtomicBool>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let path = request.uri().path().to_owned();
    if path == "/readyz" {
        let ready = is_ready.load(Ordering::Relaxed);
        let code = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        return Ok(answer(code, Bytes::new()));
    }
    let body = match Limited::new(request.into_body(), LARGEST).collect().await {
        Ok(body) => body.to_bytes(),
        Err(error) => return Ok(answer(StatusCode::BAD_REQUEST, error.to_string().into())),
    };
    Ok(match path.as_str() {
        "/validate" => json(serde_json::from_slice(&body).map(validate)),
        "/convert" => json(serde_json::from_slice(&body).map(convert)),
        _ => answer(StatusCode::NOT_FOUND, Bytes::new()),
    })
}

fn json<T: Serialize>(review: serde_json::Result<T>) -> Response<Full<Bytes>> {
    match review.and_then(|review| serde_json::to_vec(&review)) {
        Ok(body) => answer(StatusCode::OK, body.into()),
        Err(error) => answer(StatusCode::BAD_REQUEST, error.to_string().into()),
    }
}

fn answer(code: StatusCode, body: Bytes) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = code;
    let kind = hyper::header::HeaderValue::from_static("application/json");
    response.headers_mut().insert(hyper::header::CONTENT_TYPE, kind);
    response
}

fn validate(review: AdmissionReview<Site>) -> AdmissionReview<kube::core::DynamicObject> {
    let request: AdmissionRequest<Site> = match review.try_into() {
        Ok(request) => request,
        Err(error) => return AdmissionResponse::invalid(error).into_review(),
    };
    let response = AdmissionResponse::from(&request);
    // Whoever removes the finalizer of a site that goes away is not held up by what it says.
    let leaves = |site: &Site| site.metadata.deletion_timestamp.is_some();
    let objection = request.object.as_ref().filter(|site| !leaves(site)).and_then(site::objection);
    match objection {
        Some(words) => response.deny(words).into_review(),
        None => response.into_review(),
    }
}

fn convert(review: ConversionReview) -> ConversionReview {
    let request = match ConversionRequest::from_review(review) {
        Ok(request) => request,
        Err(error) => {
            let status = Status::failure(&error.to_string(), "BadRequest");
            return ConversionResponse::invalid(status).into_review();
        }
    };
    let version = &request.desired_api_version;
    let converted: Result<Vec<_>, String> =
        request.objects.iter().map(|object| site::convert(object.clone(), version)).collect();
    let response = ConversionResponse::for_request(request);
    match converted {
        Ok(objects) => response.success(objects).into_review(),
        Err(words) => response.failure(Status::failure(&words, "BadRequest")).into_review(),
    }
}
