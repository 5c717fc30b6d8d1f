//! The kubeconfig: which files, how they merge, and what they say about the cluster to call.
//! Entries stay untyped, so writing a file back keeps what we do not know.

pub mod exec_plugin;
pub mod oidc;
pub mod resolve;

use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use crate::error::{Error, Result};
use crate::fields::Fields;
use crate::yaml;

/// The three kinds of named entries, with the key each wraps its content in.
pub const SECTIONS: [(&str, &str); 3] = [("clusters", "cluster"), ("contexts", "context"), ("users", "user")];

#[derive(Debug, Clone)]
pub struct Kubeconfig {
    files: Vec<File>,
    /// Where a new entry goes: the first file, whether it exists or not.
    default_path: PathBuf,
}

#[derive(Debug, Clone)]
struct File {
    path: PathBuf,
    content: Value,
}

/// An entry together with the file it came from, against which its relative paths resolve.
#[derive(Debug, Clone, Copy)]
pub struct Entry<'a> {
    pub content: &'a Value,
    pub path: &'a Path,
}

impl Kubeconfig {
    /// `--kubeconfig` alone, else `$KUBECONFIG`'s list, else `~/.kube/config`.
    pub fn load(explicit: &str) -> Result<Self> {
        if !explicit.is_empty() {
            let path = PathBuf::from(explicit);
            if !path.exists() {
                return Err(Error::message(format!("stat {explicit}: no such file or directory")));
            }
            return Ok(Kubeconfig { files: vec![read(path.clone())?], default_path: path });
        }
        Self::load_from(default_paths())
    }

    /// As `load`, but a file that is not there yet is no error: it is about to be written.
    pub fn load_for_change(explicit: &str) -> Result<Self> {
        let path = PathBuf::from(explicit);
        if !explicit.is_empty() && !path.exists() {
            return Ok(Kubeconfig { files: Vec::new(), default_path: path });
        }
        Self::load(explicit)
    }

    fn load_from(paths: Vec<PathBuf>) -> Result<Self> {
        let mut files = Vec::new();
        for path in &paths {
            if path.exists() {
                files.push(read(path.clone())?);
            }
        }
        let default_path =
            files.first().map(|file: &File| file.path.clone()).or_else(|| paths.last().cloned());
        Ok(Kubeconfig { files, default_path: default_path.unwrap_or_default() })
    }

    pub fn is_empty(&self) -> bool {
        SECTIONS.iter().all(|(section, _)| self.names(section).is_empty())
            && self.current_context().is_empty()
    }

    /// The first file that sets it wins, as for every other value.
    pub fn current_context(&self) -> &str {
        self.files
            .iter()
            .map(|file| file.content.text("current-context"))
            .find(|name| !name.is_empty())
            .unwrap_or("")
    }

    pub fn entry(&self, section: &str, name: &str) -> Option<Entry<'_>> {
        let (_, inner) = SECTIONS.iter().find(|(candidate, _)| *candidate == section)?;
        self.files.iter().find_map(|file| {
            let found = file.content.list(section).iter().find(|entry| entry.text("name") == name)?;
            Some(Entry { content: found.at(inner), path: &file.path })
        })
    }

    pub fn names(&self, section: &str) -> Vec<&str> {
        let mut names: Vec<&str> = self
            .files
            .iter()
            .flat_map(|file| file.content.list(section))
            .map(|entry| entry.text("name"))
            .collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// One document with everything the files say, sorted by name.
    pub fn merged(&self) -> Value {
        let mut merged = Map::new();
        for (section, inner) in SECTIONS {
            let entries: Vec<Value> = self
                .names(section)
                .into_iter()
                .map(|name| json!({"name": name, inner: self.entry(section, name).map(|entry| entry.content.clone())}))
                .collect();
            merged.insert(
                section.to_owned(),
                if entries.is_empty() { Value::Null } else { Value::Array(entries) },
            );
        }
        merged.insert("current-context".to_owned(), json!(self.current_context()));
        merged.insert("apiVersion".to_owned(), json!("v1"));
        merged.insert("kind".to_owned(), json!("Config"));
        if let Some(preferences) = self
            .files
            .iter()
            .map(|file| file.content.at("preferences"))
            .find(|value| value.as_object().is_some_and(|map| !map.is_empty()))
        {
            merged.insert("preferences".to_owned(), preferences.clone());
        }
        Value::Object(merged)
    }

    /// The file that holds an entry, or the one a new entry goes to.
    pub fn file_of(&self, section: &str, name: &str) -> PathBuf {
        match self.entry(section, name) {
            Some(entry) => entry.path.to_owned(),
            None => self.default_path.clone(),
        }
    }

    pub fn current_context_file(&self) -> PathBuf {
        let holder = self.files.iter().find(|file| !file.content.text("current-context").is_empty());
        holder.map_or_else(|| self.default_path.clone(), |file| file.path.clone())
    }

    pub fn paths(&self) -> Vec<&Path> {
        self.files.iter().map(|file| file.path.as_path()).collect()
    }

    pub fn default_path(&self) -> &Path {
        &self.default_path
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
    let mut content = if path.exists() { read(path.to_owned())?.content } else { Value::Null };
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

fn read(path: PathBuf) -> Result<File> {
    let text = std::fs::read_to_string(&path).map_err(|error| {
        Error::message(format!(
            "error loading config file \"{}\": open {}: {}",
            path.display(),
            path.display(),
            describe(&error)
        ))
    })?;
    let content = yaml::document(&text).map_err(|error| {
        Error::message(format!("error loading config file \"{}\": {error}", path.display()))
    })?;
    let (version, kind) = (content.text("apiVersion"), content.text("kind"));
    let is_config = matches!(version, "" | "v1") && matches!(kind, "" | "Config");
    if !is_config {
        let kind = if kind.is_empty() { "Config" } else { kind };
        let reason = if matches!(version, "" | "v1") {
            format!("no kind {kind:?} is registered for version \"v1\" in scheme \"kubeconfig\"")
        } else {
            format!("no kind {kind:?} is registered for version {version:?} in scheme \"kubeconfig\"")
        };
        return Err(Error::message(format!("error loading config file \"{}\": {reason}", path.display())));
    }
    Ok(File { path, content })
}

fn default_paths() -> Vec<PathBuf> {
    match std::env::var_os("KUBECONFIG").filter(|value| !value.is_empty()) {
        Some(list) => std::env::split_paths(&list).filter(|path| !path.as_os_str().is_empty()).collect(),
        None => vec![home().join(".kube/config")],
    }
}

pub fn home() -> PathBuf {
    std::env::var_os("HOME").map_or_else(|| PathBuf::from("/"), PathBuf::from)
}

/// The operating system's reason in its short form, as Go prints it.
pub fn describe(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::NotFound => "no such file or directory".to_owned(),
        std::io::ErrorKind::PermissionDenied => "permission denied".to_owned(),
        std::io::ErrorKind::AlreadyExists => "file exists".to_owned(),
        std::io::ErrorKind::IsADirectory => "is a directory".to_owned(),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(directory: &Path, name: &str, text: &str) -> PathBuf {
        let path = directory.join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    #[test]
    fn the_first_file_of_the_list_wins() {
        let directory = tempfile::tempdir().unwrap();
        let first = write(directory.path(), "first", "clusters:\n- name: a\n  cluster: {server: one}\n");
        let second = write(
            directory.path(),
            "second",
            "current-context: x\nclusters:\n- name: a\n  cluster: {server: two}\n- name: b\n  cluster: {server: three}\n",
        );
        let missing = directory.path().join("missing");
        let config = Kubeconfig::load_from(vec![missing, first.clone(), second.clone()]).unwrap();
        assert_eq!(config.entry("clusters", "a").unwrap().content.text("server"), "one");
        assert_eq!(config.entry("clusters", "b").unwrap().path, second);
        assert_eq!(config.current_context(), "x");
        assert_eq!(config.names("clusters"), ["a", "b"]);
        assert_eq!(config.file_of("clusters", "new"), first);
    }

    #[test]
    fn a_file_of_another_version_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = write(directory.path(), "config", "apiVersion: v-1\nkind: Config\n");
        let error = read(path).unwrap_err().to_string();
        assert!(
            error.ends_with("no kind \"Config\" is registered for version \"v-1\" in scheme \"kubeconfig\""),
            "{error}"
        );
        let path = write(directory.path(), "config", "clusters: []\n");
        assert!(read(path).is_ok());
    }

    #[test]
    fn a_change_keeps_what_it_does_not_know() {
        let directory = tempfile::tempdir().unwrap();
        let path = write(
            directory.path(),
            "config",
            "users:\n- name: u\n  user: {token: t, extensions: [{name: e}]}\nmine: 1\n",
        );
        change_file(&path, |document| {
            entry_mut(document, "users", "u")["token"] = json!("new");
            entry_mut(document, "contexts", "c")["user"] = json!("u");
            Ok(())
        })
        .unwrap();
        let content = read(path).unwrap().content;
        assert_eq!(
            content.list("users")[0],
            json!({"name": "u", "user": {"token": "new", "extensions": [{"name": "e"}]}})
        );
        assert_eq!(content.list("contexts")[0], json!({"name": "c", "context": {"user": "u"}}));
        assert_eq!(content.int("mine"), Some(1));
    }
}
