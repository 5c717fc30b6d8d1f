//! WebSocket connections to the API server, for exec, attach and port-forward. The first byte of
//! every message is its channel.

use std::time::Duration;

use bytes::Bytes;
use futures::{SinkExt, StreamExt};
use http::HeaderValue;
use serde_json::Value;
use tokio::io::AsyncReadExt;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::client::generate_key;
use tokio_tungstenite::tungstenite::{self, Message};

use super::kept_stream::KeptStream;
use super::{Client, text_header, tls};
use crate::error::{Error, Result};
use crate::fields::Fields;

pub const STDIN: u8 = 0;
pub const STDOUT: u8 = 1;
pub const STDERR: u8 = 2;
/// A Status, once the command has ended.
pub const ERROR: u8 = 3;
pub const RESIZE: u8 = 4;
/// In v5, followed by the channel that is closed.
const CLOSE: u8 = 255;

/// Of a refusal no more is read, and for no longer.
const LONGEST_REFUSAL: usize = 1 << 20;
const REFUSAL_TIME: Duration = Duration::from_secs(10);

/// The newest protocol first: v5 can close standard input by itself.
pub const REMOTE_COMMAND: &[&str] = &["v5.channel.k8s.io", "v4.channel.k8s.io"];
pub const PORT_FORWARD: &[&str] = &["v4.channel.k8s.io"];

pub struct Channels {
    socket: WebSocketStream<KeptStream<tls::Stream>>,
    can_close: bool,
}

impl Client {
    pub async fn channels(&self, path: &str, protocols: &[&str]) -> Result<Channels> {
        let span = ferry_trace::span("kubectl.websocket");
        span.in_scope(self.open_channels(path, protocols)).await
    }

    async fn open_channels(&self, path: &str, protocols: &[&str]) -> Result<Channels> {
        let full_path = format!("{}{path}", self.origin.prefix);
        let mut request = http::Request::builder()
            .uri(format!("ws://{}{full_path}", self.origin.authority))
            .body(())
            .map_err(|error| Error::message(format!("invalid request path {path:?}: {error}")))?;
        let headers = request.headers_mut();
        headers.insert(http::header::HOST, text_header(&self.origin.authority)?);
        headers.insert(http::header::CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(http::header::UPGRADE, HeaderValue::from_static("websocket"));
        headers.insert(http::header::SEC_WEBSOCKET_VERSION, HeaderValue::from_static("13"));
        headers.insert(http::header::SEC_WEBSOCKET_KEY, text_header(&generate_key())?);
        headers.insert(http::header::SEC_WEBSOCKET_PROTOCOL, text_header(&protocols.join(", "))?);
        headers.insert(http::header::USER_AGENT, text_header(&self.user_agent)?);
        self.identity_headers(headers).await?;
        self.log.request(
            &http::Method::GET,
            &format!("{}{path}", self.config.server),
            request.headers(),
            &[],
        );
        let started = std::time::Instant::now();
        let stream = KeptStream::new(self.connect().await?);
        match tokio_tungstenite::client_async(request, stream.clone()).await {
            Ok((socket, response)) => {
                self.log.response(
                    &http::Method::GET,
                    &format!("{}{path}", self.config.server),
                    response.status(),
                    response.headers(),
                    started.elapsed(),
                );
                let chosen = response
                    .headers()
                    .get(http::header::SEC_WEBSOCKET_PROTOCOL)
                    .and_then(|value| value.to_str().ok());
                Ok(Channels { socket, can_close: chosen.is_some_and(|protocol| protocol.starts_with("v5")) })
            }
            Err(tungstenite::Error::Http(response)) => {
                let body = whole_body(&response, stream).await;
                Err(Error::message(format!("unable to upgrade connection: {}", refusal(&body))))
            }
            Err(error) => Err(Error::plain(format!("Unable to connect to the server: {error}"))),
        }
    }
}

/// Why a server refused: a Status says it, others may say anything.
fn refusal(body: &[u8]) -> String {
    let status: Value = serde_json::from_slice(body).unwrap_or_default();
    let said = [status.text("message").trim(), status.text("error").trim()];
    let plain = String::from_utf8_lossy(body);
    let said = said.into_iter().find(|words| !words.is_empty()).unwrap_or(plain.trim());
    if said.is_empty() { "empty server response".to_owned() } else { said.to_owned() }
}

/// The body of a refusal. The handshake gives only what came together with the head; the rest is still to be read.
async fn whole_body(response: &http::Response<Option<Vec<u8>>>, stream: KeptStream<tls::Stream>) -> Vec<u8> {
    let mut body = response.body().clone().unwrap_or_default();
    let length = response.headers().get(http::header::CONTENT_LENGTH);
    let length = length.and_then(|value| value.to_str().ok()?.parse::<usize>().ok()).unwrap_or(0);
    let missing = length.min(LONGEST_REFUSAL).saturating_sub(body.len()) as u64;
    // What cannot be read is as good as absent: the code says what became of the request.
    let _ = tokio::time::timeout(REFUSAL_TIME, stream.take(missing).read_to_end(&mut body)).await;
    body
}

impl Channels {
    /// The next message that carries something: its channel and content. `None` when it is over.
    pub async fn next(&mut self) -> Result<Option<(u8, Bytes)>> {
        loop {
            match self.socket.next().await {
                None | Some(Ok(Message::Close(_))) => return Ok(None),
                Some(Ok(Message::Binary(data))) if !data.is_empty() => {
                    return Ok(Some((data[0], data.slice(1..))));
                }
                Some(Ok(_)) => {}
                Some(Err(tungstenite::Error::ConnectionClosed | tungstenite::Error::AlreadyClosed)) => {
                    return Ok(None);
                }
                Some(Err(tungstenite::Error::Protocol(
                    tungstenite::error::ProtocolError::ResetWithoutClosingHandshake,
                ))) => return Ok(None),
                Some(Err(error)) => return Err(Error::message(format!("the stream broke: {error}"))),
            }
        }
    }

    pub async fn send(&mut self, channel: u8, data: &[u8]) -> Result<()> {
        let mut message = Vec::with_capacity(data.len() + 1);
        message.push(channel);
        message.extend_from_slice(data);
        self.socket
            .send(Message::Binary(message.into()))
            .await
            .map_err(|error| Error::message(format!("the stream broke: {error}")))
    }

    /// Says that nothing more comes on a channel. A v4 server learns it when the connection ends.
    pub async fn close_channel(&mut self, channel: u8) -> Result<()> {
        if self.can_close { self.send(CLOSE, &[channel]).await } else { Ok(()) }
    }

    pub async fn close(mut self) {
        let _ = self.socket.close(None).await;
    }
}
