//! `/ferry/v1/images`: the images that were loaded on this server's host, for other nodes of the cluster.
//!
//! The process that runs a server together with a node provides the images, since this crate knows no container runtime.
//! The request passes all filters, so RBAC controls access (`system:ferry:image-reader`).

use std::sync::{Arc, OnceLock};

use futures::future::BoxFuture;
use http::Method;
use http::header::RANGE;

use crate::body::Response;
use crate::request::Request;
use crate::respond;

/// What a node asks for.
pub struct ImageRequest {
    pub method: Method,
    /// Below `/ferry/v1/images`.
    pub path: String,
    /// The registry that is meant.
    pub registry: Option<String>,
    pub range: Option<String>,
}

type ImageHandler = dyn Fn(ImageRequest) -> BoxFuture<'static, Response> + Send + Sync;

/// Empty until the host's node is there, and on servers without one.
#[derive(Default)]
pub struct HostImages(OnceLock<Arc<ImageHandler>>);

impl HostImages {
    /// Answers with this from now on. Once: a server has one host.
    pub fn answer_with(
        &self,
        answer: impl Fn(ImageRequest) -> BoxFuture<'static, Response> + Send + Sync + 'static,
    ) {
        // The first is as good: it reads the same host.
        let _ = self.0.set(Arc::new(answer));
    }

    pub(crate) async fn answer(&self, request: &Request, path: &[&str]) -> Response {
        let Some(answer) = self.0.get() else { return respond::page_not_found() };
        let asked = ImageRequest {
            method: request.method.clone(),
            path: format!("/{}", path.join("/")),
            registry: request.query.get("ns").map(str::to_owned),
            range: Some(request.header(RANGE.as_str()).to_owned()).filter(|range| !range.is_empty()),
        };
        answer(asked).await
    }
}
