//! WebSocket: watches and logs for browsers.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use ferry_api::Status;
use futures::{SinkExt, Stream, StreamExt};
use http::HeaderMap;
use http::header::{CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL, UPGRADE};
use hyper_util::rt::TokioIo;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};

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

/// Of what a client says nothing is asked but that it closes; what is longer ends the connection. Without a limit a message
/// that never ends would be held in memory up to 64 MB.
const LONGEST_MESSAGE: usize = 16 * 1024;

/// How the bytes of a stream become messages.
#[derive(Clone, Copy)]
enum Framing {
    /// Each line is a text.
    Lines,
    Binary,
    /// Texts, for clients that cannot take bytes.
    Base64,
}

impl Framing {
    fn messages(self, chunk: &Bytes) -> Vec<Message> {
        match self {
            Framing::Lines => chunk
                .split(|byte| *byte == b'\n')
                .filter(|line| !line.is_empty())
                .map(|line| Message::text(String::from_utf8_lossy(line).into_owned()))
                .collect(),
            Framing::Binary => vec![Message::binary(chunk.clone())],
            Framing::Base64 => vec![Message::text(STANDARD.encode(chunk))],
        }
    }
}

/// Answers the handshake and sends each line of `stream` as one text message.
pub fn serve_lines(
    request: &Request,
    stream: impl Stream<Item = Bytes> + Send + 'static,
) -> Result<Response, Status> {
    let protocol = protocols(&request.headers).next().map(str::to_owned);
    serve(request, stream, protocol, Framing::Lines)
}

/// Answers the handshake and sends `stream` as it is, in the first protocol of the client's that is known.
pub fn serve_bytes(
    request: &Request,
    stream: impl Stream<Item = Bytes> + Send + 'static,
) -> Result<Response, Status> {
    let known = protocols(&request.headers).find_map(|protocol| match protocol {
        "binary.k8s.io" => Some((protocol.to_owned(), Framing::Binary)),
        "base64.binary.k8s.io" => Some((protocol.to_owned(), Framing::Base64)),
        _ => None,
    });
    match known {
        Some((protocol, framing)) => serve(request, stream, Some(protocol), framing),
        None if protocols(&request.headers).next().is_none() => serve(request, stream, None, Framing::Binary),
        None => Err(Status::bad_request("none of the WebSocket protocols asked for is supported")),
    }
}

fn serve(
    request: &Request,
    stream: impl Stream<Item = Bytes> + Send + 'static,
    protocol: Option<String>,
    framing: Framing,
) -> Result<Response, Status> {
    let upgrade = request
        .upgrade
        .lock()
        .take()
        .ok_or_else(|| Status::bad_request("this connection cannot be upgraded to a WebSocket"))?;
    let key = request.header(SEC_WEBSOCKET_KEY.as_str());
    let accept = derive_accept_key(key.as_bytes());
    let place = request.long_running.clone();
    tokio::spawn(async move {
        let _place = place;
        let connection = match upgrade.await {
            Ok(connection) => connection,
            Err(error) => {
                tracing::debug!(%error, "a WebSocket handshake was not finished");
                return;
            }
        };
        send(TokioIo::new(connection), stream, framing).await;
    });
    let mut builder = http::Response::builder()
        .status(101)
        .header(CONNECTION, "Upgrade")
        .header(UPGRADE, "websocket")
        .header(SEC_WEBSOCKET_ACCEPT, accept);
    if let Some(protocol) = protocol {
        builder = builder.header(SEC_WEBSOCKET_PROTOCOL, protocol);
    }
    Ok(respond::finish(builder, Body::Empty))
}

async fn send<S>(connection: S, stream: impl Stream<Item = Bytes>, framing: Framing)
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    let limits = WebSocketConfig::default()
        .read_buffer_size(LONGEST_MESSAGE)
        .max_message_size(Some(LONGEST_MESSAGE))
        .max_frame_size(Some(LONGEST_MESSAGE));
    let socket = WebSocketStream::from_raw_socket(connection, Role::Server, Some(limits)).await;
    let (mut sink, mut incoming) = socket.split();
    tokio::pin!(stream);
    loop {
        tokio::select! {
            chunk = stream.next() => {
                let Some(chunk) = chunk else { break };
                for message in framing.messages(&chunk) {
                    if sink.send(message).await.is_err() {
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
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// A client says this, and goes on listening; it is let go.
    async fn is_let_go(says: &[u8]) {
        let (client, server) = tokio::io::duplex(1 << 10);
        let served = tokio::spawn(send(server, futures::stream::pending(), Framing::Lines));
        let (mut reads, mut writes) = tokio::io::split(client);
        let speaking = async {
            // Cut short where the other side has enough.
            let _ = writes.write_all(says).await;
            let mut heard = Vec::new();
            let _ = reads.read_to_end(&mut heard).await;
        };
        let ended = async { tokio::join!(served, speaking).0.expect("no panic") };
        let ended = tokio::time::timeout(std::time::Duration::from_secs(10), ended).await;
        assert!(ended.is_ok(), "{} bytes are held", says.len());
    }

    #[tokio::test]
    async fn endless_websocket_messages_are_not_buffered() {
        let mask = [0; 4];
        let long = |first: u8, length: u64| [&[first, 0xff][..], &length.to_be_bytes(), &mask].concat();
        // A frame of 16 MB, one that says so and no more, and a message of many frames without a last one.
        is_let_go(&[long(0x82, 16 << 20), vec![b'x'; 1 << 20]].concat()).await;
        is_let_go(&long(0x82, 16 << 20)).await;
        let piece = |first: u8| [long(first, 1 << 10), vec![b'x'; 1 << 10]].concat();
        let pieces: Vec<u8> =
            std::iter::once(piece(0x02)).chain((0..1024).map(|_| piece(0))).flatten().collect();
        is_let_go(&pieces).await;
    }

    #[test]
    fn bytes_are_framed_as_the_protocol_has_it() {
        let chunk = Bytes::from_static(b"one\ntwo\n");
        assert_eq!(Framing::Lines.messages(&chunk), [Message::text("one"), Message::text("two")]);
        assert_eq!(Framing::Binary.messages(&chunk), [Message::binary(chunk.clone())]);
        assert_eq!(Framing::Base64.messages(&chunk), [Message::text("b25lCnR3bwo=")]);
    }
}
