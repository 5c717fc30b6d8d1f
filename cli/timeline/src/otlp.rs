//! Export to an OpenTelemetry collector: OTLP over HTTP in its JSON form (`POST /v1/traces`).
//!
//! The JSON mapping of the protocol's messages is small and stable, so no SDK is carried along for it. Identifiers are
//! hexadecimal there and 64-bit integers are strings.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use ferry_trace::{Record, SpanId, TraceId, Value};
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value as Json, json};

use crate::error::Error;

const PATIENCE: Duration = Duration::from_secs(10);
/// What a collector takes in one piece by default is 4 MB.
const BATCH: usize = 2_000;

/// Revisions that a live export knows the writers of: causes are seldom older.
const MAX_WRITERS: usize = 100_000;

/// A collector that is sent to once or again and again.
pub struct Collector {
    url: String,
    endpoint: http::Uri,
    client: Client<HttpConnector, Full<Bytes>>,
    writers: BTreeMap<i64, (TraceId, SpanId)>,
}

impl Collector {
    pub fn at(url: &str) -> Result<Collector, Error> {
        let endpoint = endpoint(url).map_err(|problem| Error::Collector { url: url.to_owned(), problem })?;
        let client = Client::builder(TokioExecutor::new()).build_http();
        Ok(Collector { url: url.to_owned(), endpoint, client, writers: BTreeMap::new() })
    }

    /// Sends all records, in batches; says how many.
    pub async fn send(&mut self, records: &[Record]) -> Result<usize, Error> {
        self.writers.extend(writers(records));
        while self.writers.len() > MAX_WRITERS {
            self.writers.pop_first();
        }
        for batch in records.chunks(BATCH) {
            self.send_batch(batch).await?;
        }
        Ok(records.len())
    }

    async fn send_batch(&self, batch: &[Record]) -> Result<(), Error> {
        let failed = |problem: String| Error::Collector { url: self.url.clone(), problem };
        let body = Bytes::from(export(batch, &self.writers).to_string());
        let request = http::Request::post(&self.endpoint)
            .header(http::header::CONTENT_TYPE, "application/json")
            .body(Full::new(body))?;
        let answer = tokio::time::timeout(PATIENCE, self.client.request(request)).await;
        let answer =
            answer.map_err(|_| failed("no answer".into()))?.map_err(|error| failed(error.to_string()))?;
        let status = answer.status();
        if !status.is_success() {
            let said = answer.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
            return Err(failed(format!("{status} {}", String::from_utf8_lossy(&said))));
        }
        Ok(())
    }
}

/// A collector's address names no path; whoever gives one means it.
fn endpoint(url: &str) -> Result<http::Uri, String> {
    let uri: http::Uri = url.parse().map_err(|error| format!("{error}"))?;
    match uri.scheme_str() {
        Some("http") => {}
        Some("https") => {
            return Err("only http:// is spoken; a collector beside this machine takes it on".into());
        }
        _ => return Err("an address like http://127.0.0.1:4318 is needed".into()),
    }
    if uri.path() != "/" {
        return Ok(uri);
    }
    format!("{}/v1/traces", url.trim_end_matches('/')).parse().map_err(|error| format!("{error}"))
}

/// Who wrote each revision: a cause is a link between traces.
fn writers(records: &[Record]) -> BTreeMap<i64, (TraceId, SpanId)> {
    records.iter().filter_map(|record| Some((record.committed?, (record.trace, record.span)))).collect()
}

/// `ExportTraceServiceRequest`, with one resource for each room of Ferry, so that a viewer colours them apart.
fn export(records: &[Record], writers: &BTreeMap<i64, (TraceId, SpanId)>) -> Json {
    let mut rooms: BTreeMap<&str, Vec<Json>> = BTreeMap::new();
    for record in records {
        let room = record.name.split('.').next().unwrap_or("ferry");
        rooms.entry(room).or_default().push(span(record, writers));
    }
    let resources = rooms.into_iter().map(|(room, spans)| {
        json!({
            "resource": { "attributes": [attribute("service.name", &format!("ferry-{room}").into())] },
            "scopeSpans": [{ "scope": { "name": "ferry" }, "spans": spans }],
        })
    });
    json!({ "resourceSpans": resources.collect::<Vec<_>>() })
}

fn span(record: &Record, writers: &BTreeMap<i64, (TraceId, SpanId)>) -> Json {
    const KIND_INTERNAL: u8 = 1;
    const STATUS_ERROR: u8 = 2;
    let mut attributes: Vec<Json> =
        record.attributes.iter().map(|(key, value)| attribute(key, value)).collect();
    let object = record.object.as_deref().map(|object| attribute("k8s.object", &object.into()));
    let revision = record.committed.map(|revision| attribute("k8s.revision", &revision.into()));
    let source = record.source.as_deref().map(|source| attribute("ferry.source", &source.into()));
    attributes.extend([object, revision, source].into_iter().flatten());
    let link = |cause: &i64| {
        let (trace, span) = writers.get(cause)?;
        Some(json!({
            "traceId": trace.to_string(),
            "spanId": span.to_string(),
            "attributes": [attribute("k8s.revision", &(*cause).into())],
        }))
    };
    let mut span = json!({
        "traceId": record.trace.to_string(),
        "spanId": record.span.to_string(),
        "name": record.name,
        "kind": KIND_INTERNAL,
        "startTimeUnixNano": record.start.to_string(),
        "endTimeUnixNano": record.end().to_string(),
        "attributes": attributes,
        "links": record.causes.iter().filter_map(link).collect::<Vec<_>>(),
    });
    if let Some(parent) = record.parent {
        span["parentSpanId"] = parent.to_string().into();
    }
    if let Some(error) = &record.error {
        span["status"] = json!({ "code": STATUS_ERROR, "message": error });
    }
    span
}

fn attribute(key: &str, value: &Value) -> Json {
    let value = match (value.as_i64(), value.as_bool()) {
        (Some(number), _) => json!({ "intValue": number.to_string() }),
        (None, Some(truth)) => json!({ "boolValue": truth }),
        (None, None) => json!({ "stringValue": value.to_string() }),
    };
    json!({ "key": key, "value": value })
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use ferry_trace::script::{COMMAND, history};

    #[test]
    fn addresses_are_completed_and_refused() {
        fn check(url: &str, expected: Result<&str, &str>) {
            let found = endpoint(url).map(|uri| uri.to_string());
            match (found, expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found, expected),
                (Err(found), Err(expected)) => assert!(found.contains(expected), "{found}"),
                (found, expected) => panic!("{url}: {found:?}, expected {expected:?}"),
            }
        }
        check("http://127.0.0.1:4318", Ok("http://127.0.0.1:4318/v1/traces"));
        check("http://127.0.0.1:4318/", Ok("http://127.0.0.1:4318/v1/traces"));
        check("http://host/otlp/v1/traces", Ok("http://host/otlp/v1/traces"));
        check("https://host", Err("http://"));
        check("localhost", Err("http://127.0.0.1:4318"));
    }

    #[test]
    fn a_span_is_written_as_the_protocol_says() {
        let records = history(COMMAND);
        let writers = writers(&records);
        let exported = export(&records, &writers);
        let spans: Vec<&Json> = exported["resourceSpans"]
            .as_array()
            .expect("resources")
            .iter()
            .flat_map(|resource| resource["scopeSpans"][0]["spans"].as_array().expect("spans"))
            .collect();
        assert_eq!(spans.len(), records.len());
        let named = |name: &str| *spans.iter().find(|span| span["name"] == name).expect("is there");
        let commit = named("store.write");
        assert_eq!(commit["traceId"].as_str().map(str::len), Some(32));
        assert_eq!(commit["spanId"].as_str().map(str::len), Some(16));
        assert_eq!(commit["attributes"][0], json!({"key": "bytes", "value": {"intValue": "812"}}));
        assert!(commit["startTimeUnixNano"].is_string());
        let reconcile = named("reconcile");
        assert!(reconcile.get("parentSpanId").is_none());
        assert_eq!(reconcile["links"][0]["attributes"][0]["value"], json!({"intValue": "10"}));
    }

    /// Read with the messages that OpenTelemetry generates from its protocol files: nothing is lost or misspelt.
    #[test]
    fn the_protocols_own_messages_read_every_field() {
        use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
        let records = history(COMMAND);
        let exported = export(&records, &writers(&records));
        let request: ExportTraceServiceRequest = serde_json::from_value(exported.clone()).expect("a request");
        let mut spans = request.resource_spans.iter().flat_map(|resource| &resource.scope_spans[0].spans);
        assert_eq!(spans.clone().count(), records.len());
        assert!(spans.all(|span| {
            let identified = span.trace_id.len() == 16 && span.span_id.len() == 8;
            identified && span.start_time_unix_nano <= span.end_time_unix_nano && !span.name.is_empty()
        }));
        let read = serde_json::to_value(&request).expect("JSON");
        assert_eq!(lost(&exported, &read, "request"), Vec::<String>::new());
    }

    /// Where `ours` says something that `theirs` does not.
    fn lost(ours: &Json, theirs: &Json, path: &str) -> Vec<String> {
        let below = |key: &str, ours: &Json, theirs: &Json| lost(ours, theirs, &format!("{path}.{key}"));
        match (ours, theirs) {
            (Json::Object(fields), _) => {
                fields.iter().flat_map(|(key, value)| below(key, value, &theirs[key])).collect()
            }
            (Json::Array(ours), Json::Array(theirs)) if ours.len() == theirs.len() => {
                ours.iter().zip(theirs).flat_map(|(ours, theirs)| below("[]", ours, theirs)).collect()
            }
            _ if ours == theirs => Vec::new(),
            _ => vec![format!("{path}: {ours} became {theirs}")],
        }
    }

    /// A receiver on a real socket: what it gets is HTTP, and the JSON of one export.
    #[tokio::test]
    async fn a_receiver_gets_every_span() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let receiver = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut received = Vec::new();
            loop {
                let mut piece = [0; 4096];
                let read = stream.read(&mut piece).await.unwrap();
                assert!(read > 0, "the sender went away early");
                received.extend_from_slice(&piece[..read]);
                let text = String::from_utf8_lossy(&received);
                if let Some((head, body)) = text.split_once("\r\n\r\n") {
                    let length = head.lines().find_map(|line| {
                        let (name, value) = line.split_once(": ")?;
                        name.eq_ignore_ascii_case("content-length").then(|| value.parse::<usize>().unwrap())
                    });
                    if body.len() >= length.expect("a length") {
                        let body = body.to_owned();
                        let head = head.to_owned();
                        let answer = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}";
                        stream.write_all(answer.as_bytes()).await.unwrap();
                        return (head, body);
                    }
                }
            }
        });
        let records = history(COMMAND);
        assert_eq!(Collector::at(&url).unwrap().send(&records).await.unwrap(), records.len());
        let (head, body) = receiver.await.unwrap();
        assert!(head.starts_with("POST /v1/traces HTTP/1.1"), "{head}");
        let body: Json = serde_json::from_str(&body).unwrap();
        let counted: usize = body["resourceSpans"]
            .as_array()
            .unwrap()
            .iter()
            .map(|resource| resource["scopeSpans"][0]["spans"].as_array().unwrap().len())
            .sum();
        assert_eq!(counted, records.len());
    }

    #[tokio::test]
    async fn a_receiver_that_refuses_is_named() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        drop(listener);
        let error = Collector::at(&url).unwrap().send(&history(COMMAND)).await.unwrap_err().to_string();
        assert!(error.contains(&url), "{error}");
    }
}
