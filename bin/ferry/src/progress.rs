//! Progress of commands that take longer than a second, on standard error, since programs read standard output.

use std::io::{IsTerminal, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Before this nobody wonders.
const SOON: Duration = Duration::from_secs(1);
/// On a terminal the line is written over; in a file each is kept.
const ON_TERMINAL: Duration = Duration::from_millis(250);
const IN_FILE: Duration = Duration::from_secs(10);

/// Tells until it is dropped.
pub struct Progress {
    done: Arc<AtomicU64>,
    end: Option<mpsc::Sender<()>>,
    display: Option<JoinHandle<()>>,
}

impl Progress {
    /// `total` counts bytes; without it only the time is told.
    pub fn begin(what: impl Into<String>, total: Option<u64>) -> Progress {
        let (end, ended) = mpsc::channel();
        let done = Arc::new(AtomicU64::new(0));
        let (what, counted) = (what.into(), done.clone());
        let display = std::thread::spawn(move || show(&what, total, &counted, &ended));
        Progress { done, end: Some(end), display: Some(display) }
    }

    /// Counts what passes.
    pub fn counter(&self) -> impl Fn(u64) + Clone + Send + Sync + 'static + use<> {
        let done = self.done.clone();
        move |bytes| {
            done.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// Counts what is read.
    pub fn reader<R: Read>(&self, input: R) -> Counted<R> {
        Counted { input, done: self.done.clone() }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(display) = self.display.take() {
            // It holds nothing that a panic could leave half done.
            let _ = display.join();
        }
    }
}

pub struct Counted<R> {
    input: R,
    done: Arc<AtomicU64>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let read = self.input.read(buffer)?;
        self.done.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}

fn show(what: &str, total: Option<u64>, done: &AtomicU64, ended: &mpsc::Receiver<()>) {
    let began = Instant::now();
    let is_terminal = std::io::stderr().is_terminal();
    let mut wait = SOON;
    let mut is_told = false;
    while ended.recv_timeout(wait) == Err(RecvTimeoutError::Timeout) {
        let line = line(what, total, done.load(Ordering::Relaxed), began.elapsed());
        let mut out = std::io::stderr().lock();
        // Who cannot hear it can do without.
        let _ = if is_terminal { write!(out, "\r\x1b[K{line}") } else { writeln!(out, "{line}") };
        is_told = true;
        wait = if is_terminal { ON_TERMINAL } else { IN_FILE };
    }
    if is_told && is_terminal {
        let _ = write!(std::io::stderr().lock(), "\r\x1b[K");
    }
}

fn line(what: &str, total: Option<u64>, done: u64, elapsed: Duration) -> String {
    let megabytes = |bytes: u64| bytes as f64 / 1e6;
    let seconds = elapsed.as_secs();
    match total.filter(|total| *total > 0) {
        None if done == 0 => format!("{what} … {seconds} s"),
        None => format!("{what} … {:.0} MB, {seconds} s", megabytes(done)),
        Some(total) => {
            let percent = (done.min(total) * 100) / total;
            format!("{what} … {:.0} of {:.0} MB ({percent}%), {seconds} s", megabytes(done), megabytes(total))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_tells_how_far_it_is() {
        let of = |total, done| line("reading a.tar", total, done, Duration::from_millis(2_500));
        assert_eq!(of(Some(80_000_000), 20_000_000), "reading a.tar … 20 of 80 MB (25%), 2 s");
        assert_eq!(of(None, 20_000_000), "reading a.tar … 20 MB, 2 s");
        assert_eq!(of(None, 0), "reading a.tar … 2 s");
        assert_eq!(of(Some(0), 0), "reading a.tar … 2 s");
    }

    #[test]
    fn progress_counts_the_bytes_read() {
        let progress = Progress::begin("reading", None);
        let mut text = Vec::new();
        progress.reader(&b"twelve bytes"[..]).read_to_end(&mut text).unwrap();
        progress.counter()(3);
        assert_eq!(progress.done.load(Ordering::Relaxed), 15);
    }
}
