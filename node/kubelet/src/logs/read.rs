//! Reading a log for somebody: from its beginning, its end or a time, to its
//! end or for as long as the container lives.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use tokio::io::{AsyncWrite, AsyncWriteExt};

use super::{Line, Stream, parse};

/// How often a followed log is looked at. The runtime offers no event for a
/// written line; this is what an interactive reader takes for "at once".
const FOLLOW_PERIOD: Duration = Duration::from_millis(100);
const CHUNK: usize = 64 << 10;

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
    let mut reader = Follower::open(path, options)?;
    let mut printer = Printer { options, left: options.limit_bytes, in_line: false };
    loop {
        // asked before the last look, so that nothing written before the end is missed
        let more_can_come = options.follow && is_running().await;
        loop {
            let mut written = Vec::new();
            let end = reader.read_lines(CHUNK, |line| printer.print(line, &mut written))?;
            out.write_all(&written).await?;
            if printer.left == Some(0) {
                return out.flush().await;
            }
            if end {
                break;
            }
        }
        out.flush().await?;
        if !more_can_come {
            return Ok(());
        }
        tokio::time::sleep(FOLLOW_PERIOD).await;
    }
}

struct Printer<'a> {
    options: &'a Options,
    left: Option<usize>,
    /// The last thing printed was a part of a line.
    in_line: bool,
}

impl Printer<'_> {
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
    fn open(path: &Path, options: &Options) -> io::Result<Self> {
        let mut file = File::open(path)?;
        let start = match options.tail_lines {
            Some(lines) => tail_start(&mut file, lines)?,
            None => 0,
        };
        file.seek(SeekFrom::Start(start))?;
        Ok(Self { path: path.into(), file: BufReader::new(file), partial: Vec::new() })
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
                self.file = BufReader::new(File::open(&self.path)?);
                self.partial.clear();
                Ok(true)
            }
            // between two steps of a rotation the name is free
            _ => Ok(false),
        }
    }
}

/// Where the last `lines` whole lines begin. Parts of one line count as one.
fn tail_start(file: &mut File, lines: usize) -> io::Result<u64> {
    let length = file.metadata()?.len();
    if lines == 0 {
        return Ok(length);
    }
    let mut end = length;
    let mut buffer: Vec<u8> = Vec::new();
    loop {
        let start = end.saturating_sub(CHUNK as u64);
        let mut chunk = vec![0; (end - start) as usize];
        file.seek(SeekFrom::Start(start))?;
        file.read_exact(&mut chunk)?;
        chunk.extend_from_slice(&buffer);
        buffer = chunk;
        if let Some(offset) = last_lines_offset(&buffer, lines, start == 0) {
            return Ok(start + offset as u64);
        }
        if start == 0 {
            return Ok(0);
        }
        end = start;
    }
}

/// The offset of the last `count` lines within a piece of the file; `None`
/// when the piece may not hold them all.
fn last_lines_offset(bytes: &[u8], count: usize, is_start: bool) -> Option<usize> {
    let mut starts = Vec::new();
    let mut from = 0;
    for (index, byte) in bytes.iter().enumerate() {
        if *byte == b'\n' {
            // noise is not shown, so it is not counted
            starts.extend(parse(&bytes[from..index]).map(|line| (from, line.is_partial)));
            from = index + 1;
        }
    }
    // a line starts where the one before it is whole
    let mut wholes = 0;
    for index in (0..starts.len()).rev() {
        let begins = if index == 0 { is_start } else { !starts[index - 1].1 };
        if begins {
            wholes += 1;
            if wholes == count {
                return Some(starts[index].0);
            }
        }
    }
    None
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
