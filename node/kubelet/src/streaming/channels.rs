//! Kubernetes' channels over WebSocket: each message begins with the number
//! of the channel it is for.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures::SinkExt;
use futures::stream::SplitSink;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Error, Message};

/// The pseudo-channel whose message names a channel that is closed.
const CLOSE: u8 = 255;

/// A message is held in memory until it is whole. Upstream's limit, also for messages of one frame, which some clients make
/// of whatever they have to send.
const LONGEST_MESSAGE: usize = 32 << 20;

/// What clients may send.
pub fn limits() -> WebSocketConfig {
    WebSocketConfig::default().max_message_size(Some(LONGEST_MESSAGE)).max_frame_size(Some(LONGEST_MESSAGE))
}

/// With which word a connection ends that cannot be read any more.
pub fn end_of(error: &Error) -> CloseCode {
    match error {
        Error::Capacity(_) => CloseCode::Size,
        _ => CloseCode::Normal,
    }
}

pub fn goodbye(code: CloseCode) -> Message {
    Message::Close(Some(CloseFrame { code, reason: "".into() }))
}

/// The orderly end of a connection. Without the code, clients take it for a
/// broken one and fail a command that went well.
pub async fn close<S>(to_client: &mut SplitSink<WebSocketStream<S>, Message>, code: CloseCode)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    // refused where the client closed first; closing then sends the answer that RFC 6455 (5.5.1) asks for
    let _ = to_client.send(goodbye(code)).await;
    // a client that is gone needs neither
    let _ = to_client.close().await;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Protocol {
    pub name: &'static str,
    /// Messages are text; the channel is a digit and the rest is base64.
    pub is_base64: bool,
    /// Errors are told as a Status, not as plain text.
    pub has_status: bool,
    /// One channel can be closed while the others go on.
    pub has_close: bool,
}

/// What remote commands can speak, the best first.
pub const PROTOCOLS: [Protocol; 5] = [
    Protocol { name: "v5.channel.k8s.io", is_base64: false, has_status: true, has_close: true },
    Protocol { name: "v4.channel.k8s.io", is_base64: false, has_status: true, has_close: false },
    Protocol { name: "v4.base64.channel.k8s.io", is_base64: true, has_status: true, has_close: false },
    Protocol { name: "channel.k8s.io", is_base64: false, has_status: false, has_close: false },
    Protocol { name: "base64.channel.k8s.io", is_base64: true, has_status: false, has_close: false },
];

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    Data {
        channel: u8,
        data: Bytes,
    },
    /// The sender is done with a channel.
    Closed {
        channel: u8,
    },
    /// Nothing for us: a ping, an empty message, noise.
    Nothing,
}

impl Protocol {
    /// The best of what a client offers. Without an offer the oldest.
    pub fn choose(offered: &[&str]) -> Option<Self> {
        if offered.is_empty() {
            return Some(PROTOCOLS[3]);
        }
        PROTOCOLS.into_iter().find(|protocol| offered.contains(&protocol.name))
    }

    pub fn encode(&self, channel: u8, data: &[u8]) -> Message {
        if self.is_base64 {
            Message::text(format!("{channel}{}", STANDARD.encode(data)))
        } else {
            let mut message = Vec::with_capacity(data.len() + 1);
            message.push(channel);
            message.extend_from_slice(data);
            Message::binary(message)
        }
    }

    pub fn decode(&self, message: Message) -> Input {
        let bytes = match message {
            Message::Binary(bytes) => bytes,
            Message::Text(text) => Bytes::copy_from_slice(text.as_bytes()),
            _ => return Input::Nothing,
        };
        let Some((&first, rest)) = bytes.split_first() else { return Input::Nothing };
        if self.is_base64 {
            let channel = first.wrapping_sub(b'0');
            return match STANDARD.decode(rest) {
                Ok(data) if channel < 10 => Input::Data { channel, data: data.into() },
                _ => Input::Nothing,
            };
        }
        if self.has_close && first == CLOSE {
            return rest.first().map_or(Input::Nothing, |channel| Input::Closed { channel: *channel });
        }
        Input::Data { channel: first, data: bytes.slice(1..) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_common_protocol_is_chosen() {
        let name = |offered: &[&str]| Protocol::choose(offered).map(|protocol| protocol.name);
        assert_eq!(name(&["v4.channel.k8s.io", "v5.channel.k8s.io"]), Some("v5.channel.k8s.io"));
        assert_eq!(name(&["v4.channel.k8s.io", "v3.channel.k8s.io"]), Some("v4.channel.k8s.io"));
        assert_eq!(name(&[]), Some("channel.k8s.io"));
        assert_eq!(name(&["other"]), None);
    }

    #[test]
    fn messages_carry_their_channel() {
        for protocol in PROTOCOLS {
            let message = protocol.encode(1, b"out");
            let expected = Input::Data { channel: 1, data: Bytes::from_static(b"out") };
            assert_eq!(protocol.decode(message), expected, "{}", protocol.name);
            assert_eq!(protocol.decode(Message::binary(vec![])), Input::Nothing);
        }
        let closing = Message::binary(vec![255, 0]);
        assert_eq!(PROTOCOLS[0].decode(closing.clone()), Input::Closed { channel: 0 });
        assert!(matches!(PROTOCOLS[1].decode(closing), Input::Data { channel: 255, .. }));
        assert_eq!(PROTOCOLS[2].decode(Message::text("0!!")), Input::Nothing);
    }
}
