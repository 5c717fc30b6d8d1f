//! Serves the images that were loaded on this host to the cluster's other nodes, through the API server.

use ferry_apiserver::Api;
use ferry_apiserver::body::{Body, Response};
use ferry_apiserver::host_images::ImageRequest;
use ferry_kubelet::images::containerd;
use ferry_kubelet::images::distribution::{BlobBody, Question, Registry};

/// Lets the API server serve the images of this runtime.
pub fn serve(api: &Api, endpoint: &str) -> anyhow::Result<()> {
    let registry = Registry::new(containerd::Client::new(endpoint)?);
    api.host_images.answer_with(move |request| {
        let registry = registry.clone();
        Box::pin(async move { answer(&registry, request).await })
    });
    Ok(())
}

async fn answer(registry: &Registry, request: ImageRequest) -> Response {
    let ImageRequest { method, path, registry: meant, range } = request;
    let answer = registry.answer(&Question { method, path, registry: meant, range }).await;
    answer.map(|answer| match answer {
        BlobBody::Bytes(bytes) => bytes.into(),
        BlobBody::Stream(pieces) => Body::stream(pieces),
    })
}
