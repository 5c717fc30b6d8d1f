//! Writes a snapshot of either engine to a file.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use futures::StreamExt;

use crate::{Error, Result, Store};

/// Saves the store as it is now. The file appears under its name only when it is whole and
/// durable; it holds every secret of the store, so only its owner may read it.
pub async fn save(store: &dyn Store, path: &Path) -> Result<u64> {
    let _span = ferry_trace::span("store.snapshot");
    let cannot_save =
        |error: std::io::Error| Error::unavailable(format!("save a snapshot to {}", path.display()), error);
    let directory = match path.parent() {
        Some(parent) if parent != Path::new("") => parent.to_path_buf(),
        _ => PathBuf::from("."),
    };
    let mut bytes = 0;
    let mut chunks = store.snapshot().await?;
    let mut file = Partial::create(path).map_err(cannot_save)?;
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk?;
        bytes += chunk.len() as u64;
        file = blocking(move || {
            file.file.write_all(&chunk)?;
            Ok(file)
        })
        .await
        .map_err(cannot_save)?;
    }
    blocking(move || {
        file.finish()?;
        std::fs::File::open(directory)?.sync_all()
    })
    .await
    .map_err(cannot_save)?;
    Ok(bytes)
}

/// A new file that nobody else can read from its first moment on, however the directory is shared: a snapshot holds every
/// secret of the cluster. What has its name already (a link, a file that somebody opened before) is taken away, not written to.
pub fn create_private(path: &Path) -> std::io::Result<std::fs::File> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

/// A file that is removed again unless it is finished.
struct Partial {
    file: std::fs::File,
    partial: PathBuf,
    path: PathBuf,
    finished: bool,
}

impl Partial {
    fn create(path: &Path) -> std::io::Result<Self> {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{}.part", std::process::id()));
        let partial = PathBuf::from(name);
        let file = create_private(&partial)?;
        Ok(Partial { file, partial, path: path.to_path_buf(), finished: false })
    }

    fn finish(mut self) -> std::io::Result<()> {
        self.file.sync_all()?;
        std::fs::rename(&self.partial, &self.path)?;
        self.finished = true;
        Ok(())
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        if !self.finished {
            std::fs::remove_file(&self.partial).ok();
        }
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> std::io::Result<T> + Send + 'static,
) -> std::io::Result<T> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(std::io::Error::other(error)))
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    use super::*;

    #[test]
    fn snapshots_do_not_follow_links_or_reuse_files() {
        let directory = tempfile::tempdir().expect("a directory");
        let (place, elsewhere) = (directory.path().join("place"), directory.path().join("elsewhere"));
        std::fs::write(&elsewhere, "").expect("a file");
        symlink(&elsewhere, &place).expect("a link");
        create_private(&place).expect("a file").write_all(b"secret").expect("written");
        assert_eq!(std::fs::read(&elsewhere).expect("a file"), b"");

        std::fs::write(&place, "").expect("a file");
        std::fs::set_permissions(&place, std::fs::Permissions::from_mode(0o666)).expect("a mode");
        let mut opened_before = std::fs::File::open(&place).expect("a file");
        create_private(&place).expect("a file").write_all(b"secret").expect("written");
        let mut seen = Vec::new();
        opened_before.read_to_end(&mut seen).expect("read");
        assert_eq!(seen, b"");
        assert_eq!(std::fs::metadata(&place).expect("a file").mode() & 0o777, 0o600);
    }
}
