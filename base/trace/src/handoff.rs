//! Spans of a process that ends before anyone could ask it: left in a file, collected by whoever had it started.
//!
//! A container runtime starts the CNI plugin of a pod, and tells it nothing of the kubelet's span; but both know the
//! sandbox. So the plugin leaves its spans under the sandbox's identifier, and the kubelet, which knows its own span,
//! hangs them below it.

use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::context::Context;
use crate::record::Record;
use crate::ring::ring;

/// Who sent what a network plugin left: a process of this very host.
pub const PLUGIN: &str = "cni";

/// A plugin makes a handful; a file that is larger is not ours.
const MAX_BYTES: u64 = 64 * 1024;

/// Writes everything this process has recorded.
pub fn leave(directory: &Path, key: &str) -> io::Result<()> {
    let Some(file) = file(directory, key) else { return Ok(()) };
    fs::create_dir_all(directory)?;
    let records = serde_json::to_vec(&ring().all())?;
    // Whole or not at all: the collector may look at any moment.
    let partial = file.with_extension("partial");
    fs::write(&partial, records)?;
    fs::rename(&partial, &file)
}

/// Takes in what was left under `key`, as steps below `parent`, and removes it. What is not there, or cannot be read,
/// is a gap in a trace and nothing worse.
pub fn collect(directory: &Path, key: &str, parent: Context, source: &str) {
    let Some(file) = file(directory, key) else { return };
    let left =
        fs::metadata(&file).ok().filter(|left| left.len() <= MAX_BYTES).and_then(|_| fs::read(&file).ok());
    let _ = fs::remove_file(&file);
    let records: Option<Vec<Record>> = left.and_then(|left| serde_json::from_slice(&left).ok());
    if let Some(records) = records.filter(|_| parent.sampled) {
        ring().take_in(records.into_iter().map(|record| below(record, parent)), source);
    }
}

fn below(mut record: Record, parent: Context) -> Record {
    record.trace = parent.trace;
    record.parent.get_or_insert(parent.span);
    record
}

/// The key becomes a file's name, so it must be one.
fn file(directory: &Path, key: &str) -> Option<PathBuf> {
    let is_name = !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    is_name.then(|| directory.join(format!("{key}.json")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::span::Span;

    #[test]
    fn what_is_left_hangs_below_the_collectors_span_and_is_gone() {
        let directory = std::env::temp_dir().join(format!("ferry-handoff-{}", Context::generate().span));
        let mut added = Span::root("cni.add", None);
        added.set("plugin", "bridge");
        let child = added.enter(|| crate::span("cni.addresses").context());
        let own = added.context();
        drop(added);
        leave(&directory, "abc123").unwrap();
        let parent = Context::generate();
        collect(&directory, "abc123", parent, "cni");
        let found = ring().trace(parent.trace);
        let parent_of =
            |span| found.iter().find(|record| record.span == span).and_then(|record| record.parent);
        assert_eq!(parent_of(own.span), Some(parent.span));
        assert_eq!(parent_of(child.span), Some(own.span));
        assert!(found.iter().all(|record| record.source.as_deref() == Some("cni")));
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 0);
        fs::remove_dir(&directory).unwrap();
    }

    #[test]
    fn a_key_cannot_lead_out_of_the_directory() {
        assert_eq!(file(Path::new("/d"), "../etc/passwd"), None);
        assert_eq!(file(Path::new("/d"), ""), None);
        assert_eq!(file(Path::new("/d"), "0af"), Some("/d/0af.json".into()));
    }
}
