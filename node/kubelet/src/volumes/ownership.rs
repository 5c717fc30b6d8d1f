//! Who may use a volume: `fsGroup`.
//!
//! Files belong to pods that may be changing them: each is opened before it is looked at, and what was opened is
//! changed, so that a link that is put in its place leads nowhere.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use ferry_linux::tree;

const SET_GROUP_ID: u32 = 0o2000;
const PERMISSIONS: u32 = 0o7777;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangePolicy {
    Always,
    /// Nothing is walked when the top of the volume is right already.
    OnRootMismatch,
}

/// Gives a volume that outlives the pod to a group when the pod first sets it up, as upstream does, and not with every
/// look at the pod: a volume may have millions of files. `given` is a directory of the pod's that says it was done.
pub fn give_once(root: &Path, group: u32, policy: ChangePolicy, given: &Path) -> io::Result<()> {
    if given.exists() {
        return Ok(());
    }
    give_to_group(root, group, false, policy)?;
    fs::create_dir_all(given)
}

/// Gives a volume to a group: every file becomes readable (and writable,
/// unless the volume is read-only) for it, and new files inherit it. What is
/// mounted inside of it is another volume.
pub fn give_to_group(root: &Path, group: u32, read_only: bool, policy: ChangePolicy) -> io::Result<()> {
    let metadata = fs::metadata(root)?;
    let wanted = directory_mode(metadata.mode(), read_only);
    if policy == ChangePolicy::OnRootMismatch && metadata.gid() == group && metadata.mode() == wanted {
        return Ok(());
    }
    // the top comes last: a walk that is broken off is done again, also by the policy that looks at the top alone
    tree::each(root, &mut |entry| {
        let metadata = entry.metadata()?;
        if metadata.gid() != group {
            entry.set_group(group)?;
        }
        if metadata.is_symlink() {
            return Ok(());
        }
        let mode = if metadata.is_dir() {
            directory_mode(metadata.mode(), read_only)
        } else {
            file_mode(metadata.mode(), read_only)
        };
        // changing the group clears the bit that makes new files inherit it
        entry.set_mode(mode & PERMISSIONS)
    })
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
    use std::os::unix::fs::PermissionsExt;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).expect("it is there").mode() & PERMISSIONS
    }

    fn private_file(path: &Path) {
        fs::write(path, "").expect("a file can be written");
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).expect("a mode can be set");
    }

    #[test]
    fn a_volume_becomes_the_groups() {
        let directory = tempfile::tempdir().expect("a directory can be made");
        let file = directory.path().join("file");
        private_file(&file);
        let group = fs::metadata(&file).expect("it is there").gid();
        give_to_group(directory.path(), group, false, ChangePolicy::Always).expect("own files can be given");
        assert_eq!(mode(&file), 0o660);
        assert_eq!(mode(directory.path()) & 0o2770, 0o2770);

        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("a mode can be set");
        give_to_group(directory.path(), group, false, ChangePolicy::OnRootMismatch).expect("nothing to do");
        assert_eq!(mode(&file), 0o600, "the top was right, so nothing below was touched");
    }

    #[test]
    fn ownership_changes_do_not_follow_links() {
        let directory = tempfile::tempdir().expect("a directory can be made");
        let (volume, outside) = (directory.path().join("volume"), directory.path().join("outside"));
        fs::create_dir(&volume).expect("a directory can be made");
        private_file(&outside);
        std::os::unix::fs::symlink(&outside, volume.join("link")).expect("a link can be made");
        let group = fs::metadata(&outside).expect("it is there").gid();
        give_to_group(&volume, group, false, ChangePolicy::Always).expect("own files can be given");
        assert_eq!(mode(&outside), 0o600);
    }

    #[test]
    fn volume_ownership_is_changed_once_per_pod() {
        let directory = tempfile::tempdir().expect("a directory can be made");
        let (volume, given) = (directory.path().join("volume"), directory.path().join("pod/given"));
        fs::create_dir(&volume).expect("a directory can be made");
        let group = fs::metadata(&volume).expect("it is there").gid();
        let give =
            || give_once(&volume, group, ChangePolicy::Always, &given).expect("own files can be given");
        give();
        private_file(&volume.join("later"));
        give();
        assert_eq!(mode(&volume.join("later")), 0o600, "what the pod itself wrote is as it wrote it");
    }
}
