//! What was made of keys and certificates on its way to the disk.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::PkiError;

/// Files that were made and are to be written. The disk takes a few milliseconds to make one durable and as long for all at
/// once; a new cluster has twelve.
#[derive(Default)]
#[must_use]
pub struct NewFiles(Vec<(PathBuf, String)>);

impl NewFiles {
    pub(super) fn add(&mut self, path: &Path, text: &str) {
        self.0.push((path.to_owned(), text.to_owned()));
    }

    /// Readable by the owner alone, and never seen half written: a crash leaves the old files or none. They get their names in
    /// the order in which they were added, so no certificate is ever without its key.
    pub fn write(self) -> Result<(), PkiError> {
        let written: Vec<io::Result<PathBuf>> = std::thread::scope(|scope| {
            let start = |file: &(PathBuf, String)| {
                let (path, text) = file.clone();
                std::thread::Builder::new().spawn_scoped(scope, move || write_beside(&path, &text))
            };
            // All are started before the first is waited for.
            let threads: Vec<_> = self.0.iter().map(start).collect();
            let panicked = |_| Err(io::Error::other("the thread that writes it panicked"));
            threads.into_iter().map(|thread| thread?.join().unwrap_or_else(panicked)).collect()
        });
        for ((path, _), written) in self.0.iter().zip(written) {
            written.and_then(|temporary| fs::rename(temporary, path)).map_err(|source| PkiError::File {
                action: "writing",
                path: path.clone(),
                source,
            })?;
        }
        Ok(())
    }
}

/// Durable, under another name.
fn write_beside(path: &Path, text: &str) -> io::Result<PathBuf> {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".tmp{}", std::process::id()));
    let temporary = PathBuf::from(name);
    let mut file =
        fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    Ok(temporary)
}
