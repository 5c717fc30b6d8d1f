//! Indented JSON: for requests with `?pretty=true` (or `;pretty=1` in the Accept header), and by default for browsers, curl
//! and wget. Other programs get compact JSON.

use bytes::Bytes;
use futures::future::Either;
use futures::{Stream, StreamExt};
use http::HeaderMap;
use http::header::{CONTENT_TYPE, USER_AGENT};

use crate::body::{Body, BrokenOff, ProxiedBody, Response};
use crate::compress::FiniteStream;
use crate::negotiate::JSON;
use crate::request_info::Query;

/// So much is indented at a time. Deep nesting makes a hundred spaces of a byte.
const PIECE: usize = 16 * 1024;
const SPACES: &[u8] = &[b' '; 256];

/// Programs that people sit in front of.
const FOR_PEOPLE: [&str; 3] = ["curl", "Wget", "Mozilla/5.0"];

/// Whether the parameter or, without one, the user agent asks for it.
pub fn is_wanted(query: &Query, headers: &HeaderMap) -> bool {
    match query.text("pretty") {
        "" => {
            let agent = headers.get(USER_AGENT).and_then(|value| value.to_str().ok()).unwrap_or("");
            FOR_PEOPLE.iter().any(|program| agent.starts_with(program))
        }
        // As Go reads booleans; anything else is no.
        word => matches!(word, "1" | "t" | "T" | "true" | "TRUE" | "True"),
    }
}

/// Indents a response of JSON that ends. Watches are a document a line, and others' answers are theirs.
pub fn indent(response: Response) -> Response {
    let is_json = response.headers().get(CONTENT_TYPE).is_some_and(|value| value == JSON);
    if !is_json || response.extensions().get::<ProxiedBody>().is_some() {
        return response;
    }
    let (mut parts, body) = response.into_parts();
    let body = match body {
        Body::Bytes(bytes) if bytes.len() <= PIECE => {
            let mut out = Vec::with_capacity(bytes.len() * 2);
            Indenter::default().write(&bytes, &mut out);
            out.into()
        }
        Body::Bytes(bytes) => {
            parts.extensions.insert(FiniteStream);
            indented(futures::stream::iter([Ok(bytes)]))
        }
        Body::Stream(stream) if parts.extensions.get::<FiniteStream>().is_some() => indented(stream),
        other => other,
    };
    http::Response::from_parts(parts, body)
}

fn indented(stream: impl Stream<Item = Result<Bytes, BrokenOff>> + Send + 'static) -> Body {
    let mut indenter = Indenter::default();
    let pieces = stream.flat_map(|bytes| match bytes {
        Ok(bytes) => Either::Left(futures::stream::iter(pieces(bytes).map(Ok))),
        Err(broken_off) => Either::Right(futures::stream::iter([Err(broken_off)])),
    });
    Body::passed_on(pieces.map(move |piece| {
        let piece = piece?;
        let mut out = Vec::with_capacity(piece.len() * 2);
        indenter.write(&piece, &mut out);
        Ok(out.into())
    }))
}

fn pieces(mut bytes: Bytes) -> impl Iterator<Item = Bytes> {
    std::iter::from_fn(move || (!bytes.is_empty()).then(|| bytes.split_to(bytes.len().min(PIECE))))
}

/// Puts spaces and line ends into well-formed JSON without any, whatever pieces it comes in.
#[derive(Default)]
struct Indenter {
    depth: usize,
    in_string: bool,
    is_escaped: bool,
    /// A list or an object has begun, and nothing stands in it yet.
    is_empty: bool,
}

impl Indenter {
    fn write(&mut self, json: &[u8], out: &mut Vec<u8>) {
        for byte in json {
            if self.in_string {
                out.push(*byte);
                match *byte {
                    _ if self.is_escaped => self.is_escaped = false,
                    b'\\' => self.is_escaped = true,
                    b'"' => self.in_string = false,
                    _ => {}
                }
                continue;
            }
            match *byte {
                b' ' | b'\n' | b'\t' | b'\r' => continue,
                b'}' | b']' => {
                    self.depth = self.depth.saturating_sub(1);
                    if !std::mem::take(&mut self.is_empty) {
                        self.new_line(out);
                    }
                    out.push(*byte);
                    continue;
                }
                _ => {}
            }
            if std::mem::take(&mut self.is_empty) {
                self.new_line(out);
            }
            out.push(*byte);
            match *byte {
                b'"' => self.in_string = true,
                b'{' | b'[' => {
                    self.depth += 1;
                    self.is_empty = true;
                }
                b',' => self.new_line(out),
                b':' => out.push(b' '),
                _ => {}
            }
        }
    }

    fn new_line(&self, out: &mut Vec<u8>) {
        out.push(b'\n');
        let mut left = self.depth * 2;
        while left > 0 {
            let some = left.min(SPACES.len());
            out.extend_from_slice(&SPACES[..some]);
            left -= some;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt;
    use serde_json::{Value, json};

    fn respond(body: Body) -> Response {
        http::Response::builder().header(CONTENT_TYPE, JSON).body(body).expect("a response")
    }

    #[tokio::test]
    async fn json_is_indented_as_gos_encoder_does_whatever_pieces_it_comes_in() {
        let value = json!({"a": [1, {"b": "x\"{\\", "c": []}, {}, [[]]], "d": {"e": null}, "f": "é,:"});
        let expected = serde_json::to_string_pretty(&value).expect("JSON");
        let text = value.to_string();
        for size in 1..text.len() + 1 {
            let chunks: Vec<Bytes> = text.as_bytes().chunks(size).map(Bytes::copy_from_slice).collect();
            let mut response = respond(Body::stream(futures::stream::iter(chunks)));
            response.extensions_mut().insert(FiniteStream);
            let bytes = indent(response).into_body().collect().await.expect("a body").to_bytes();
            assert_eq!(String::from_utf8_lossy(&bytes), expected, "{size}");
        }
        let long: Value = (0..10_000).collect();
        let bytes = indent(respond(long.to_string().into_bytes().into()));
        let bytes = bytes.into_body().collect().await.expect("a body").to_bytes();
        assert_eq!(String::from_utf8_lossy(&bytes), serde_json::to_string_pretty(&long).expect("JSON"));
    }

    #[test]
    fn streams_without_an_end_and_others_answers_are_left_alone() {
        let watch = indent(respond(Body::stream(futures::stream::iter([Bytes::from_static(b"{}")]))));
        assert!(watch.extensions().get::<FiniteStream>().is_none());
        let mut proxied = respond(Body::from("[1]"));
        proxied.extensions_mut().insert(ProxiedBody);
        assert!(matches!(indent(proxied).into_body(), Body::Bytes(bytes) if bytes == "[1]"));
    }

    #[test]
    fn people_get_it_without_asking_and_programs_when_they_ask() {
        let check = |query: &str, agent: &'static str, expected: bool| {
            let headers = HeaderMap::from_iter([(USER_AGENT, http::HeaderValue::from_static(agent))]);
            assert_eq!(is_wanted(&Query::parse(query), &headers), expected, "{query} {agent}");
        };
        check("", "kubectl/v1.36.4", false);
        check("", "curl/8.0", true);
        check("", "Mozilla/5.0 (X11)", true);
        check("pretty=0", "curl/8.0", false);
        check("pretty=true", "kubectl", true);
        check("pretty=1", "", true);
        check("pretty=yes", "curl/8.0", false);
    }
}
