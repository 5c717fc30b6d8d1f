//! Trees of files that somebody else may be changing: removed, or looked at file by file.
//!
//! Below a pod's directory lie mounts of what is not the pod's (a `subPath` of a user's disk), and a pod can swap a
//! directory of its volume for a link at any moment. So no path is resolved twice: every step down is one name, opened
//! relative to the directory above it, where the kernel refuses links and mount points, bind mounts included
//! (`openat2` with `RESOLVE_NO_SYMLINKS` and `RESOLVE_NO_XDEV`). The step back up must lead to the directory that was
//! come from, by device and inode. One descriptor is open at a time, so a tree may be of any depth.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, OpenHow, ResolveFlag, open, openat2};
use nix::sys::stat::Mode;
use nix::unistd::{Gid, UnlinkatFlags, fchownat, unlinkat};

/// Removes a file, or a directory with everything below it. One that is not there is gone already. Where something is
/// mounted, at the path or below it, that is an error, and what is mounted there stays as it is.
pub fn remove(path: &Path) -> io::Result<()> {
    let Some((parent, name)) = open_parent(path)? else { return Ok(()) };
    match open_directory(&parent, name) {
        Ok(directory) => Walk::of(path, &mut Remove { files: true }).run(directory)?,
        Err(Errno::ENOENT) => return Ok(()),
        Err(Errno::ENOTDIR | Errno::ELOOP) => {
            return gone(unlinkat(&parent, name, UnlinkatFlags::NoRemoveDir));
        }
        Err(Errno::EXDEV) => return Err(mounted(path)),
        Err(error) => return Err(error.into()),
    }
    gone(unlinkat(&parent, name, UnlinkatFlags::RemoveDir))
}

/// Removes what is in a directory. The directory stays; it may itself be a mount point.
pub fn remove_content(path: &Path) -> io::Result<()> {
    match open(path, DIRECTORY, Mode::empty()) {
        Ok(directory) => Walk::of(path, &mut Remove { files: true }).run(directory),
        Err(Errno::ENOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Removes a directory and the directories below it, for file systems whose files go with their directory.
pub fn remove_directories(path: &Path) -> io::Result<()> {
    match open(path, DIRECTORY, Mode::empty()) {
        Ok(directory) => Walk::of(path, &mut Remove { files: false }).run(directory)?,
        Err(Errno::ENOENT) => return Ok(()),
        Err(error) => return Err(error.into()),
    }
    match fs::remove_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

/// Shows `visit` every file and directory of the tree at `path`, a directory after what is in it. Links are shown and
/// not followed; what is mounted below is passed by, and so is what goes away meanwhile.
pub fn each(path: &Path, visit: &mut dyn FnMut(&OpenFile) -> io::Result<()>) -> io::Result<()> {
    let top = open(path, DIRECTORY, Mode::empty())?;
    Walk::of(path, &mut Each { visit: &mut *visit }).run(top.try_clone()?)?;
    visit(&OpenFile(top))
}

/// A file, directory or link that is open, so that nothing can be put in its place.
pub struct OpenFile(OwnedFd);

impl OpenFile {
    pub fn metadata(&self) -> io::Result<Metadata> {
        File::from(self.0.try_clone()?).metadata()
    }

    pub fn set_group(&self, group: u32) -> io::Result<()> {
        let flags = AtFlags::AT_EMPTY_PATH | AtFlags::AT_SYMLINK_NOFOLLOW;
        Ok(fchownat(&self.0, "", None, Some(Gid::from_raw(group)), flags)?)
    }

    /// Not for links, which have no mode.
    pub fn set_mode(&self, mode: u32) -> io::Result<()> {
        fs::set_permissions(by_descriptor(&self.0), fs::Permissions::from_mode(mode))
    }
}

const DIRECTORY: OFlag = OFlag::O_RDONLY.union(OFlag::O_DIRECTORY).union(OFlag::O_CLOEXEC);

/// What is done on a walk.
trait Visitor {
    /// Anything but a directory.
    fn file(&mut self, parent: &OwnedFd, name: &OsStr) -> io::Result<()>;
    /// A directory, after what is in it.
    fn directory(&mut self, parent: &OwnedFd, name: &OsStr, directory: OwnedFd) -> io::Result<()>;
    /// A directory that something is mounted on.
    fn mount_point(&mut self, path: &Path) -> io::Result<()>;
}

struct Remove {
    files: bool,
}

impl Visitor for Remove {
    fn file(&mut self, parent: &OwnedFd, name: &OsStr) -> io::Result<()> {
        if self.files { gone(unlinkat(parent, name, UnlinkatFlags::NoRemoveDir)) } else { Ok(()) }
    }

    fn directory(&mut self, parent: &OwnedFd, name: &OsStr, _directory: OwnedFd) -> io::Result<()> {
        gone(unlinkat(parent, name, UnlinkatFlags::RemoveDir))
    }

    fn mount_point(&mut self, path: &Path) -> io::Result<()> {
        Err(mounted(path))
    }
}

struct Each<'a> {
    visit: &'a mut dyn FnMut(&OpenFile) -> io::Result<()>,
}

impl Visitor for Each<'_> {
    fn file(&mut self, parent: &OwnedFd, name: &OsStr) -> io::Result<()> {
        match open_within(parent, name, OFlag::O_PATH | OFlag::O_NOFOLLOW) {
            Ok(file) => (self.visit)(&OpenFile(file)),
            Err(Errno::ENOENT | Errno::EXDEV) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn directory(&mut self, _parent: &OwnedFd, _name: &OsStr, directory: OwnedFd) -> io::Result<()> {
        (self.visit)(&OpenFile(directory))
    }

    fn mount_point(&mut self, _path: &Path) -> io::Result<()> {
        Ok(())
    }
}

struct Walk<'a, V> {
    /// Where the walk is, to name it in errors.
    path: PathBuf,
    visitor: &'a mut V,
}

/// A directory between the top and where the walk is.
struct Level {
    device: u64,
    inode: u64,
    /// Directories that are still to be walked.
    left: Vec<OsString>,
}

impl<'a, V: Visitor> Walk<'a, V> {
    fn of(path: &Path, visitor: &'a mut V) -> Self {
        Self { path: path.into(), visitor }
    }

    fn run(mut self, top: OwnedFd) -> io::Result<()> {
        let mut current = top;
        let mut levels = vec![self.enter(&current)?];
        while let Some(level) = levels.last_mut() {
            if let Some(name) = level.left.pop() {
                match open_directory(&current, &name) {
                    Ok(below) => {
                        self.path.push(&name);
                        levels.push(self.enter(&below)?);
                        current = below;
                    }
                    Err(Errno::ENOENT) => {}
                    // another thing has its name by now
                    Err(Errno::ENOTDIR | Errno::ELOOP) => self.visitor.file(&current, &name)?,
                    Err(Errno::EXDEV) => self.visitor.mount_point(&self.path.join(&name))?,
                    Err(error) => return Err(error.into()),
                }
                continue;
            }
            levels.pop();
            let Some(above) = levels.last() else { return Ok(()) };
            let parent = open_within(&current, OsStr::new(".."), DIRECTORY)?;
            if identity(&parent)? != (above.device, above.inode) {
                let words = format!("{} was moved meanwhile", self.path.display());
                return Err(io::Error::new(io::ErrorKind::ResourceBusy, words));
            }
            let name = self.path.file_name().map(OsStr::to_owned).unwrap_or_default();
            self.path.pop();
            let done = std::mem::replace(&mut current, parent);
            self.visitor.directory(&current, &name, done)?;
        }
        Ok(())
    }

    fn enter(&mut self, directory: &OwnedFd) -> io::Result<Level> {
        let (device, inode) = identity(directory)?;
        let mut left = Vec::new();
        for entry in fs::read_dir(by_descriptor(directory))? {
            let entry = entry?;
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => left.push(entry.file_name()),
                Ok(_) => self.visitor.file(directory, &entry.file_name())?,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Level { device, inode, left })
    }
}

/// `None` where it is not there.
fn open_parent(path: &Path) -> io::Result<Option<(OwnedFd, &OsStr)>> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    match open(parent, DIRECTORY, Mode::empty()) {
        Ok(parent) => Ok(Some((parent, name))),
        Err(Errno::ENOENT) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn open_directory(parent: &OwnedFd, name: &OsStr) -> Result<OwnedFd, Errno> {
    open_within(parent, name, DIRECTORY)
}

/// One step that follows no link and crosses no mount.
fn open_within(parent: &OwnedFd, name: &OsStr, flags: OFlag) -> Result<OwnedFd, Errno> {
    // of a link as the last part `O_PATH` and `O_NOFOLLOW` together open the link itself, which `NO_SYMLINKS` allows
    let how = OpenHow::new()
        .flags(flags | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_NO_XDEV | ResolveFlag::RESOLVE_NO_SYMLINKS);
    openat2(parent, name, how)
}

fn identity(directory: &OwnedFd) -> io::Result<(u64, u64)> {
    let metadata = File::from(directory.try_clone()?).metadata()?;
    Ok((metadata.dev(), metadata.ino()))
}

fn by_descriptor(descriptor: impl AsFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", descriptor.as_fd().as_raw_fd()))
}

fn gone(removed: nix::Result<()>) -> io::Result<()> {
    match removed {
        Ok(()) | Err(Errno::ENOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn mounted(path: &Path) -> io::Error {
    let words = format!("{} is a mount point; what is mounted there is not removed", path.display());
    io::Error::new(io::ErrorKind::ResourceBusy, words)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mount;
    use std::os::unix::fs::symlink;

    /// A user's directory, and a tree of ours that shows it twice: mounted, and by a link.
    struct Tree {
        folder: tempfile::TempDir,
    }

    impl Tree {
        fn new() -> Tree {
            let folder = tempfile::tempdir().expect("a directory can be made");
            let tree = Tree { folder };
            fs::create_dir_all(tree.users()).expect("a directory can be made");
            fs::write(tree.users().join("kept"), "").expect("a file can be written");
            fs::create_dir_all(tree.own().join("a/b/c")).expect("a directory can be made");
            fs::write(tree.own().join("a/b/file"), "").expect("a file can be written");
            symlink(tree.users(), tree.own().join("a/link")).expect("a link can be made");
            tree
        }

        fn users(&self) -> PathBuf {
            self.folder.path().join("users")
        }

        fn own(&self) -> PathBuf {
            self.folder.path().join("own")
        }
    }

    #[test]
    fn removal_of_a_tree_does_not_follow_links() {
        let tree = Tree::new();
        remove(&tree.own()).expect("it can be removed");
        assert!(!tree.own().exists());
        assert!(tree.users().join("kept").exists());
        remove(&tree.own()).expect("what is gone is gone");
        remove(&tree.own().join("below/nothing")).expect("what is gone is gone");
    }

    #[test]
    fn a_tree_of_any_depth_goes() {
        let tree = Tree::new();
        // by renames, since no path may be as long
        let (mut depth, top) = (0, tree.own().join("deep"));
        while depth < 3000 {
            let chain: PathBuf = std::iter::repeat_n("d", 500).collect();
            let above = tree.folder.path().join("above");
            fs::create_dir_all(above.join(&chain)).expect("a directory can be made");
            if depth > 0 {
                fs::rename(&top, above.join(&chain).join("rest")).expect("it can be moved");
            }
            fs::rename(&above, &top).expect("it can be moved");
            depth += 500;
        }
        remove(&tree.own()).expect("it can be removed");
        assert!(!tree.own().exists());
    }

    #[test]
    fn removal_of_a_tree_stops_at_mounts() {
        let tree = Tree::new();
        let target = tree.own().join("a/b/c");
        // of the same device: only the mount tells them apart
        if let Err(error) = mount::bind(&tree.users(), &target, false) {
            ferry_skip::missing(&format!("the right to mount: {error}"));
            return;
        }
        let refused = remove(&tree.own());
        let at_the_mount = remove(&target);
        let mut seen = Vec::new();
        let walked = each(&tree.own(), &mut |entry| {
            seen.push(entry.metadata()?.ino());
            Ok(())
        });
        let kept = fs::metadata(tree.users().join("kept")).expect("the user's file is there");
        mount::unmount(&target).expect("it can be unmounted");
        let words = refused.expect_err("there is a mount below").to_string();
        assert!(words.contains("a/b/c is a mount point"), "{words}");
        assert_eq!(at_the_mount.expect_err("it is a mount").kind(), io::ErrorKind::ResourceBusy);
        walked.expect("what is mounted is passed by");
        assert!(!seen.contains(&kept.ino()));
        remove(&tree.own()).expect("nothing is mounted any more");
        assert!(tree.users().join("kept").exists());
    }

    #[test]
    fn the_content_of_a_mount_point_goes_and_it_stays() {
        let tree = Tree::new();
        let target = tree.own().join("a/b/c");
        if let Err(error) = mount::tmpfs(&target, None) {
            ferry_skip::missing(&format!("the right to mount: {error}"));
            return;
        }
        fs::write(target.join("file"), "").expect("a file can be written");
        let removed = remove_content(&target);
        let left = fs::read_dir(&target).expect("it can be listed").count();
        mount::unmount(&target).expect("it can be unmounted");
        removed.expect("its content can be removed");
        assert_eq!(left, 0);
    }

    #[test]
    fn links_are_shown_and_not_followed() {
        let tree = Tree::new();
        fs::set_permissions(tree.own().join("a/b/file"), fs::Permissions::from_mode(0o600)).expect("ours");
        fs::set_permissions(tree.users(), fs::Permissions::from_mode(0o700)).expect("ours");
        let mut kinds = Vec::new();
        each(&tree.own(), &mut |entry| {
            let kind = entry.metadata()?.file_type();
            kinds.push((kind.is_dir(), kind.is_symlink()));
            if kind.is_symlink() { Ok(()) } else { entry.set_mode(0o750) }
        })
        .expect("it can be walked");
        kinds.sort_unstable();
        assert_eq!(
            kinds,
            [(false, false), (false, true), (true, false), (true, false), (true, false), (true, false)]
        );
        let mode = |path: &Path| fs::metadata(path).expect("it is there").mode() & 0o777;
        assert_eq!(mode(&tree.own().join("a/b/file")), 0o750);
        assert_eq!(mode(&tree.users()), 0o700, "the link was not followed");
    }
}
