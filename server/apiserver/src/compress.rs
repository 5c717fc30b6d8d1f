//! gzip for large responses to clients that accept it. Compressing small ones is not worth the CPU.

use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use futures::StreamExt;
use http::HeaderMap;
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, HeaderValue, VARY};

use crate::body::{Body, Response};

const WORTH_IT: usize = 128 * 1024;

pub fn accepts(headers: &HeaderMap) -> bool {
    headers
        .get_all(ACCEPT_ENCODING)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|encoding| encoding.split(';').next().is_some_and(|name| name.trim() == "gzip"))
}

/// Watches and other streams without an end are left alone: their events must not wait for a block.
pub fn gzip(response: Response) -> Response {
    let (mut parts, body) = response.into_parts();
    let body = match body {
        Body::Bytes(bytes) if bytes.len() >= WORTH_IT => {
            let mut encoder = GzEncoder::new(Vec::with_capacity(bytes.len() / 4), Compression::new(1));
            let written = encoder.write_all(&bytes).and_then(|()| encoder.finish());
            match written {
                Ok(compressed) => {
                    mark(&mut parts.headers);
                    compressed.into()
                }
                Err(_) => Body::Bytes(bytes),
            }
        }
        Body::Stream(stream) if parts.extensions.get::<FiniteStream>().is_some() => {
            mark(&mut parts.headers);
            let encoder = Some(GzEncoder::new(Vec::new(), Compression::new(1)));
            let compressed =
                futures::stream::unfold((stream, encoder), |(mut stream, mut encoder)| async move {
                    let mut open = encoder.take()?;
                    match stream.next().await {
                        Some(Ok(chunk)) => {
                            open.write_all(&chunk).ok()?;
                            let ready = std::mem::take(open.get_mut());
                            Some((Ok(ready.into()), (stream, Some(open))))
                        }
                        Some(Err(broken)) => Some((Err(broken), (stream, None))),
                        None => Some((Ok(open.finish().ok()?.into()), (stream, None))),
                    }
                });
            Body::passed_on(compressed)
        }
        other => other,
    };
    http::Response::from_parts(parts, body)
}

/// Marks a streamed body that ends by itself.
#[derive(Clone, Copy)]
pub struct FiniteStream;

fn mark(headers: &mut HeaderMap) {
    headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    headers.insert(VARY, HeaderValue::from_static("Accept-Encoding"));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn only_large_answers_are_compressed() {
        let respond = |size: usize| gzip(http::Response::new(Body::from(vec![b'x'; size])));
        assert!(respond(100).headers().get(CONTENT_ENCODING).is_none());
        let Body::Bytes(bytes) = respond(1 << 20).into_body() else { panic!("bytes") };
        let mut text = String::new();
        flate2::read::GzDecoder::new(&bytes[..]).read_to_string(&mut text).expect("gzip");
        assert_eq!(text.len(), 1 << 20);
    }
}
