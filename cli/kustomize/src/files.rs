//! The files a build reads, and which of them a kustomization may reach.

use std::path::{Path, PathBuf};

use crate::error::{Error, Result, Within};
use crate::origin::clean;

/// A tree of files. Errors are the operating system's sentences.
pub trait FileTree {
    /// The path from the root of the tree, with every link followed.
    fn resolve(&self, path: &Path) -> std::result::Result<PathBuf, String>;
    fn is_dir(&self, path: &Path) -> bool;
    fn read(&self, path: &Path) -> std::result::Result<Vec<u8>, String>;
}

/// A kustomization's directory. What it names lies in or below it, unless told otherwise; bases may lie
/// beside it but not above.
#[derive(Debug, Clone)]
pub struct Root {
    pub path: PathBuf,
    /// The directories of those that led here.
    ancestors: Vec<PathBuf>,
    unrestricted: bool,
}

impl Root {
    pub fn new(files: &dyn FileTree, path: &str, unrestricted: bool) -> Result<Root> {
        refuse_remote(path)?;
        let path = directory(files, Path::new(path)).within("must build at directory")?;
        Ok(Root { path, ancestors: Vec::new(), unrestricted })
    }

    /// The directory of a base or component.
    pub fn enter(&self, files: &dyn FileTree, path: &str) -> Result<Root> {
        if path.is_empty() {
            return Err(Error::new("new root cannot be empty"));
        }
        refuse_remote(path)?;
        if Path::new(path).is_absolute() {
            return Err(Error::new(format!("new root '{path}' cannot be absolute")));
        }
        let root = directory(files, &self.join(path)).within("must build at directory")?;
        let visited = std::iter::once(&self.path).chain(self.ancestors.iter().rev());
        if let Some(visited) = visited.into_iter().find(|visited| visited.starts_with(&root)) {
            return Err(Error::new(format!(
                "cycle detected: candidate root '{}' contains visited root '{}'",
                root.display(),
                visited.display()
            )));
        }
        let mut ancestors = self.ancestors.clone();
        ancestors.push(self.path.clone());
        Ok(Root { path: root, ancestors, unrestricted: self.unrestricted })
    }

    pub fn read(&self, files: &dyn FileTree, path: &str) -> Result<Vec<u8>> {
        refuse_remote(path)?;
        let path = self.join(path);
        if self.unrestricted {
            return files.read(&path).map_err(Error::new);
        }
        let resolved = evaluate(files, &path)?;
        if files.is_dir(&resolved) {
            return Err(Error::new(format!("'{}' must resolve to a file", path.display())));
        }
        if !resolved.starts_with(&self.path) {
            return Err(Error::new(format!(
                "security; file '{}' is not in or below '{}'",
                path.display(),
                self.path.display()
            )));
        }
        files.read(&resolved).map_err(Error::new)
    }

    pub fn read_text(&self, files: &dyn FileTree, path: &str) -> Result<String> {
        let bytes = self.read(files, path)?;
        String::from_utf8(bytes).map_err(|_| Error::new(format!("'{path}' does not hold text")))
    }

    fn join(&self, path: &str) -> PathBuf {
        PathBuf::from(clean(&self.path.join(path)))
    }
}

fn directory(files: &dyn FileTree, path: &Path) -> Result<PathBuf> {
    let resolved = evaluate(files, path).within("not a valid directory")?;
    if !files.is_dir(&resolved) {
        return Err(Error::new(format!("'{}': file is not directory", path.display())));
    }
    Ok(resolved)
}

fn evaluate(files: &dyn FileTree, path: &Path) -> Result<PathBuf> {
    files
        .resolve(path)
        .map_err(|error| Error::new(format!("evalsymlink failure on '{}' : {error}", path.display())))
}

/// Bases and files from elsewhere are not fetched.
fn refuse_remote(path: &str) -> Result<()> {
    let lower = path.to_ascii_lowercase();
    let has_scheme = ["http://", "https://", "ssh://", "file://", "git::", "github.com/", "github.com:"]
        .iter()
        .any(|scheme| lower.starts_with(scheme));
    let has_user = path.split_once('@').is_some_and(|(user, rest)| {
        user.starts_with(|c: char| c.is_ascii_alphabetic())
            && user.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
            && rest.contains(':')
    });
    if has_scheme || has_user {
        return Err(Error::new(format!(
            "'{path}' is remote: remote bases and files are not fetched; download it and refer to the copy"
        )));
    }
    Ok(())
}
