//! Kubeconfig files: which ones, how they merge, what they say. Components and kubectl read theirs here. Entries stay
//! untyped and know their file: kubectl writes them back, with whatever else is in them.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

/// The three kinds of named entries, with the key each wraps its content in.
pub const SECTIONS: [(&str, &str); 3] = [("clusters", "cluster"), ("contexts", "context"), ("users", "user")];

/// Fields that name a file, relative to the kubeconfig that holds them.
const PATHS: [&str; 4] = ["certificate-authority", "client-certificate", "client-key", "tokenFile"];

/// What was read, the first file with an entry winning.
#[derive(Debug, Clone)]
pub struct Files {
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

/// In the words of upstream's programs, which scripts compare.
#[derive(Debug, thiserror::Error)]
pub enum KubeconfigError {
    #[error("stat {}: no such file or directory", .0.display())]
    Missing(PathBuf),
    #[error("error loading config file \"{path}\": open {path}: {reason}")]
    Open { path: String, reason: String },
    #[error("error loading config file \"{path}\": {reason}")]
    Content { path: String, reason: String },
}

impl Files {
    /// The file named, else `$KUBECONFIG`'s list, else `~/.kube/config`; of the latter two what there is.
    pub fn load(explicit: Option<&Path>) -> Result<Files, KubeconfigError> {
        match explicit {
            Some(path) if !path.exists() => Err(KubeconfigError::Missing(path.to_owned())),
            Some(path) => {
                let file = File { path: path.to_owned(), content: read(path)? };
                Ok(Files { files: vec![file], default_path: path.to_owned() })
            }
            None => Files::load_from(&default_paths()),
        }
    }

    /// None yet: this is the one that is about to be written.
    pub fn to_be_written(path: PathBuf) -> Files {
        Files { files: Vec::new(), default_path: path }
    }

    fn load_from(paths: &[PathBuf]) -> Result<Files, KubeconfigError> {
        let mut files = Vec::new();
        for path in paths.iter().filter(|path| path.exists()) {
            files.push(File { path: path.clone(), content: read(path)? });
        }
        let default_path = files.first().map(|file| &file.path).or(paths.last()).cloned().unwrap_or_default();
        Ok(Files { files, default_path })
    }

    pub fn is_empty(&self) -> bool {
        SECTIONS.iter().all(|(section, _)| self.names(section).is_empty())
            && self.current_context().is_empty()
    }

    /// The first file that sets it wins, as for every other value.
    pub fn current_context(&self) -> &str {
        let named = self.files.iter().map(|file| text(&file.content, "current-context"));
        named.into_iter().find(|name| !name.is_empty()).unwrap_or("")
    }

    pub fn entry(&self, section: &str, name: &str) -> Option<Entry<'_>> {
        let (_, inner) = SECTIONS.iter().find(|(candidate, _)| *candidate == section)?;
        self.files.iter().find_map(|file| {
            let found = list(&file.content, section).iter().find(|entry| text(entry, "name") == name)?;
            Some(Entry { content: found.get(inner).unwrap_or(&Value::Null), path: &file.path })
        })
    }

    pub fn names(&self, section: &str) -> Vec<&str> {
        let entries = self.files.iter().flat_map(|file| list(&file.content, section));
        let mut names: Vec<&str> = entries.map(|entry| text(entry, "name")).collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// One document with everything the files say, sorted by name.
    pub fn merged(&self) -> Value {
        self.merged_with(|entry| entry.content.clone())
    }

    /// The same with paths that hold wherever the document lies.
    pub fn merged_with_absolute_paths(&self) -> Value {
        self.merged_with(|entry| {
            let mut content = entry.content.clone();
            for key in PATHS {
                make_absolute(content.get_mut(key), entry.path, |path| !path.is_empty());
            }
            // a command without a slash is looked up in PATH
            make_absolute(content.pointer_mut("/exec/command"), entry.path, |path| path.contains('/'));
            content
        })
    }

    fn merged_with(&self, content: impl Fn(Entry<'_>) -> Value) -> Value {
        let mut merged = Map::new();
        for (section, inner) in SECTIONS {
            let names = self.names(section).into_iter();
            let entries: Vec<Value> = names
                .map(|name| json!({"name": name, inner: self.entry(section, name).map(&content)}))
                .collect();
            let entries = if entries.is_empty() { Value::Null } else { Value::Array(entries) };
            merged.insert(section.to_owned(), entries);
        }
        merged.insert("current-context".to_owned(), json!(self.current_context()));
        merged.insert("apiVersion".to_owned(), json!("v1"));
        merged.insert("kind".to_owned(), json!("Config"));
        let preferences = self.files.iter().filter_map(|file| file.content.get("preferences"));
        let set = |value: &&Value| value.as_object().is_some_and(|map| !map.is_empty());
        if let Some(preferences) = preferences.into_iter().find(set) {
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
        let holder = self.files.iter().find(|file| !text(&file.content, "current-context").is_empty());
        holder.map_or_else(|| self.default_path.clone(), |file| file.path.clone())
    }

    pub fn paths(&self) -> Vec<&Path> {
        self.files.iter().map(|file| file.path.as_path()).collect()
    }

    pub fn default_path(&self) -> &Path {
        &self.default_path
    }
}

/// The content of one file; an empty one is null.
pub fn read(path: &Path) -> Result<Value, KubeconfigError> {
    let shown = || path.display().to_string();
    let text_of_file = std::fs::read_to_string(path)
        .map_err(|error| KubeconfigError::Open { path: shown(), reason: describe(&error) })?;
    let content =
        parse(&text_of_file).map_err(|reason| KubeconfigError::Content { path: shown(), reason })?;
    let (version, kind) = (text(&content, "apiVersion"), text(&content, "kind"));
    let (known_version, known_kind) = (matches!(version, "" | "v1"), matches!(kind, "" | "Config"));
    if known_version && known_kind {
        return Ok(content);
    }
    let kind = if kind.is_empty() { "Config" } else { kind };
    let version = if known_version { "v1" } else { version };
    let reason = format!("no kind {kind:?} is registered for version {version:?} in scheme \"kubeconfig\"");
    Err(KubeconfigError::Content { path: shown(), reason })
}

fn parse(content: &str) -> Result<Value, String> {
    if content.trim_start().starts_with('{')
        && let Ok(value) = serde_json::from_str(content)
    {
        return Ok(value);
    }
    let documents = ferry_api::yaml::documents(content)
        .map_err(|error| format!("error converting YAML to JSON: {error}"))?;
    Ok(documents.into_iter().next().unwrap_or(Value::Null))
}

/// A path that a kubeconfig names: relative ones start at its directory.
pub fn relative_to(kubeconfig: &Path, file: &str) -> PathBuf {
    let path = Path::new(file);
    match kubeconfig.parent() {
        Some(directory) if path.is_relative() => directory.join(path),
        _ => path.to_owned(),
    }
}

fn make_absolute(value: Option<&mut Value>, kubeconfig: &Path, is_path: impl Fn(&str) -> bool) {
    if let Some(value) = value
        && let Some(path) = value.as_str().filter(|path| is_path(path))
    {
        *value = json!(relative_to(kubeconfig, path));
    }
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
        ErrorKind::NotFound => "no such file or directory".to_owned(),
        ErrorKind::PermissionDenied => "permission denied".to_owned(),
        ErrorKind::AlreadyExists => "file exists".to_owned(),
        ErrorKind::IsADirectory => "is a directory".to_owned(),
        _ => error.to_string(),
    }
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value.get(key).and_then(Value::as_str).unwrap_or("")
}

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value.get(key).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(directory: &Path, name: &str, text: &str) -> PathBuf {
        let path = directory.join(name);
        std::fs::write(&path, text).expect("written");
        path
    }

    #[test]
    fn the_first_file_of_the_list_wins() {
        let directory = tempfile::tempdir().expect("a directory");
        let first = write(directory.path(), "first", "clusters:\n- name: a\n  cluster: {server: one}\n");
        let second = write(
            directory.path(),
            "second",
            "current-context: x\nclusters:\n- name: a\n  cluster: {server: two}\n- name: b\n  cluster: {server: three}\n",
        );
        let missing = directory.path().join("missing");
        let config = Files::load_from(&[missing, first.clone(), second.clone()]).expect("files");
        assert_eq!(text(config.entry("clusters", "a").expect("a").content, "server"), "one");
        assert_eq!(config.entry("clusters", "b").expect("b").path, second);
        assert_eq!(config.current_context(), "x");
        assert_eq!(config.names("clusters"), ["a", "b"]);
        assert_eq!(config.file_of("clusters", "new"), first);
    }

    #[test]
    fn a_file_of_another_version_is_refused() {
        let directory = tempfile::tempdir().expect("a directory");
        let refusal = |content: &str| {
            let path = write(directory.path(), "config", content);
            read(&path).err().map(|error| error.to_string()).unwrap_or_default()
        };
        let version = "no kind \"Config\" is registered for version \"v-1\" in scheme \"kubeconfig\"";
        assert!(refusal("apiVersion: v-1\nkind: Config\n").ends_with(version));
        let kind = "no kind \"Pod\" is registered for version \"v1\" in scheme \"kubeconfig\"";
        assert!(refusal("apiVersion: v1\nkind: Pod\n").ends_with(kind));
        assert!(refusal("clusters: [\n").contains("error converting YAML to JSON"));
        assert_eq!(refusal("clusters: []\n"), "");
    }

    #[test]
    fn paths_are_relative_to_the_file_that_names_them() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = write(
            directory.path(),
            "config",
            "clusters: [{name: a, cluster: {certificate-authority: ca.crt}}]\nusers:\n- name: u\n  user: {client-key: /k, tokenFile: '', exec: {command: ./login}}\n- name: v\n  user: {exec: {command: login}}\n",
        );
        let merged = Files::load(Some(&path)).expect("a file").merged_with_absolute_paths();
        let at =
            |pointer: &str| merged.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
        let beside = |name: &str| directory.path().join(name).display().to_string();
        assert_eq!(at("/clusters/0/cluster/certificate-authority"), beside("ca.crt"));
        assert_eq!(at("/users/0/user/client-key"), "/k");
        assert_eq!(at("/users/0/user/tokenFile"), "");
        assert_eq!(at("/users/0/user/exec/command"), beside("./login"));
        assert_eq!(at("/users/1/user/exec/command"), "login");
    }
}
