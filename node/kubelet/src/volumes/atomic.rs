//! Files of a volume that change together.
//!
//! ```text
//! volume/
//!   ..2026_11_15_10_30_00.123456789/   the files
//!     key, dir/other
//!   ..data → ..2026_11_15_10_30_00.123456789
//!   key → ..data/key
//!   dir → ..data/dir
//! ```
//!
//! Switching `..data` is one rename, so a reader sees the old set or the new
//! one, never a mixture. Applications watch for that rename.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Component, Path, PathBuf};

const DATA: &str = "..data";
const DATA_NEW: &str = "..data_tmp";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    pub data: Vec<u8>,
    pub mode: u32,
    /// Owner other than root.
    pub user: Option<u32>,
}

/// What a volume should hold, by relative path.
pub type Payload = BTreeMap<String, File>;

/// Makes the directory hold exactly the payload. Says whether anything changed.
pub fn write(directory: &Path, payload: &Payload, group: Option<u32>) -> io::Result<bool> {
    for path in payload.keys() {
        check_path(path)?;
    }
    let current = fs::read_link(directory.join(DATA)).ok().map(|target| directory.join(target));
    if let Some(current) = &current
        && holds(current, payload)?
    {
        publish(directory, payload, None)?;
        return Ok(false);
    }
    let stamp = jiff::Timestamp::now().strftime("..%Y_%m_%d_%H_%M_%S.%f").to_string();
    let fresh = directory.join(&stamp);
    fs::create_dir(&fresh)?;
    fs::set_permissions(&fresh, fs::Permissions::from_mode(0o755))?;
    for (path, file) in payload {
        let target = fresh.join(path);
        if let Some(parent) = target.parent().filter(|parent| *parent != fresh) {
            fs::create_dir_all(parent)?;
        }
        fs::write(&target, &file.data)?;
        // explicitly: the process' umask must not matter
        fs::set_permissions(&target, fs::Permissions::from_mode(file.mode))?;
        if file.user.is_some() || group.is_some() {
            chown(&target, file.user, group)?;
        }
    }
    let link = directory.join(DATA_NEW);
    put_link(Path::new(&stamp), &link)?;
    fs::rename(&link, directory.join(DATA))?;
    publish(directory, payload, Some(&stamp))?;
    Ok(true)
}

/// Keys come from users: none may leave the volume or look like our own.
fn check_path(path: &str) -> io::Result<()> {
    let plain = !path.is_empty()
        && !path.starts_with("..")
        && Path::new(path).components().all(|part| matches!(part, Component::Normal(_)));
    if plain {
        Ok(())
    } else {
        Err(io::Error::new(io::ErrorKind::InvalidInput, format!("path {path:?} is not allowed in a volume")))
    }
}

fn holds(directory: &Path, payload: &Payload) -> io::Result<bool> {
    let mut present = BTreeSet::new();
    collect(directory, Path::new(""), &mut present)?;
    if present.len() != payload.len() {
        return Ok(false);
    }
    for (path, file) in payload {
        if !present.contains(path.as_str()) {
            return Ok(false);
        }
        let full = directory.join(path);
        let mode = fs::metadata(&full)?.permissions().mode() & 0o7777;
        if mode != file.mode || fs::read(&full)? != file.data {
            return Ok(false);
        }
    }
    Ok(true)
}

fn collect(root: &Path, below: &Path, files: &mut BTreeSet<String>) -> io::Result<()> {
    let entries = match fs::read_dir(root.join(below)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        let path: PathBuf = below.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            collect(root, &path, files)?;
        } else {
            files.insert(path.to_string_lossy().into_owned());
        }
    }
    Ok(())
}

/// Makes the names users see, each a link through `..data`, and removes those that are no longer wanted; with a
/// new set of files, the older ones too.
fn publish(directory: &Path, payload: &Payload, new: Option<&str>) -> io::Result<()> {
    let wanted: BTreeSet<&str> = payload.keys().filter_map(|path| path.split('/').next()).collect();
    for name in &wanted {
        put_link(&Path::new(DATA).join(name), &directory.join(name))?;
    }
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with("..") {
            if new.is_some_and(|new| name != new) && entry.file_type()?.is_dir() {
                ferry_linux::tree::remove(&entry.path())?;
            }
        } else if !wanted.contains(name.as_str()) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// A link to the target, whatever was there.
fn put_link(target: &Path, link: &Path) -> io::Result<()> {
    match symlink(target, link) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        made => return made,
    }
    if fs::read_link(link).is_ok_and(|present| present == target) {
        return Ok(());
    }
    fs::remove_file(link)?;
    symlink(target, link)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn payload(files: &[(&str, &str)]) -> Payload {
        let file = |data: &str| File { data: data.into(), mode: 0o644, user: None };
        files.iter().map(|(path, data)| (path.to_string(), file(data))).collect()
    }

    #[test]
    fn files_appear_change_and_go_together() {
        let directory = tempfile::tempdir().expect("a directory can be made");
        let root = directory.path();
        let read = |name: &str| fs::read_to_string(root.join(name)).ok();
        assert!(write(root, &payload(&[("a", "1"), ("dir/b", "2")]), None).expect("it can be written"));
        assert_eq!((read("a"), read("dir/b")), (Some("1".into()), Some("2".into())));
        assert_eq!(fs::read_link(root.join("a")).expect("a link"), Path::new("..data/a"));

        assert!(!write(root, &payload(&[("a", "1"), ("dir/b", "2")]), None).expect("it can be written"));

        let before = fs::read_link(root.join(DATA)).expect("a link");
        assert!(write(root, &payload(&[("a", "3")]), None).expect("it can be written"));
        assert_eq!((read("a"), read("dir/b")), (Some("3".into()), None));
        assert!(!root.join(before).exists(), "the old set is gone");
        assert_eq!(fs::read_dir(root).expect("it can be listed").count(), 3);
    }

    #[test]
    fn paths_out_of_the_volume_are_refused() {
        let directory = tempfile::tempdir().expect("a directory can be made");
        for path in ["../x", "/etc/x", "..data", "a/../../x", ""] {
            assert!(write(directory.path(), &payload(&[(path, "")]), None).is_err(), "{path:?}");
        }
    }
}
