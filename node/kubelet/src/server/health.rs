//! `/healthz`: upstream's checks under their names, each answerable alone, all shown with `?verbose`.

use std::time::{Duration, Instant};

use ferry_serving::Check;

use crate::runtime::watch::Seen;

/// As long as upstream waits for its loop to come round.
const LONGEST_ROUND: Duration = Duration::from_secs(5 * 60);

/// Beside `ping`, which always succeeds.
pub(super) fn checks(seen: Seen) -> Vec<Check> {
    vec![
        ("log", Box::new(ferry_serving::log_is_written)),
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
