//! `/healthz`: upstream's checks under their names, each answerable alone, all shown with `?verbose`.

use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferry_serving::Check;
use parking_lot::Mutex;

use crate::runtime::watch::Seen;

/// As long as upstream waits for its loop to come round.
const LONGEST_ROUND: Duration = Duration::from_secs(5 * 60);
const FLUSH_PERIOD: Duration = Duration::from_secs(60);
const LONGEST_FLUSH: Duration = Duration::from_secs(2 * 60);

/// Beside `ping`, which always succeeds.
pub(super) fn checks(seen: Seen) -> Vec<Check> {
    let flushed = follow_log();
    vec![
        ("log", Box::new(move || is_recent(*flushed.lock(), LONGEST_FLUSH, "logging blocked"))),
        (
            "syncloop",
            Box::new(move || match seen.last_round() {
                Some(began) => is_recent(began, LONGEST_ROUND, "sync Loop took longer than expected"),
                None => Ok(()),
            }),
        ),
    ]
}

fn is_recent(at: Instant, longest: Duration, otherwise: &str) -> Result<(), String> {
    if at.elapsed() < longest { Ok(()) } else { Err(otherwise.into()) }
}

/// When the log could last be written. Who writes to it holds its lock: where nobody reads the other end, this waits
/// too, so it is done by a thread of its own, which ends with the last who asks.
fn follow_log() -> Arc<Mutex<Instant>> {
    let flushed = Arc::new(Mutex::new(Instant::now()));
    let note = Arc::downgrade(&flushed);
    let follow = move || {
        while let Some(flushed) = note.upgrade() {
            match std::io::stderr().lock().flush() {
                Ok(()) => *flushed.lock() = Instant::now(),
                Err(error) => tracing::debug!(%error, "the log cannot be written"),
            }
            drop(flushed);
            std::thread::sleep(FLUSH_PERIOD);
        }
    };
    if let Err(error) = std::thread::Builder::new().name("log-check".into()).spawn(follow) {
        tracing::warn!(%error, "nobody looks after the log");
    }
    flushed
}
