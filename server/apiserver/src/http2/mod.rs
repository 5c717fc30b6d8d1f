//! One HTTP/2 connection. Each request has its own task until its response is idle. The connection's task sends the rest of
//! long bodies (watches, logs). An event for hundreds of watches therefore wakes one task per connection instead of one per
//! watch, and their frames leave in one write.
//!
//! ```text
//!   requests ─▶ a task each ─▶ head, what is there ─────▶ h2 ─▶ gathered ─▶ TLS ─▶ socket
//!                    └─▶ bodies that go on ─▶ this task ─▶┘
//! ```
//!
//! hyper has the same protocol below it and a task for each stream above it; there an event costs each watch two
//! wake-ups, since h2 wakes whoever it gives capacity to.

mod answer;
mod coalesced_writes;
mod received;

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use h2::server::{Builder, Connection, SendResponse};
use h2::{Ping, PingPong};
use http::Method;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::body::Response;
use crate::poll_when_woken::PollWhenWoken;
use crate::server::{Failure, HANDSHAKE};
use answer::Sending;
use coalesced_writes::CoalescedWrites;
use received::Received;

/// Upstream's limit: what a client wants beyond it waits on its side.
const MAX_STREAMS: u32 = 250;
/// Beyond this the protocol itself refuses, and nothing is known of the request. What the filters refuse is half of it
/// ([`crate::headers::MAX_HEADER_BYTES`]), so that the audit log hears of it. Headers that have no end are held until there
/// is more of them than this, on each connection of whoever it may be.
const MAX_HEADER_BYTES: u32 = 2 * crate::headers::MAX_HEADER_BYTES as u32;
/// What is queued of one stream, whatever the client says it has room for: it may have no mind to read it.
const SEND_BUFFER: usize = 64 * 1024;
/// A client that was not heard of for this long is asked whether it is there ...
const QUIET: Duration = Duration::from_secs(30);
/// ... and given up when it says nothing for that long.
const ANSWER: Duration = Duration::from_secs(20);
/// What a client may send of one request, and of all, before it is read.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 2 << 20;

/// Serves until the client goes, or `stop` and everything that was begun is answered.
pub async fn serve<IO, H, F>(io: IO, handle: H, stop: CancellationToken) -> Result<(), Failure>
where
    IO: AsyncRead + AsyncWrite + Unpin,
    H: Fn(http::Request<Received>) -> F + Unpin,
    F: Future<Output = Response> + Send + 'static,
{
    let io = CoalescedWrites::new(io);
    let (writer, heard, expecting) = (io.writer(), io.heard(), io.expecting());
    let mut builder = Builder::new();
    builder
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(MAX_HEADER_BYTES)
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buffer_size(SEND_BUFFER);
    let serving = async move {
        let mut connection = timeout(HANDSHAKE, builder.handshake(io)).await??;
        let pings = connection.ping_pong().expect("it is asked for once");
        let (hand_over, handed_over) = mpsc::channel(MAX_STREAMS as usize);
        Serving {
            connection,
            handle,
            sending: FuturesUnordered::new(),
            hand_over,
            handed_over,
            expecting,
            silence: PollWhenWoken::new(silence(pings, heard)),
            stop: Some(PollWhenWoken::new(stop.cancelled_owned())),
        }
        .await
    };
    writer.drive(serving).await
}

struct Serving<IO, H> {
    connection: Connection<CoalescedWrites<IO>, Bytes>,
    handle: H,
    /// Bodies that go on.
    sending: FuturesUnordered<Sending>,
    /// How the requests' tasks hand them over; there is room for one of each stream.
    hand_over: mpsc::Sender<Sending>,
    handed_over: mpsc::Receiver<Sending>,
    /// Set while requests are being answered.
    expecting: Arc<AtomicBool>,
    silence: PollWhenWoken<()>,
    stop: Option<PollWhenWoken<()>>,
}

impl<IO, H, F> Future for Serving<IO, H>
where
    IO: AsyncRead + AsyncWrite + Unpin,
    H: Fn(http::Request<Received>) -> F + Unpin,
    F: Future<Output = Response> + Send + 'static,
{
    type Output = Result<(), Failure>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if this.silence.poll_unpin(context).is_ready() {
            return Poll::Ready(Err("the client does not answer".into()));
        }
        if let Some(stop) = &mut this.stop
            && stop.poll_unpin(context).is_ready()
        {
            this.stop = None;
            this.connection.graceful_shutdown();
        }
        while let Poll::Ready(Some(sending)) = this.handed_over.poll_recv(context) {
            this.sending.push(sending);
        }
        // Each task of a request has a sender; those whose requests come now have no answer yet.
        this.expecting.store(this.hand_over.strong_count() > 1, Ordering::Relaxed);
        // Before the connection has its turn, so that what they say goes along.
        while let Poll::Ready(Some(())) = this.sending.poll_next_unpin(context) {}
        while let Some(accepted) = ready!(this.connection.poll_accept(context)) {
            let (request, respond) = accepted?;
            let is_head = request.method() == Method::HEAD;
            // Boxed: on its way into its task it is moved several times, and it is 13 KB.
            let handling = Box::pin((this.handle)(request.map(Received::new)));
            tokio::spawn(answer(handling, is_head, respond, this.hand_over.clone()));
        }
        Poll::Ready(Ok(()))
    }
}

/// Ends with its stream at the latest: h2 tells it when the client, or the connection, is gone.
async fn answer<F: Future<Output = Response>>(
    mut handling: Pin<Box<F>>,
    is_head: bool,
    mut respond: SendResponse<Bytes>,
    hand_over: mpsc::Sender<Sending>,
) {
    let mut waited = false;
    let answered = std::future::poll_fn(|context| {
        // First, so that nothing is done any more for a client that went away meanwhile.
        if waited && respond.poll_reset(context).is_ready() {
            return Poll::Ready(None);
        }
        waited = true;
        match handling.poll_unpin(context) {
            Poll::Ready(response) => Poll::Ready(Some(response)),
            Poll::Pending => respond.poll_reset(context).map(|_| None),
        }
    });
    let Some(response) = answered.await else { return };
    drop(handling);
    match answer::send(&mut respond, response, is_head) {
        Ok(None) => {}
        Ok(Some(mut sending)) => {
            // What is there already can be much work (a long list, the objects that a watch begins with): it is done
            // here, where nobody else waits for it.
            let goes_on = std::future::poll_fn(|context| match sending.poll_unpin(context) {
                Poll::Ready(()) => Poll::Ready(false),
                Poll::Pending if sending.is_quiet() => Poll::Ready(true),
                Poll::Pending => Poll::Pending,
            });
            if goes_on.await {
                // A connection that is gone needs no body.
                let _ = hand_over.send(sending).await;
            }
        }
        Err(error) => {
            tracing::debug!(%error, "cannot send a response");
            respond.send_reset(h2::Reason::INTERNAL_ERROR);
        }
    }
}

/// Resolves when the client has ceased to answer. Whatever is heard of it is an answer: its pong may be far behind the
/// body that it is taking in slowly.
async fn silence(mut pings: PingPong, heard: Arc<AtomicBool>) {
    loop {
        sleep(QUIET).await;
        if heard.swap(false, Ordering::Relaxed) {
            continue;
        }
        match timeout(ANSWER, pings.ping(Ping::opaque())).await {
            Ok(Ok(_)) => {}
            // The connection is at its end, and knows it.
            Ok(Err(_)) => std::future::pending().await,
            Err(_) if heard.swap(false, Ordering::Relaxed) => {}
            Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests;
