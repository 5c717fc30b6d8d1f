//! Bodies of responses: nothing, bytes, or a stream that is written as it is read.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{Stream, StreamExt};
use http_body::{Body as HttpBody, Frame, SizeHint};

pub enum Body {
    Empty,
    Bytes(Bytes),
    Stream(BoxStream<'static, Bytes>),
}

pub type Response = http::Response<Body>;

impl Body {
    pub fn stream(stream: impl Stream<Item = Bytes> + Send + 'static) -> Body {
        Body::Stream(stream.boxed())
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
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match &mut *self {
            Body::Empty => Poll::Ready(None),
            Body::Bytes(bytes) => {
                let bytes = std::mem::take(bytes);
                *self = Body::Empty;
                Poll::Ready(Some(Ok(Frame::data(bytes))))
            }
            Body::Stream(stream) => {
                stream.poll_next_unpin(context).map(|next| next.map(|bytes| Ok(Frame::data(bytes))))
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
            Body::Stream(_) => SizeHint::default(),
        }
    }
}
