//! Coalesces the frames of all streams of an HTTP/2 connection into one write.
//!
//! An event concerns every watch of a connection. h2 hands each stream's frame to the transport on its own and asks
//! for a flush after every one: a TLS record and a system call for each watch. Here frames gather while the connection
//! is at work; where other requests are under way it then lets their tasks have one turn, so that answers that are ready come
//! along, and writes everything.
//!
//! ```text
//!   streams ─▶ h2 ─▶ CoalescedWrites (a buffer) ─ ─▶ TLS ─▶ socket
//!                                         │
//!            Writing: polls the connection, yields once to others, then writes the buffer
//! ```

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use bytes::{Buf, BytesMut};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::chunked_copy;

/// What is longer is written through: there is nothing to gain from a copy. A frame of a long list is not: its 16 KB are
/// cheaper to copy than to send alone, which wakes the other side for each.
const LONG: usize = 32 * 1024;
/// A connection that gathered this much is written to before it may say more.
const FULL: usize = 128 * 1024;

/// As many as make that much.
const SLICES: usize = 64;

/// Room for what many streams have to say, so that it is not copied again while it grows; held only while it is used.
const SOME: usize = 64 * 1024;

/// The transport as the connection sees it: writing only gathers, and so does flushing.
pub struct CoalescedWrites<IO>(Arc<Mutex<Pipe<IO>>>);

/// The connection's future, which writes what it gathered whenever it comes to rest.
pub struct Writing<F, IO> {
    connection: Pin<Box<F>>,
    pipe: Arc<Mutex<Pipe<IO>>>,
    /// The others had their turn.
    yielded: bool,
}

struct Pipe<IO> {
    io: IO,
    /// Something was read since someone looked.
    heard: Arc<AtomicBool>,
    /// Others may have something to say in a moment.
    expecting: Arc<AtomicBool>,
    gathered: BytesMut,
    /// Why the last write failed; the connection hears of it when it writes again.
    failed: Option<io::Error>,
}

impl<IO> CoalescedWrites<IO> {
    pub fn new(io: IO) -> CoalescedWrites<IO> {
        let (heard, expecting) = (Arc::default(), Arc::default());
        CoalescedWrites(Arc::new(Mutex::new(Pipe {
            io,
            heard,
            expecting,
            gathered: BytesMut::new(),
            failed: None,
        })))
    }

    /// Set whenever the other side is heard of.
    pub fn heard(&self) -> Arc<AtomicBool> {
        self.0.lock().heard.clone()
    }

    /// To be set while a turn for others is worth a second look at the connection.
    pub fn expecting(&self) -> Arc<AtomicBool> {
        self.0.lock().expecting.clone()
    }

    /// To be called before the transport is handed to a connection: makes what drives both.
    pub fn writer(&self) -> Writer<IO> {
        Writer(self.0.clone())
    }
}

pub struct Writer<IO>(Arc<Mutex<Pipe<IO>>>);

impl<IO> Writer<IO> {
    /// The future to await in the connection's stead.
    pub fn drive<F: Future>(self, connection: F) -> Writing<F, IO> {
        Writing { connection: Box::pin(connection), pipe: self.0, yielded: false }
    }
}

impl<IO: AsyncWrite + Unpin> Pipe<IO> {
    fn poll_drain(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.gathered.is_empty() {
            let slices = chunked_copy::slices::<SLICES>(&self.gathered);
            let written = ready!(Pin::new(&mut self.io).poll_write_vectored(context, &slices))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.gathered.advance(written);
        }
        // A quiet connection keeps no memory.
        self.gathered = BytesMut::new();
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn check(&mut self) -> io::Result<()> {
        self.failed.take().map_or(Ok(()), Err)
    }
}

impl<F: Future, IO: AsyncWrite + Unpin> Future for Writing<F, IO> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let this = &mut *self;
        if let Poll::Ready(ended) = this.connection.as_mut().poll(context) {
            return Poll::Ready(ended);
        }
        let mut pipe = this.pipe.lock();
        if pipe.gathered.is_empty() {
            return Poll::Pending;
        }
        this.yielded = !this.yielded && pipe.expecting.load(Ordering::Relaxed);
        if this.yielded {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        if let Poll::Ready(Err(error)) = pipe.poll_drain(context) {
            pipe.gathered = BytesMut::new();
            pipe.failed = Some(error);
            context.waker().wake_by_ref();
        }
        Poll::Pending
    }
}

impl<IO: AsyncRead + Unpin> AsyncRead for CoalescedWrites<IO> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let pipe = &mut *self.0.lock();
        let read = Pin::new(&mut pipe.io).poll_read(context, buffer);
        if read.is_ready() {
            pipe.heard.store(true, Ordering::Relaxed);
        }
        read
    }
}

impl<IO: AsyncWrite + Unpin> AsyncWrite for CoalescedWrites<IO> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(context, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let pipe = &mut *self.0.lock();
        pipe.check()?;
        let length: usize = slices.iter().map(|slice| slice.len()).sum();
        if pipe.gathered.len() + length > FULL || length >= LONG {
            ready!(pipe.poll_drain(context))?;
        }
        if length >= LONG {
            return Pin::new(&mut pipe.io).poll_write_vectored(context, slices);
        }
        if pipe.gathered.capacity() == 0 {
            pipe.gathered.reserve(SOME);
        }
        for slice in slices {
            chunked_copy::append(&mut pipe.gathered, slice);
        }
        Poll::Ready(Ok(length))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// What was written through has to leave; what was gathered waits for its writer.
    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let pipe = &mut *self.0.lock();
        pipe.check()?;
        if pipe.gathered.is_empty() {
            Pin::new(&mut pipe.io).poll_flush(context)
        } else {
            Poll::Ready(Ok(()))
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let pipe = &mut *self.0.lock();
        ready!(pipe.poll_drain(context))?;
        Pin::new(&mut pipe.io).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    /// Counts the writes that reach it.
    struct Counted<IO>(IO, Arc<Mutex<usize>>);

    impl<IO: AsyncWrite + Unpin> AsyncWrite for Counted<IO> {
        fn poll_write(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            *self.1.lock() += 1;
            Pin::new(&mut self.0).poll_write(context, bytes)
        }

        fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.0).poll_flush(context)
        }

        fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.0).poll_shutdown(context)
        }
    }

    #[tokio::test]
    async fn many_flushes_are_one_write_and_nothing_is_held_back() {
        let (near, mut far) = tokio::io::duplex(1 << 20);
        let writes = Arc::new(Mutex::new(0));
        let mut io = CoalescedWrites::new(Counted(near, writes.clone()));
        let driven = io.writer().drive(async move {
            for _ in 0..50 {
                io.write_all(b"frame").await.expect("gathered");
                io.flush().await.expect("gathered");
            }
            // At rest until the other side answers, as a connection is.
            std::future::pending::<()>().await;
        });
        let driven = tokio::spawn(driven);
        let mut read = vec![0; 250];
        far.read_exact(&mut read).await.expect("all of it arrives");
        assert_eq!(read, b"frame".repeat(50));
        assert_eq!(*writes.lock(), 1);
        driven.abort();
    }

    #[tokio::test]
    async fn others_have_a_turn_where_they_are_expected() {
        for (expected, writes) in [(true, 1), (false, 2)] {
            let (near, mut far) = tokio::io::duplex(1 << 20);
            let counted = Arc::new(Mutex::new(0));
            let mut io = CoalescedWrites::new(Counted(near, counted.clone()));
            io.expecting().store(expected, Ordering::Relaxed);
            let (say, mut said) = tokio::sync::mpsc::unbounded_channel::<&[u8]>();
            let driven = io.writer().drive(async move {
                while let Some(words) = said.recv().await {
                    io.write_all(words).await.expect("gathered");
                }
                std::future::pending::<()>().await;
            });
            // In this order on the one thread: the connection is at rest after the first when the second one comes.
            say.send(b"first").expect("heard");
            let driven = tokio::spawn(driven);
            let other = tokio::spawn(async move { say.send(b"second").expect("heard") });
            let mut read = vec![0; 11];
            far.read_exact(&mut read).await.expect("all of it arrives");
            assert_eq!(read, b"firstsecond");
            assert_eq!(*counted.lock(), writes, "expected: {expected}");
            other.await.expect("no panic");
            driven.abort();
        }
    }

    #[tokio::test]
    async fn coalesced_writes_of_the_server_arrive_in_order() {
        let (near, mut far) = tokio::io::duplex(1 << 20);
        let mut io = CoalescedWrites::new(near);
        let driven = io.writer().drive(async move {
            io.write_all(b"head").await.expect("gathered");
            io.write_all(&vec![b'x'; 100_000]).await.expect("written through");
            io.write_all(b"tail").await.expect("gathered");
            io.shutdown().await.expect("written");
        });
        driven.await;
        let mut read = Vec::new();
        far.read_to_end(&mut read).await.expect("all of it arrives");
        assert_eq!(read.len(), 100_008);
        assert!(read.starts_with(b"headx") && read.ends_with(b"xtail"));
    }

    #[tokio::test]
    async fn a_connection_whose_peer_is_gone_hears_of_it() {
        let (near, far) = tokio::io::duplex(64);
        drop(far);
        let mut io = CoalescedWrites::new(near);
        let driven = io.writer().drive(async move {
            let refused = loop {
                if let Err(error) = io.write_all(b"frame").await {
                    break error;
                }
                tokio::task::yield_now().await;
            };
            Err::<(), io::Error>(refused)
        });
        let ended = tokio::time::timeout(std::time::Duration::from_secs(10), driven).await.expect("it ends");
        assert_eq!(ended.expect_err("the peer is gone").kind(), io::ErrorKind::BrokenPipe);
    }
}
