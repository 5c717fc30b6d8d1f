//! Discovery and OpenAPI documents: created from the rows on first use, and cached as bytes.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use ferry_api::{GroupVersionKind, Kind, Schema, Status, discovery, openapi, write};
use http::HeaderMap;
use http::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE, ETAG, IF_NONE_MATCH, VARY};
use parking_lot::Mutex;
use sha2::{Digest, Sha256};

use crate::aggregation::Remote;
use crate::api::Api;
use crate::body::{Body, Response};
use crate::negotiate::JSON;
use crate::request::Request;
use crate::{respond, verbs};

pub struct Documents {
    groups: discovery::Groups,
    openapi: openapi::Documents,
    /// Where other API servers have their documents of OpenAPI v3, by path.
    remote_v3: BTreeMap<String, String>,
    made: Mutex<HashMap<String, Document>>,
}

#[derive(Clone)]
pub struct Document {
    bytes: Bytes,
    content_type: &'static str,
    /// In quotes, as the header wants it.
    etag: String,
}

const OPENAPI_V2_PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";
/// What client-go asks for, though Go itself cannot read it when it is the answer's type.
const OPENAPI_V2_PROTOBUF_ASKED: &str = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";
const AGGREGATED_V2: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
const AGGREGATED_V2BETA1: &str = "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList";

impl Documents {
    /// What was made before of groups and versions that are the same is kept.
    pub fn new(rows: Vec<Arc<Kind>>, remotes: &[Arc<Remote>], previous: Option<&Documents>) -> Documents {
        let described = remotes.iter().map(|remote| remote.discovery()).collect();
        let groups = previous.map(|previous| &previous.groups);
        let groups = discovery::Groups::after(groups, &rows, described);
        let remote_v2 = remotes.iter().filter_map(|remote| remote.openapi_v2()).collect();
        let openapi = previous.map(|previous| &previous.openapi);
        Documents {
            groups,
            openapi: openapi::Documents::after(openapi, rows, remote_v2),
            remote_v3: remotes.iter().filter_map(|remote| remote.openapi_v3()).collect(),
            made: Mutex::default(),
        }
    }

    /// The index of OpenAPI v3: the hash of every document, so each is made once for it.
    pub fn openapi_v3_index(&self) -> Option<Document> {
        self.document("openapi/v3", JSON, || Some(self.openapi.v3_index(&self.remote_v3)))
    }

    fn document(
        &self,
        name: &str,
        content_type: &'static str,
        make: impl FnOnce() -> Option<Vec<u8>>,
    ) -> Option<Document> {
        if let Some(document) = self.made.lock().get(name) {
            return Some(document.clone());
        }
        let document = Document::new(make()?, content_type);
        self.made.lock().insert(name.to_string(), document.clone());
        Some(document)
    }
}

impl Document {
    fn new(bytes: Vec<u8>, content_type: &'static str) -> Document {
        let hash: String = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02X}")).collect();
        Document { bytes: bytes.into(), content_type, etag: format!("\"{hash}\"") }
    }

    fn answer(&self, request: &Request) -> Response {
        answer_bytes(self.bytes.clone(), self.content_type, &self.etag, request)
    }
}

fn answer_bytes(bytes: Bytes, content_type: &str, etag: &str, request: &Request) -> Response {
    let mut builder = http::Response::builder().header(ETAG, etag).header(VARY, "Accept");
    if request.header(IF_NONE_MATCH.as_str()) == etag {
        return respond::finish(builder.status(304), Body::Empty);
    }
    // A document whose hash the client names never changes.
    if !request.query.text("hash").is_empty() {
        builder = builder.header(CACHE_CONTROL, "public, immutable");
    }
    respond::finish(builder.header(CONTENT_TYPE, content_type), bytes.into())
}

pub fn answer(api: &Api, request: &Request, parts: &[&str]) -> Result<Response, Status> {
    let served = api.served();
    let documents = &served.documents;
    let groups = &documents.groups;
    let aggregated = aggregated_form(&request.headers);
    let plain = |name: &str, make: &dyn Fn() -> Option<Vec<u8>>| documents.document(name, JSON, make);
    let document = match (parts, aggregated) {
        (["api"], Some(form)) => documents
            .document(&format!("api {form}"), form, || Some(groups.aggregated(true, version_of(form)))),
        (["apis"], Some(form)) => documents
            .document(&format!("apis {form}"), form, || Some(groups.aggregated(false, version_of(form)))),
        (["api"], None) => plain("api", &|| in_order(discovery::api_versions(&api.advertised))),
        (["apis"], None) => plain("apis", &|| in_order(groups.list())),
        (["apis", group], _) => plain(&parts.join("/"), &|| in_order(groups.group(group)?)),
        (["api", version], _) => plain(&parts.join("/"), &|| in_order(groups.resources("", version)?)),
        (["apis", group, version], _) => {
            plain(&parts.join("/"), &|| in_order(groups.resources(group, version)?))
        }
        (["openapi", "v2"], _) => return openapi_v2(documents, request),
        (["openapi", "v3"], _) => documents.openapi_v3_index(),
        (["openapi", "v3", path @ ..], _) => {
            if !accepts_json(&request.headers) {
                return Err(Status::not_acceptable(&[JSON]));
            }
            return Ok(openapi_document(documents.openapi.v3(&path.join("/")), request));
        }
        _ => None,
    };
    match (document, parts) {
        (Some(document), _) => Ok(document.answer(request)),
        (None, ["apis", group, ..]) if served.is_custom(group) => Ok(respond::page_not_found()),
        (None, _) => Err(Status::no_such_path()),
    }
}

/// A document of discovery, with its fields in upstream's order.
fn in_order(document: serde_json::Value) -> Option<Vec<u8>> {
    let text = |field: &str| document.get(field).and_then(serde_json::Value::as_str);
    let gvk = GroupVersionKind::from_api_version(text("apiVersion").unwrap_or("v1"), text("kind")?);
    let schema = Schema::builtin(&gvk)?;
    let mut out = Vec::new();
    write::in_declared_order(&mut out, &document, &schema);
    Some(out)
}

fn version_of(form: &str) -> discovery::Aggregated {
    if form == AGGREGATED_V2 { discovery::Aggregated::V2 } else { discovery::Aggregated::V2Beta1 }
}

fn openapi_v2(documents: &Documents, request: &Request) -> Result<Response, Status> {
    let accept = accept(&request.headers);
    // client-go asks for the protobuf form only.
    if [OPENAPI_V2_PROTOBUF, OPENAPI_V2_PROTOBUF_ASKED].iter().any(|form| accept.contains(form)) {
        return Ok(openapi_v2_in(documents, openapi::Form::Protobuf, OPENAPI_V2_PROTOBUF, request));
    }
    if !accepts_json(&request.headers) {
        return Err(Status::not_acceptable(&[JSON, OPENAPI_V2_PROTOBUF_ASKED]));
    }
    Ok(openapi_v2_in(documents, openapi::Form::Json, JSON, request))
}

fn openapi_v2_in(
    documents: &Documents,
    form: openapi::Form,
    content_type: &str,
    request: &Request,
) -> Response {
    let etag = format!("\"{}\"", documents.openapi.v2_hash(form));
    // Whoever has it already costs no document.
    let bytes = match request.header(IF_NONE_MATCH.as_str()) == etag {
        true => Bytes::new(),
        false => verbs::aside_now(|| documents.openapi.v2(form)).into(),
    };
    answer_bytes(bytes, content_type, &etag, request)
}

fn openapi_document(document: Option<&openapi::Document>, request: &Request) -> Response {
    match document {
        Some(document) => {
            answer_bytes(document.bytes.clone().into(), JSON, &format!("\"{}\"", document.hash), request)
        }
        None => respond::status(&Status::no_such_path()),
    }
}

fn accept(headers: &HeaderMap) -> String {
    headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok()).collect::<Vec<_>>().join(",")
}

fn accepts_json(headers: &HeaderMap) -> bool {
    let accept = accept(headers);
    accept.is_empty()
        || accept.split(',').any(|clause| {
            matches!(
                clause.split(';').next().map(str::trim),
                Some("application/json" | "*/*" | "application/*")
            )
        })
}

/// Clients since 1.26 ask for all groups in one document.
fn aggregated_form(headers: &HeaderMap) -> Option<&'static str> {
    let accept = accept(headers);
    for clause in accept.split(',') {
        if !clause.trim().starts_with(JSON) {
            continue;
        }
        if clause.contains("as=APIGroupDiscoveryList") && clause.contains("g=apidiscovery.k8s.io") {
            return match () {
                () if clause.contains("v=v2beta1") => Some(AGGREGATED_V2BETA1),
                () if clause.contains("v=v2") => Some(AGGREGATED_V2),
                () => continue,
            };
        }
        return None;
    }
    None
}
