//! Reads the body of a request, if its verb takes one, within memory limits for all bodies.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use ferry_api::Status;
use ferry_auth::User;
use http::Method;
use http_body_util::BodyExt;
use tokio::time::timeout;

use crate::fair_limit::{FairLimit, FairPermit};
use crate::request_info::RequestInfo;
use crate::{chunked_copy, trace, ui};

/// What the bodies of one connection may hold; of that, one user gets half.
const OF_CONNECTION: usize = 32 << 20;
/// What a client may go on to send of a body that nobody reads, so that it comes to read the answer.
const IN_VAIN: usize = 4 << 20;
const IN_VAIN_FOR: Duration = Duration::from_secs(2);

/// The memory that bodies may take: of one connection, and of all.
#[derive(Clone)]
pub struct Memory {
    pub connection: Arc<FairLimit>,
    pub all: Arc<FairLimit>,
}

/// For a new connection.
pub fn of_connection() -> Arc<FairLimit> {
    FairLimit::new(OF_CONNECTION)
}

pub trait RequestBody:
    http_body::Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Send + Unpin + 'static
{
}

impl<B> RequestBody for B where
    B: http_body::Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>>
        + Send
        + Unpin
        + 'static
{
}

/// A body that may be read. A client that is refused meanwhile goes on to send: what it sends is taken in for a while and
/// dropped, since many clients read no answer before they are done, and take a reset for a failure.
pub struct Unread<B: RequestBody> {
    body: Option<B>,
    silent: bool,
}

/// A body as a whole, and its memory.
#[derive(Default)]
pub struct Whole {
    pub bytes: Bytes,
    _memory: Option<[FairPermit; 2]>,
}

impl<B: RequestBody> Unread<B> {
    pub fn new(body: B) -> Unread<B> {
        Unread { body: Some(body), silent: false }
    }

    /// Of a client that sends nothing before it is told to.
    pub fn silent(body: B) -> Unread<B> {
        Unread { body: Some(body), silent: true }
    }

    /// The body itself, for whoever passes it on as it comes; `None` where it was taken already.
    pub fn into_stream(mut self) -> Option<B> {
        self.body.take()
    }

    /// Reads all of it, up to `limit` bytes. `None` for the memory of a component: its body is there already.
    pub async fn read(mut self, limit: usize, user: &User, memory: Option<&Memory>) -> Result<Whole, Status> {
        let Some(body) = &mut self.body else { return Ok(Whole::default()) };
        let mut shares = memory.map(|memory| [memory.connection.nothing(user), memory.all.nothing(user)]);
        let mut whole = BytesMut::new();
        while let Some(frame) = body.frame().await {
            let frame = frame
                .map_err(|error| Status::bad_request(format!("the body cannot be read: {}", error.into())))?;
            let Ok(data) = frame.into_data() else { continue };
            if whole.len() + data.len() > limit {
                return Err(Status::too_large(limit));
            }
            let has_room =
                |shares: &mut [FairPermit; 2]| shares.iter_mut().all(|share| share.grow(data.len()));
            if !shares.as_mut().is_none_or(has_room) {
                return Err(Status::too_many_requests("Too many large requests, please try again later.", 1));
            }
            // Mostly it is one piece, and stays as it is. Others are copied: a piece keeps the whole buffer that it came in.
            if whole.is_empty() && body.is_end_stream() {
                return Ok(Whole { bytes: data, _memory: shares });
            }
            chunked_copy::append(&mut whole, &data);
        }
        // Nothing is left that could be sent in vain, and a body is not asked again after its end.
        self.body = None;
        Ok(Whole { bytes: whole.freeze(), _memory: shares })
    }
}

impl<B: RequestBody> Drop for Unread<B> {
    fn drop(&mut self) {
        let unread = self.body.take().filter(|body| !self.silent && !body.is_end_stream());
        let Some(mut body) = unread else { return };
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        runtime.spawn(timeout(IN_VAIN_FOR, async move {
            let mut left = IN_VAIN;
            while let Some(Ok(frame)) = body.frame().await {
                let length = frame.data_ref().map_or(0, Bytes::len);
                let Some(less) = left.checked_sub(length) else { return };
                left = less;
            }
        }));
    }
}

/// Whether anything that answers the request looks at its body.
pub fn is_wanted(method: &Method, info: &RequestInfo) -> bool {
    let reads = matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS);
    !reads && (info.is_resource || info.path == trace::PATH || info.path == ui::SESSIONS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::stream;
    use http_body::Frame;
    use http_body_util::StreamBody;

    fn body(pieces: Vec<Vec<u8>>) -> impl RequestBody {
        let frames = pieces.into_iter().map(|piece| Ok::<_, std::io::Error>(Frame::data(Bytes::from(piece))));
        StreamBody::new(stream::iter(frames))
    }

    fn memory(connection: usize, all: usize) -> Memory {
        Memory { connection: FairLimit::new(connection), all: FairLimit::new(all) }
    }

    #[tokio::test]
    async fn bodies_take_no_more_memory_than_there_is() {
        let (user, memory) = (User::new("a"), memory(100, 1000));
        let read = |pieces| Unread::new(body(pieces)).read(60, &user, Some(&memory));
        let first = read(vec![vec![1; 20], vec![2; 20]]).await.expect("there is room");
        assert_eq!(first.bytes.len(), 40);
        let refused = |read: Result<Whole, Status>| read.err().map(|status| status.code);
        assert_eq!(refused(read(vec![vec![1; 61]]).await), Some(413));
        let second = read(vec![vec![3; 20]]).await.expect("less than half is held");
        assert_eq!(refused(read(vec![vec![3; 1]]).await), Some(429));
        drop((first, second));
        read(vec![vec![3; 60]]).await.expect("it is free again");
        // A component's body is there already.
        Unread::new(body(vec![vec![0; 50]])).read(60, &user, None).await.expect("read");
    }

    #[test]
    fn only_verbs_that_take_a_body_get_one() {
        let check = |method: Method, path: &str, expected| {
            let query = crate::request_info::Query::parse("");
            let info = RequestInfo::parse(&method, path, &query).unwrap_or_else(|_| RequestInfo::default());
            assert_eq!(is_wanted(&method, &info), expected, "{method} {path}");
        };
        check(Method::GET, "/version", false);
        check(Method::POST, "/version", false);
        check(Method::GET, "/api/v1/pods", false);
        check(Method::POST, "/api/v1/namespaces/default/pods", true);
        check(Method::DELETE, "/api/v1/namespaces/default/pods/a", true);
        check(Method::POST, trace::PATH, true);
    }
}
