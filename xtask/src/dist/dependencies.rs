//! The crates that are in the program, by cargo's own resolution: their licences, and a bill of materials (CycloneDX).

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::step;

/// Names of files that hold a licence or what it asks to be kept.
const TEXTS: [&str; 5] = ["license", "licence", "copying", "notice", "unlicense"];

pub struct Dependencies {
    /// The program's own.
    pub version: String,
    crates: Vec<Crate>,
    /// What each crate was checked against when it was fetched.
    checksums: BTreeMap<(String, String), String>,
}

struct Crate {
    name: String,
    version: String,
    licence: String,
    directory: PathBuf,
    /// From a registry, and not of this workspace.
    is_foreign: bool,
}

impl Dependencies {
    /// Of one program of this workspace, on the platform that it is built on.
    pub fn of(program: &str) -> Result<Dependencies> {
        let host = step::output("rustc", &["-vV"])?;
        let host =
            host.lines().find_map(|line| line.strip_prefix("host: ")).context("rustc names no host")?;
        let words = ["metadata", "--format-version", "1", "--locked", "--filter-platform", host];
        let metadata: Value =
            serde_json::from_str(&step::output("cargo", &words)?).context("read cargo metadata")?;
        let lock = std::fs::read_to_string("Cargo.lock").context("read Cargo.lock")?;
        let packages = metadata["packages"].as_array().context("cargo metadata names no packages")?;
        let own = packages.iter().find(|package| package["name"] == program);
        let own = own.with_context(|| format!("there is no package {program}"))?;
        let version = own["version"].as_str().context("a package has a version")?.to_owned();
        let linked = linked(&metadata, own["id"].as_str().context("a package has an id")?);
        let mut crates = Vec::new();
        for package in
            packages.iter().filter(|package| package["id"].as_str().is_some_and(|id| linked.contains(id)))
        {
            crates.push(described(package)?);
        }
        crates.sort_by(|one, other| (&one.name, &one.version).cmp(&(&other.name, &other.version)));
        Ok(Dependencies { version, crates, checksums: checksums(&lock) })
    }

    /// Every licence text once, with the crates it is for.
    pub fn licences(&self) -> Result<String> {
        let mut by_text: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let mut listed = String::from("Ferry is given out under the Apache License 2.0. It contains:\n\n");
        for each in self.crates.iter().filter(|each| each.is_foreign) {
            let name = format!("{} {}", each.name, each.version);
            listed.push_str(&format!("{name}: {}\n", each.licence));
            for file in texts(&each.directory)? {
                let text = std::fs::read(&file).with_context(|| format!("read {}", file.display()))?;
                let text = String::from_utf8_lossy(&text).trim().replace("\r\n", "\n");
                by_text.entry(text).or_default().push(name.clone());
            }
        }
        for (text, names) in by_text {
            listed.push_str(&format!("\n{}\n{}\n\n{text}\n", "-".repeat(80), names.join(", ")));
        }
        Ok(listed)
    }

    pub fn bill_of_materials(&self, epoch: u64) -> Result<String> {
        let components: Vec<Value> =
            self.crates.iter().filter(|each| each.is_foreign).map(|each| self.component(each)).collect();
        let time = step::output("date", &["--utc", &format!("--date=@{epoch}"), "+%Y-%m-%dT%H:%M:%SZ"])?;
        let document = json!({
            "bomFormat": "CycloneDX",
            "specVersion": "1.5",
            "version": 1,
            "metadata": {
                "timestamp": time.trim(),
                "component": {
                    "type": "application", "bom-ref": "ferry", "name": "ferry", "version": self.version,
                    "licenses": [{"expression": "Apache-2.0"}],
                },
            },
            "components": components,
        });
        Ok(format!("{}\n", serde_json::to_string_pretty(&document)?))
    }

    fn component(&self, each: &Crate) -> Value {
        let purl = format!("pkg:cargo/{}@{}", each.name, each.version);
        let mut component = json!({
            "type": "library", "bom-ref": purl, "name": each.name, "version": each.version, "purl": purl,
            // cargo took a slash for "or" once
            "licenses": [{"expression": each.licence.replace('/', " OR ")}],
        });
        if let Some(sum) = self.checksums.get(&(each.name.clone(), each.version.clone())) {
            component["hashes"] = json!([{"alg": "SHA-256", "content": sum}]);
        }
        component
    }
}

/// The ids of all packages that are linked into one: not what only builds or tests it.
fn linked(metadata: &Value, program: &str) -> BTreeSet<String> {
    let nodes = metadata["resolve"]["nodes"].as_array().into_iter().flatten();
    let nodes: BTreeMap<&str, &Value> = nodes.filter_map(|node| Some((node["id"].as_str()?, node))).collect();
    let mut found = BTreeSet::new();
    let mut left = vec![program];
    while let Some(id) = left.pop() {
        if !found.insert(id.to_owned()) {
            continue;
        }
        let dependencies = nodes.get(id).and_then(|node| node["deps"].as_array()).into_iter().flatten();
        let normal = dependencies.filter(|dependency| {
            let kinds = dependency["dep_kinds"].as_array().into_iter().flatten();
            kinds.into_iter().any(|kind| kind["kind"].is_null())
        });
        left.extend(normal.filter_map(|dependency| dependency["pkg"].as_str()));
    }
    found
}

fn described(package: &Value) -> Result<Crate> {
    let text = |key: &str| package[key].as_str().map(str::to_owned);
    let name = text("name").context("a package has a name")?;
    let manifest = PathBuf::from(text("manifest_path").with_context(|| format!("{name} has no manifest"))?);
    Ok(Crate {
        version: text("version").with_context(|| format!("{name} has no version"))?,
        licence: text("license")
            .or_else(|| text("license_file"))
            .with_context(|| format!("{name} has no licence"))?,
        directory: manifest.parent().map(Path::to_owned).unwrap_or_default(),
        is_foreign: package["source"].is_string(),
        name,
    })
}

fn texts(directory: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(directory).with_context(|| format!("read {}", directory.display()))?;
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry.with_context(|| format!("read {}", directory.display()))?;
        let name = entry.file_name().to_string_lossy().to_lowercase();
        if entry.file_type()?.is_file() && TEXTS.iter().any(|text| name.starts_with(text)) {
            found.push(entry.path());
        }
    }
    found.sort();
    Ok(found)
}

/// By name and version, as Cargo.lock has them.
fn checksums(lock: &str) -> BTreeMap<(String, String), String> {
    let value = |block: &str, key: &str| {
        let line = block.lines().find_map(|line| line.strip_prefix(&format!("{key} = \"")))?;
        line.strip_suffix('"').map(str::to_owned)
    };
    let blocks = lock.split("[[package]]").skip(1);
    blocks
        .filter_map(|block| {
            Some(((value(block, "name")?, value(block, "version")?), value(block, "checksum")?))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_linked_is_told() {
        let kinds = |kind: Value| json!([{"kind": kind}]);
        let metadata = json!({"resolve": {"nodes": [
            {"id": "a", "deps": [
                {"pkg": "b", "dep_kinds": kinds(Value::Null)},
                {"pkg": "c", "dep_kinds": kinds("dev".into())},
                {"pkg": "d", "dep_kinds": kinds("build".into())},
            ]},
            {"id": "b", "deps": [{"pkg": "a", "dep_kinds": kinds(Value::Null)}]},
        ]}});
        assert_eq!(linked(&metadata, "a"), BTreeSet::from(["a".to_owned(), "b".to_owned()]));
    }

    #[test]
    fn checksums_are_read_from_the_lock_file() {
        let lock = "version = 4\n\n[[package]]\nname = \"a\"\nversion = \"1.0.0\"\nchecksum = \"00ff\"\n\n[[package]]\nname = \"own\"\nversion = \"0.1.0\"\n";
        let found = checksums(lock);
        assert_eq!(found, BTreeMap::from([(("a".to_owned(), "1.0.0".to_owned()), "00ff".to_owned())]));
    }
}
