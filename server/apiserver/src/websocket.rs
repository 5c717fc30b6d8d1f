//! WebSocket: watches for browsers, and the token that a browser hides in its subprotocols because it
//! cannot set headers.

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use bytes::Bytes;
use ferry_api::Status;
use futures::{SinkExt, Stream, StreamExt};
use http::HeaderMap;
use http::header::{CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL, UPGRADE};
use hyper_util::rt::TokioIo;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::Role;

use crate::body::{Body, Response};
use crate::request::Request;
use crate::respond;

const BEARER: &str = "base64url.bearer.authorization.k8s.io.";

pub fn is_upgrade(headers: &HeaderMap) -> bool {
    headers
        .get(UPGRADE)
        .and_then(|value| value.to_str().ok())
        .is_some_and(|value| value.eq_ignore_ascii_case("websocket"))
        && headers.contains_key(SEC_WEBSOCKET_KEY)
}

fn protocols(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    headers
        .get_all(SEC_WEBSOCKET_PROTOCOL)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
}

/// The token among the subprotocols of a handshake.
pub fn bearer(headers: &HeaderMap) -> Option<String> {
    if !is_upgrade(headers) {
        return None;
    }
    let encoded = protocols(headers).find_map(|protocol| protocol.strip_prefix(BEARER))?;
    String::from_utf8(BASE64_URL_SAFE_NO_PAD.decode(encoded).ok()?).ok()
}

/// Answers the handshake and sends each line of `stream` as one text message.
pub fn serve_text(
    request: &Request,
    stream: impl Stream<Item = Bytes> + Send + 'static,
) -> Result<Response, Status> {
    let upgrade = request
        .upgrade
        .lock()
        .take()
        .ok_or_else(|| Status::bad_request("this connection cannot be upgraded to a WebSocket"))?;
    let key = request.header(SEC_WEBSOCKET_KEY.as_str());
    let accept = derive_accept_key(key.as_bytes());
    tokio::spawn(async move {
        let connection = match upgrade.await {
            Ok(connection) => connection,
            Err(error) => {
                tracing::debug!(%error, "a WebSocket handshake was not finished");
                return;
            }
        };
        let socket = WebSocketStream::from_raw_socket(TokioIo::new(connection), Role::Server, None).await;
        send_lines(socket, stream).await;
    });
    let mut builder = http::Response::builder()
        .status(101)
        .header(CONNECTION, "Upgrade")
        .header(UPGRADE, "websocket")
        .header(SEC_WEBSOCKET_ACCEPT, accept);
    if let Some(protocol) = protocols(&request.headers).find(|protocol| !protocol.starts_with(BEARER)) {
        builder = builder.header(SEC_WEBSOCKET_PROTOCOL, protocol);
    }
    Ok(respond::finish(builder, Body::Empty))
}

async fn send_lines<S>(socket: WebSocketStream<S>, stream: impl Stream<Item = Bytes>)
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    let (mut sink, mut incoming) = socket.split();
    tokio::pin!(stream);
    loop {
        tokio::select! {
            chunk = stream.next() => {
                let Some(chunk) = chunk else { break };
                for line in chunk.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
                    let text = String::from_utf8_lossy(line).into_owned();
                    if sink.send(Message::text(text)).await.is_err() {
                        return;
                    }
                }
            }
            message = incoming.next() => match message {
                Some(Ok(Message::Close(_))) | Some(Err(_)) | None => break,
                Some(Ok(_)) => {}
            }
        }
    }
    // The client may be gone already.
    let _ = sink.close().await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_browser_hides_its_token_in_the_subprotocols() {
        let mut headers = HeaderMap::new();
        headers.insert(UPGRADE, "WebSocket".parse().expect("a header"));
        headers.insert(SEC_WEBSOCKET_KEY, "x".parse().expect("a header"));
        let hidden = format!("v4.channel.k8s.io, {BEARER}{}", BASE64_URL_SAFE_NO_PAD.encode("secret"));
        headers.insert(SEC_WEBSOCKET_PROTOCOL, hidden.parse().expect("a header"));
        assert_eq!(bearer(&headers).as_deref(), Some("secret"));
    }
}
