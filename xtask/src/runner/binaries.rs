//! The test binaries of the workspace, as cargo builds them.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::step;

/// The tests that start servers, and whole clusters.
const BLACK_BOX: &str = "ferry-e2e";
/// Those of them that change the host.
const ON_HOST: &str = "cluster";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Inside a library or program.
    Unit,
    Integration,
    /// Of servers and clusters that the tests start, on the host as it is.
    BlackBox,
    /// Of clusters that have the host to themselves.
    Cluster,
}

#[derive(Debug, PartialEq, Eq)]
pub struct Binary {
    /// The package, and the target where it has another name.
    pub name: String,
    pub kind: Kind,
    executable: PathBuf,
    /// Where cargo runs it: the package's own.
    directory: PathBuf,
}

/// Builds all test binaries, and the program that the black-box tests run. In one command: alone the program would be built
/// without what tests ask of its dependencies, and with it everything else once more. Cargo's own words about it go to the
/// terminal.
pub fn build() -> Result<Vec<Binary>> {
    let words = ["build", "--workspace", "--bins", "--tests", "--message-format=json-render-diagnostics"];
    println!("==> cargo {}", words.join(" "));
    let output = step::command(&step::cargo_program())
        .args(words)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .context("start cargo")?;
    if !output.status.success() {
        bail!("the tests do not build: {}", output.status);
    }
    let text = String::from_utf8(output.stdout).context("read what cargo printed")?;
    text.lines().filter_map(|line| read(line).transpose()).collect()
}

/// The test binary that a line of cargo's is about, if it is.
fn read(line: &str) -> Result<Option<Binary>> {
    let message: Value = serde_json::from_str(line).with_context(|| format!("understand {line:?}"))?;
    let is_test = message["reason"] == "compiler-artifact" && message["profile"]["test"] == true;
    let Some(executable) = message["executable"].as_str().filter(|_| is_test) else { return Ok(None) };
    let manifest = Path::new(message["manifest_path"].as_str().context("an artifact without a manifest")?);
    let directory = manifest.parent().context("a manifest without a directory")?;
    let target = message["target"]["name"].as_str().context("an artifact without a name")?;
    let is_integration = message["target"]["kind"][0] == "test";
    let package = package(message["package_id"].as_str().unwrap_or_default());
    let kind = match (is_integration, package == BLACK_BOX) {
        (true, true) if target == ON_HOST => Kind::Cluster,
        (true, true) => Kind::BlackBox,
        (true, false) => Kind::Integration,
        (false, _) => Kind::Unit,
    };
    let name =
        if target.replace('_', "-") == package { package.into() } else { format!("{package} {target}") };
    Ok(Some(Binary { name, kind, executable: executable.into(), directory: directory.into() }))
}

/// `path+file:///ferry/node/cni#ferry-cni@0.1.0`, or `…/xtask#0.1.0` where the directory has the package's name.
fn package(id: &str) -> &str {
    let (path, name) = id.rsplit_once('#').unwrap_or(("", id));
    match name.split_once('@') {
        Some((name, _)) => name,
        None => path.rsplit('/').next().unwrap_or(path),
    }
}

impl Binary {
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.executable);
        command.current_dir(&self.directory).env("CARGO_MANIFEST_DIR", &self.directory);
        command
    }

    /// The names of its tests, without those that are run only when asked for.
    pub fn tests(&self) -> Result<Vec<String>> {
        let list = |words: &[&str]| -> Result<Vec<String>> {
            let output =
                self.command().args(words).output().with_context(|| format!("list {}", self.name))?;
            let text = String::from_utf8(output.stdout).with_context(|| format!("list {}", self.name))?;
            Ok(text.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect())
        };
        let ignored = list(&["--list", "--format=terse", "--ignored"])?;
        let all = list(&["--list", "--format=terse"])?;
        Ok(all.into_iter().filter(|test| !ignored.contains(test)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn artifact(package: &str, target: &str, kind: &str, executable: &str) -> Option<Binary> {
        let line = format!(
            r#"{{"reason":"compiler-artifact","package_id":"path+file:///f/{package}#0.1.0",
            "manifest_path":"/f/{package}/Cargo.toml","target":{{"kind":["{kind}"],"name":"{target}"}},
            "profile":{{"test":true}},"executable":{executable}}}"#
        );
        read(&line).unwrap()
    }

    #[test]
    fn test_binaries_are_told_from_what_else_is_built() {
        let unit = artifact("ferry-dns", "ferry_dns", "lib", r#""/t/dns""#).unwrap();
        assert_eq!((unit.name.as_str(), unit.kind), ("ferry-dns", Kind::Unit));
        assert_eq!(unit.directory, Path::new("/f/ferry-dns"));
        let other = artifact("ferry-e2e", "verbs", "test", r#""/t/verbs""#).unwrap();
        assert_eq!((other.name.as_str(), other.kind), ("ferry-e2e verbs", Kind::BlackBox));
        let own = artifact("ferry-dns", "answers", "test", r#""/t/answers""#).unwrap();
        assert_eq!(own.kind, Kind::Integration);
        let cluster = artifact("ferry-e2e", "cluster", "test", r#""/t/cluster""#).unwrap();
        assert_eq!(cluster.kind, Kind::Cluster);
        assert_eq!(artifact("ferry-dns", "ferry_dns", "lib", "null"), None);
        assert_eq!(read(r#"{"reason":"build-finished","success":true}"#).unwrap(), None);
        assert!(read("no JSON").is_err());
    }

    #[test]
    fn a_package_is_named_by_its_id() {
        assert_eq!(package("path+file:///ferry/node/cni#ferry-cni@0.1.0"), "ferry-cni");
        assert_eq!(package("path+file:///ferry/xtask#0.1.0"), "xtask");
    }
}
