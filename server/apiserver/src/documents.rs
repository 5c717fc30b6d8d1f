//! Discovery and OpenAPI: documents made from the rows once, when somebody asks, and kept as bytes.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use ferry_api::{Kind, Status, discovery};
use http::HeaderMap;
use http::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE, ETAG, IF_NONE_MATCH, VARY};
use parking_lot::Mutex;
use sha2::{Digest, Sha256};

use crate::api::Api;
use crate::body::{Body, Response};
use crate::negotiate::JSON;
use crate::request::Request;
use crate::respond;

pub struct Documents {
    rows: Vec<Arc<Kind>>,
    made: Mutex<HashMap<String, Document>>,
    v3_index: OnceLock<Document>,
}

#[derive(Clone)]
struct Document {
    bytes: Bytes,
    content_type: &'static str,
    /// In quotes, as the header wants it.
    etag: String,
}

const AGGREGATED_V2: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
const AGGREGATED_V2BETA1: &str = "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList";

impl Documents {
    pub fn new(rows: &[Arc<Kind>]) -> Documents {
        Documents { rows: rows.to_vec(), made: Mutex::default(), v3_index: OnceLock::new() }
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

    /// The OpenAPI v3 document of one group and version (`api/v1`, `apis/apps/v1`).
    fn v3(&self, path: &str) -> Option<Document> {
        self.document(&format!("openapi/v3/{path}"), JSON, || {
            let _ = path;
            None::<Vec<u8>>
        })
    }

    fn v3_index(&self) -> Document {
        self.v3_index
            .get_or_init(|| {
                let index = b"{\"paths\":{}}".to_vec();
                Document::new(index, JSON)
            })
            .clone()
    }
}

impl Document {
    fn new(bytes: Vec<u8>, content_type: &'static str) -> Document {
        let hash: String = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02X}")).collect();
        Document { bytes: bytes.into(), content_type, etag: format!("\"{hash}\"") }
    }

    fn answer(&self, request: &Request) -> Response {
        let mut builder = http::Response::builder().header(ETAG, &self.etag).header(VARY, "Accept");
        if request.header(IF_NONE_MATCH.as_str()) == self.etag {
            return respond::finish(builder.status(304), Body::Empty);
        }
        // A document whose hash the client names never changes.
        if !request.query.text("hash").is_empty() {
            builder = builder.header(CACHE_CONTROL, "public, immutable");
        }
        respond::finish(builder.header(CONTENT_TYPE, self.content_type), self.bytes.clone().into())
    }
}

pub fn answer(api: &Api, request: &Request, parts: &[&str]) -> Result<Response, Status> {
    let served = api.served();
    let documents = &served.documents;
    let rows = &documents.rows;
    let aggregated = aggregated_form(&request.headers);
    let plain = |name: &str, make: &dyn Fn() -> Option<Vec<u8>>| documents.document(name, JSON, make);
    let document = match (parts, aggregated) {
        (["api"], Some(form)) => documents.document(&format!("api {form}"), form, || {
            bytes(discovery::aggregated(rows, true, version_of(form), Vec::new()))
        }),
        (["apis"], Some(form)) => documents.document(&format!("apis {form}"), form, || {
            bytes(discovery::aggregated(rows, false, version_of(form), Vec::new()))
        }),
        (["api"], None) => plain("api", &|| bytes(discovery::api_versions(&api.advertised))),
        (["apis"], None) => plain("apis", &|| bytes(discovery::api_group_list(rows))),
        (["apis", group], _) => plain(&parts.join("/"), &|| bytes(discovery::api_group(rows, group)?)),
        (["api", version], _) => {
            plain(&parts.join("/"), &|| bytes(discovery::api_resource_list(rows, "", version)?))
        }
        (["apis", group, version], _) => {
            plain(&parts.join("/"), &|| bytes(discovery::api_resource_list(rows, group, version)?))
        }
        (["openapi", "v2"], _) => return openapi_v2(documents, request),
        (["openapi", "v3"], _) => Some(documents.v3_index()),
        (["openapi", "v3", path @ ..], _) => {
            if !accepts_json(&request.headers) {
                return Err(Status::not_acceptable(&[JSON]));
            }
            documents.v3(&path.join("/"))
        }
        _ => None,
    };
    document.map(|document| document.answer(request)).ok_or_else(Status::no_such_path)
}

fn bytes(value: serde_json::Value) -> Option<Vec<u8>> {
    Some(value.to_string().into_bytes())
}

fn version_of(form: &str) -> discovery::Aggregated {
    if form == AGGREGATED_V2 { discovery::Aggregated::V2 } else { discovery::Aggregated::V2Beta1 }
}

fn openapi_v2(documents: &Documents, request: &Request) -> Result<Response, Status> {
    if !accepts_json(&request.headers) {
        return Err(Status::not_acceptable(&[JSON]));
    }
    let document = documents.document("openapi/v2", JSON, || Some(b"{}".to_vec()));
    document.map(|document| document.answer(request)).ok_or_else(Status::no_such_path)
}

fn accepts_json(headers: &HeaderMap) -> bool {
    let accept =
        headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok()).collect::<Vec<_>>().join(",");
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
    let accept =
        headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok()).collect::<Vec<_>>().join(",");
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
