//! Sends a response over HTTP/2: its head, and the body that follows.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;
use h2::server::SendResponse;
use h2::{Reason, SendStream};
use http::HeaderMap;
use http::header::{CONNECTION, CONTENT_LENGTH, DATE, HeaderName, HeaderValue, TRANSFER_ENCODING, UPGRADE};
use jiff::Timestamp;
use jiff::fmt::rfc2822::DateTimePrinter;
use tokio::time::{Sleep, sleep};

use crate::body::{Body, BrokenOff, ProxiedBody, Response, STALLED};

/// Sends the head, and the body if it is there as a whole. Otherwise returns what sends the body. The answer to HEAD is
/// the head alone, with the length that the body would have.
pub fn send(
    respond: &mut SendResponse<Bytes>,
    response: Response,
    is_head: bool,
) -> Result<Option<Sending>, h2::Error> {
    let (mut head, body) = response.into_parts();
    finish_headers(&mut head.headers);
    let length = match &body {
        Body::Bytes(bytes) => Some(bytes.len()),
        Body::HeldBytes(held) => Some(held.length()),
        Body::Empty | Body::Stream(_) => None,
    };
    if let Some(length) = length {
        head.headers.entry(CONTENT_LENGTH).or_insert_with(|| length.into());
    }
    let patience = head.extensions.get::<ProxiedBody>().is_none().then_some(STALLED);
    let head = http::Response::from_parts(head, ());
    match body {
        _ if is_head => respond.send_response(head, true).map(|_| None),
        Body::Empty => respond.send_response(head, true).map(|_| None),
        Body::Bytes(bytes) => {
            respond.send_response(head, false)?.send_data(bytes, true)?;
            Ok(None)
        }
        Body::HeldBytes(held) => {
            let stream = respond.send_response(head, false)?;
            Ok(Some(Sending::new(held.pieces().map(Ok).boxed(), stream, patience)))
        }
        Body::Stream(body) => {
            let stream = respond.send_response(head, false)?;
            Ok(Some(Sending::new(body, stream, patience)))
        }
    }
}

/// A body that is sent as it comes about. It is asked for more only when what it said before has room in the client's
/// window, so a slow client costs one piece of memory; one that takes in nothing at all is not waited for.
pub struct Sending {
    body: BoxStream<'static, Result<Bytes, BrokenOff>>,
    stream: SendStream<Bytes>,
    /// What the client has no room for yet.
    waiting: Option<Bytes>,
    /// How long it may have none; `None` for a body that somebody else sends and holds.
    patience: Option<Duration>,
    /// Set while it has none.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl Sending {
    fn new(
        body: BoxStream<'static, Result<Bytes, BrokenOff>>,
        stream: SendStream<Bytes>,
        patience: Option<Duration>,
    ) -> Sending {
        Sending { body, stream, waiting: None, patience, stalled: None }
    }

    /// Whether the client takes in nothing for too long.
    fn poll_stalled(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let Some(patience) = self.patience else { return Poll::Pending };
        self.stalled.get_or_insert_with(|| Box::pin(sleep(patience))).as_mut().poll(context)
    }

    /// The body has nothing to say for now; it is not the client that is waited for.
    pub fn is_quiet(&self) -> bool {
        self.waiting.is_none()
    }
}

impl Future for Sending {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        loop {
            let Sending { body, stream, waiting, .. } = &mut *this;
            if waiting.is_none() {
                // A panic is a defect of ours; it ends one body and no other of the connection.
                let Ok(next) = catch_unwind(AssertUnwindSafe(|| body.poll_next_unpin(context))) else {
                    stream.send_reset(Reason::INTERNAL_ERROR);
                    return Poll::Ready(());
                };
                match next {
                    Poll::Ready(Some(Ok(bytes))) if bytes.is_empty() => continue,
                    Poll::Ready(Some(Err(BrokenOff))) => {
                        stream.send_reset(Reason::INTERNAL_ERROR);
                        return Poll::Ready(());
                    }
                    Poll::Ready(Some(Ok(bytes))) => {
                        // h2 wakes whom it gives capacity to, and that is who asks for it here.
                        if stream.poll_reset(&mut Context::from_waker(Waker::noop())).is_ready() {
                            return Poll::Ready(());
                        }
                        stream.reserve_capacity(bytes.len());
                        *waiting = Some(bytes);
                    }
                    Poll::Ready(None) => {
                        // The client may be gone, and then does not miss the end.
                        let _ = stream.send_data(Bytes::new(), true);
                        return Poll::Ready(());
                    }
                    Poll::Pending => return stream.poll_reset(context).map(|_| ()),
                }
            }
            while this.stream.capacity() == 0 {
                match this.stream.poll_capacity(context) {
                    Poll::Ready(Some(Ok(_))) => {}
                    Poll::Ready(_) => return Poll::Ready(()),
                    Poll::Pending => {
                        ready!(this.poll_stalled(context));
                        this.stream.send_reset(Reason::CANCEL);
                        return Poll::Ready(());
                    }
                }
            }
            this.stalled = None;
            if let Some(bytes) = this.waiting.take()
                && this.stream.send_data(bytes, false).is_err()
            {
                return Poll::Ready(());
            }
        }
    }
}

/// Headers about a single connection: HTTP/2 has none, and an answer that was fetched elsewhere may bring some.
const OF_ONE_CONNECTION: [HeaderName; 5] = [
    CONNECTION,
    TRANSFER_ENCODING,
    UPGRADE,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
];

fn finish_headers(headers: &mut HeaderMap) {
    if let Some(named) = headers.get(CONNECTION) {
        let named = named.to_str().unwrap_or("").to_string();
        named.split(',').for_each(|name| drop(headers.remove(name.trim())));
    }
    OF_ONE_CONNECTION.iter().for_each(|name| drop(headers.remove(name)));
    headers.entry(DATE).or_insert_with(|| date(Timestamp::now()));
}

/// The time as RFC 9110 writes it, written once a second.
fn date(now: Timestamp) -> HeaderValue {
    thread_local!(static LAST: RefCell<Option<(i64, HeaderValue)>> = const { RefCell::new(None) });
    LAST.with_borrow_mut(|last| match last {
        Some((second, text)) if *second == now.as_second() => text.clone(),
        _ => {
            let text = DateTimePrinter::new().timestamp_to_rfc9110_string(&now);
            let text = text.expect("the present has four digits for its year");
            let value = HeaderValue::try_from(text).expect("a date is plain text");
            *last = Some((now.as_second(), value.clone()));
            value
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_from_elsewhere_loses_what_was_about_its_connection() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("connection", "keep-alive, x-hop"),
            ("keep-alive", "timeout=5"),
            ("transfer-encoding", "chunked"),
            ("x-hop", "1"),
            ("x-kept", "1"),
            ("date", "then"),
        ] {
            headers.insert(name, HeaderValue::from_static(value));
        }
        finish_headers(&mut headers);
        let mut left: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
        left.sort_unstable();
        assert_eq!(left, ["date", "x-kept"]);
        assert_eq!(headers["date"], "then");
    }

    #[test]
    fn a_date_is_of_its_second() {
        let check = |millisecond, expected| {
            assert_eq!(date(Timestamp::from_millisecond(millisecond).expect("a time")), expected);
        };
        check(784_111_777_000, "Sun, 06 Nov 1994 08:49:37 GMT");
        check(784_111_777_999, "Sun, 06 Nov 1994 08:49:37 GMT");
        check(784_111_778_000, "Sun, 06 Nov 1994 08:49:38 GMT");
    }
}
