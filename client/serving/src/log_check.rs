//! The check `log`: whether the process can write what it has to say.

use std::io::Write;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

const FLUSH_PERIOD: Duration = Duration::from_secs(60);
const LONGEST_FLUSH: Duration = Duration::from_secs(2 * 60);

/// One log, so one thread looks after it, whoever of this process asks.
static FLUSHED: LazyLock<Arc<Mutex<Instant>>> = LazyLock::new(follow_log);

/// As upstream's check of this name.
pub fn log_is_written() -> Result<(), String> {
    let flushed = *FLUSHED.lock();
    if flushed.elapsed() < LONGEST_FLUSH { Ok(()) } else { Err("logging blocked".into()) }
}

/// When the log could last be written. Who writes to it holds its lock: where nobody reads the other end, this waits
/// too, so it is done by a thread of its own.
fn follow_log() -> Arc<Mutex<Instant>> {
    let flushed = Arc::new(Mutex::new(Instant::now()));
    let note = flushed.clone();
    let follow = move || {
        loop {
            match std::io::stderr().lock().flush() {
                Ok(()) => *note.lock() = Instant::now(),
                Err(error) => tracing::debug!(%error, "the log cannot be written"),
            }
            std::thread::sleep(FLUSH_PERIOD);
        }
    };
    if let Err(error) = std::thread::Builder::new().name("log-check".into()).spawn(follow) {
        tracing::warn!(%error, "cannot start the check of the log");
    }
    flushed
}
