//! Reading a log for somebody: from its beginning, its end or a time, to its
//! end or for as long as the container lives.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio_util::task::TaskTracker;

use super::{Line, Stream, parse};
use crate::blocking::blocking;

/// How often a followed log is looked at. The runtime offers no event for a
/// written line; this is what an interactive reader takes for "at once".
const FOLLOW_PERIOD: Duration = Duration::from_millis(100);
const CHUNK: usize = 64 << 10;
/// An entry's time, stream and tags are within this.
const HEAD: usize = 256;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    pub follow: bool,
    pub timestamps: bool,
    pub tail_lines: Option<usize>,
    pub limit_bytes: Option<usize>,
    pub since: Option<Timestamp>,
    /// One stream alone.
    pub stream: Option<Stream>,
}

/// Writes the log to `out`. When following, `is_running` is asked at the end
/// of the file whether more can come.
pub async fn read<W, F, R>(path: &Path, options: &Options, out: &mut W, mut is_running: F) -> io::Result<()>
where
    W: AsyncWrite + Unpin,
    F: FnMut() -> R,
    R: Future<Output = bool>,
{
    let (path, wanted) = (path.to_owned(), options.clone());
    let work = TaskTracker::new();
    let mut reader = blocking(&work, move || Reader::open(path, wanted)).await?;
    loop {
        // asked before the last look, so that nothing written before the end is missed
        let more_can_come = options.follow && is_running().await;
        loop {
            let (back, step) = blocking(&work, move || {
                let step = reader.step();
                (reader, step)
            })
            .await;
            let step = step?;
            reader = back;
            out.write_all(&step.text).await?;
            match step.then {
                NextRead::More => {}
                NextRead::End => break,
                NextRead::Enough => return out.flush().await,
            }
        }
        out.flush().await?;
        if !more_can_come {
            return Ok(());
        }
        tokio::time::sleep(FOLLOW_PERIOD).await;
    }
}

struct Reader {
    follower: Follower,
    printer: Printer,
}

/// A piece of the log as it is shown.
struct Step {
    text: Vec<u8>,
    then: NextRead,
}

enum NextRead {
    More,
    /// The file ends here, for now.
    End,
    /// As many bytes as were asked for.
    Enough,
}

impl Reader {
    fn open(path: PathBuf, options: Options) -> io::Result<Self> {
        let follower = Follower::open(path, &options)?;
        Ok(Self { follower, printer: Printer { left: options.limit_bytes, options, in_line: false } })
    }

    fn step(&mut self) -> io::Result<Step> {
        let mut text = Vec::new();
        let end = self.follower.read_lines(CHUNK, |line| self.printer.print(line, &mut text))?;
        let then = match end {
            _ if self.printer.left == Some(0) => NextRead::Enough,
            true => NextRead::End,
            false => NextRead::More,
        };
        Ok(Step { text, then })
    }
}

struct Printer {
    options: Options,
    left: Option<usize>,
    /// The last thing printed was a part of a line.
    in_line: bool,
}

impl Printer {
    fn print(&mut self, line: &Line<'_>, out: &mut Vec<u8>) {
        if self.options.since.is_some_and(|since| line.time < since)
            || self.options.stream.is_some_and(|stream| stream != line.stream)
        {
            return;
        }
        if self.options.timestamps && !self.in_line {
            self.put(line.time_text, out);
            self.put(b" ", out);
        }
        self.put(line.text, out);
        if !line.is_partial {
            self.put(b"\n", out);
        }
        self.in_line = line.is_partial;
    }

    fn put(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        let allowed = self.left.map_or(bytes.len(), |left| left.min(bytes.len()));
        out.extend_from_slice(&bytes[..allowed]);
        self.left = self.left.map(|left| left - allowed);
    }
}

/// A file that grows, and may be rotated away under its name.
struct Follower {
    path: PathBuf,
    file: BufReader<File>,
    partial: Vec<u8>,
}

impl Follower {
    fn open(path: PathBuf, options: &Options) -> io::Result<Self> {
        let mut file = super::open(&path)?;
        let start = match options.tail_lines {
            Some(lines) => tail_start(&mut file, lines)?,
            None => 0,
        };
        file.seek(SeekFrom::Start(start))?;
        Ok(Self { path, file: BufReader::new(file), partial: Vec::new() })
    }

    /// Reads up to about `limit` bytes of whole lines; `true` at the end.
    fn read_lines(&mut self, limit: usize, mut each: impl FnMut(&Line<'_>)) -> io::Result<bool> {
        let mut taken = 0;
        while taken < limit {
            let before = self.partial.len();
            let count = self.file.read_until(b'\n', &mut self.partial)?;
            if count == 0 {
                return Ok(!self.reopen_if_rotated()?);
            }
            taken += self.partial.len() - before;
            if self.partial.last() == Some(&b'\n') {
                self.partial.pop();
                if let Some(line) = parse(&self.partial) {
                    each(&line);
                }
                self.partial.clear();
            }
        }
        Ok(false)
    }

    fn reopen_if_rotated(&mut self) -> io::Result<bool> {
        use std::os::unix::fs::MetadataExt;
        let open = self.file.get_ref().metadata()?;
        match std::fs::metadata(&self.path) {
            Ok(named) if named.ino() != open.ino() || named.dev() != open.dev() => {
                self.file = BufReader::new(super::open(&self.path)?);
                self.partial.clear();
                Ok(true)
            }
            // between two steps of a rotation the name is free
            _ => Ok(false),
        }
    }
}

/// Where the last `lines` whole lines begin. Parts of one line count as one. Every byte is read once, from the end.
fn tail_start(file: &mut (impl Read + Seek), lines: usize) -> io::Result<u64> {
    let length = file.seek(SeekFrom::End(0))?;
    if lines == 0 {
        return Ok(length);
    }
    let mut found = 0;
    // where the entry begins that comes after the one that is looked at
    let mut after = None;
    let mut is_last_newline = true;
    let mut end = length;
    while end > 0 {
        let start = end.saturating_sub(CHUNK as u64);
        // an entry's head may be in the chunk behind
        let read = (end + HEAD as u64).min(length) - start;
        let mut chunk = vec![0; usize::try_from(read).map_err(io::Error::other)?];
        file.seek(SeekFrom::Start(start))?;
        file.read_exact(&mut chunk)?;
        let own =
            chunk.len() - usize::try_from((end + HEAD as u64).min(length) - end).map_err(io::Error::other)?;
        let newlines = (0..own).rev().filter(|index| chunk[*index] == b'\n').map(|index| index + 1);
        for begin in newlines.chain((start == 0).then_some(0)) {
            // what no newline ends is still being written
            if std::mem::take(&mut is_last_newline) && begin != 0 {
                continue;
            }
            let head = &chunk[begin..chunk.len().min(begin + HEAD)];
            let head = head.split(|byte| *byte == b'\n').next().unwrap_or_default();
            // noise is not shown, so it is not counted
            let Some(line) = parse(head) else { continue };
            if let Some(after) = after.filter(|_| !line.is_partial) {
                found += 1;
                if found == lines {
                    return Ok(after);
                }
            }
            after = Some(start + begin as u64);
        }
        end = start;
    }
    // the first entry begins a line
    Ok(after.filter(|_| found + 1 == lines).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    const LOG: &str = "\
2026-11-15T10:00:00Z stdout F one
2026-11-15T10:00:01Z stderr P two-
2026-11-15T10:00:01.5Z stderr F half
not a log line
2026-11-15T10:00:02Z stdout F three
";

    async fn shown(options: Options) -> String {
        let directory = tempfile::tempdir().expect("a directory can be made");
        let log = directory.path().join("0.log");
        fs::write(&log, LOG).expect("a file can be written");
        let mut out = Vec::new();
        read(&log, &options, &mut out, || async { false }).await.expect("the log can be read");
        String::from_utf8(out).expect("the log is text")
    }

    #[tokio::test]
    async fn a_log_is_read_as_asked() {
        let all = Options::default();
        assert_eq!(shown(all.clone()).await, "one\ntwo-half\nthree\n");
        assert_eq!(shown(Options { tail_lines: Some(2), ..all.clone() }).await, "two-half\nthree\n");
        assert_eq!(shown(Options { tail_lines: Some(0), ..all.clone() }).await, "");
        assert_eq!(shown(Options { tail_lines: Some(9), ..all.clone() }).await, "one\ntwo-half\nthree\n");
        assert_eq!(shown(Options { limit_bytes: Some(6), ..all.clone() }).await, "one\ntw");
        assert_eq!(shown(Options { stream: Some(Stream::Stderr), ..all.clone() }).await, "two-half\n");
        let since = "2026-11-15T10:00:02Z".parse().ok();
        assert_eq!(shown(Options { since, ..all.clone() }).await, "three\n");
        assert_eq!(
            shown(Options { timestamps: true, ..all }).await,
            "2026-11-15T10:00:00Z one\n2026-11-15T10:00:01Z two-half\n2026-11-15T10:00:02Z three\n"
        );
    }

    /// Counts what is read.
    struct Counted {
        file: std::io::Cursor<Vec<u8>>,
        bytes: usize,
    }

    impl Read for Counted {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let count = self.file.read(buffer)?;
            self.bytes += count;
            Ok(count)
        }
    }

    impl Seek for Counted {
        fn seek(&mut self, position: SeekFrom) -> io::Result<u64> {
            self.file.seek(position)
        }
    }

    #[test]
    fn the_end_of_a_log_is_found_by_reading_it_once() {
        let line = |number: usize| {
            let tag = if number.is_multiple_of(3) { "P" } else { "F" };
            format!("2026-11-15T10:00:00Z stdout {tag} line {number}\n")
        };
        let text: String = (0..=100_000).map(line).collect();
        let whole_lines = text.lines().filter(|line| line.contains(" F ")).count();
        let tail = |lines: usize| {
            let mut log = Counted { file: std::io::Cursor::new(text.clone().into_bytes()), bytes: 0 };
            let start = tail_start(&mut log, lines).expect("memory can be read");
            (&text[usize::try_from(start).expect("it fits")..], log.bytes)
        };
        for lines in [1, 2, 3, 1000, 50_000, whole_lines - 1, whole_lines] {
            let (shown, bytes) = tail(lines);
            assert_eq!(shown.lines().filter(|line| line.contains(" F ")).count(), lines);
            // one chunk more than it takes, and the heads that two chunks share
            let chunks = shown.len() / CHUNK + 2;
            assert!(bytes <= chunks * (CHUNK + HEAD), "{bytes} for {} of {lines} lines", shown.len());
        }
        assert_eq!(tail(whole_lines + 9).0.len(), text.len());
        // what is not ended by a newline is not there yet
        let mut log =
            std::io::Cursor::new(format!("{}2026-11-15T10:00:00Z stdout F half", line(1)).into_bytes());
        assert_eq!(tail_start(&mut log, 1).expect("memory can be read"), 0);
        assert_eq!(
            tail_start(&mut std::io::Cursor::new(b"noise".to_vec()), 1).expect("memory can be read"),
            0
        );
    }

    #[tokio::test]
    async fn a_followed_log_ends_with_its_container_and_survives_rotation() {
        let directory = tempfile::tempdir().expect("a directory can be made");
        let log = directory.path().join("0.log");
        let line = |text: &str| format!("2026-11-15T10:00:00Z stdout F {text}\n");
        fs::write(&log, line("first")).expect("a file can be written");
        let mut looks = 0;
        let mut out = Vec::new();
        let is_running = || {
            looks += 1;
            match looks {
                2 => {
                    fs::rename(&log, directory.path().join("0.log.old")).expect("it can be renamed");
                    fs::write(&log, line("second")).expect("a file can be written");
                }
                3 => fs::write(&log, line("second") + &line("third")).expect("a file can be written"),
                _ => {}
            }
            let running = looks < 4;
            async move { running }
        };
        let options = Options { follow: true, ..Options::default() };
        read(&log, &options, &mut out, is_running).await.expect("the log can be read");
        assert_eq!(String::from_utf8(out).expect("text"), "first\nsecond\nthird\n");
    }
}
