//! Keeping logs within bounds: a log that has grown too large is renamed and
//! the runtime opens a new one; the older ones are compressed.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use tokio_util::task::TaskTracker;

use crate::blocking::blocking;
use crate::cri;

/// The log of a running container, by the container's id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Log {
    pub container: String,
    pub path: PathBuf,
}

/// Rotates those logs of running containers that are larger than `max_size`,
/// keeping `max_files` of each.
pub async fn rotate_all(runtime: &cri::Client, logs: Vec<Log>, max_size: u64, max_files: u32) {
    let is_large = move |log: &Log| fs::metadata(&log.path).is_ok_and(|metadata| metadata.len() >= max_size);
    let large = move || logs.into_iter().filter(is_large).collect::<Vec<Log>>();
    for log in blocking(&TaskTracker::new(), large).await {
        if let Err(error) = rotate(runtime, &log.container, &log.path, max_files).await {
            tracing::warn!(log = %log.path.display(), %error, "log not rotated");
        }
    }
}

async fn rotate(runtime: &cri::Client, container: &str, log: &Path, max_files: u32) -> Result<(), String> {
    let (path, keep) = (log.to_owned(), max_files.saturating_sub(2) as usize);
    let tidied = blocking(&TaskTracker::new(), move || tidy(&path, keep)).await;
    tidied.map_err(|error| error.to_string())?;
    let stamp = jiff::Timestamp::now().strftime("%Y%m%d-%H%M%S");
    let mut rotated = log.as_os_str().to_owned();
    rotated.push(format!(".{stamp}"));
    fs::rename(log, &rotated).map_err(|error| error.to_string())?;
    if let Err(error) = runtime.reopen_container_log(container).await {
        // the runtime still writes to the renamed file: give it its name back
        fs::rename(&rotated, log).map_err(|error| error.to_string())?;
        return Err(error.to_string());
    }
    Ok(())
}

/// Compresses rotated logs and keeps the newest `keep`.
fn tidy(log: &Path, keep: usize) -> io::Result<()> {
    let (Some(directory), Some(name)) = (log.parent(), log.file_name().and_then(|name| name.to_str())) else {
        return Ok(());
    };
    let mut rotated: Vec<PathBuf> = fs::read_dir(directory)?
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| {
            let other = path.file_name().and_then(|other| other.to_str()).unwrap_or_default();
            other.starts_with(&format!("{name}.")) && !other.ends_with(".tmp")
        })
        .collect();
    // the time is part of the name
    rotated.sort();
    let surplus = rotated.len().saturating_sub(keep);
    for old in rotated.drain(..surplus) {
        fs::remove_file(old)?;
    }
    for path in rotated.iter().filter(|path| path.extension().is_none_or(|extension| extension != "gz")) {
        compress(path)?;
    }
    Ok(())
}

fn compress(path: &Path) -> io::Result<()> {
    let mut target = path.as_os_str().to_owned();
    target.push(".gz");
    let target = PathBuf::from(target);
    let unfinished = target.with_extension("gz.tmp");
    let mut log = super::open(path)?;
    match fs::remove_file(&unfinished) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut encoder = GzEncoder::new(fs::File::create_new(&unfinished)?, Compression::default());
    io::copy(&mut log, &mut encoder)?;
    encoder.finish()?;
    fs::rename(unfinished, target)?;
    fs::remove_file(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_logs_are_compressed_and_the_oldest_removed() {
        let directory = tempfile::tempdir().expect("a directory can be made");
        let log = directory.path().join("0.log");
        for name in
            ["0.log", "0.log.20260101-000000.gz", "0.log.20260102-000000", "0.log.20260103-000000", "1.log"]
        {
            fs::write(directory.path().join(name), "text").expect("a file can be written");
        }
        tidy(&log, 2).expect("it can be tidied");
        let mut names: Vec<String> = fs::read_dir(directory.path())
            .expect("it can be listed")
            .flatten()
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        assert_eq!(names, ["0.log", "0.log.20260102-000000.gz", "0.log.20260103-000000.gz", "1.log"]);
    }
}
