//! The folders are the architecture: `base ← client ← {server, control, node, cli} ← bin`. This check
//! reads every crate's dependencies and refuses an arrow that points the wrong way.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

/// Crates of each plane in the order they may use each other: a crate uses those before it.
const PLANES: &[(&str, &[&str])] = &[
    ("base", &["typed", "api", "patch", "cel", "schema", "trace", "metrics"]),
    ("client", &["client", "serving"]),
    ("server", &["etcd-api", "store", "etcd", "registry", "auth", "admission", "ui", "apiserver"]),
    ("control", &["controllers", "scheduler"]),
    ("node", &["linux", "cni", "cri-api", "plugins-api", "kubelet", "containerd", "proxy", "dns"]),
    ("cli", &["kustomize", "kubectl", "timeline"]),
];

/// What each plane may use besides itself.
fn allowed(plane: &str) -> &'static [&'static str] {
    match plane {
        "base" => &[],
        "client" => &["base"],
        "server" | "control" | "node" | "cli" => &["base", "client"],
        // Wiring and tests see everything.
        _ => &["base", "client", "server", "control", "node", "cli", "tests"],
    }
}

pub fn check() -> Result<()> {
    println!("==> planes import each other only as allowed");
    let mut home: BTreeMap<String, (&str, usize)> = BTreeMap::new();
    for (plane, crates) in PLANES {
        for (order, name) in crates.iter().enumerate() {
            home.insert(format!("ferry-{name}"), (plane, order));
        }
    }
    let mut faults = Vec::new();
    for (plane, crates) in PLANES {
        for directory in fs::read_dir(plane).with_context(|| format!("read {plane}/"))? {
            let directory = directory?.path();
            let name = directory.file_name().and_then(|name| name.to_str()).unwrap_or("").to_string();
            let Some(order) = crates.iter().position(|known| *known == name) else {
                faults.push(format!("{plane}/{name} is not in the list of crates (xtask/src/planes.rs)"));
                continue;
            };
            for used in dependencies(&directory.join("Cargo.toml"))? {
                let Some((other, position)) = home.get(&used) else { continue };
                let fine = if other == plane { *position < order } else { allowed(plane).contains(other) };
                if !fine {
                    faults.push(format!("{plane}/{name} must not use {used}"));
                }
            }
        }
    }
    faults.extend(kinds_named_in(Path::new("server/registry/src"))?);
    if faults.is_empty() {
        return Ok(());
    }
    bail!("the planes are mixed up:\n  {}", faults.join("\n  "));
}

/// Files of the registry outside `kinds/` that import a built-in kind's type: there custom resources would take another
/// path than built-in kinds.
fn kinds_named_in(directory: &Path) -> Result<Vec<String>> {
    let mut faults = Vec::new();
    for entry in fs::read_dir(directory).with_context(|| format!("read {}", directory.display()))? {
        let path = entry?.path();
        if path.is_dir() && path.file_name().is_some_and(|name| name != "kinds") {
            faults.extend(kinds_named_in(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
            if text.contains("k8s_openapi::api::") {
                faults.push(format!("{} names a kind; that belongs into kinds/", path.display()));
            }
        }
    }
    Ok(faults)
}

/// The `ferry-` crates that a manifest's `[dependencies]` name. What only tests use is free.
fn dependencies(manifest: &Path) -> Result<Vec<String>> {
    let text = fs::read_to_string(manifest).with_context(|| format!("read {}", manifest.display()))?;
    let mut section = "";
    let mut found = Vec::new();
    for line in text.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix('[') {
            section = name.trim_end_matches(']');
        } else if section == "dependencies" && line.starts_with("ferry-") {
            let end = line.find(|c: char| !(c.is_alphanumeric() || c == '-')).unwrap_or(line.len());
            found.push(line[..end].to_string());
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_workspace_crate_stands_in_its_plane() {
        let root = Path::new("..");
        for (plane, crates) in PLANES {
            for name in *crates {
                assert!(root.join(plane).join(name).is_dir(), "{plane}/{name}");
            }
        }
    }

    #[test]
    fn a_kind_named_outside_of_kinds_is_found() {
        assert!(!kinds_named_in(Path::new("../server/registry/src/kinds")).expect("a folder").is_empty());
        assert_eq!(kinds_named_in(Path::new("../server/registry/src")).expect("a folder"), [""; 0]);
    }

    #[test]
    fn planes_never_use_each_other() {
        assert!(!allowed("control").contains(&"server"));
        assert!(!allowed("node").contains(&"control"));
        assert!(allowed("server").contains(&"client"));
    }
}
