//! Images that were loaded on the server, brought to this node.
//!
//! A node asks the API server, with its own identity, before it has the
//! runtime ask a registry. Only a server is believed: what another node says
//! it has under a name could be anything.
//!
//! The node writes what it gets into containerd itself. Pointing containerd
//! to the server as a mirror was weighed: it would need the host's containerd
//! to be set up anew where that is used, a merge into every `hosts.toml` of
//! the user's (containerd looks into one directory a registry, and at its
//! `_default` only where there is none), and the node's client key in a file.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use ferry_client::Client;
use futures::StreamExt;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt;
use kube::client::Body;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;

use super::containerd::{self, Content, Lease, Source, Target};
use super::oci::{MAX_LEVELS, Reference, architecture, digest, is_digest};

/// Where a server has its registry.
pub const PATH: &str = "/ferry/v1/images";
/// A server that is away must not hold up a pull from a registry.
const PATIENCE: Duration = Duration::from_secs(5);
/// Between two pieces of a blob.
const STALLED: Duration = Duration::from_secs(30);
const MAX_MANIFEST: usize = 4 << 20;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("ask the server for the image: {0}")]
    Ask(#[from] kube::Error),
    #[error("ask the server for the image: {0}")]
    Request(#[from] http::Error),
    #[error("the server does not answer")]
    Silent,
    #[error("the server refuses {what}: {status}")]
    Refused { what: String, status: StatusCode },
    #[error("the server's {what} is malformed")]
    Unclear { what: String },
    #[error(transparent)]
    Containerd(#[from] containerd::Error),
}

pub struct Mirror {
    server: Client,
    containerd: containerd::Client,
}

/// A manifest or an index.
struct Manifest {
    target: Target,
    data: Bytes,
}

impl Mirror {
    pub fn new(server: Client, containerd: containerd::Client) -> Self {
        Self { server, containerd }
    }

    /// Makes the image of this full name the server's, if it was loaded there; says whether it was.
    pub async fn bring(&self, name: &str) -> Result<bool, Error> {
        let Some(reference) = Reference::of(name) else { return Ok(false) };
        let asked = self.manifest(&reference, reference.version);
        let Some(manifest) = tokio::time::timeout(PATIENCE, asked).await.map_err(|_| Error::Silent)?? else {
            return Ok(false);
        };
        let known = self.containerd.image(name).await?;
        if known.is_some_and(|known| {
            known.source == Some(Source::Server) && known.target.digest == manifest.target.digest
        }) {
            return Ok(true);
        }
        let mut span = ferry_trace::span("kubelet.bring");
        span.set("image", name);
        let lease = self.containerd.lease().await?;
        let target = manifest.target.clone();
        let brought = async {
            self.copy(&reference, manifest, &lease, MAX_LEVELS, &mut BTreeSet::new()).await?;
            Ok(self.containerd.name(name, target, Source::Server, &lease).await?)
        };
        let brought = span.in_scope(brought).await;
        self.containerd.release(lease).await;
        brought.map(|()| true)
    }

    /// Children before parents: a blob is kept for the sake of the one that names it. Archives that users load make up the
    /// indexes: each manifest is copied once, however many name it, and only so many levels of them.
    async fn copy(
        &self,
        reference: &Reference<'_>,
        manifest: Manifest,
        lease: &Lease,
        levels: usize,
        copied: &mut BTreeSet<String>,
    ) -> Result<(), Error> {
        let unclear = |what: &str| Error::Unclear { what: what.to_string() };
        let document: Value = serde_json::from_slice(&manifest.data).map_err(|_| unclear("manifest"))?;
        let mut children = Vec::new();
        let below = of_this_machine(&document).ok_or_else(|| unclear("index"))?;
        let levels = levels.checked_sub(1).ok_or_else(|| unclear("index"))?;
        for digest in below {
            if copied.insert(digest.to_string()) {
                let child = self.manifest(reference, digest).await?;
                let child = child.ok_or_else(|| unclear("index"))?;
                Box::pin(self.copy(reference, child, lease, levels, copied)).await?;
            }
            children.push(digest.to_string());
        }
        let layers = document["layers"].as_array().into_iter().flatten();
        for descriptor in layers.chain(document.get("config")) {
            let (Some(digest), Some(size)) = (descriptor["digest"].as_str(), descriptor["size"].as_u64())
            else {
                return Err(unclear("manifest"));
            };
            if !is_digest(digest) {
                return Err(unclear("manifest"));
            }
            if self.containerd.size(digest).await?.is_none() {
                self.blob(reference, digest, size, lease).await?;
            }
            children.push(digest.to_string());
        }
        let content =
            Content { digest: &manifest.target.digest, size: manifest.target.size, children: &children };
        let data = futures::stream::iter([manifest.data]);
        Ok(self.containerd.write(content, data, lease).await?)
    }

    async fn blob(
        &self,
        reference: &Reference<'_>,
        digest: &str,
        size: u64,
        lease: &Lease,
    ) -> Result<(), Error> {
        let asked = self.ask(reference, "blobs", digest);
        let response = tokio::time::timeout(STALLED, asked).await.map_err(|_| Error::Silent)??;
        let Some(response) = response else {
            return Err(Error::Refused { what: digest.to_string(), status: StatusCode::NOT_FOUND });
        };
        let frames = response.into_body().into_data_stream();
        // What ends early lacks bytes, and containerd refuses it.
        let pieces = futures::stream::unfold(frames.boxed(), |mut frames| async {
            let next = tokio::time::timeout(STALLED, frames.next()).await.ok()??;
            let piece = next.inspect_err(|error| tracing::warn!(%error, "the server's blob ends early"));
            Some((piece.ok()?, frames))
        });
        let content = Content { digest, size, children: &[] };
        Ok(self.containerd.write(content, pieces, lease).await?)
    }

    async fn manifest(&self, reference: &Reference<'_>, version: &str) -> Result<Option<Manifest>, Error> {
        let Some(response) = self.ask(reference, "manifests", version).await? else { return Ok(None) };
        let unclear = || Error::Unclear { what: "manifest".to_string() };
        let (head, body) = response.into_parts();
        let header = |name| head.headers.get(name).and_then(|value| value.to_str().ok());
        let media_type = header(CONTENT_TYPE).ok_or_else(unclear)?.to_string();
        let length = header(CONTENT_LENGTH).and_then(|text| text.parse::<usize>().ok());
        if length.is_none_or(|length| length > MAX_MANIFEST) {
            return Err(unclear());
        }
        let data = http_body_util::Limited::new(body, MAX_MANIFEST);
        let data = data.collect().await.map_err(|_| unclear())?.to_bytes();
        let own = digest(&data);
        if is_digest(version) && own != version {
            return Err(unclear());
        }
        Ok(Some(Manifest { target: Target { media_type, digest: own, size: data.len() as u64 }, data }))
    }

    /// `None` where the server has no such thing, or is a server that has no images at all.
    async fn ask(
        &self,
        reference: &Reference<'_>,
        kind: &str,
        version: &str,
    ) -> Result<Option<Response<Body>>, Error> {
        let registry = utf8_percent_encode(reference.registry, NON_ALPHANUMERIC);
        let path = format!("{PATH}/v2/{}/{kind}/{version}?ns={registry}", reference.repository);
        let response = self.server.send(Request::get(path).body(Body::empty())?).await?;
        match response.status() {
            StatusCode::OK => Ok(Some(response)),
            StatusCode::NOT_FOUND => Ok(None),
            status => Err(Error::Refused { what: format!("{kind}/{version}"), status }),
        }
    }
}

/// Of an index, what can run here. `None` where something is named by anything but its content: a tag could lead back to the
/// index itself.
fn of_this_machine(index: &Value) -> Option<Vec<&str>> {
    let manifests = index["manifests"].as_array().into_iter().flatten();
    let runs_here = |descriptor: &&Value| match descriptor.get("platform") {
        None => true,
        Some(platform) => platform["os"] == "linux" && platform["architecture"] == architecture(),
    };
    let digests = manifests.filter(runs_here).map(|descriptor| descriptor["digest"].as_str());
    digests.map(|digest| digest.filter(|digest| is_digest(digest))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn of_an_index_only_this_machines_manifests_are_brought() {
        let [a, b, c, d] = ["a", "b", "c", "d"].map(|data| digest(data.as_bytes()));
        let index = json!({"manifests": [
            {"digest": a, "platform": {"os": "linux", "architecture": architecture()}},
            {"digest": b, "platform": {"os": "linux", "architecture": "mips"}},
            {"digest": c, "platform": {"os": "unknown", "architecture": "unknown"}},
            {"digest": d},
        ]});
        assert_eq!(of_this_machine(&index), Some(vec![a.as_str(), &d]));
        assert_eq!(of_this_machine(&json!({"layers": []})), Some(Vec::new()));
    }

    #[test]
    fn indexes_with_tags_are_refused() {
        for index in [json!({"digest": "latest"}), json!({}), json!({"digest": "sha256:../../x"})] {
            assert_eq!(of_this_machine(&json!({"manifests": [index]})), None);
        }
    }
}
