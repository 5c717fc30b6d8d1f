//! Kustomizations on this machine's disk: what `kustomize` prints and `-k` hands to other commands.

use std::path::{Path, PathBuf};

use ferry_kustomize::{Built, FileTree, Options};

use crate::error::{Error, Result, system_words};

/// Builds a directory's kustomization; its warnings go to standard error.
pub fn build(directory: &str, options: &Options) -> Result<Built> {
    let _span = ferry_trace::span("kubectl.kustomize");
    let (outcome, warnings) = match ferry_kustomize::build(&Disk, directory, options) {
        Ok(mut built) => {
            let warnings = std::mem::take(&mut built.warnings);
            (Ok(built), warnings)
        }
        Err((error, warnings)) => (Err(Error::message(error.to_string())), warnings),
    };
    warnings.iter().for_each(|warning| eprintln!("{warning}"));
    outcome
}

struct Disk;

impl FileTree for Disk {
    fn resolve(&self, path: &Path) -> std::result::Result<PathBuf, String> {
        let absolute = std::path::absolute(path).map_err(|error| error.to_string())?;
        absolute.canonicalize().map_err(|error| {
            // the first part that is missing, as the walk along the path meets it
            let missing = absolute.ancestors().filter(|part| part.symlink_metadata().is_err()).last();
            format!("lstat {}: {}", missing.unwrap_or(&absolute).display(), system_words(&error))
        })
    }

    fn is_dir(&self, path: &Path) -> bool {
        path.is_dir()
    }

    fn read(&self, path: &Path) -> std::result::Result<Vec<u8>, String> {
        std::fs::read(path).map_err(|error| format!("open {}: {}", path.display(), system_words(&error)))
    }
}
