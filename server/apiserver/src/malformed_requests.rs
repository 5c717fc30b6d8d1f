//! Audit of requests that hyper refuses before a filter sees them: too many headers, headers that do not arrive in time,
//! bytes that are no HTTP.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::SystemTime;

use ferry_auth::audit::{Audit, Level, Record, RequestFacts, ResponseFacts, Stage};
use ferry_auth::{Attributes, User};
use serde_json::json;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// How many bytes of a connection were read, and how many of them belong to answered requests. Tells a client that does not
/// finish its request from an idle connection.
#[derive(Default)]
pub struct Progress {
    heard: AtomicU64,
    answered: AtomicU64,
}

impl Progress {
    /// Everything so far belongs to requests that have their answer.
    pub fn answered(&self) {
        self.answered.store(self.heard.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    fn is_amid_request(&self) -> bool {
        self.heard.load(Ordering::Relaxed) > self.answered.load(Ordering::Relaxed)
    }
}

/// A stream that counts what is read from it.
pub struct CountedStream<S> {
    stream: S,
    progress: Arc<Progress>,
}

impl<S> CountedStream<S> {
    pub fn new(stream: S) -> (CountedStream<S>, Arc<Progress>) {
        let progress = Arc::new(Progress::default());
        (CountedStream { stream, progress: progress.clone() }, progress)
    }
}

/// What the client is told, or would be if it listened, when its connection ended this way.
pub fn refusal(
    ended: &(dyn std::error::Error + 'static),
    progress: &Progress,
) -> Option<(u16, &'static str)> {
    let error = ended.downcast_ref::<hyper::Error>()?;
    match () {
        () if error.is_parse_too_large() => {
            Some((431, "the request has too many headers, or too large ones"))
        }
        () if error.is_timeout() && progress.is_amid_request() => {
            Some((408, "the request's headers did not come in time"))
        }
        () if error.is_parse() => Some((400, "the request cannot be read")),
        () => None,
    }
}

/// Who it was and what they wanted is not known: only where it came from.
pub fn audit(audit: &Audit, peer: SocketAddr, (code, message): (u16, &str)) {
    let user = Arc::new(User::default());
    let attributes = Attributes::path(&user, "", "");
    let config = audit.policy().decide(&attributes);
    if config.level == Level::None {
        return;
    }
    let now = SystemTime::now();
    let facts = RequestFacts {
        audit_id: uuid::Uuid::new_v4().to_string(),
        request_uri: String::new(),
        user_agent: None,
        source_ips: vec![peer.ip().to_string()],
        received: now,
        attributes: &attributes,
        user: user.clone(),
    };
    let mut record = Record::new(config, facts);
    let status = json!({"kind": "Status", "status": "Failure", "message": message, "code": code});
    record.response(ResponseFacts { code, status: Some(status), ..ResponseFacts::default() });
    if let Some(event) = record.event(Stage::ResponseComplete, now) {
        audit.emit(event);
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for CountedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(context, buffer);
        let read = buffer.filled().len().saturating_sub(before);
        self.progress.heard.fetch_add(read as u64, Ordering::Relaxed);
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for CountedStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
