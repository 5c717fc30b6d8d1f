//! WebSocket: watches for browsers.

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
    if let Some(protocol) = protocols(&request.headers).next() {
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
