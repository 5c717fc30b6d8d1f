//! Exec and attach: a client's WebSocket on one side, the runtime's SPDY on
//! the other.

use bytes::Bytes;
use futures::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::{self, Message};

use super::channels::{self, Input, Protocol};
use super::spdy::{Headers, Role, Session, Stream, Writer};
use super::upgrade;

const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const ERROR: u8 = 3;
const RESIZE: u8 = 4;
const STATUS_LIMIT: usize = 64 << 10;

/// What the client asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    pub stdin: bool,
    pub stdout: bool,
    pub stderr: bool,
    pub tty: bool,
}

/// The runtime's side: one stream for each thing wanted.
struct Runtime {
    _session: Session,
    error: Stream,
    stdin: Option<Stream>,
    stdout: Option<Stream>,
    stderr: Option<Stream>,
    resize: Option<Stream>,
}

async fn open(url: &str, wanted: Wanted) -> Result<Runtime, String> {
    let connection =
        upgrade::connect(url, &["v4.channel.k8s.io"]).await.map_err(|error| error.to_string())?;
    let (session, _) = Session::start(connection.stream, Role::Client);
    let stream = |kind: &'static str| -> Headers { vec![("streamtype".into(), kind.into())] };
    let opened = async {
        // the order in which every client opens them, and every server expects
        let error = session.open(stream("error")).await?;
        let stdin = if wanted.stdin { Some(session.open(stream("stdin")).await?) } else { None };
        let stdout = if wanted.stdout { Some(session.open(stream("stdout")).await?) } else { None };
        let stderr =
            if wanted.stderr && !wanted.tty { Some(session.open(stream("stderr")).await?) } else { None };
        let resize = if wanted.tty { Some(session.open(stream("resize")).await?) } else { None };
        Ok::<_, std::io::Error>((error, stdin, stdout, stderr, resize))
    };
    let (error, stdin, stdout, stderr, resize) = opened.await.map_err(|error| error.to_string())?;
    Ok(Runtime { _session: session, error, stdin, stdout, stderr, resize })
}

/// Carries a remote command over a client's WebSocket until it ends.
pub async fn serve<S>(socket: WebSocketStream<S>, protocol: Protocol, url: &str, wanted: Wanted)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (mut to_client, mut from_client) = socket.split();
    let (messages, mut outgoing) = mpsc::channel::<Message>(16);
    let sender = tokio::spawn(async move {
        while let Some(message) = outgoing.recv().await {
            if to_client.send(message).await.is_err() {
                return;
            }
        }
        channels::close(&mut to_client, CloseCode::Normal).await;
    });
    let runtime = match open(url, wanted).await {
        Ok(runtime) => runtime,
        Err(problem) => {
            tell_end(&messages, protocol, &failure(&problem)).await;
            drop(messages);
            let _ = sender.await;
            return;
        }
    };
    // an empty message says that the command is connected
    let lowest = match (wanted.stdout, wanted.stderr) {
        (true, _) => STDOUT,
        (false, true) => STDERR,
        (false, false) => ERROR,
    };
    let _ = messages.send(protocol.encode(lowest, b"")).await;

    let Runtime { _session, mut error, stdin, stdout, stderr, resize } = runtime;
    let input = async {
        let writers = (stdin.map(|stream| stream.writer), resize.map(|stream| stream.writer));
        read_input(&mut from_client, &messages, protocol, writers).await;
    };
    let output = async {
        let ((), (), status) = tokio::join!(
            copy_output(stdout, &messages, protocol, STDOUT),
            copy_output(stderr, &messages, protocol, STDERR),
            error.reader.read_to_end(STATUS_LIMIT)
        );
        tell_end(&messages, protocol, &status).await;
    };
    tokio::select! {
        () = input => {}
        () = output => {}
    }
    drop(messages);
    let _ = sender.await;
}

/// Hands the command what the client sends, until it has gone: then the command's input ends, and so does our interest.
async fn read_input(
    from_client: &mut (impl futures::Stream<Item = Result<Message, tungstenite::Error>> + Unpin),
    to_client: &mpsc::Sender<Message>,
    protocol: Protocol,
    (mut stdin, mut resize): (Option<Writer>, Option<Writer>),
) {
    while let Some(message) = from_client.next().await {
        match message {
            Ok(Message::Close(_)) => break,
            Ok(message) => take_input(protocol.decode(message), &mut stdin, &mut resize).await,
            Err(error) => {
                // a client that is told of an orderly end takes its command for one that went well
                let _ = to_client.send(channels::goodbye(channels::end_of(&error))).await;
                break;
            }
        }
    }
    if let Some(mut stdin) = stdin {
        let _ = stdin.close().await;
    }
}

/// Sends what the command writes until one of both sides ends.
async fn copy_output(from: Option<Stream>, to: &mpsc::Sender<Message>, protocol: Protocol, channel: u8) {
    let Some(mut stream) = from else { return };
    while let Some(bytes) = stream.reader.read().await {
        if to.send(protocol.encode(channel, &bytes)).await.is_err() {
            return;
        }
    }
}

async fn take_input(input: Input, stdin: &mut Option<Writer>, resize: &mut Option<Writer>) {
    // a command that no longer reads is no reason to end its output
    match input {
        Input::Data { channel: STDIN, data } => {
            if let Some(stdin) = stdin {
                let _ = stdin.write(data).await;
            }
        }
        Input::Data { channel: RESIZE, data } => {
            if let Some(resize) = resize {
                let _ = resize.write(data).await;
            }
        }
        Input::Closed { channel: STDIN } => {
            if let Some(mut stdin) = stdin.take() {
                let _ = stdin.close().await;
            }
        }
        _ => {}
    }
}

/// The last message: how the command ended.
async fn tell_end(messages: &mpsc::Sender<Message>, protocol: Protocol, status: &[u8]) {
    let status: Value = match serde_json::from_slice(status) {
        Ok(status) => status,
        Err(_) if status.is_empty() => json!({"metadata": {}, "status": "Success"}),
        Err(_) => failure_value(&String::from_utf8_lossy(status)),
    };
    let message = if protocol.has_status {
        status.to_string().into_bytes()
    } else if status["status"] == "Success" {
        return;
    } else {
        status["message"].as_str().unwrap_or("the command failed").as_bytes().to_vec()
    };
    let _ = messages.send(protocol.encode(ERROR, &message)).await;
}

fn failure(problem: &str) -> Vec<u8> {
    failure_value(problem).to_string().into_bytes()
}

fn failure_value(problem: &str) -> Value {
    json!({"metadata": {}, "status": "Failure", "message": problem, "reason": "InternalError", "code": 500})
}

/// Bytes as they are, both ways, until both sides are done: a client that
/// speaks the runtime's own protocol needs no translation.
pub async fn splice<A, B>(mut client: A, mut runtime: B)
where
    A: AsyncRead + AsyncWrite + Unpin,
    B: AsyncRead + AsyncWrite + Unpin,
{
    if let Err(error) = tokio::io::copy_bidirectional(&mut client, &mut runtime).await {
        tracing::debug!(%error, "stream ended");
    }
}

/// The same for a client that wraps those bytes into WebSocket messages.
pub async fn splice_tunnel<S, B>(socket: WebSocketStream<S>, runtime: B)
where
    S: AsyncRead + AsyncWrite + Unpin,
    B: AsyncRead + AsyncWrite + Unpin,
{
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let (mut to_client, mut from_client) = socket.split();
    let (mut from_runtime, mut to_runtime) = tokio::io::split(runtime);
    let inward = async {
        let mut end = CloseCode::Normal;
        while let Some(message) = from_client.next().await {
            match message {
                Ok(Message::Binary(bytes)) => to_runtime.write_all(&bytes).await?,
                Ok(Message::Close(_)) => break,
                Ok(_) => {}
                Err(error) => {
                    end = channels::end_of(&error);
                    break;
                }
            }
            to_runtime.flush().await?;
        }
        to_runtime.shutdown().await?;
        Ok(end)
    };
    let outward = async {
        let mut buffer = vec![0; 32 << 10];
        loop {
            let count = from_runtime.read(&mut buffer).await?;
            if count == 0 {
                break;
            }
            let message = Message::binary(Bytes::copy_from_slice(&buffer[..count]));
            to_client.send(message).await.map_err(std::io::Error::other)?;
        }
        Ok(CloseCode::Normal)
    };
    let ended: Result<CloseCode, std::io::Error> = tokio::select! {
        ended = inward => ended,
        ended = outward => ended,
    };
    let code = ended.unwrap_or_else(|error| {
        tracing::debug!(%error, "tunnel ended");
        CloseCode::Normal
    });
    channels::close(&mut to_client, code).await;
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role};

    use super::*;

    #[tokio::test]
    async fn a_client_that_closes_gets_the_closing_frame_back() {
        let (client, server) = tokio::io::duplex(1 << 10);
        let (runtime, _pod) = tokio::io::duplex(1 << 10);
        let mut client = WebSocketStream::from_raw_socket(client, Role::Client, None).await;
        let server = WebSocketStream::from_raw_socket(server, Role::Server, None).await;
        let served = tokio::spawn(splice_tunnel(server, runtime));
        let closing =
            Message::Close(Some(CloseFrame { code: CloseCode::Normal, reason: "Closing...".into() }));
        client.send(closing.clone()).await.expect("sent");
        assert_eq!(client.next().await.expect("an answer").expect("a frame"), closing);
        served.await.expect("it ends");
    }

    /// A frame's head with a mask of nothing: the operation, the length, whether it is the message's last.
    fn head(operation: u8, length: usize, is_last: bool) -> Vec<u8> {
        let first = operation | if is_last { 0x80 } else { 0 };
        [&[first, 0xff][..], &(length as u64).to_be_bytes(), &[0; 4]].concat()
    }

    /// How many bytes a pod gets of what a client says, and with which code the client is let go, if it is.
    async fn sent(says: Vec<u8>) -> (usize, Option<CloseCode>) {
        let (client, server) = tokio::io::duplex(1 << 16);
        let (runtime, mut pod) = tokio::io::duplex(1 << 16);
        let server = WebSocketStream::from_raw_socket(server, Role::Server, Some(channels::limits())).await;
        let served = tokio::spawn(splice_tunnel(server, runtime));
        let (hears, mut speaks) = tokio::io::split(client);
        let speaking = tokio::spawn(async move {
            // cut short where the other side has enough
            let _ = speaks.write_all(&says).await;
            speaks
        });
        let pod = tokio::spawn(async move {
            let mut got = Vec::new();
            let _ = pod.read_to_end(&mut got).await;
            got.len()
        });
        let mut hears =
            WebSocketStream::from_raw_socket(tokio::io::join(hears, tokio::io::sink()), Role::Client, None)
                .await;
        let code = match hears.next().await {
            Some(Ok(Message::Close(Some(frame)))) => Some(frame.code),
            _ => None,
        };
        drop(hears);
        speaking.await.expect("no panic");
        served.await.expect("no panic");
        (pod.await.expect("no panic"), code)
    }

    #[tokio::test]
    async fn websocket_messages_are_buffered_up_to_upstreams_limit() {
        const MEGABYTE: usize = 1 << 20;
        let closing = [0x88, 0x82, 0, 0, 0, 0, 0x03, 0xe8];
        let whole = |length| [head(2, length, true), vec![b'x'; length], closing.to_vec()].concat();
        assert_eq!(sent(whole(32 * MEGABYTE)).await, (32 * MEGABYTE, Some(CloseCode::Normal)));
        // One that is longer, one that only says so, and one of many frames without a last.
        assert_eq!(sent(whole(32 * MEGABYTE + 1)).await, (0, Some(CloseCode::Size)));
        assert_eq!(sent(head(2, 1 << 40, true)).await, (0, Some(CloseCode::Size)));
        let piece = |operation| [head(operation, MEGABYTE, false), vec![b'x'; MEGABYTE]].concat();
        let pieces = std::iter::once(piece(2)).chain((0..40).map(|_| piece(0))).flatten().collect();
        assert_eq!(sent(pieces).await, (0, Some(CloseCode::Size)));
    }
}
