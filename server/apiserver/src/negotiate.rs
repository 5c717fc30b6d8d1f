//! Content negotiation: the media type of the response, and that of the request's body.

use ferry_api::Status;
use http::HeaderMap;
use http::header::{ACCEPT, CONTENT_TYPE};

pub const JSON: &str = "application/json";
pub const YAML: &str = "application/yaml";
pub const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

/// How an object is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    Json,
    Yaml,
    Protobuf,
}

/// What is written of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum View {
    Whole,
    Table,
    PartialMetadata,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MediaType {
    pub encoding: Encoding,
    pub view: View,
    pub pretty: bool,
}

impl MediaType {
    pub const JSON: MediaType = MediaType { encoding: Encoding::Json, view: View::Whole, pretty: false };

    pub fn content_type(self) -> &'static str {
        match self.encoding {
            Encoding::Json => JSON,
            Encoding::Yaml => YAML,
            Encoding::Protobuf => PROTOBUF,
        }
    }

    pub fn watch_content_type(self) -> &'static str {
        match self.encoding {
            Encoding::Protobuf => "application/vnd.kubernetes.protobuf;stream=watch",
            _ => JSON,
        }
    }
}

/// The first acceptable media type. Like upstream it takes clauses in their order and ignores weights.
pub fn negotiate(headers: &HeaderMap, views: &[View]) -> Result<MediaType, Status> {
    negotiate_among(headers, views, &[Encoding::Json, Encoding::Yaml, Encoding::Protobuf])
}

/// The same where whole objects can be written in some encodings only. Tables and metadata can be in all.
pub fn negotiate_among(headers: &HeaderMap, views: &[View], whole: &[Encoding]) -> Result<MediaType, Status> {
    let accept =
        headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok()).collect::<Vec<_>>().join(",");
    if accept.is_empty() {
        return Ok(MediaType::JSON);
    }
    let mut representable = false;
    for clause in accept.split(',') {
        let mut parts = clause.split(';').map(str::trim);
        let encoding = match parts.next().unwrap_or("") {
            "application/json" | "*/*" | "application/*" | "" => Encoding::Json,
            "application/yaml" => Encoding::Yaml,
            "application/vnd.kubernetes.protobuf" => Encoding::Protobuf,
            _ => continue,
        };
        representable = true;
        let parameters: Vec<(&str, &str)> = parts.filter_map(|part| part.split_once('=')).collect();
        let parameter = |name: &str| parameters.iter().find(|(key, _)| *key == name).map(|(_, value)| *value);
        let view = match (parameter("as"), parameter("g"), parameter("v")) {
            (None, _, _) => View::Whole,
            (Some("Table"), Some("meta.k8s.io"), Some("v1" | "v1beta1")) => View::Table,
            (
                Some("PartialObjectMetadata" | "PartialObjectMetadataList"),
                Some("meta.k8s.io"),
                Some("v1" | "v1beta1"),
            ) => View::PartialMetadata,
            _ => continue,
        };
        if views.contains(&view) && (view != View::Whole || whole.contains(&encoding)) {
            return Ok(MediaType { encoding, view, pretty: parameter("pretty") == Some("1") });
        }
    }
    let ours = [JSON, YAML, PROTOBUF];
    // Upstream's routes of built-in kinds know what they produce; for custom ones it offers what other kinds have.
    let is_routed = whole.contains(&Encoding::Protobuf);
    Err(match representable || !is_routed {
        true => Status::not_acceptable(&ours),
        false => Status::no_representation(&ours),
    })
}

/// The form of a request's body; absent means JSON.
pub fn body_encoding(headers: &HeaderMap) -> Result<Encoding, Status> {
    let content_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or(JSON);
    match content_type.split(';').next().unwrap_or("").trim() {
        "application/json" | "" => Ok(Encoding::Json),
        "application/yaml" => Ok(Encoding::Yaml),
        "application/vnd.kubernetes.protobuf" => Ok(Encoding::Protobuf),
        _ => Err(Status::unsupported_media_type(&[JSON, YAML, PROTOBUF])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(accept: &str, expected: Option<(Encoding, View)>) {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, accept.parse().expect("a header"));
        let found = negotiate(&headers, &[View::Whole, View::Table, View::PartialMetadata]).ok();
        assert_eq!(found.map(|wanted| (wanted.encoding, wanted.view)), expected, "{accept}");
    }

    #[test]
    fn the_first_acceptable_clause_wins() {
        check("application/json", Some((Encoding::Json, View::Whole)));
        check(
            "application/json;as=Table;v=v1;g=meta.k8s.io,application/json",
            Some((Encoding::Json, View::Table)),
        );
        check(
            "application/vnd.kubernetes.protobuf,application/json",
            Some((Encoding::Protobuf, View::Whole)),
        );
        check("text/html, */*", Some((Encoding::Json, View::Whole)));
        check("application/json;as=Table;v=v2;g=meta.k8s.io", None);
        check("image/png", None);
    }
}
