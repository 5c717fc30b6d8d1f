//! Mounts: what a pod's volumes need of them.

use std::borrow::Cow;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, mount, umount2};

const NONE: Option<&str> = None;

/// A memory file system, of at most `size` bytes where given.
pub fn tmpfs(target: &Path, size: Option<u64>) -> io::Result<()> {
    let options = size.map(|bytes| format!("size={bytes}"));
    mount(Some("tmpfs"), target, Some("tmpfs"), MsFlags::empty(), options.as_deref())?;
    Ok(())
}

/// Shows a directory or file at a second place.
pub fn bind(source: &Path, target: &Path, read_only: bool) -> io::Result<()> {
    mount(Some(source), target, NONE, MsFlags::MS_BIND | MsFlags::MS_REC, NONE)?;
    if read_only {
        // the kernel ignores MS_RDONLY in the first call of a bind
        let flags = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY | MsFlags::MS_REC;
        mount(NONE, target, NONE, flags, NONE)?;
    }
    Ok(())
}

/// Shows what is already open, so that nothing can be swapped in under its
/// name between looking and mounting.
pub fn bind_open(source: impl AsFd, target: &Path) -> io::Result<()> {
    let link = PathBuf::from(format!("/proc/self/fd/{}", source.as_fd().as_raw_fd()));
    bind(&link, target, false)
}

/// Mounts made below the directory reach, and come from, other mount namespaces afterwards: where its file system does
/// not do so already, the directory becomes a mount of its own that does.
pub fn make_shared(directory: &Path) -> io::Result<()> {
    let directory = fs::canonicalize(directory)?;
    if is_shared(&fs::read_to_string("/proc/self/mountinfo")?, &directory) {
        return Ok(());
    }
    bind(&directory, &directory, false)?;
    mount(NONE, &directory, NONE, MsFlags::MS_SHARED | MsFlags::MS_REC, NONE)?;
    Ok(())
}

/// Whether the mount that the directory is on is one of several that share theirs (`mountinfo` in proc(5): fields that
/// may be there stand before a dash). Of mounts at one place the last hides the others.
fn is_shared(mountinfo: &str, directory: &Path) -> bool {
    let mounts = mountinfo.lines().filter_map(|line| {
        let mut fields = line.split(' ');
        let target = unescape(fields.nth(4)?);
        let is_shared =
            fields.skip(1).take_while(|field| *field != "-").any(|field| field.starts_with("shared:"));
        directory.starts_with(target.as_ref()).then_some((target.len(), is_shared))
    });
    mounts.max_by_key(|(length, _)| *length).is_some_and(|(_, is_shared)| is_shared)
}

/// Takes a mount away, also while something still holds it; one that is not
/// there is gone already.
pub fn unmount(target: &Path) -> io::Result<()> {
    match umount2(target, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW) {
        Ok(()) | Err(nix::errno::Errno::EINVAL | nix::errno::Errno::ENOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// The mount points at or below a directory, deepest first, as they can be
/// unmounted. The kernel lists them by their real paths.
pub fn mounts_below(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let directory = match fs::canonicalize(directory) {
        // nothing is mounted where nothing is
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(vec![]),
        directory => directory?,
    };
    Ok(below(&fs::read_to_string("/proc/self/mountinfo")?, &directory))
}

/// Whether a file system of its own is mounted at a directory. Two looks at
/// inodes, where the table of mounts grows with every container.
pub fn has_own_file_system(directory: &Path) -> io::Result<bool> {
    let Some(parent) = directory.parent() else { return Ok(true) };
    Ok(fs::metadata(directory)?.dev() != fs::metadata(parent)?.dev())
}

fn below(mountinfo: &str, directory: &Path) -> Vec<PathBuf> {
    let mut mounts: Vec<PathBuf> = mountinfo
        .lines()
        .filter_map(|line| line.split(' ').nth(4))
        .map(unescape)
        .filter(|mount| Path::new(mount.as_ref()).starts_with(directory))
        .map(|mount| PathBuf::from(mount.as_ref()))
        .collect();
    mounts.reverse();
    mounts
}

/// The kernel writes spaces, tabs, newlines and backslashes as octal.
fn unescape(field: &str) -> Cow<'_, str> {
    // Every pod that starts or ends looks at every mount, and hardly one has such a sign.
    if !field.contains('\\') {
        return field.into();
    }
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        let octal = tail.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) if first == b'\\' => {
                bytes.push(byte);
                rest = &tail[3..];
            }
            _ => {
                bytes.push(first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_below_a_directory_come_deepest_first_and_unescaped() {
        let mountinfo = "\
1 0 0:1 / / rw - ext4 a rw
2 1 0:2 / /pods/a rw - tmpfs t rw
3 2 0:3 / /pods/a/with\\040space rw - tmpfs t rw
4 1 0:4 / /podsother rw - tmpfs t rw";
        assert_eq!(
            below(mountinfo, Path::new("/pods")),
            [Path::new("/pods/a/with space"), Path::new("/pods/a")]
        );
    }

    #[test]
    fn the_mount_that_a_directory_is_on_says_whether_it_is_shared() {
        let mountinfo = "\
1 0 0:1 / / rw,relatime shared:1 - ext4 a rw
2 1 0:2 / /private rw,relatime - ext4 shared:9 rw
3 1 0:3 / /slave rw,relatime master:1 - tmpfs t rw
4 1 0:4 / /both rw,relatime master:1 shared:2 - tmpfs t rw
5 1 0:5 / /hidden rw,relatime shared:3 - tmpfs t rw
6 1 0:6 / /hidden rw,relatime - tmpfs t rw";
        for (directory, expected) in [
            ("/var/lib/kubelet", true),
            ("/private/kubelet", false),
            ("/privately", true),
            ("/slave", false),
            ("/both/a", true),
            ("/hidden/a", false),
        ] {
            assert_eq!(is_shared(mountinfo, Path::new(directory)), expected, "{directory}");
        }
    }

    #[test]
    fn a_directory_is_made_shared_once() {
        let directory = std::env::temp_dir().join(format!("ferry-shared-{}", std::process::id()));
        fs::create_dir_all(&directory).expect("a directory can be made");
        if let Err(error) = make_shared(&directory) {
            ferry_skip::missing(&format!("the right to mount: {error}"));
        } else {
            let mountinfo = || fs::read_to_string("/proc/self/mountinfo").expect("it can be read");
            assert!(is_shared(&mountinfo(), &directory));
            let mounts = mounts_below(&directory).expect("it is there");
            make_shared(&directory).expect("it is shared already");
            assert_eq!(mounts_below(&directory).expect("it is there"), mounts);
            unmount(&directory).expect("what was mounted can be unmounted");
        }
        fs::remove_dir(&directory).expect("the directory is empty again");
    }

    #[test]
    fn a_tmpfs_is_mounted_seen_and_gone() {
        let directory = std::env::temp_dir().join(format!("ferry-mount-{}", std::process::id()));
        fs::create_dir_all(&directory).expect("a directory can be made");
        if let Err(error) = tmpfs(&directory, Some(1 << 20)) {
            ferry_skip::missing(&format!("the right to mount: {error}"));
        } else {
            assert!(has_own_file_system(&directory).expect("it is there"));
            unmount(&directory).expect("what was mounted can be unmounted");
            assert!(!has_own_file_system(&directory).expect("it is there"));
            unmount(&directory).expect("unmounting twice is no error");
        }
        fs::remove_dir(&directory).expect("the directory is empty again");
    }
}
