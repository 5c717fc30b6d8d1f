//! `cargo xtask dist`: the files that are given out, from a release build or from any binary.
//!
//! ```text
//! binary ── strip ──▶ staging directory ──▶ ferry-VERSION-ARCH.tar.gz
//!   │                  ▲      ▲        └──▶ ferry_VERSION_ARCH.deb
//!   └─ man, completion ┘      └─ licences, bill of materials (from cargo's own metadata)
//! ```
//!
//! The same binary, sources and SOURCE_DATE_EPOCH give the same bytes.

mod debian;
mod dependencies;
mod elf;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::packages::{self, Needed};
use crate::step;
use dependencies::Dependencies;
use elf::Elf;

const NEEDED: &[Needed] = &[
    Needed { program: "strip", package: "binutils" },
    Needed { program: "readelf", package: "binutils" },
    Needed { program: "dpkg-deb", package: "dpkg" },
];

const USAGE: &str = "cargo xtask dist [--binary PATH] [--out DIRECTORY]";

/// What all formats are made from.
pub struct Release {
    version: String,
    elf: Elf,
    /// Everything that is given out, as the archive has it.
    staging: PathBuf,
    /// When the sources were last changed.
    epoch: u64,
}

pub fn run(words: &[&str]) -> Result<()> {
    let (mut binary, mut out) = (None, None);
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let value = words.next().with_context(|| format!("{word} lacks a value; usage: {USAGE}"))?;
        match *word {
            "--binary" => binary = Some(PathBuf::from(value)),
            "--out" => out = Some(PathBuf::from(value)),
            _ => bail!("usage: {USAGE}"),
        }
    }
    packages::install(NEEDED)?;
    let out = out.map_or_else(|| Ok(step::target_directory()?.join("dist")), anyhow::Ok)?;
    let binary = binary.map_or_else(build, Ok)?;
    let dependencies = Dependencies::of("ferry")?;
    let release = stage(&binary, &out, &dependencies)?;
    let files = [archive(&release, &out)?, debian::package(&release, &out)?];
    let mut sums = String::new();
    for file in &files {
        sums.push_str(&sum_of(file)?);
        println!("{} ({:.1} MB)", file.display(), fs::metadata(file)?.len() as f64 / 1e6);
    }
    write(&out.join("SHA256SUMS"), &sums)?;
    if let Some(needs) = &release.elf.dynamic {
        println!("not static: it needs {needs}");
    }
    Ok(())
}

/// A static program of the release profile. Rust's glibc target can be linked statically, where the C library's archive
/// is there; paths of this machine do not go into it.
fn build() -> Result<PathBuf> {
    let host = step::output("rustc", &["-vV"])?;
    let host = host.lines().find_map(|line| line.strip_prefix("host: ")).context("rustc names no host")?;
    let here = std::env::current_dir().context("where this is")?;
    let home =
        std::env::var("CARGO_HOME").or_else(|_| std::env::var("HOME").map(|home| format!("{home}/.cargo")));
    let mut flags = format!("-Ctarget-feature=+crt-static --remap-path-prefix={}=ferry", here.display());
    if let Ok(home) = home {
        flags.push_str(&format!(" --remap-path-prefix={home}=cargo"));
    }
    let directory = step::target_directory()?;
    let directory_text = directory.to_str().context("the target directory is no text")?;
    step::cargo_with(
        &[
            "build",
            "--release",
            "--locked",
            "--package",
            "ferry",
            "--target",
            host,
            "--target-dir",
            directory_text,
        ],
        &[("RUSTFLAGS", &flags)],
    )?;
    Ok(directory.join(host).join("release/ferry"))
}

fn stage(binary: &Path, out: &Path, dependencies: &Dependencies) -> Result<Release> {
    let elf = Elf::of(binary)?;
    let version = dependencies.version.clone();
    let staging = out.join(format!("ferry-{version}-{}", elf.architecture));
    if staging.exists() {
        fs::remove_dir_all(&staging).with_context(|| format!("empty {}", staging.display()))?;
    }
    for directory in ["man", "completions"] {
        fs::create_dir_all(staging.join(directory)).with_context(|| format!("make {}", staging.display()))?;
    }
    let program = staging.join("ferry");
    step::run("strip", &["--strip-all", "-o", text(&program)?, text(binary)?])?;
    set_mode(&program, 0o755)?;
    // By the table that the program itself reads its words with.
    step::run(text(&program)?, &["man", text(&staging.join("man"))?])?;
    for (shell, file) in [("bash", "ferry"), ("zsh", "_ferry"), ("fish", "ferry.fish")] {
        let script = step::output(text(&program)?, &["completion", shell])?;
        write(&staging.join("completions").join(file), &script)?;
    }
    for file in ["LICENSE", "README.md", "CHANGELOG.md", "SECURITY.md"] {
        copy(Path::new(file), &staging.join(file), 0o644)?;
    }
    for (file, mode) in
        [("install.sh", 0o755), ("uninstall.sh", 0o755), ("ferry.service", 0o644), ("ferry.yaml", 0o644)]
    {
        copy(&Path::new("packaging").join(file), &staging.join(file), mode)?;
    }
    let epoch = epoch()?;
    write(&staging.join("licences.txt"), &dependencies.licences()?)?;
    write(&staging.join("sbom.cdx.json"), &dependencies.bill_of_materials(epoch)?)?;
    let mut sums = String::new();
    for file in files_below(&staging)? {
        sums.push_str(&sum_of_as(&file, file.strip_prefix(&staging)?)?);
    }
    write(&staging.join("SHA256SUMS"), &sums)?;
    Ok(Release { version, elf, staging, epoch })
}

fn archive(release: &Release, out: &Path) -> Result<PathBuf> {
    let name = release.staging.file_name().and_then(|name| name.to_str()).context("a name")?;
    let tar = out.join(format!("{name}.tar"));
    let time = format!("--mtime=@{}", release.epoch);
    // Whatever the umask.
    let mode = "--mode=u+rw,go+r,go-w,a+X";
    let owner = ["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--format=gnu", mode, &time];
    let words =
        [&["--create", "--file", text(&tar)?, "--directory", text(out)?], &owner[..], &[name]].concat();
    step::run("tar", &words)?;
    step::run("gzip", &["--no-name", "--best", "--force", text(&tar)?])?;
    Ok(out.join(format!("{name}.tar.gz")))
}

/// The time that goes into everything: that of the last commit, unless SOURCE_DATE_EPOCH says another.
fn epoch() -> Result<u64> {
    let said = match std::env::var("SOURCE_DATE_EPOCH") {
        Ok(said) => said,
        Err(_) => step::output("git", &["log", "-1", "--format=%ct"])?,
    };
    said.trim().parse().with_context(|| format!("{said:?} is no time in seconds"))
}

/// All files, in the order of their names.
fn files_below(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut left = vec![directory.to_owned()];
    while let Some(directory) = left.pop() {
        let entries = fs::read_dir(&directory).with_context(|| format!("read {}", directory.display()))?;
        for entry in entries {
            let entry = entry.with_context(|| format!("read {}", directory.display()))?;
            match entry.file_type()?.is_dir() {
                true => left.push(entry.path()),
                false => found.push(entry.path()),
            }
        }
    }
    found.sort();
    Ok(found)
}

fn sum_of(file: &Path) -> Result<String> {
    sum_of_as(file, Path::new(file.file_name().context("a file has a name")?))
}

/// A line for `sha256sum --check`.
fn sum_of_as(file: &Path, name: &Path) -> Result<String> {
    let printed = step::output("sha256sum", &["--binary", text(file)?])?;
    let sum = printed.split_whitespace().next().context("sha256sum prints a sum")?;
    Ok(format!("{sum} *{}\n", name.display()))
}

fn write(path: &Path, content: &str) -> Result<()> {
    fs::write(path, content).with_context(|| format!("write {}", path.display()))?;
    set_mode(path, 0o644)
}

fn copy(from: &Path, to: &Path, mode: u32) -> Result<()> {
    if let Some(directory) = to.parent() {
        fs::create_dir_all(directory).with_context(|| format!("make {}", directory.display()))?;
    }
    fs::copy(from, to).with_context(|| format!("copy {} to {}", from.display(), to.display()))?;
    set_mode(to, mode)
}

/// Set, whatever the umask: it would be in the packages.
fn set_mode(path: &Path, mode: u32) -> Result<()> {
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
        .with_context(|| format!("set the mode of {}", path.display()))
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().with_context(|| format!("{} is no text", path.display()))
}
