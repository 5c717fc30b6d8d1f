//! Closes a connection whose client does not read: a transport that fails when no written data leaves for too long. HTTP/2
//! checks each stream, see `http2::answer`.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

use crate::body::{ProxiedBody, Response, STALLED};

pub struct SlowReader<S> {
    stream: S,
    may_pause: Arc<AtomicBool>,
    /// Set while nothing leaves.
    stalled: Option<Pin<Box<Sleep>>>,
}

/// Whether the client may pause, as it may while it reads what somebody else sends.
pub struct MayPause(Arc<AtomicBool>);

impl MayPause {
    pub fn answered_with(&self, response: &Response) {
        let is_others = response.status() == http::StatusCode::SWITCHING_PROTOCOLS
            || response.extensions().get::<ProxiedBody>().is_some();
        self.0.store(is_others, Ordering::Relaxed);
    }
}

impl<S> SlowReader<S> {
    pub fn new(stream: S) -> (SlowReader<S>, MayPause) {
        let may_pause = Arc::new(AtomicBool::new(false));
        (SlowReader { stream, may_pause: may_pause.clone(), stalled: None }, MayPause(may_pause))
    }

    fn in_time<T>(&mut self, polled: Poll<io::Result<T>>, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        if polled.is_ready() || self.may_pause.load(Ordering::Relaxed) {
            self.stalled = None;
            return polled;
        }
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(STALLED)));
        ready!(stalled.as_mut().poll(context));
        self.stalled = None;
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for SlowReader<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for SlowReader<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.in_time(polled, context)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_flush(context);
        self.in_time(polled, context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_shutdown(context);
        self.in_time(polled, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.in_time(polled, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::body::Body;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[tokio::test(start_paused = true)]
    async fn writes_to_a_client_that_does_not_read_time_out() {
        let (near, mut far) = tokio::io::duplex(10);
        let (mut near, may_pause) = SlowReader::new(near);
        let begun = tokio::time::Instant::now();
        let written = near.write_all(&[0; 11]).await;
        assert_eq!(written.expect_err("nobody reads").kind(), io::ErrorKind::TimedOut);
        assert!(begun.elapsed() >= STALLED);
        // One that reads a little in time is waited for.
        let reading = tokio::spawn(async move {
            for _ in 0..40 {
                tokio::time::sleep(STALLED / 2).await;
                far.read_u8().await.expect("more");
            }
            far
        });
        near.write_all(&[0; 30]).await.expect("in time");
        let _far = reading.await.expect("read");
        // And so is one that may pause.
        let mut switching = http::Response::new(Body::Empty);
        *switching.status_mut() = http::StatusCode::SWITCHING_PROTOCOLS;
        may_pause.answered_with(&switching);
        let written = tokio::time::timeout(3 * STALLED, near.write_all(&[0; 30])).await;
        assert!(written.is_err(), "it still waits");
    }
}
