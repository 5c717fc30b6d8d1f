//! Events as JSON lines in a file that is rotated by size.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use super::{Batching, Event, Sink};

#[derive(Clone, Debug)]
pub struct LogFileConfig {
    pub path: PathBuf,
    /// Rotate before the file grows beyond this many bytes.
    pub max_bytes: u64,
    /// Keep so many rotated files; all if `None`.
    pub max_backups: Option<usize>,
    /// Keep rotated files for so long; for ever if `None`.
    pub max_age: Option<Duration>,
    /// Compress rotated files with gzip.
    pub compress: bool,
}

impl LogFileConfig {
    pub fn new(path: impl Into<PathBuf>) -> Self {
        LogFileConfig {
            path: path.into(),
            max_bytes: 100 << 20,
            max_backups: None,
            max_age: None,
            compress: false,
        }
    }
}

pub struct LogFile(Option<Writer>);

struct Writer {
    config: LogFileConfig,
    file: File,
    size: u64,
}

impl LogFile {
    /// Opens or creates the file, readable by the owner alone: it tells what everyone does.
    pub fn open(config: LogFileConfig) -> io::Result<Self> {
        let (file, size) = open(&config.path)?;
        Ok(LogFile(Some(Writer { config, file, size })))
    }
}

fn open(path: &Path) -> io::Result<(File, u64)> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    let file = OpenOptions::new().append(true).create(true).mode(0o600).open(path)?;
    let size = file.metadata()?.len();
    Ok((file, size))
}

impl Sink for LogFile {
    fn name(&self) -> &'static str {
        "log"
    }

    fn batching(&self) -> Batching {
        // Lines appear at once; a batch is what has gathered while the one before was written.
        Batching { buffer: 10_000, max_batch: 1_000, max_wait: Duration::ZERO }
    }

    async fn write(&mut self, events: Vec<Arc<Event>>) {
        // Writing blocks, so it moves to a thread of its own and comes back.
        let Some(mut writer) = self.0.take() else { return };
        let written = tokio::task::spawn_blocking(move || {
            if let Err(error) = writer.write(&events, SystemTime::now()) {
                tracing::error!(path = %writer.config.path.display(), %error, lost = events.len(), "the audit log cannot be written");
            }
            writer
        });
        match written.await {
            Ok(writer) => self.0 = Some(writer),
            Err(error) => tracing::error!(%error, "the audit log's writer has ended"),
        }
    }
}

impl Writer {
    fn write(&mut self, events: &[Arc<Event>], now: SystemTime) -> io::Result<()> {
        let mut lines = Vec::with_capacity(events.len() * 1024);
        for event in events {
            let start = lines.len();
            serde_json::to_writer(&mut lines, &**event)?;
            lines.push(b'\n');
            let line = (lines.len() - start) as u64;
            // A line is never cut in two by a rotation.
            if self.size + start as u64 + line > self.config.max_bytes && self.size + start as u64 > 0 {
                let rest = lines.split_off(start);
                self.append(&lines)?;
                self.rotate(now)?;
                lines = rest;
            }
        }
        self.append(&lines)
    }

    fn append(&mut self, lines: &[u8]) -> io::Result<()> {
        self.file.write_all(lines)?;
        self.size += lines.len() as u64;
        Ok(())
    }

    fn rotate(&mut self, now: SystemTime) -> io::Result<()> {
        let backup = backup_path(&self.config.path, now)?;
        fs::rename(&self.config.path, &backup)?;
        (self.file, self.size) = open(&self.config.path)?;
        if self.config.compress {
            compress(&backup)?;
        }
        for path in expired(&backups(&self.config.path)?, &self.config, now) {
            fs::remove_file(path)?;
        }
        Ok(())
    }
}

/// `audit.log` becomes `audit-2026-01-02T03-04-05.678.log`. Two rotations in one millisecond get
/// two names.
fn backup_path(path: &Path, now: SystemTime) -> io::Result<PathBuf> {
    let (stem, extension) = stem_and_extension(path);
    let mut time = jiff::Timestamp::try_from(now).map_err(io::Error::other)?;
    loop {
        let backup =
            path.with_file_name(format!("{stem}-{}{extension}", time.strftime("%Y-%m-%dT%H-%M-%S%.3f")));
        if !backup.exists() && !gzipped(&backup).exists() {
            return Ok(backup);
        }
        time += Duration::from_millis(1);
    }
}

fn gzipped(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".gz");
    name.into()
}

fn stem_and_extension(path: &Path) -> (String, String) {
    let text = |part: Option<&std::ffi::OsStr>| part.map(|part| part.to_string_lossy().into_owned());
    let extension = text(path.extension()).map_or(String::new(), |extension| format!(".{extension}"));
    (text(path.file_stem()).unwrap_or_default(), extension)
}

fn compress(path: &Path) -> io::Result<()> {
    let target = gzipped(path);
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&target)?;
    let mut encoder = flate2::write::GzEncoder::new(file, flate2::Compression::default());
    io::copy(&mut File::open(path)?, &mut encoder)?;
    encoder.finish()?.sync_all()?;
    fs::remove_file(path)
}

/// Rotated files with the time in their name, newest first.
fn backups(path: &Path) -> io::Result<Vec<(jiff::Timestamp, PathBuf)>> {
    let (stem, extension) = stem_and_extension(path);
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut found = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let time = name.strip_suffix(".gz").unwrap_or(&name).strip_prefix(&format!("{stem}-"));
        let time = time.and_then(|rest| rest.strip_suffix(&extension)).and_then(parse_time);
        found.extend(time.map(|time| (time, entry.path())));
    }
    found.sort();
    found.reverse();
    Ok(found)
}

fn parse_time(text: &str) -> Option<jiff::Timestamp> {
    let time = jiff::civil::DateTime::strptime("%Y-%m-%dT%H-%M-%S%.f", text).ok()?;
    time.to_zoned(jiff::tz::TimeZone::UTC).ok().map(|zoned| zoned.timestamp())
}

/// Which of the rotated files, newest first, have to go.
fn expired<'a>(
    backups: &'a [(jiff::Timestamp, PathBuf)],
    config: &LogFileConfig,
    now: SystemTime,
) -> impl Iterator<Item = &'a PathBuf> {
    let keep = config.max_backups.unwrap_or(usize::MAX);
    let oldest = config.max_age.and_then(|age| now.checked_sub(age));
    backups
        .iter()
        .enumerate()
        .filter(move |(index, (time, _))| {
            *index >= keep || oldest.is_some_and(|oldest| SystemTime::from(*time) < oldest)
        })
        .map(|(_, (_, path))| path)
}

#[cfg(test)]
mod tests {
    use std::{io::Read, os::unix::fs::PermissionsExt};

    use super::*;
    use crate::audit::{Audit, Policy, queue::tests::event};

    fn read_lines(path: &Path) -> Vec<String> {
        let mut text = String::new();
        let file = File::open(path).unwrap();
        if path.extension().is_some_and(|extension| extension == "gz") {
            flate2::read::GzDecoder::new(file).read_to_string(&mut text).unwrap();
        } else {
            { file }.read_to_string(&mut text).unwrap();
        }
        let line_id =
            |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap()["auditID"].to_string();
        text.lines().map(line_id).collect()
    }

    #[tokio::test]
    async fn every_event_is_one_line_and_rotation_loses_none() {
        for compress in [false, true] {
            let home = tempfile::tempdir().unwrap();
            let path = home.path().join("logs/audit.log");
            let line = serde_json::to_vec(&event(10)).unwrap().len() as u64 + 1;
            let config = LogFileConfig { max_bytes: 3 * line, compress, ..LogFileConfig::new(&path) };
            let policy = "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]";
            let audit = Audit::new(Policy::parse(policy).unwrap()).with_sink(LogFile::open(config).unwrap());
            for id in 10..30 {
                audit.emit(event(id));
            }
            assert_eq!(audit.dropped(), 0);
            audit.close().await;
            let mut seen = read_lines(&path);
            let backups = backups(&path).unwrap();
            assert_eq!(backups.len(), 6);
            for (_, backup) in &backups {
                assert_eq!(backup.to_string_lossy().ends_with(".gz"), compress);
                seen.extend(read_lines(backup));
            }
            seen.sort();
            let expected: Vec<String> = (10..30).map(|id| format!("\"{id}\"")).collect();
            assert_eq!(seen, expected);
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        }
    }

    #[test]
    fn old_and_surplus_backups_go() {
        let day = Duration::from_secs(24 * 3600);
        let now = SystemTime::UNIX_EPOCH + 100 * day;
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("audit.log");
        for age in [1, 2, 5, 9] {
            fs::write(backup_path(&path, now - age * day).unwrap(), "x").unwrap();
        }
        fs::write(home.path().join("audit-notes.log"), "not ours").unwrap();
        let backups = backups(&path).unwrap();
        assert_eq!(backups.len(), 4);
        let gone = |max_backups, max_age| {
            let config = LogFileConfig { max_backups, max_age, ..LogFileConfig::new(&path) };
            expired(&backups, &config, now).count()
        };
        assert_eq!(gone(None, None), 0);
        assert_eq!(gone(Some(3), None), 1);
        assert_eq!(gone(None, Some(4 * day)), 2);
        assert_eq!(gone(Some(1), Some(4 * day)), 3);
    }

    #[test]
    fn a_file_that_exists_is_continued() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("audit.log");
        for id in 0..2 {
            let LogFile(Some(mut writer)) = LogFile::open(LogFileConfig::new(&path)).unwrap() else {
                panic!()
            };
            writer.write(&[Arc::new(event(id))], SystemTime::now()).unwrap();
        }
        assert_eq!(read_lines(&path).len(), 2);
    }
}
