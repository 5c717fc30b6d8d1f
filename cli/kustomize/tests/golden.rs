//! Kustomizations and what upstream's `kubectl kustomize` makes of them. A directory with a file
//! `expected.yaml` is built and must print just that; one with `expected-error` must fail in those words,
//! where `DIR` stands for the directory of the goldens.
//!
//! `KUSTOMIZE_GOLDEN_RECORD` names a kubectl whose answers replace the recorded ones; the difference is
//! then reviewed.

use std::path::{Path, PathBuf};

use ferry_kustomize::{FileTree, Options};

struct Disk;

impl FileTree for Disk {
    fn resolve(&self, path: &Path) -> Result<PathBuf, String> {
        path.canonicalize().map_err(|_| format!("lstat {}: no such file or directory", path.display()))
    }
    fn is_dir(&self, path: &Path) -> bool {
        path.is_dir()
    }
    fn read(&self, path: &Path) -> Result<Vec<u8>, String> {
        std::fs::read(path).map_err(|error| error.to_string())
    }
}

fn goldens() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").canonicalize().unwrap()
}

fn cases(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            cases(&path, found);
        } else if path.file_name().is_some_and(|name| name == "expected.yaml" || name == "expected-error") {
            found.push(path);
        }
    }
}

#[test]
fn kustomizations_build_what_upstream_builds() {
    let mut expected = Vec::new();
    cases(&goldens(), &mut expected);
    expected.sort();
    assert!(expected.len() > 15, "only {} cases", expected.len());
    let recorder = std::env::var("KUSTOMIZE_GOLDEN_RECORD").ok();
    let mut failures = Vec::new();
    for file in expected {
        let directory = file.parent().unwrap();
        let place = |text: &str| text.replace(&goldens().display().to_string(), "DIR");
        let fails = file.ends_with("expected-error");
        if let Some(kubectl) = &recorder {
            let output =
                std::process::Command::new(kubectl).arg("kustomize").arg(directory).output().unwrap();
            assert_eq!(output.status.success(), !fails, "{}", String::from_utf8_lossy(&output.stderr));
            let text = if fails { output.stderr } else { output.stdout };
            let text = String::from_utf8(text).unwrap();
            let text = text.strip_prefix("error: ").map(str::trim_end).unwrap_or(&text).to_owned();
            std::fs::write(&file, place(&text)).unwrap();
            continue;
        }
        let built = ferry_kustomize::build(&Disk, directory.to_str().unwrap(), &Options::default());
        let text = match built {
            Ok(built) => built.yaml(),
            Err((error, _)) if fails => place(error.to_string().trim_end()),
            Err((error, _)) => format!("failed: {error}"),
        };
        let recorded = std::fs::read_to_string(&file).unwrap();
        if text != recorded {
            failures.push(format!("--- {}\n{text}\n--- recorded\n{recorded}", directory.display()));
        }
    }
    assert!(failures.is_empty(), "{} differ:\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn remote_resources_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    for (text, words) in [
        ("resources: [https://example.com/base?ref=v1]", "is remote: remote bases and files are not fetched"),
        ("resources: ['git@example.com:org/repo.git']", "is remote"),
        ("helmCharts: [{name: chart}]", "helmCharts are not rendered here"),
        (
            "transformers: ['{apiVersion: someone/v1, kind: Elses, metadata: {name: x}}']",
            "external plugins disabled",
        ),
    ] {
        std::fs::write(directory.path().join("kustomization.yaml"), text).unwrap();
        let path = directory.path().to_str().unwrap();
        let (error, _) = ferry_kustomize::build(&Disk, path, &Options::default()).unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
    }
}
