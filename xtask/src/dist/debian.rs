//! The Debian package: program, unit, manual, completions, and scripts that leave a running cluster alone on upgrade.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::{Release, copy, files_below, set_mode, text, write};
use crate::step;

const UNIT: &str = "usr/lib/systemd/system/ferry.service";

pub fn package(release: &Release, out: &Path) -> Result<PathBuf> {
    let root = out.join(format!("debian-{}", release.elf.architecture));
    if root.exists() {
        fs::remove_dir_all(&root).with_context(|| format!("empty {}", root.display()))?;
    }
    let from = |name: &str| release.staging.join(name);
    let to = |name: &str| root.join(name);
    copy(&from("ferry"), &to("usr/bin/ferry"), 0o755)?;
    copy(&from("ferry.yaml"), &to("etc/ferry/ferry.yaml"), 0o644)?;
    copy(&from("completions/ferry"), &to("usr/share/bash-completion/completions/ferry"), 0o644)?;
    copy(&from("completions/_ferry"), &to("usr/share/zsh/vendor-completions/_ferry"), 0o644)?;
    copy(&from("completions/ferry.fish"), &to("usr/share/fish/vendor_completions.d/ferry.fish"), 0o644)?;
    let documents = [
        ("LICENSE", "copyright"),
        ("CHANGELOG.md", "changelog"),
        ("README.md", "README.md"),
        ("SECURITY.md", "SECURITY.md"),
        ("licences.txt", "licences.txt"),
        ("sbom.cdx.json", "sbom.cdx.json"),
    ];
    for (name, packed) in documents {
        copy(&from(name), &to("usr/share/doc/ferry").join(packed), 0o644)?;
    }
    for page in files_below(&from("man"))? {
        let name = page.file_name().context("a page has a name")?;
        copy(&page, &to("usr/share/man/man1").join(name), 0o644)?;
    }
    let large = files_below(&to("usr/share/man"))?;
    let changelog = to("usr/share/doc/ferry/changelog");
    let large = large.iter().chain([&changelog]).map(|file| text(file));
    let words: Vec<&str> = ["--no-name", "--best"].into_iter().map(Ok).chain(large).collect::<Result<_>>()?;
    step::run("gzip", &words)?;
    // Debian's programs are not in /usr/local.
    let unit = fs::read_to_string(from("ferry.service")).context("read the unit")?;
    copy(&from("ferry.service"), &to(UNIT), 0o644)?;
    write(&to(UNIT), &unit.replace("/usr/local/bin/ferry", "/usr/bin/ferry"))?;

    let size: u64 =
        files_below(&root)?.iter().map(|file| fs::metadata(file).map_or(0, |data| data.len())).sum();
    fs::create_dir_all(to("DEBIAN")).context("make the package's control directory")?;
    write(&to("DEBIAN/control"), &control(release, size))?;
    write(&to("DEBIAN/conffiles"), "/etc/ferry/ferry.yaml\n")?;
    for script in ["postinst", "prerm", "postrm"] {
        copy(&Path::new("packaging/debian").join(script), &to("DEBIAN").join(script), 0o755)?;
    }
    for directory in directories_below(&root)? {
        set_mode(&directory, 0o755)?;
    }
    let file = out.join(format!("ferry_{}_{}.deb", release.version, release.elf.architecture));
    let time = release.epoch.to_string();
    let words = ["--root-owner-group", "-Zgzip", "--build", text(&root)?, text(&file)?];
    step::run_with("dpkg-deb", &words, &[("SOURCE_DATE_EPOCH", &time)])?;
    fs::remove_dir_all(&root).with_context(|| format!("remove {}", root.display()))?;
    Ok(file)
}

fn control(release: &Release, bytes: u64) -> String {
    let library = release.elf.dynamic.as_ref().map(|needs| format!("{needs}, ")).unwrap_or_default();
    format!(
        "Package: ferry\nVersion: {}\nArchitecture: {}\nMaintainer: The Ferry authors <ferry@localhost>\n\
         Installed-Size: {}\nDepends: {library}containerd | containerd.io, runc | containerd.io, nftables, conntrack\n\
         Suggests: kubernetes-client\nSection: admin\nPriority: optional\n\
         Description: complete Kubernetes in one program\n \
         API server, store, controllers, scheduler, kubelet, pod network, service proxy,\n \
         DNS and kubectl in one program, which works on containerd.\n",
        release.version,
        release.elf.architecture,
        bytes.div_ceil(1024),
    )
}

fn directories_below(root: &Path) -> Result<Vec<PathBuf>> {
    let mut found = vec![root.to_owned()];
    let mut at = 0;
    while let Some(directory) = found.get(at).cloned() {
        at += 1;
        for entry in fs::read_dir(&directory).with_context(|| format!("read {}", directory.display()))? {
            let entry = entry.with_context(|| format!("read {}", directory.display()))?;
            if entry.file_type()?.is_dir() {
                found.push(entry.path());
            }
        }
    }
    Ok(found)
}
