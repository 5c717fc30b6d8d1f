//! What the claims of running pods take of their volumes, as `stats/summary` and the metrics show it.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ferry_linux::{disk, quota};
use parking_lot::Mutex;

use super::csi::stats::Asked;

/// How old what was counted file by file may be: a volume may have millions.
const FRESH: Duration = Duration::from_secs(60);

/// A claim that a pod has mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountedClaim {
    /// The name the pod gives it.
    pub volume: String,
    pub claim: String,
    pub path: PathBuf,
    /// Whether the volume is a directory among others, so that its file system's numbers are not its own.
    pub is_shared: bool,
    /// A volume whose driver says what it holds.
    pub asked: Option<Asked>,
}

impl MountedClaim {
    /// `of_pod` is the name that the pod gives it, and the claim's.
    pub fn of_driver(of_pod: (String, String), path: PathBuf, asked: Asked) -> Self {
        let (volume, claim) = of_pod;
        Self { volume, claim, path, is_shared: false, asked: Some(asked) }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub capacity_bytes: u64,
    pub available_bytes: u64,
    pub used_bytes: u64,
    pub inodes: u64,
    pub inodes_free: u64,
    pub inodes_used: u64,
}

/// Claims by the uid of their pod, and what was counted of them.
#[derive(Default)]
pub struct Claims {
    mounted: Mutex<HashMap<String, Vec<MountedClaim>>>,
    counted: Mutex<HashMap<PathBuf, (Instant, u64, u64)>>,
}

impl Claims {
    pub fn set(&self, uid: &str, claims: Vec<MountedClaim>) {
        let mut mounted = self.mounted.lock();
        if claims.is_empty() {
            mounted.remove(uid);
        } else {
            mounted.insert(uid.into(), claims);
        }
    }

    pub fn forget(&self, uid: &str) {
        let gone = self.mounted.lock().remove(uid);
        let mut counted = self.counted.lock();
        for claim in gone.into_iter().flatten() {
            counted.remove(&claim.path);
        }
    }

    pub fn of(&self, uid: &str) -> Vec<MountedClaim> {
        self.mounted.lock().get(uid).cloned().unwrap_or_default()
    }

    /// All that their drivers say something of.
    pub fn of_drivers(&self) -> Vec<Asked> {
        self.mounted.lock().values().flatten().filter_map(|claim| claim.asked.clone()).collect()
    }

    /// Reads the disk, and may take its time. `None` where that fails.
    pub fn usage(&self, claim: &MountedClaim) -> Option<Usage> {
        let space = disk::space(&claim.path).ok()?;
        // of a directory with a quota the file system tells the quota's numbers
        let counts_itself = !claim.is_shared || quota::project(&claim.path).ok()?.is_some();
        let counted = if counts_itself { None } else { Some(self.count(&claim.path)) };
        Some(usage(&space, counted))
    }

    fn count(&self, path: &Path) -> (u64, u64) {
        if let Some((at, bytes, inodes)) = self.counted.lock().get(path).copied()
            && at.elapsed() < FRESH
        {
            return (bytes, inodes);
        }
        let (bytes, inodes) = disk::usage(path);
        self.counted.lock().insert(path.into(), (Instant::now(), bytes, inodes));
        (bytes, inodes)
    }
}

fn usage(space: &disk::Space, counted: Option<(u64, u64)>) -> Usage {
    let (used_bytes, inodes_used) = counted.unwrap_or((
        space.capacity_bytes.saturating_sub(space.available_bytes),
        space.inodes.saturating_sub(space.inodes_free),
    ));
    Usage {
        capacity_bytes: space.capacity_bytes,
        available_bytes: space.available_bytes,
        used_bytes,
        inodes: space.inodes,
        inodes_free: space.inodes_free,
        inodes_used,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_among_others_is_counted_by_itself() {
        let folder = tempfile::tempdir().expect("a directory can be made");
        std::fs::write(folder.path().join("file"), vec![1; 8192]).expect("a file can be written");
        let claims = Claims::default();
        let claim = |is_shared| MountedClaim {
            volume: "data".into(),
            claim: "data-0".into(),
            path: folder.path().into(),
            is_shared,
            asked: None,
        };
        claims.set("uid", vec![claim(true)]);
        assert_eq!(claims.of("uid"), [claim(true)]);
        let shared = claims.usage(&claim(true)).expect("it can be read");
        assert_eq!(shared.inodes_used, 2);
        assert!(shared.used_bytes >= 8192 && shared.capacity_bytes > shared.used_bytes);
        std::fs::write(folder.path().join("more"), "").expect("a file can be written");
        let again = claims.usage(&claim(true)).expect("it can be read");
        assert_eq!(again.inodes_used, 2, "counted a moment ago");
        claims.forget("uid");
        assert!(claims.of("uid").is_empty());
        assert_eq!(claims.usage(&claim(true)).expect("it can be read").inodes_used, 3);
    }
}
