//! The body of a request, as it arrives.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::RecvStream;
use http_body::{Body, Frame};

pub struct Received(RecvStream);

impl Received {
    pub fn new(stream: RecvStream) -> Received {
        Received(stream)
    }
}

impl Body for Received {
    type Data = Bytes;
    type Error = h2::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, h2::Error>>> {
        let stream = &mut self.0;
        Poll::Ready(match ready!(stream.poll_data(context)) {
            Some(Ok(bytes)) => {
                // It is read: the client may send as much again.
                Some(stream.flow_control().release_capacity(bytes.len()).map(|()| Frame::data(bytes)))
            }
            Some(Err(error)) => Some(Err(error)),
            None => None,
        })
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }
}
