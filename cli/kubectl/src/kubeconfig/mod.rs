//! The kubeconfig: what flags add to the files, what a cluster is called with, and how entries are written back.
//! [`ferry_client::kubeconfig`] reads them.

pub mod exec_plugin;
pub mod oidc;
pub mod resolve;

use std::ops::Deref;
use std::path::{Path, PathBuf};

pub use ferry_client::kubeconfig::{Entry, SECTIONS, describe, home, relative_to};
use ferry_client::kubeconfig::{Files, read};
use serde_json::{Value, json};

use crate::error::{Error, Result};
use crate::fields::Fields;

#[derive(Debug, Clone)]
pub struct Kubeconfig(Files);

impl Deref for Kubeconfig {
    type Target = Files;

    fn deref(&self) -> &Files {
        &self.0
    }
}

impl Kubeconfig {
    /// `--kubeconfig` alone, else `$KUBECONFIG`'s list, else `~/.kube/config`.
    pub fn load(explicit: &str) -> Result<Self> {
        Ok(Kubeconfig(Files::load((!explicit.is_empty()).then_some(Path::new(explicit)))?))
    }

    /// As `load`, but a file that is not there yet is no error: it is about to be written.
    pub fn load_for_change(explicit: &str) -> Result<Self> {
        if !explicit.is_empty() && !Path::new(explicit).exists() {
            return Ok(Kubeconfig(Files::to_be_written(PathBuf::from(explicit))));
        }
        Self::load(explicit)
    }
}

/// Changes one file in place: reads it, lets `change` work on the document, writes it whole under
/// a lock file so that two kubectls do not undo each other.
pub fn change_file(path: &Path, change: impl FnOnce(&mut Value) -> Result<()>) -> Result<()> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::create_dir_all(directory)?;
    let lock = PathBuf::from(format!("{}.lock", path.display()));
    std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(&lock)
        .map_err(|error| Error::message(format!("open {}: {}", lock.display(), describe(&error))))?;
    let outcome = rewrite(path, change);
    let _ = std::fs::remove_file(&lock);
    outcome
}

fn rewrite(path: &Path, change: impl FnOnce(&mut Value) -> Result<()>) -> Result<()> {
    let mut content = if path.exists() { read(path)? } else { Value::Null };
    if !content.is_object() {
        content = json!({});
    }
    change(&mut content)?;
    let map = content.as_object_mut().expect("made an object above");
    map.insert("apiVersion".to_owned(), json!("v1"));
    map.insert("kind".to_owned(), json!("Config"));
    map.entry("current-context").or_insert(json!(""));
    for (section, _) in SECTIONS {
        let entries = map.entry(section).or_insert(Value::Null);
        if let Value::Array(list) = entries {
            list.sort_by(|a, b| a.text("name").cmp(b.text("name")));
        }
    }
    write_private(path, &ferry_api::yaml::encode_value(&content))
}

/// Writes a file only its owner may read: it holds credentials.
pub fn write_private(path: &Path, text: &str) -> Result<()> {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    let mut file =
        std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes())?;
    Ok(())
}

/// The content of an entry inside a document, made if it is not there.
pub fn entry_mut<'a>(document: &'a mut Value, section: &str, name: &str) -> &'a mut Value {
    let inner = SECTIONS.iter().find(|(candidate, _)| *candidate == section).map_or("", |(_, inner)| *inner);
    if !document[section].is_array() {
        document[section] = json!([]);
    }
    let list = document[section].as_array_mut().expect("made an array above");
    let position = match list.iter().position(|entry| entry.text("name") == name) {
        Some(position) => position,
        None => {
            list.push(json!({"name": name, inner: {}}));
            list.len() - 1
        }
    };
    &mut list[position][inner]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_keeps_what_it_does_not_know() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("config");
        let before = "users:\n- name: u\n  user: {token: t, extensions: [{name: e}]}\nmine: 1\n";
        std::fs::write(&path, before).unwrap();
        change_file(&path, |document| {
            entry_mut(document, "users", "u")["token"] = json!("new");
            entry_mut(document, "contexts", "c")["user"] = json!("u");
            Ok(())
        })
        .unwrap();
        let content = read(&path).unwrap();
        assert_eq!(
            content.list("users")[0],
            json!({"name": "u", "user": {"token": "new", "extensions": [{"name": "e"}]}})
        );
        assert_eq!(content.list("contexts")[0], json!({"name": "c", "context": {"user": "u"}}));
        assert_eq!(content.int("mine"), Some(1));
    }
}
