//! Container logs: files of lines as the runtime writes them,
//!
//! ```text
//! 2026-11-15T10:30:00.123456789Z stdout F a whole line
//! 2026-11-15T10:30:00.223456789Z stderr P the first part of a long one
//! ```
//!
//! read back with everything `kubectl logs` can ask for, and kept within
//! bounds by rotation.

pub mod read;
pub mod rotate;

use std::fs;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use jiff::Timestamp;
use nix::fcntl::OFlag;

use crate::runtime::view::Container;

/// The most of a container's last words that goes into its status.
const MAX_MESSAGE: usize = 4096;
const MAX_LOG_MESSAGE: u64 = 2048;
const MAX_LOG_LINES: usize = 80;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    Stdout,
    Stderr,
}

/// A line of a log, or a part of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line<'a> {
    pub time: Timestamp,
    /// As it is written in the file: users see it unchanged.
    pub time_text: &'a [u8],
    pub stream: Stream,
    pub is_partial: bool,
    pub text: &'a [u8],
}

/// Reads one line of the file, without its newline.
pub fn parse(line: &[u8]) -> Option<Line<'_>> {
    let mut parts = line.splitn(4, |byte| *byte == b' ');
    let time_text = parts.next()?;
    let time: Timestamp = std::str::from_utf8(time_text).ok()?.parse().ok()?;
    let stream = match parts.next()? {
        b"stdout" => Stream::Stdout,
        b"stderr" => Stream::Stderr,
        _ => return None,
    };
    let tags = parts.next()?;
    let is_partial = tags.split(|byte| *byte == b':').next() == Some(b"P");
    Some(Line { time, time_text, stream, is_partial, text: parts.next().unwrap_or_default() })
}

/// What an ended container wants to be remembered for: the file it wrote, or
/// the end of its log where it failed and the pod asks for that.
pub fn termination_message(record: &Container) -> String {
    let written = record.termination_message_file.as_deref().and_then(|file| read_start(file, MAX_MESSAGE));
    match written.filter(|text| !text.is_empty()) {
        Some(text) => text,
        None if record.termination_message_policy == "FallbackToLogsOnError" && record.exit_code != 0 => {
            last_lines(&record.log_path)
        }
        None => String::new(),
    }
}

/// A log as its runtime makes it: a file. A pod that mounts the host's logs can put a link in its place, which would have the
/// kubelet read any file of the host for whoever may read the pod's logs, or one without an end.
fn open(log: &Path) -> std::io::Result<fs::File> {
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
    let file = fs::OpenOptions::new().read(true).custom_flags(flags.bits()).open(log)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, "the log is no file")),
    }
}

fn read_start(file: &Path, limit: usize) -> Option<String> {
    let mut bytes = Vec::new();
    fs::File::open(file).ok()?.take(limit as u64).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

fn last_lines(log: &Path) -> String {
    let tail = || -> std::io::Result<Vec<u8>> {
        let mut file = open(log)?;
        let length = file.metadata()?.len();
        // a few times over: each line carries its time
        file.seek(SeekFrom::Start(length.saturating_sub(MAX_LOG_MESSAGE * 4)))?;
        let mut bytes = Vec::new();
        file.take(MAX_LOG_MESSAGE * 4).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let Ok(bytes) = tail() else { return String::new() };
    let mut text = Vec::new();
    let lines: Vec<Line<'_>> = bytes.split(|byte| *byte == b'\n').filter_map(parse).collect();
    for line in lines.iter().skip(lines.len().saturating_sub(MAX_LOG_LINES)) {
        text.extend_from_slice(line.text);
        if !line.is_partial {
            text.push(b'\n');
        }
    }
    let from = text.len().saturating_sub(MAX_LOG_MESSAGE as usize);
    String::from_utf8_lossy(&text[from..]).into_owned()
}

/// Removes a container's log and what rotation made of it.
pub fn remove(log: &Path) {
    let (Some(directory), Some(name)) = (log.parent(), log.file_name().and_then(|name| name.to_str())) else {
        return;
    };
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry
            .file_name()
            .to_str()
            .is_some_and(|other| other == name || other.starts_with(&format!("{name}.")))
            && let Err(error) = fs::remove_file(entry.path())
        {
            tracing::debug!(file = %entry.path().display(), %error, "log not removed");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_parsed() {
        let line = parse(b"2026-11-15T10:30:00.123456789Z stdout F hello world").expect("a whole line");
        assert_eq!(
            (line.stream, line.is_partial, line.text),
            (Stream::Stdout, false, b"hello world".as_slice())
        );
        assert_eq!(line.time_text, b"2026-11-15T10:30:00.123456789Z");
        let part = parse(b"2026-11-15T10:30:00Z stderr P x ").expect("a part");
        assert_eq!((part.stream, part.is_partial, part.text), (Stream::Stderr, true, b"x ".as_slice()));
        assert_eq!(parse(b"2026-11-15T10:30:00Z stdout F").map(|line| line.text), Some(b"".as_slice()));
        for bad in [b"".as_slice(), b"noise", b"2026-11-15T10:30:00Z other F x", b"yesterday stdout F x"] {
            assert_eq!(parse(bad), None);
        }
    }

    #[test]
    fn the_end_of_a_log_is_found() {
        let directory = tempfile::tempdir().expect("a directory can be made");
        let log = directory.path().join("0.log");
        let lines: String =
            (0..200).map(|number| format!("2026-11-15T10:30:00Z stdout F line {number}\n")).collect();
        fs::write(&log, lines).expect("a file can be written");
        let text = last_lines(&log);
        assert!(text.ends_with("line 199\n") && text.lines().count() <= MAX_LOG_LINES);
    }

    #[test]
    fn links_in_place_of_logs_are_not_followed() {
        let directory = tempfile::tempdir().expect("a directory can be made");
        let (log, secret) = (directory.path().join("0.log"), directory.path().join("secret"));
        fs::write(&secret, "2026-11-15T10:30:00Z stdout F secret\n").expect("a file can be written");
        std::os::unix::fs::symlink(&secret, &log).expect("a link can be made");
        assert!(open(&log).is_err());
        assert_eq!(last_lines(&log), "");
        assert!(open(Path::new("/dev/zero")).is_err());
        assert!(open(&secret).is_ok());
    }
}
