//! Who may use a volume: `fsGroup`.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown};
use std::path::Path;

const SET_GROUP_ID: u32 = 0o2000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangePolicy {
    Always,
    /// Nothing is walked when the top of the volume is right already.
    OnRootMismatch,
}

/// Gives a volume to a group: every file becomes readable (and writable,
/// unless the volume is read-only) for it, and new files inherit it.
pub fn give_to_group(root: &Path, group: u32, read_only: bool, policy: ChangePolicy) -> io::Result<()> {
    let metadata = fs::symlink_metadata(root)?;
    let wanted = directory_mode(metadata.mode(), read_only);
    if policy == ChangePolicy::OnRootMismatch && metadata.gid() == group && metadata.mode() == wanted {
        return Ok(());
    }
    walk(root, group, read_only)
}

fn walk(path: &Path, group: u32, read_only: bool) -> io::Result<()> {
    let metadata = fs::symlink_metadata(path)?;
    if metadata.gid() != group {
        lchown(path, None, Some(group))?;
    }
    if metadata.is_symlink() {
        return Ok(());
    }
    if metadata.is_dir() {
        for entry in fs::read_dir(path)? {
            walk(&entry?.path(), group, read_only)?;
        }
    }
    let mode = if metadata.is_dir() {
        directory_mode(metadata.mode(), read_only)
    } else {
        file_mode(metadata.mode(), read_only)
    };
    // changing the group clears the bit that makes new files inherit it
    fs::set_permissions(path, fs::Permissions::from_mode(mode & 0o7777))
}

fn file_mode(mode: u32, read_only: bool) -> u32 {
    mode | if read_only { 0o440 } else { 0o660 }
}

fn directory_mode(mode: u32, read_only: bool) -> u32 {
    file_mode(mode, read_only) | SET_GROUP_ID | 0o110
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_becomes_the_groups() {
        let directory = tempfile::tempdir().expect("a directory can be made");
        let file = directory.path().join("file");
        fs::write(&file, "").expect("a file can be written");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("a mode can be set");
        let group = fs::metadata(&file).expect("it is there").gid();
        give_to_group(directory.path(), group, false, ChangePolicy::Always).expect("own files can be given");
        let mode = |path: &Path| fs::metadata(path).expect("it is there").mode() & 0o7777;
        assert_eq!(mode(&file), 0o660);
        assert_eq!(mode(directory.path()) & 0o2770, 0o2770);

        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("a mode can be set");
        give_to_group(directory.path(), group, false, ChangePolicy::OnRootMismatch).expect("nothing to do");
        assert_eq!(mode(&file), 0o600, "the top was right, so nothing below was touched");
    }
}
