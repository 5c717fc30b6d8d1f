//! Opening paths that somebody else chose, without leaving a directory.
//!
//! A pod may put any symbolic link into its own volume. The kernel resolves
//! the path and refuses to leave the directory (`RESOLVE_BENEATH`), so there
//! is no moment between the check and the use.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path};

use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, open, openat2};
use nix::sys::stat::{Mode, mkdirat};

/// Opens a path below a directory, for naming only (`O_PATH`).
pub fn open_beneath(directory: &Path, path: &Path) -> io::Result<OwnedFd> {
    let root = open(directory, OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())?;
    resolve(root.as_fd(), path)
}

/// Makes the directories of a path below a directory where they are missing,
/// and opens the last.
pub fn create_directories_beneath(directory: &Path, path: &Path, mode: u32) -> io::Result<OwnedFd> {
    let mut current = open(directory, OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())?;
    let mut done = std::path::PathBuf::new();
    for component in path.components() {
        let Component::Normal(name) = component else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "only plain names may be made"));
        };
        match mkdirat(current.as_fd(), name, Mode::from_bits_truncate(mode)) {
            Ok(()) | Err(Errno::EEXIST) => {}
            Err(error) => return Err(error.into()),
        }
        // always from the top: a link on the way may point elsewhere in the directory
        done.push(name);
        current = open_beneath(directory, &done)?;
    }
    Ok(current)
}

fn resolve(root: impl AsFd, path: &Path) -> io::Result<OwnedFd> {
    let how = OpenHow::new()
        .flags(OFlag::O_PATH | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    Ok(openat2(root, path, how)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn links_inside_are_followed_and_links_outside_refused() {
        let directory = std::env::temp_dir().join(format!("ferry-beneath-{}", std::process::id()));
        fs::create_dir_all(directory.join("data")).expect("a directory can be made");
        fs::write(directory.join("data/key"), "value").expect("a file can be written");
        symlink("data/key", directory.join("inside")).expect("a link can be made");
        symlink("/etc", directory.join("absolute")).expect("a link can be made");
        symlink("../..", directory.join("above")).expect("a link can be made");

        let opens = |path: &str| open_beneath(&directory, Path::new(path)).is_ok();
        assert!(opens("data/key"));
        assert!(opens("inside"));
        assert!(!opens("absolute/passwd"));
        assert!(!opens("above"));
        assert!(!opens("../x"));
        assert!(!opens("missing"));

        assert!(create_directories_beneath(&directory, Path::new("data/new/deep"), 0o750).is_ok());
        assert!(directory.join("data/new/deep").is_dir());
        assert!(create_directories_beneath(&directory, Path::new("absolute/new"), 0o750).is_err());
        assert!(!Path::new("/etc/new").exists());
        fs::remove_dir_all(&directory).expect("the directory can be removed");
    }
}
