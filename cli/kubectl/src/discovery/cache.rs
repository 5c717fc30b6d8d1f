//! Discovery on disk: one small file per server, good for a few hours.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::Discovery;

const TTL: Duration = Duration::from_secs(6 * 60 * 60);

pub struct Cache {
    path: PathBuf,
}

impl Cache {
    /// The file of a server, named after its address as upstream names its directories.
    pub fn new(directory: &Path, authority: &str, server: &str) -> Self {
        let path_of_server =
            server.split("://").nth(1).and_then(|rest| rest.split_once('/')).map_or("", |(_, path)| path);
        let name: String = format!("{authority}/{path_of_server}")
            .trim_end_matches('/')
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() || matches!(c, '.' | '-') { c } else { '_' })
            .collect();
        Cache { path: directory.join("discovery").join(name).join("resources.json") }
    }

    /// What was found last time, unless that is too long ago or cannot be read.
    pub fn load(&self) -> Option<Discovery> {
        let age =
            SystemTime::now().duration_since(std::fs::metadata(&self.path).ok()?.modified().ok()?).ok()?;
        if age > TTL {
            return None;
        }
        serde_json::from_slice(&std::fs::read(&self.path).ok()?).ok()
    }

    /// Keeps it for the next command. A cache that cannot be written costs a request, nothing else.
    pub fn store(&self, discovery: &Discovery) {
        let Some(directory) = self.path.parent() else { return };
        let Ok(text) = serde_json::to_vec(discovery) else { return };
        if std::fs::create_dir_all(directory).is_err() {
            return;
        }
        // renamed into place, so that a command running beside this one never reads half a file
        let partial = directory.join(format!("resources.json.{}", std::process::id()));
        if std::fs::write(&partial, text).is_ok() {
            let _ = std::fs::rename(&partial, &self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::discovery::Group;

    #[test]
    fn cached_discovery_is_used_until_it_expires() {
        let directory = tempfile::tempdir().unwrap();
        let cache = Cache::new(directory.path(), "10.0.0.1:6443", "https://10.0.0.1:6443");
        assert!(cache.load().is_none());
        let discovery = Discovery {
            groups: vec![Group { name: "apps".to_owned(), versions: vec!["v1".to_owned()] }],
            resources: Vec::new(),
        };
        cache.store(&discovery);
        assert_eq!(cache.load(), Some(discovery));
        assert!(directory.path().join("discovery/10.0.0.1_6443/resources.json").exists());
        let file = directory.path().join("discovery/10.0.0.1_6443/resources.json");
        let long_ago = SystemTime::now() - TTL - Duration::from_secs(1);
        std::fs::File::options().write(true).open(file).unwrap().set_modified(long_ago).unwrap();
        assert!(cache.load().is_none());
    }

    #[test]
    fn a_torn_file_is_no_cache() {
        let directory = tempfile::tempdir().unwrap();
        let cache = Cache::new(directory.path(), "x:1", "http://x:1/prefix");
        cache.store(&Discovery::default());
        std::fs::write(directory.path().join("discovery/x_1_prefix/resources.json"), "{\"groups\":").unwrap();
        assert!(cache.load().is_none());
    }
}
