//! Coalesces the frames that requests of one connection write at about the same time into one write.
//!
//! A request is two or three frames of HTTP/2, and each is flushed on its own: as many system calls here, and as
//! many times the other side is woken for half a request. So the first flush only lets the tasks that are ready have
//! their turn, whose frames then come along; the second writes.
//!
//! The API server coalesces on its side over many flushes, since one event is a frame for each of hundreds of streams,
//! and has its connection driven for it. A client's few frames need no more than this.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, BytesMut};
use hyper_util::client::legacy::connect::{Connected, Connection};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A buffer of this size is written before it takes more.
const FULL: usize = 64 * 1024;

pub struct CoalescedWrites<IO> {
    io: IO,
    buffer: BytesMut,
    /// The others had their turn.
    yielded: bool,
}

impl<IO> CoalescedWrites<IO> {
    pub fn new(io: IO) -> Self {
        Self { io, buffer: BytesMut::new(), yielded: false }
    }
}

impl<IO: AsyncWrite + Unpin> CoalescedWrites<IO> {
    fn poll_drain(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.buffer.is_empty() {
            let written = ready!(Pin::new(&mut self.io).poll_write(context, &self.buffer))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.buffer.advance(written);
        }
        self.yielded = false;
        Poll::Ready(Ok(()))
    }
}

impl<IO: AsyncWrite + Unpin> AsyncWrite for CoalescedWrites<IO> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(context, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.buffer.len() >= FULL {
            ready!(self.poll_drain(context))?;
        }
        slices.iter().for_each(|slice| self.buffer.extend_from_slice(slice));
        Poll::Ready(Ok(slices.iter().map(|slice| slice.len()).sum()))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.buffer.is_empty() && !self.yielded {
            self.yielded = true;
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        ready!(self.poll_drain(context))?;
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_drain(context))?;
        Pin::new(&mut self.io).poll_shutdown(context)
    }
}

impl<IO: Connection> Connection for CoalescedWrites<IO> {
    fn connected(&self) -> Connected {
        self.io.connected()
    }
}

impl<IO: AsyncRead + Unpin> AsyncRead for CoalescedWrites<IO> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(context, buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    /// Counts the writes that reach it.
    struct Counted<IO>(IO, Arc<AtomicUsize>);

    impl<IO: AsyncWrite + Unpin> AsyncWrite for Counted<IO> {
        fn poll_write(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            self.1.fetch_add(1, Ordering::Relaxed);
            Pin::new(&mut self.0).poll_write(context, bytes)
        }

        fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.0).poll_flush(context)
        }

        fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.0).poll_shutdown(context)
        }
    }

    /// A connection as HTTP/2 drives it: whatever is queued is written, and then flushed.
    #[tokio::test]
    async fn frames_of_one_moment_are_one_write() {
        let (near, mut far) = tokio::io::duplex(1 << 20);
        let writes = Arc::new(AtomicUsize::new(0));
        let mut io = CoalescedWrites::new(Counted(near, writes.clone()));
        let (queue, mut queued) = tokio::sync::mpsc::unbounded_channel::<&[u8]>();
        let connection = tokio::spawn(async move {
            std::future::poll_fn(|context| {
                while let Poll::Ready(frame) = queued.poll_recv(context) {
                    let Some(frame) = frame else { return Poll::Ready(()) };
                    assert!(Pin::new(&mut io).poll_write(context, frame).is_ready());
                }
                let _ = Pin::new(&mut io).poll_flush(context);
                Poll::Pending
            })
            .await;
        });
        queue.send(b"head").expect("the connection lives");
        let body = queue.clone();
        tokio::spawn(async move { body.send(b"body").expect("the connection lives") });
        let mut read = [0; 8];
        far.read_exact(&mut read).await.expect("all of it arrives");
        assert_eq!(&read, b"headbody");
        assert_eq!(writes.load(Ordering::Relaxed), 1);
        drop(queue);
        connection.await.expect("it ends");
    }

    #[tokio::test]
    async fn coalesced_writes_of_a_client_arrive_in_order() {
        let (near, mut far) = tokio::io::duplex(1024);
        let mut io = CoalescedWrites::new(near);
        let writing = tokio::spawn(async move {
            for _ in 0..3 {
                io.write_all(&vec![b'x'; FULL]).await.expect("buffered or written");
            }
            io.write_all(b"tail").await.expect("buffered");
            io.shutdown().await.expect("written");
        });
        let mut read = Vec::new();
        far.read_to_end(&mut read).await.expect("all of it arrives");
        assert_eq!(read.len(), 3 * FULL + 4);
        assert!(read.ends_with(b"xtail"));
        writing.await.expect("it ends");
    }
}
