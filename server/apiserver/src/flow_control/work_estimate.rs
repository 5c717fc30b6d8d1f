//! How many seats a request takes, and for how long: lists by the bytes that they load, writes by the watchers that they
//! reach. Pure.

use std::time::Duration;

use crate::request_info::{Query, RequestInfo};

const BYTES_PER_SEAT: f64 = 100_000.0;
/// The watch cache streams a list: it does not hold more than this of it at once.
const STREAMED_BYTES: usize = 1_000_000;
const MOST_LIST_SEATS: usize = 100;
const MOST_WRITE_SEATS: usize = 10;
const WATCHES_PER_SEAT: f64 = 10.0;
/// What the events of a write take, after it has been answered, for each seat.
const EVENT_DURATION: Duration = Duration::from_millis(5);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkEstimate {
    /// While the request is served.
    pub initial_seats: usize,
    /// After that, for `additional_latency`.
    pub final_seats: usize,
    pub additional_latency: Duration,
}

/// The objects of a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stored {
    pub objects: usize,
    pub bytes: usize,
}

impl WorkEstimate {
    pub const ONE_SEAT: WorkEstimate = WorkEstimate::wide(1);

    pub const fn wide(seats: usize) -> WorkEstimate {
        WorkEstimate { initial_seats: seats, final_seats: 0, additional_latency: Duration::ZERO }
    }

    pub fn max_seats(&self) -> usize {
        self.initial_seats.max(self.final_seats)
    }

    /// The same work after the answer with no more than `limit` seats, for longer.
    pub fn within(self, limit: usize) -> WorkEstimate {
        let limit = limit.max(1);
        if self.final_seats <= limit {
            return self;
        }
        let additional_latency = self.additional_latency.mul_f64(self.final_seats as f64 / limit as f64);
        WorkEstimate { final_seats: limit, additional_latency, ..self }
    }
}

/// `stored` is `None` for what this server does not store; `watchers` counts those that the write reaches; `most` is the
/// priority level's limit of seats for one request.
pub fn estimate(
    info: &RequestInfo,
    query: &Query,
    stored: impl FnOnce() -> Option<Stored>,
    watchers: impl FnOnce() -> usize,
    most: Option<usize>,
) -> WorkEstimate {
    if !info.is_resource {
        return WorkEstimate::ONE_SEAT;
    }
    match info.verb {
        "list" => list(info, query, stored(), most),
        "watch" if sends_initial_events(query) => list(info, query, stored(), most),
        "create" | "update" | "patch" | "delete" if info.subresource != "token" => write(watchers(), most),
        _ => WorkEstimate::ONE_SEAT,
    }
}

/// Without a revision a watch begins with all objects.
fn sends_initial_events(query: &Query) -> bool {
    query.flag("sendInitialEvents") || ["", "0"].contains(&query.text("resourceVersion"))
}

fn list(info: &RequestInfo, query: &Query, stored: Option<Stored>, most: Option<usize>) -> WorkEstimate {
    let Some(stored) = stored.filter(|stored| stored.objects > 0) else { return WorkEstimate::ONE_SEAT };
    let limit = query.text("limit").parse().ok().filter(|limit| *limit > 0).unwrap_or(usize::MAX);
    let loaded = if info.authorized_name().is_empty() { stored.objects.min(limit) } else { 1 };
    let bytes = (stored.bytes / stored.objects).saturating_mul(loaded).min(STREAMED_BYTES);
    let seats = (bytes as f64 / BYTES_PER_SEAT).ceil() as usize;
    WorkEstimate::wide(seats.min(most.unwrap_or(MOST_LIST_SEATS).min(MOST_LIST_SEATS)).max(1))
}

fn write(watchers: usize, most: Option<usize>) -> WorkEstimate {
    if (watchers as f64) < WATCHES_PER_SEAT {
        return WorkEstimate::ONE_SEAT;
    }
    let final_seats = (watchers as f64 / WATCHES_PER_SEAT).ceil() as usize;
    let wide = WorkEstimate { initial_seats: 1, final_seats, additional_latency: EVENT_DURATION };
    wide.within(most.unwrap_or(MOST_WRITE_SEATS).min(MOST_WRITE_SEATS))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Method;

    fn estimated(method: &Method, url: &str, stored: Stored, watchers: usize, most: usize) -> WorkEstimate {
        let (path, query) = url.split_once('?').unwrap_or((url, ""));
        let query = Query::parse(query);
        let info = RequestInfo::parse(method, path, &query).expect("a path");
        estimate(&info, &query, || Some(stored), || watchers, Some(most))
    }

    #[test]
    fn lists_are_as_wide_as_what_they_load() {
        let check = |url: &str, objects: usize, bytes: usize, expected: usize| {
            let found = estimated(&Method::GET, url, Stored { objects, bytes }, 0, 10);
            assert_eq!(found, WorkEstimate::wide(expected), "{url} {objects} {bytes}");
        };
        check("/api/v1/pods", 0, 0, 1);
        check("/api/v1/pods", 10, 20_000, 1);
        check("/api/v1/pods", 100, 400_000, 4);
        check("/api/v1/pods?limit=50", 100, 400_000, 2);
        check("/api/v1/pods?limit=500", 100, 400_000, 4);
        check("/api/v1/pods?fieldSelector=metadata.name%3Da", 100, 400_000, 1);
        check("/api/v1/pods", 5_000, 20_000_000, 10);
        check("/api/v1/pods?watch=1", 100, 400_000, 4);
        check("/api/v1/pods?watch=1&resourceVersion=0", 100, 400_000, 4);
        check("/api/v1/pods?watch=1&resourceVersion=5", 100, 400_000, 1);
        check("/api/v1/pods?watch=1&resourceVersion=5&sendInitialEvents=true", 100, 400_000, 4);
        check("/api/v1/namespaces/a/pods/b", 100, 400_000, 1);
        check("/version", 100, 400_000, 1);
        let list = Stored { objects: 100, bytes: 400_000 };
        assert_eq!(estimated(&Method::GET, "/api/v1/pods", list, 0, 3).initial_seats, 3);
    }

    #[test]
    fn writes_keep_seats_for_the_events_that_they_cause() {
        let stored = Stored { objects: 1, bytes: 1 };
        let post =
            |url: &str, watchers: usize, most: usize| estimated(&Method::POST, url, stored, watchers, most);
        let pods = "/api/v1/namespaces/a/pods";
        assert_eq!(post(pods, 9, 10), WorkEstimate::ONE_SEAT);
        let wide = |seats, millis| WorkEstimate {
            initial_seats: 1,
            final_seats: seats,
            additional_latency: Duration::from_millis(millis),
        };
        assert_eq!(post(pods, 10, 10), wide(1, 5));
        assert_eq!(post(pods, 45, 10), wide(5, 5));
        assert_eq!(post(pods, 400, 10), wide(10, 20));
        assert_eq!(post(pods, 400, 5), wide(5, 40));
        assert_eq!(post("/api/v1/namespaces/a/serviceaccounts/b/token", 400, 10), WorkEstimate::ONE_SEAT);
    }
}
