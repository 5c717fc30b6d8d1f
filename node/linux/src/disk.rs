//! Room on file systems, and what a directory takes of it.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::sys::statvfs::statvfs;

/// How full a file system is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    pub capacity_bytes: u64,
    pub available_bytes: u64,
    pub inodes: u64,
    pub inodes_free: u64,
}

/// The space of the file system that holds a path.
pub fn space(path: &Path) -> io::Result<Space> {
    let stat = statvfs(path)?;
    let block = stat.fragment_size();
    Ok(Space {
        capacity_bytes: stat.blocks() * block,
        available_bytes: stat.blocks_available() * block,
        inodes: stat.files(),
        inodes_free: stat.files_available(),
    })
}

/// Bytes on disk and inodes under a directory, staying on its file system.
/// What disappears while looking counts nothing.
pub fn usage(directory: &Path) -> (u64, u64) {
    fn add(path: &Path, device: u64, total: &mut (u64, u64)) {
        let Ok(metadata) = fs::symlink_metadata(path) else { return };
        if metadata.dev() != device {
            return;
        }
        total.0 += metadata.blocks() * 512;
        total.1 += 1;
        if metadata.is_dir() {
            for entry in fs::read_dir(path).into_iter().flatten().flatten() {
                add(&entry.path(), device, total);
            }
        }
    }
    let mut total = (0, 0);
    if let Ok(metadata) = fs::symlink_metadata(directory) {
        add(directory, metadata.dev(), &mut total);
    }
    total
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_takes_what_its_files_take() {
        let directory = tempfile::tempdir().expect("a directory can be made");
        let (_, before) = usage(directory.path());
        fs::write(directory.path().join("file"), vec![1u8; 64 * 1024]).expect("a file can be written");
        let (bytes, inodes) = usage(directory.path());
        assert!(bytes >= 64 * 1024);
        assert_eq!(inodes, before + 1);
        let space = space(directory.path()).expect("the file system can be asked");
        assert!(space.available_bytes <= space.capacity_bytes);
    }
}
