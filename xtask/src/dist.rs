//! `cargo xtask dist`: the files that are given out, from a release build or from any binary.
//!
//! ```text
//! binary ── strip ──▶ staging directory ──▶ ferry-VERSION-ARCH.tar.gz
//!   │                  ▲      ▲        └──▶ ferry_VERSION_ARCH.deb
//!   ├─ man, completion ┘      └─ licences, bill of materials (from cargo's own metadata)
//!   └─ scripts named like upstream's programs ──▶ ferry-VERSION-envtest-ARCH.tar.gz
//! ```
//!
//! The same binary, sources and SOURCE_DATE_EPOCH give the same bytes.

mod build;
mod debian;
mod dependencies;
mod elf;
mod envtest;

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

/// For `--try`.
const NEEDED_TO_TRY: &[Needed] =
    &[Needed { program: "mmdebstrap", package: "mmdebstrap" }, Needed { program: "ip", package: "iproute2" }];

pub const USAGE: &str =
    "cargo xtask dist [--target x86_64|aarch64] [--binary PATH] [--out DIRECTORY] [--twice] [--try]";

#[derive(Default)]
struct Options {
    /// Packed instead of what would be built.
    binary: Option<PathBuf>,
    /// Of this machine, if not given.
    target: Option<build::Target>,
    out: Option<PathBuf>,
    /// Builds once more, elsewhere, and compares.
    twice: bool,
    /// Runs what was packed in a bare Debian.
    attempt: bool,
}

fn options(words: &[&str]) -> Result<Options> {
    let mut options = Options::default();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let mut value = || words.next().with_context(|| format!("{word} lacks a value; usage: {USAGE}"));
        match *word {
            "--binary" => options.binary = Some(PathBuf::from(value()?)),
            "--target" => options.target = Some(build::Target::named(value()?)?),
            "--out" => options.out = Some(PathBuf::from(value()?)),
            "--twice" => options.twice = true,
            "--try" => options.attempt = true,
            _ => bail!("usage: {USAGE}"),
        }
    }
    if options.binary.is_some() && (options.target.is_some() || options.twice) {
        bail!("--binary is packed as it is: --target and --twice are for what is built");
    }
    Ok(options)
}

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
    let options = options(words)?;
    packages::install(NEEDED)?;
    let out = options.out.map_or_else(|| Ok(step::target_directory()?.join("dist")), anyhow::Ok)?;
    let binary = match (options.binary, options.target.map_or_else(build::Target::of_this_machine, Ok)?) {
        (Some(binary), _) => binary,
        (None, target) if options.twice => build::twice(target)?,
        (None, target) => build::once(target)?,
    };
    let dependencies = Dependencies::of("ferry")?;
    let release = stage(&binary, &out, &dependencies)?;
    let files =
        [archive(&release, &out)?, envtest::archive(&release, &out)?, debian::package(&release, &out)?];
    for file in &files {
        println!("{} ({:.1} MB)", file.display(), fs::metadata(file)?.len() as f64 / 1e6);
    }
    let sums = sums_of_all(&release, &out)?;
    write(&out.join("SHA256SUMS"), &sums)?;
    print!("{sums}");
    if let Some(needs) = &release.elf.dynamic {
        println!("not static: it needs {needs}");
    }
    if options.attempt {
        packages::install(NEEDED_TO_TRY)?;
        step::run("packaging/try.sh", &[text(&files[0])?, text(&files[2])?, text(&out)?])?;
    }
    Ok(())
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
    step::run(elf.strip(), &["--strip-all", "-o", text(&program)?, text(binary)?])?;
    set_mode(&program, 0o755)?;
    println!("{} ({:.1} MB)", program.display(), fs::metadata(&program)?.len() as f64 / 1e6);
    // By the table that the program itself reads its words with.
    let call = [elf.emulator(), Some(text(&program)?)].into_iter().flatten().collect::<Vec<_>>();
    step::run(call[0], &[&call[1..], &["man", text(&staging.join("man"))?]].concat())?;
    for (shell, file) in [("bash", "ferry"), ("zsh", "_ferry"), ("fish", "ferry.fish")] {
        let script = step::output(call[0], &[&call[1..], &["completion", shell]].concat())?;
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
    pack(release, out, name, out, name)
}

/// `name.tar.gz` in `out`, of what is at `content` below `directory`.
fn pack(release: &Release, out: &Path, name: &str, directory: &Path, content: &str) -> Result<PathBuf> {
    let tar = out.join(format!("{name}.tar"));
    let time = format!("--mtime=@{}", release.epoch);
    // Whatever the umask.
    let mode = "--mode=u+rw,go+r,go-w,a+X";
    let owner = ["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--format=gnu", mode, &time];
    let words =
        [&["--create", "--file", text(&tar)?, "--directory", text(directory)?], &owner[..], &[content]]
            .concat();
    step::run("tar", &words)?;
    step::run("gzip", &["--no-name", "--best", "--force", text(&tar)?])?;
    Ok(out.join(format!("{name}.tar.gz")))
}

/// Of this version's archives and packages, of all platforms that were packed there.
fn sums_of_all(release: &Release, out: &Path) -> Result<String> {
    let mut names = Vec::new();
    for entry in fs::read_dir(out).with_context(|| format!("read {}", out.display()))? {
        let name = entry.with_context(|| format!("read {}", out.display()))?.file_name();
        names.extend(name.into_string().ok().filter(|name| is_packed(name, &release.version)));
    }
    names.sort();
    names.iter().map(|name| sum_of(&out.join(name))).collect()
}

fn is_packed(name: &str, version: &str) -> bool {
    let of_version = |name: &str| name.strip_prefix(version).is_some_and(|rest| rest.starts_with(['-', '_']));
    match name.strip_prefix("ferry") {
        Some(rest) if name.ends_with(".tar.gz") => rest.strip_prefix('-').is_some_and(of_version),
        Some(rest) if name.ends_with(".deb") => rest.strip_prefix('_').is_some_and(of_version),
        _ => false,
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_cover_the_packages_of_this_version() {
        for (name, expected) in [
            ("ferry-0.1.0-amd64.tar.gz", true),
            ("ferry-0.1.0-envtest-amd64.tar.gz", true),
            ("ferry_0.1.0_arm64.deb", true),
            ("ferry_0.1.01_arm64.deb", false),
            ("ferry-0.1.0-amd64", false),
            ("SHA256SUMS", false),
        ] {
            assert_eq!(is_packed(name, "0.1.0"), expected, "{name}");
        }
    }

    #[test]
    fn options_that_contradict_each_other_are_refused() {
        assert!(options(&["--target", "aarch64", "--twice", "--try"]).is_ok());
        for wrong in [&["--binary"][..], &["--binary", "x", "--twice"], &["--target", "mips"], &["--hurry"]] {
            assert!(options(wrong).is_err(), "{wrong:?}");
        }
    }
}
