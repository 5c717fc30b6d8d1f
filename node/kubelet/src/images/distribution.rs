//! The images that were brought in by hand, served as a registry serves its
//! own (the OCI distribution specification, reading only), for other nodes.
//!
//! ```text
//! /v2/                                  it is a registry
//! /v2/REPOSITORY/manifests/TAG|DIGEST
//! /v2/REPOSITORY/blobs/DIGEST           whole, or the bytes that `Range` names
//! ```
//!
//! It stands for every registry, and is told which one is meant as containerd
//! tells its mirrors: `?ns=docker.io`. Nothing but loaded images is given out:
//! what a pod's credentials opened stays with those who have them.

use std::collections::BTreeSet;

use bytes::Bytes;
use futures::stream::{BoxStream, StreamExt};
use http::header::{ACCEPT_RANGES, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE};
use http::{Method, Response, StatusCode};
use serde_json::{Value, json};

use super::containerd::{Client, Error, Named};
use super::oci::{Reference, is_digest};

/// Manifests are read as a whole; registries take none that is longer.
const MAX_MANIFEST: u64 = 4 << 20;
const DOCKER_HUB: &str = "docker.io";

/// What a client asks for.
pub struct Question {
    pub method: Method,
    /// From `/v2/` on.
    pub path: String,
    /// The registry that is meant.
    pub registry: Option<String>,
    pub range: Option<String>,
}

/// What is answered: at once, or as containerd reads it.
pub enum BlobBody {
    Bytes(Bytes),
    Stream(BoxStream<'static, Bytes>),
}

#[derive(Clone)]
pub struct Registry {
    containerd: Client,
}

impl Registry {
    pub fn new(containerd: Client) -> Self {
        Self { containerd }
    }

    pub async fn answer(&self, question: &Question) -> Response<BlobBody> {
        let asked = match Asked::parse(&question.path) {
            Some(asked) => asked,
            None => return refusal(StatusCode::NOT_FOUND, "NAME_UNKNOWN", "there is no such path"),
        };
        match self.find(question, asked).await {
            Ok(response) => response,
            Err(error) => {
                tracing::warn!(path = question.path, %error, "cannot serve a loaded image");
                refusal(StatusCode::INTERNAL_SERVER_ERROR, "UNKNOWN", &error.to_string())
            }
        }
    }

    async fn find(&self, question: &Question, asked: Asked<'_>) -> Result<Response<BlobBody>, Error> {
        let (repository, digest, is_blob) = match asked {
            Asked::Version => return Ok(json_answer(StatusCode::OK, &json!({}))),
            Asked::Manifest { repository, version } => (repository, version, false),
            Asked::Blob { repository, digest } => (repository, digest, true),
        };
        let registry = question.registry.as_deref().unwrap_or(DOCKER_HUB);
        let loaded = self.containerd.loaded().await?;
        let of_repository = loaded.iter().filter(|image| is_of(image, registry, repository));
        if !is_blob && !is_digest(digest) {
            let tagged = of_repository.clone().find(|image| {
                Reference::of(&image.name).is_some_and(|reference| reference.version == digest)
            });
            return match tagged {
                Some(image) => self.manifest(&image.target.media_type, &image.target.digest).await,
                None => Ok(unknown(is_blob)),
            };
        }
        for image in of_repository {
            if let Some(part) = self.part(image, digest).await? {
                return match is_blob {
                    true => self.blob(digest, question).await,
                    false => self.manifest(&part, digest).await,
                };
            }
        }
        Ok(unknown(is_blob))
    }

    /// The media type of a blob, if the image is made of it.
    async fn part(&self, image: &Named, digest: &str) -> Result<Option<String>, Error> {
        let mut seen = BTreeSet::new();
        let mut left = vec![(image.target.media_type.clone(), image.target.digest.clone())];
        while let Some((media_type, own)) = left.pop() {
            if own == digest {
                return Ok(Some(media_type));
            }
            if !names_others(&media_type) || !seen.insert(own.clone()) {
                continue;
            }
            // other platforms' manifests may be absent
            let Some(text) = self.whole(&own).await? else { continue };
            left.extend(descriptors(&text));
        }
        Ok(None)
    }

    async fn whole(&self, digest: &str) -> Result<Option<Vec<u8>>, Error> {
        let Some(size) = self.containerd.size(digest).await?.filter(|size| *size <= MAX_MANIFEST) else {
            return Ok(None);
        };
        let mut pieces = std::pin::pin!(self.containerd.read(digest, 0, size).await?);
        let mut text = Vec::new();
        while let Some(piece) = pieces.next().await {
            text.extend_from_slice(&piece?);
        }
        Ok(Some(text))
    }

    async fn manifest(&self, media_type: &str, digest: &str) -> Result<Response<BlobBody>, Error> {
        let Some(text) = self.whole(digest).await? else { return Ok(unknown(false)) };
        let head = Response::builder()
            .header(CONTENT_TYPE, media_type)
            .header(CONTENT_LENGTH, text.len())
            .header("docker-content-digest", digest);
        Ok(finish(head, BlobBody::Bytes(text.into())))
    }

    async fn blob(&self, digest: &str, question: &Question) -> Result<Response<BlobBody>, Error> {
        let Some(size) = self.containerd.size(digest).await? else { return Ok(unknown(true)) };
        let head = Response::builder()
            .header(CONTENT_TYPE, "application/octet-stream")
            .header(ACCEPT_RANGES, "bytes")
            .header("docker-content-digest", digest);
        let (head, from, length) = match question.range.as_deref().map(|range| span_of(range, size)) {
            None | Some(Wanted::Whole) => (head, 0, size),
            Some(Wanted::Part { from, to }) => {
                let told = format!("bytes {from}-{to}/{size}");
                (head.status(StatusCode::PARTIAL_CONTENT).header(CONTENT_RANGE, told), from, to - from + 1)
            }
            Some(Wanted::Nothing) => {
                let head = Response::builder()
                    .status(StatusCode::RANGE_NOT_SATISFIABLE)
                    .header(CONTENT_RANGE, format!("bytes */{size}"));
                return Ok(finish(head, BlobBody::Bytes(Bytes::new())));
            }
        };
        let head = head.header(CONTENT_LENGTH, length);
        if question.method == Method::HEAD || length == 0 {
            return Ok(finish(head, BlobBody::Bytes(Bytes::new())));
        }
        let pieces = self.containerd.read(digest, from, length).await?;
        // One that ends early is shorter than its head says, which the client sees.
        let pieces = pieces.scan((), |(), piece| std::future::ready(piece.ok()));
        Ok(finish(head, BlobBody::Stream(pieces.boxed())))
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Asked<'a> {
    Version,
    Manifest { repository: &'a str, version: &'a str },
    Blob { repository: &'a str, digest: &'a str },
}

impl Asked<'_> {
    fn parse(path: &str) -> Option<Asked<'_>> {
        let rest = path.strip_prefix("/v2")?;
        if matches!(rest, "" | "/") {
            return Some(Asked::Version);
        }
        let rest = rest.strip_prefix('/')?;
        // a repository may have any number of parts
        let (before, last) = rest.rsplit_once('/')?;
        let (repository, kind) = before.rsplit_once('/')?;
        if repository.is_empty() || last.is_empty() {
            return None;
        }
        match kind {
            "manifests" => Some(Asked::Manifest { repository, version: last }),
            "blobs" if is_digest(last) => Some(Asked::Blob { repository, digest: last }),
            _ => None,
        }
    }
}

fn is_of(image: &Named, registry: &str, repository: &str) -> bool {
    Reference::of(&image.name)
        .is_some_and(|found| found.registry == registry && found.repository == repository)
}

/// Indexes and manifests, of the OCI's making and of Docker's.
fn names_others(media_type: &str) -> bool {
    media_type.contains("manifest") || media_type.contains("image.index")
}

/// The type and digest of everything a manifest or index names.
pub(super) fn descriptors(text: &[u8]) -> Vec<(String, String)> {
    let document: Value = serde_json::from_slice(text).unwrap_or(Value::Null);
    let lists = ["manifests", "layers"];
    let listed = lists.into_iter().flat_map(|key| document[key].as_array().into_iter().flatten());
    let named = listed.chain(document.get("config")).filter_map(|descriptor| {
        Some((descriptor["mediaType"].as_str()?.to_string(), descriptor["digest"].as_str()?.to_string()))
    });
    named.collect()
}

#[derive(Debug, PartialEq, Eq)]
enum Wanted {
    Whole,
    Part { from: u64, to: u64 },
    Nothing,
}

/// The bytes that a `Range` header names. One that is no range of bytes, or several, is as if it were not there
/// (RFC 9110, 14.2).
fn span_of(range: &str, size: u64) -> Wanted {
    let Some((first, last)) = range.strip_prefix("bytes=").and_then(|range| range.split_once('-')) else {
        return Wanted::Whole;
    };
    let (first, last) = (first.trim(), last.trim());
    let ends = match (first.parse::<u64>(), last.parse::<u64>()) {
        (Ok(from), Ok(to)) if from <= to => Some((from, to)),
        (Ok(from), Err(_)) if last.is_empty() => Some((from, u64::MAX)),
        // the last so many
        (Err(_), Ok(count)) if first.is_empty() => Some((size.saturating_sub(count), u64::MAX)),
        _ => None,
    };
    match ends {
        None => Wanted::Whole,
        Some((from, _)) if from >= size => Wanted::Nothing,
        Some((from, to)) => Wanted::Part { from, to: to.min(size - 1) },
    }
}

fn unknown(is_blob: bool) -> Response<BlobBody> {
    let code = if is_blob { "BLOB_UNKNOWN" } else { "MANIFEST_UNKNOWN" };
    refusal(StatusCode::NOT_FOUND, code, "no image of that name was loaded here")
}

fn refusal(status: StatusCode, code: &str, message: &str) -> Response<BlobBody> {
    json_answer(status, &json!({"errors": [{"code": code, "message": message}]}))
}

fn json_answer(status: StatusCode, value: &Value) -> Response<BlobBody> {
    let text = Bytes::from(value.to_string());
    let head = Response::builder()
        .status(status)
        .header(CONTENT_TYPE, "application/json")
        .header(CONTENT_LENGTH, text.len())
        .header("docker-distribution-api-version", "registry/2.0");
    finish(head, BlobBody::Bytes(text))
}

fn finish(head: http::response::Builder, answer: BlobBody) -> Response<BlobBody> {
    // what is in an image's record may not fit into a header
    head.body(answer).unwrap_or_else(|error| {
        tracing::warn!(%error, "cannot build the response for an image");
        let mut response = Response::new(BlobBody::Bytes(Bytes::new()));
        *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
        response
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_read_as_the_specification_has_them() {
        let digest = format!("sha256:{}", "a".repeat(64));
        let blob = format!("/v2/a/b/c/blobs/{digest}");
        for (path, expected) in [
            ("/v2/", Some(Asked::Version)),
            ("/v2", Some(Asked::Version)),
            (
                "/v2/library/nginx/manifests/latest",
                Some(Asked::Manifest { repository: "library/nginx", version: "latest" }),
            ),
            (&blob, Some(Asked::Blob { repository: "a/b/c", digest: &digest })),
            ("/v2/a/blobs/latest", None),
            ("/v2//manifests/1", None),
            ("/v2/a/tags/list", None),
            ("/v1/a", None),
            ("/v2x", None),
        ] {
            assert_eq!(Asked::parse(path), expected, "{path}");
        }
    }

    #[test]
    fn ranges_are_within_the_blob() {
        for (range, expected) in [
            ("bytes=0-", Wanted::Part { from: 0, to: 9 }),
            ("bytes=4-5", Wanted::Part { from: 4, to: 5 }),
            ("bytes=4-500", Wanted::Part { from: 4, to: 9 }),
            ("bytes=-3", Wanted::Part { from: 7, to: 9 }),
            ("bytes=-30", Wanted::Part { from: 0, to: 9 }),
            ("bytes=10-", Wanted::Nothing),
            ("bytes=5-4", Wanted::Whole),
            ("bytes=1-2,4-5", Wanted::Whole),
            ("lines=1-2", Wanted::Whole),
        ] {
            assert_eq!(span_of(range, 10), expected, "{range}");
        }
        assert_eq!(span_of("bytes=0-", 0), Wanted::Nothing);
    }
}
