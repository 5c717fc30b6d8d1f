//! Bodies of responses: nothing, bytes, or a stream that is written as it is read.

use std::any::Any;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{Stream, StreamExt};
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::BodyStream;

pub enum Body {
    Empty,
    Bytes(Bytes),
    /// Many bytes, and what is held for as long as they are.
    HeldBytes(HeldBytes),
    /// What breaks off is not sent to its end: the client sees that something is missing.
    Stream(BoxStream<'static, Result<Bytes, BrokenOff>>),
}

/// The answer of somebody else, which is passed on, ended before it was whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the proxied response broke off")]
pub struct BrokenOff;

/// What is longer is sent in pieces, as the client reads them.
pub const PIECE: usize = 64 * 1024;

/// A client that takes in nothing of an answer for this long is not waited for.
pub const STALLED: Duration = Duration::from_secs(60);

/// Marks the body of a proxied response (logs, a page). Its source is paused while its client pauses, as in a pager,
/// possibly for long.
#[derive(Clone, Copy)]
pub struct ProxiedBody;

pub struct HeldBytes {
    left: Bytes,
    _until_sent: Box<dyn Any + Send>,
}

pub type Response = http::Response<Body>;

impl Body {
    pub fn stream(stream: impl Stream<Item = Bytes> + Send + 'static) -> Body {
        Body::Stream(stream.map(Ok).boxed())
    }

    /// What somebody else sends, as far as it comes.
    pub fn passed_on(stream: impl Stream<Item = Result<Bytes, BrokenOff>> + Send + 'static) -> Body {
        Body::Stream(stream.boxed())
    }

    /// Keeps `until_sent` until the client has read the body; not where that is soon.
    pub fn hold(self, until_sent: impl Send + 'static) -> Body {
        match self {
            Body::Bytes(bytes) if bytes.len() > PIECE => {
                Body::HeldBytes(HeldBytes { left: bytes, _until_sent: Box::new(until_sent) })
            }
            Body::Stream(stream) => Body::passed_on(stream.map(move |bytes| {
                let _until_sent = &until_sent;
                bytes
            })),
            body => body,
        }
    }
}

/// The data of a body that somebody else sends; its end is an error where it breaks off.
pub fn pieces_of(body: hyper::body::Incoming) -> impl Stream<Item = Result<Bytes, BrokenOff>> + Send {
    BodyStream::new(body).filter_map(|frame| async move {
        match frame {
            Ok(frame) => frame.into_data().ok().filter(|data| !data.is_empty()).map(Ok),
            Err(error) => {
                tracing::debug!(%error, "a proxied response broke off");
                Some(Err(BrokenOff))
            }
        }
    })
}

impl HeldBytes {
    pub fn length(&self) -> usize {
        self.left.len()
    }

    fn next(&mut self) -> Option<Bytes> {
        (!self.left.is_empty()).then(|| self.left.split_to(self.left.len().min(PIECE)))
    }

    pub fn pieces(self) -> impl Stream<Item = Bytes> {
        futures::stream::unfold(self, |mut held| async { held.next().map(|piece| (piece, held)) })
    }
}

impl From<Vec<u8>> for Body {
    fn from(bytes: Vec<u8>) -> Body {
        Body::Bytes(bytes.into())
    }
}

impl From<Bytes> for Body {
    fn from(bytes: Bytes) -> Body {
        Body::Bytes(bytes)
    }
}

impl From<&'static str> for Body {
    fn from(text: &'static str) -> Body {
        Body::Bytes(Bytes::from_static(text.as_bytes()))
    }
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = BrokenOff;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BrokenOff>>> {
        match &mut *self {
            Body::Empty => Poll::Ready(None),
            Body::Bytes(bytes) => {
                let bytes = std::mem::take(bytes);
                *self = Body::Empty;
                Poll::Ready(Some(Ok(Frame::data(bytes))))
            }
            Body::HeldBytes(held) => Poll::Ready(held.next().map(|piece| Ok(Frame::data(piece)))),
            Body::Stream(stream) => {
                stream.poll_next_unpin(context).map(|next| next.map(|bytes| bytes.map(Frame::data)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Body::Empty)
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Body::Empty => SizeHint::with_exact(0),
            Body::Bytes(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Body::HeldBytes(held) => SizeHint::with_exact(held.length() as u64),
            Body::Stream(_) => SizeHint::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt;
    use std::sync::Arc;

    #[tokio::test]
    async fn a_long_body_goes_out_in_pieces_and_is_held_until_the_last() {
        let (place, bytes) = (Arc::new(()), Bytes::from(vec![b'x'; 2 * PIECE + 1]));
        let mut body = Body::from(bytes.clone()).hold(place.clone());
        assert_eq!(body.size_hint().exact(), Some(bytes.len() as u64));
        let mut lengths = Vec::new();
        while let Some(Ok(frame)) = body.frame().await {
            assert_eq!(Arc::strong_count(&place), 2);
            lengths.extend(frame.data_ref().map(Bytes::len));
        }
        assert_eq!(lengths, [PIECE, PIECE, 1]);
        drop(body);
        assert_eq!(Arc::strong_count(&place), 1);
        let short = Body::from(vec![b'x'; PIECE]).hold(place.clone());
        assert_eq!(Arc::strong_count(&place), 1);
        drop(short);
    }

    #[tokio::test]
    async fn a_truncated_proxied_response_is_visible_to_the_client() {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let check = async |sent: &'static str, expected: &[Result<&'static str, BrokenOff>]| {
            let (near, mut far) = tokio::io::duplex(4096);
            let io = hyper_util::rt::TokioIo::new(near);
            let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await.expect("HTTP");
            tokio::spawn(connection);
            let request =
                http::Request::get("/").body(http_body_util::Empty::<Bytes>::new()).expect("a request");
            let answering = async move {
                far.read_u8().await.expect("a request");
                far.write_all(sent.as_bytes()).await.expect("it is read");
            };
            let (answer, ()) = tokio::join!(sender.send_request(request), answering);
            let answer = answer.expect("an answer");
            let pieces: Vec<_> = pieces_of(answer.into_body()).collect().await;
            let expected: Vec<_> = expected.iter().map(|piece| piece.map(Bytes::from)).collect();
            assert_eq!(pieces, expected, "{sent}");
        };
        let chunked = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nhalf\r\n";
        check(chunked, &[Ok("half"), Err(BrokenOff)]).await;
        check("HTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\nhalf", &[Ok("half"), Err(BrokenOff)]).await;
        check("HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nhalf", &[Ok("half")]).await;
    }
}
