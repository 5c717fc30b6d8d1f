//! Port-forward over WebSocket channels: two for each port, one for the
//! bytes and one for what went wrong. The first message of each names the
//! port.

use std::collections::HashMap;

use futures::{SinkExt, StreamExt};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;

use super::channels::{self, Input, Protocol};
use super::spdy::{Headers, Reader, Role, Session, Writer};
use super::upgrade;

const ERROR_LIMIT: usize = 64 << 10;

/// Carries connections to the ports of a pod until the client goes.
pub async fn serve<S>(socket: WebSocketStream<S>, protocol: Protocol, url: &str, ports: &[u16])
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (mut to_client, mut from_client) = socket.split();
    let connection = match upgrade::connect(url, &["portforward.k8s.io"]).await {
        Ok(connection) => connection,
        Err(error) => {
            tracing::warn!(%error, "port-forward");
            channels::close(&mut to_client, CloseCode::Normal).await;
            return;
        }
    };
    let (session, _) = Session::start(connection.stream, Role::Client);
    let (messages, mut outgoing) = mpsc::channel::<Message>(16);
    let mut writers: HashMap<u8, Writer> = HashMap::new();
    let mut copies = tokio::task::JoinSet::new();
    for (index, port) in ports.iter().enumerate() {
        let Ok(data_channel) = u8::try_from(index * 2) else { break };
        let opened = open(&session, *port, index).await;
        let (error, data) = match opened {
            Ok(streams) => streams,
            Err(error) => {
                tracing::debug!(%error, port, "port-forward stream");
                break;
            }
        };
        for channel in [data_channel, data_channel + 1] {
            let _ = messages.send(protocol.encode(channel, &port.to_le_bytes())).await;
        }
        writers.insert(data_channel, data.writer);
        copies.spawn(copy_data(data.reader, messages.clone(), protocol, data_channel));
        copies.spawn(copy_problem(error.reader, messages.clone(), protocol, data_channel + 1));
    }
    drop(messages);
    let outward = async {
        while let Some(message) = outgoing.recv().await {
            if to_client.send(message).await.is_err() {
                break;
            }
        }
    };
    let inward = async {
        while let Some(message) = from_client.next().await {
            match message {
                Ok(message) => take_input(protocol.decode(message), &mut writers).await,
                Err(error) => return channels::end_of(&error),
            }
        }
        CloseCode::Normal
    };
    let code = tokio::select! {
        () = outward => CloseCode::Normal,
        code = inward => code,
    };
    channels::close(&mut to_client, code).await;
}

/// Sends what a port answers until one of both sides ends.
async fn copy_data(mut from: Reader, to: mpsc::Sender<Message>, protocol: Protocol, channel: u8) {
    while let Some(bytes) = from.read().await {
        if to.send(protocol.encode(channel, &bytes)).await.is_err() {
            return;
        }
    }
}

/// Sends why a port could not be reached.
async fn copy_problem(mut from: Reader, to: mpsc::Sender<Message>, protocol: Protocol, channel: u8) {
    let problem = from.read_to_end(ERROR_LIMIT).await;
    if !problem.is_empty() {
        let _ = to.send(protocol.encode(channel, &problem)).await;
    }
}

/// Hands what the client sent to the port of its channel.
async fn take_input(input: Input, writers: &mut HashMap<u8, Writer>) {
    match input {
        Input::Data { channel, data } => {
            if let Some(writer) = writers.get_mut(&channel) {
                let _ = writer.write(data).await;
            }
        }
        Input::Closed { channel } => {
            if let Some(mut writer) = writers.remove(&channel) {
                let _ = writer.close().await;
            }
        }
        Input::Nothing => {}
    }
}

/// A connection is two streams with one request id; the error stream first.
async fn open(
    session: &Session,
    port: u16,
    request: usize,
) -> std::io::Result<(super::spdy::Stream, super::spdy::Stream)> {
    let headers = |kind: &str| -> Headers {
        vec![
            ("streamtype".into(), kind.into()),
            ("port".into(), port.to_string()),
            ("requestid".into(), request.to_string()),
        ]
    };
    let mut error = session.open(headers("error")).await?;
    // nothing is ever sent to it
    error.writer.close().await?;
    let data = session.open(headers("data")).await?;
    Ok((error, data))
}
