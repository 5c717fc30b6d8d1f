//! Dependencies that a crate declares and whose name its sources never write. Read off the text, as cargo-machete does: a
//! crate that is wanted for its features alone says so in a comment on its line.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::step;

pub fn check() -> Result<()> {
    println!("==> dependencies that nothing uses");
    let mut unused = Vec::new();
    let mut manifests = String::new();
    for manifest in step::output("git", &["ls-files", "*/Cargo.toml"])?.lines() {
        let manifest = Path::new(manifest);
        let text =
            std::fs::read_to_string(manifest).with_context(|| format!("read {}", manifest.display()))?;
        let folder = manifest.parent().unwrap_or(Path::new("."));
        let mut sources = String::new();
        read_sources(folder, &mut sources)?;
        let names = unused_in(&text, &sources);
        unused.extend(names.into_iter().map(|name| format!("{}: {name}", manifest.display())));
        manifests.push_str(&text);
    }
    let workspace = std::fs::read_to_string("Cargo.toml").context("read Cargo.toml")?;
    for name in declared(&workspace, |section| section == "workspace.dependencies") {
        if !manifests
            .lines()
            .any(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['.', ' '])))
        {
            unused.push(format!("Cargo.toml: {name}"));
        }
    }
    match unused.is_empty() {
        true => Ok(()),
        false => bail!("dependencies that nothing uses:\n  {}", unused.join("\n  ")),
    }
}

fn unused_in<'a>(manifest: &'a str, sources: &str) -> Vec<&'a str> {
    let mut names = declared(manifest, |section| section.ends_with("dependencies"));
    names.retain(|name| !uses(sources, &name.replace('-', "_")));
    names
}

/// The names in the sections asked for; a line with a comment of its own says why it is there.
fn declared(manifest: &str, is_asked_for: impl Fn(&str) -> bool) -> Vec<&str> {
    let mut section = "";
    let mut names = Vec::new();
    for line in manifest.lines() {
        if let Some(name) = line.strip_prefix('[') {
            section = name.split(']').next().unwrap_or(name);
            continue;
        }
        let end = line.find(['.', ' ', '=']).unwrap_or(0);
        if is_asked_for(section) && end > 0 && !line.contains('#') {
            names.push(&line[..end]);
        }
    }
    names
}

/// Whether a path begins with this name, or an attribute or macro is named so.
fn uses(sources: &str, name: &str) -> bool {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    sources.match_indices(name).any(|(at, _)| {
        let (before, after) = (&sources[..at], &sources[at + name.len()..]);
        !before.ends_with(is_word) && !after.starts_with(is_word)
    })
}

/// All Rust below a crate's folder, but not that of crates inside it.
fn read_sources(folder: &Path, sources: &mut String) -> Result<()> {
    let entries = std::fs::read_dir(folder).with_context(|| format!("read {}", folder.display()))?;
    for entry in entries {
        let path: PathBuf = entry?.path();
        if path.is_dir() {
            if !path.join("Cargo.toml").exists() && !path.ends_with("target") && !path.ends_with(".git") {
                read_sources(&path, sources)?;
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            sources.push_str(
                &std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?,
            );
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unused_dependencies_are_found() {
        let manifest = "[package]\nname = \"a\"\n[dependencies]\nserde.workspace = true\nserde-json = \"1\"\n\
                        rustls = { version = \"1\" } # for its features\n[dev-dependencies]\ntempfile = \"3\"\n\
                        [features]\nx = []\n";
        assert_eq!(unused_in(manifest, "use serde::Serialize; // my_serde_json"), ["serde-json", "tempfile"]);
        assert_eq!(unused_in(manifest, "serde::x(serde_json::y!(), ::tempfile)"), [""; 0]);
    }
}
