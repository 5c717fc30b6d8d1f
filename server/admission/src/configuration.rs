//! The AdmissionConfiguration file (`--admission-control-config-file`): the configuration of each plugin.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::Path;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// The configuration of each plugin that has one, by the plugin's name.
#[derive(Debug, Clone, Default)]
pub struct Configuration(BTreeMap<String, Value>);

#[derive(Debug, PartialEq, Eq)]
pub struct BadConfiguration(pub String);

impl Display for BadConfiguration {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadConfiguration {}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct File {
    kind: String,
    #[serde(default)]
    plugins: Vec<PluginConfiguration>,
}

#[derive(Deserialize)]
struct PluginConfiguration {
    name: String,
    #[serde(default)]
    path: String,
    configuration: Option<Value>,
}

impl Configuration {
    /// Reads the file and those it names; their paths are relative to its own.
    pub fn open(path: &Path) -> Result<Configuration, BadConfiguration> {
        let file: File = parse(path)?;
        if file.kind != "AdmissionConfiguration" {
            let kind = &file.kind;
            return Err(BadConfiguration(format!(
                "{}: kind {kind} is no AdmissionConfiguration",
                path.display()
            )));
        }
        let folder = path.parent().unwrap_or(Path::new("."));
        let mut plugins = BTreeMap::new();
        for PluginConfiguration { name, path, configuration } in file.plugins {
            let configuration = match configuration {
                Some(configuration) => configuration,
                None if path.is_empty() => continue,
                None => parse(&folder.join(path))?,
            };
            plugins.insert(name, configuration);
        }
        Ok(Configuration(plugins))
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// The configuration of one plugin, its defaults where nothing is said.
    pub fn of<T: DeserializeOwned + Default>(&self, plugin: &str) -> Result<T, BadConfiguration> {
        match self.0.get(plugin) {
            Some(value) => T::deserialize(value)
                .map_err(|error| BadConfiguration(format!("configuration of {plugin}: {error}"))),
            None => Ok(T::default()),
        }
    }

    #[cfg(test)]
    pub fn with(plugin: &str, value: Value) -> Configuration {
        Configuration(BTreeMap::from([(plugin.to_string(), value)]))
    }
}

fn parse<T: DeserializeOwned>(path: &Path) -> Result<T, BadConfiguration> {
    let bad = |why: &dyn Display| BadConfiguration(format!("{}: {why}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|error| bad(&error))?;
    ferry_api::yaml::one(&text).map_err(|error| bad(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plugin_is_told_inline_or_by_a_file_beside() {
        let folder = tempfile::tempdir().expect("a directory");
        let file = folder.path().join("admission.yaml");
        std::fs::write(folder.path().join("b.yaml"), "x: 2\n").expect("written");
        std::fs::write(
            &file,
            "apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\nplugins:\n- name: A\n  configuration: {x: 1}\n- name: B\n  path: b.yaml\n",
        )
        .expect("written");
        let configuration = Configuration::open(&file).expect("well formed");
        let of = |plugin: &str| configuration.of::<BTreeMap<String, i64>>(plugin);
        assert_eq!(of("A").expect("a map").get("x"), Some(&1));
        assert_eq!(of("B").expect("a map").get("x"), Some(&2));
        assert!(of("C").expect("a map").is_empty());
        std::fs::write(&file, "kind: Pod").expect("written");
        assert!(Configuration::open(&file).is_err());
    }
}
