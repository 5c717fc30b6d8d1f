//! Where CSI volumes are on this node, and the files that say whose they are. What is on disk is all that a restarted
//! kubelet needs to take a volume away: it is written before a driver is called, and goes after the driver has answered.
//!
//! ```text
//! ROOT/plugins/kubernetes.io/csi/DRIVER/HASH/{vol_data.json,globalmount}      staged, for all pods
//! ROOT/pods/UID/volumes/kubernetes.io~csi/NAME/{vol_data.json,mount}           published, for one
//!
//! ROOT/plugins/kubernetes.io/csi/volumeDevices/NAME/data/vol_data.json         block devices
//! ROOT/plugins/kubernetes.io/csi/volumeDevices/staging/NAME
//! ROOT/plugins/kubernetes.io/csi/volumeDevices/publish/NAME/UID
//! ROOT/pods/UID/volumeDevices/kubernetes.io~csi/NAME                           a link to that
//! ```

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use ferry_api::csi_volume::{hash, unique_name};
use ferry_linux::mount;
use serde::{Deserialize, Serialize};

const FILE: &str = "vol_data.json";
const PLUGIN: &str = "kubernetes.io~csi";
/// More mounts than this on top of each other are not taken away; what is below them stays then.
const MAX_STACKED: usize = 64;
pub const PERSISTENT: &str = "Persistent";
pub const EPHEMERAL: &str = "Ephemeral";

/// As upstream writes it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Record {
    /// The PersistentVolume's name, or the name that a pod gives an inline volume.
    #[serde(rename = "specVolID", skip_serializing_if = "String::is_empty")]
    pub name: String,
    pub volume_handle: String,
    pub driver_name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub node_name: String,
    #[serde(rename = "attachmentID", skip_serializing_if = "String::is_empty")]
    pub attachment_id: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub volume_lifecycle_mode: String,
}

impl Record {
    /// As `volumesInUse` and `volumesAttached` name the volume.
    pub fn unique_name(&self) -> String {
        unique_name(&self.driver_name, &self.volume_handle)
    }

    pub fn is_ephemeral(&self) -> bool {
        self.volume_lifecycle_mode == EPHEMERAL
    }
}

/// A volume of a pod, as it is on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Use {
    pub uid: String,
    pub record: Record,
    pub is_block: bool,
}

#[derive(Clone)]
pub struct Paths {
    root: PathBuf,
}

impl Paths {
    pub fn new(root: &Path) -> Self {
        Self { root: root.into() }
    }

    fn plugin(&self) -> PathBuf {
        self.root.join("plugins/kubernetes.io/csi")
    }

    fn pod(&self, uid: &str) -> PathBuf {
        self.root.join("pods").join(uid)
    }

    /// What is kept of a staged volume.
    pub fn staged(&self, record: &Record, is_block: bool) -> PathBuf {
        if is_block {
            return self.plugin().join("volumeDevices").join(&record.name).join("data");
        }
        self.plugin().join(&record.driver_name).join(hash(&[&record.volume_handle]))
    }

    /// Where a driver stages a volume.
    pub fn staging(&self, record: &Record, is_block: bool) -> PathBuf {
        if is_block {
            return self.plugin().join("volumeDevices/staging").join(&record.name);
        }
        self.staged(record, false).join("globalmount")
    }

    /// What is kept of a pod's volume: a directory, or a link to a device.
    pub fn of_pod(&self, uid: &str, name: &str, is_block: bool) -> PathBuf {
        let kind = if is_block { "volumeDevices" } else { "volumes" };
        self.pod(uid).join(kind).join(PLUGIN).join(name)
    }

    /// Where a driver publishes a volume for a pod.
    pub fn target(&self, uid: &str, name: &str, is_block: bool) -> PathBuf {
        if is_block {
            return self.plugin().join("volumeDevices/publish").join(name).join(uid);
        }
        self.of_pod(uid, name, false).join("mount")
    }

    /// Writes down that a pod uses a volume.
    pub fn note_use(&self, one: &Use) -> io::Result<()> {
        let own = self.of_pod(&one.uid, &one.record.name, one.is_block);
        if !one.is_block {
            return write(&own, &one.record);
        }
        write(&self.staged(&one.record, true), &one.record)?;
        let target = self.target(&one.uid, &one.record.name, true);
        for directory in [target.parent(), own.parent()].into_iter().flatten() {
            make(directory)?;
        }
        match std::os::unix::fs::symlink(&target, &own) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            made => made,
        }
    }

    /// Writes down that a volume may be staged, and makes the directory for it.
    pub fn note_staged(&self, record: &Record, is_block: bool) -> io::Result<()> {
        if !is_block {
            let Record { driver_name, volume_handle, .. } = record.clone();
            let kept = Record { driver_name, volume_handle, ..Record::default() };
            write(&self.staged(record, false), &kept)?;
        }
        make(&self.staging(record, is_block))
    }

    /// Takes away what a volume was published on. Its driver has unpublished it.
    pub fn clear_target(&self, one: &Use) -> io::Result<()> {
        remove_mount_point(&self.target(&one.uid, &one.record.name, one.is_block))
    }

    /// Forgets a pod's volume that its driver has unpublished.
    pub fn forget_use(&self, one: &Use) -> io::Result<()> {
        self.clear_target(one)?;
        let own = self.of_pod(&one.uid, &one.record.name, one.is_block);
        if one.is_block {
            return gone(fs::remove_file(own));
        }
        gone(fs::remove_file(own.join(FILE)))?;
        gone(fs::remove_dir(own))
    }

    /// Takes away what a volume was staged on. Its driver has unstaged it.
    pub fn clear_staging(&self, record: &Record, is_block: bool) -> io::Result<()> {
        remove_mount_point(&self.staging(record, is_block))
    }

    /// Forgets a volume that its driver has unstaged.
    pub fn forget_staged(&self, record: &Record, is_block: bool) -> io::Result<()> {
        self.clear_staging(record, is_block)?;
        let kept = self.staged(record, is_block);
        gone(fs::remove_file(kept.join(FILE)))?;
        gone(fs::remove_dir(&kept))?;
        if is_block {
            gone(kept.parent().map_or(Ok(()), fs::remove_dir))?;
            let published = self.target("", &record.name, true);
            gone(fs::remove_dir(published))?;
        }
        Ok(())
    }

    /// Whether a volume may be staged.
    pub fn may_be_staged(&self, record: &Record, is_block: bool) -> bool {
        self.staging(record, is_block).exists()
    }

    /// The volumes of a pod. A directory without its file is none: nothing was asked of a driver for it.
    pub fn uses_of(&self, uid: &str) -> io::Result<Vec<Use>> {
        let mut uses = Vec::new();
        for (is_block, kind) in [(false, "volumes"), (true, "volumeDevices")] {
            for name in names(&self.pod(uid).join(kind).join(PLUGIN))? {
                let at = if is_block {
                    let record = Record { name: name.clone(), ..Record::default() };
                    self.staged(&record, true)
                } else {
                    self.of_pod(uid, &name, false)
                };
                if let Some(record) = read(&at)? {
                    uses.push(Use { uid: uid.into(), record: Record { name, ..record }, is_block });
                }
            }
        }
        Ok(uses)
    }

    /// The volumes of all pods.
    pub fn uses(&self) -> io::Result<Vec<Use>> {
        let mut uses = Vec::new();
        for uid in names(&self.root.join("pods"))? {
            uses.extend(self.uses_of(&uid)?);
        }
        Ok(uses)
    }

    /// The pods that use a volume.
    pub fn users(&self, record: &Record) -> io::Result<Vec<String>> {
        let key = record.unique_name();
        let uses = self.uses()?.into_iter().filter(|one| one.record.unique_name() == key);
        Ok(uses.map(|one| one.uid).collect())
    }

    /// Every volume that may be staged, and whether it is a block device.
    pub fn all_staged(&self) -> io::Result<Vec<(Record, bool)>> {
        let mut all = Vec::new();
        let plugin = self.plugin();
        for driver in names(&plugin)?.iter().filter(|name| *name != "volumeDevices") {
            for volume in names(&plugin.join(driver))? {
                all.extend(read(&plugin.join(driver).join(volume))?.map(|record| (record, false)));
            }
        }
        for name in names(&plugin.join("volumeDevices"))? {
            let record = read(&plugin.join("volumeDevices").join(&name).join("data"))?;
            all.extend(record.map(|record| (Record { name, ..record }, true)));
        }
        Ok(all)
    }
}

/// Whether something is mounted at a path itself. The path is not looked at: what is mounted there may not answer.
pub fn is_mounted(path: &Path) -> io::Result<bool> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Ok(false) };
    let parent = match fs::canonicalize(parent) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        parent => parent?,
    };
    Ok(mount::mounts_below(&parent)?.contains(&parent.join(name)))
}

/// Removes the empty directory, or the file, that a volume was mounted on. What a driver has left mounted is unmounted
/// first: nothing is ever removed through a mount.
fn remove_mount_point(path: &Path) -> io::Result<()> {
    for _ in 0..MAX_STACKED {
        if !is_mounted(path)? {
            break;
        }
        mount::unmount(path)?;
    }
    match fs::symlink_metadata(path) {
        Err(error) => gone(Err(error)),
        Ok(metadata) if metadata.is_dir() => gone(fs::remove_dir(path)),
        Ok(_) => gone(fs::remove_file(path)),
    }
}

fn gone(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

fn make(directory: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o750).create(directory)
}

/// The names in a directory, in order; none where it is not there.
fn names(directory: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(vec![]),
        entries => entries?,
    };
    let names = entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    let mut names = names.collect::<io::Result<Vec<String>>>()?;
    names.sort();
    Ok(names)
}

fn write(directory: &Path, record: &Record) -> io::Result<()> {
    make(directory)?;
    let path = directory.join(format!(".{FILE}"));
    let mut file = fs::File::create(&path)?;
    file.write_all(&serde_json::to_vec(record)?)?;
    file.sync_all()?;
    fs::rename(path, directory.join(FILE))
}

fn read(directory: &Path) -> io::Result<Option<Record>> {
    let path = directory.join(FILE);
    let text = match fs::read(&path) {
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        text => text?,
    };
    let invalid =
        |what: String| io::Error::new(io::ErrorKind::InvalidData, format!("{}: {what}", path.display()));
    let record: Record = serde_json::from_slice(&text).map_err(|error| invalid(error.to_string()))?;
    // its words become parts of paths
    let is_part = |text: &str| !text.contains('/') && text != ".." && text != ".";
    if !is_part(&record.driver_name) || !is_part(&record.name) || record.driver_name.is_empty() {
        return Err(invalid("no names of a driver and a volume".into()));
    }
    Ok(Some(record))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferry_api::csi_volume::attachment_name;

    fn record(name: &str) -> Record {
        Record {
            name: name.into(),
            volume_handle: "h/1".into(),
            driver_name: "d.example.com".into(),
            node_name: "n".into(),
            attachment_id: attachment_name("h/1", "d.example.com", "n"),
            volume_lifecycle_mode: PERSISTENT.into(),
        }
    }

    #[test]
    fn the_file_has_upstreams_words() {
        let text = serde_json::to_value(record("pv")).expect("it can be written");
        let keys: Vec<&str> = text.as_object().expect("an object").keys().map(String::as_str).collect();
        let expected =
            ["attachmentID", "driverName", "nodeName", "specVolID", "volumeHandle", "volumeLifecycleMode"];
        assert_eq!(keys, expected);
    }

    #[test]
    fn volume_records_are_found_and_removed() {
        let folder = tempfile::tempdir().expect("a directory can be made");
        let paths = Paths::new(folder.path());
        let one = |uid: &str, name: &str, is_block| Use { uid: uid.into(), record: record(name), is_block };
        for (uid, is_block) in [("a", false), ("b", false)] {
            paths.note_use(&one(uid, "pv", is_block)).expect("it can be written");
        }
        paths.note_staged(&record("pv"), false).expect("it can be written");
        let uses = paths.uses().expect("it can be read");
        assert_eq!(uses, [one("a", "pv", false), one("b", "pv", false)]);
        assert_eq!(paths.users(&record("pv")).expect("it can be read"), ["a", "b"]);
        let staged = paths.all_staged().expect("it can be read");
        assert_eq!(staged.len(), 1);
        assert_eq!(staged[0].0.unique_name(), record("pv").unique_name());

        for uid in ["a", "b", "b"] {
            paths.forget_use(&one(uid, "pv", false)).expect("what is gone is gone");
        }
        assert!(paths.users(&record("pv")).expect("it can be read").is_empty());
        paths.forget_staged(&staged[0].0, false).expect("it can be removed");
        paths.forget_staged(&staged[0].0, false).expect("what is gone is gone");
        assert!(paths.all_staged().expect("it can be read").is_empty());
    }

    #[test]
    fn a_device_is_found_by_its_links() {
        let folder = tempfile::tempdir().expect("a directory can be made");
        let paths = Paths::new(folder.path());
        let one = Use { uid: "a".into(), record: record("pv"), is_block: true };
        paths.note_use(&one).expect("it can be written");
        paths.note_use(&one).expect("once more changes nothing");
        paths.note_staged(&one.record, true).expect("it can be written");
        assert_eq!(paths.uses().expect("it can be read"), std::slice::from_ref(&one));
        assert_eq!(paths.all_staged().expect("it can be read"), [(record("pv"), true)]);
        paths.forget_use(&one).expect("it can be removed");
        assert!(paths.uses().expect("it can be read").is_empty());
        paths.forget_staged(&one.record, true).expect("it can be removed");
        assert!(paths.all_staged().expect("it can be read").is_empty());
    }

    #[test]
    fn a_record_leads_nowhere_else() {
        let folder = tempfile::tempdir().expect("a directory can be made");
        let paths = Paths::new(folder.path());
        let bad = Record { driver_name: "../../etc".into(), ..record("pv") };
        write(&paths.of_pod("a", "pv", false), &bad).expect("it can be written");
        assert!(paths.uses().is_err());
        fs::write(paths.of_pod("a", "pv", false).join(FILE), "{").expect("it can be written");
        assert!(paths.uses().is_err(), "what cannot be read is not nothing");
    }

    #[test]
    fn cleanup_stops_at_remaining_mounts() {
        let folder = tempfile::tempdir().expect("a directory can be made");
        let paths = Paths::new(&folder.path().join("root"));
        let one = Use { uid: "a".into(), record: record("pv"), is_block: false };
        paths.note_use(&one).expect("it can be written");
        let target = paths.target("a", "pv", false);
        let data = folder.path().join("data");
        for directory in [&target, &data] {
            fs::create_dir(directory).expect("a directory can be made");
        }
        fs::write(data.join("kept"), "").expect("a file can be written");
        if let Err(error) = mount::bind(&data, &target, false) {
            return ferry_skip::missing(&format!("the right to mount: {error}"));
        }
        let mounted = is_mounted(&target).expect("it can be read");
        let forgotten = paths.forget_use(&one);
        mount::unmount(&target).expect("one that is gone is gone");
        forgotten.expect("it can be removed");
        assert!(mounted && data.join("kept").exists() && !target.exists());
    }
}
