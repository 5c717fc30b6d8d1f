//! The static program that is given out: Rust's glibc targets, linked with the C library's archive.
//!
//! Nothing of the machine goes into it: paths are replaced, and crates are named by where they lie in the workspace.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::{sum_of, text};
use crate::packages::{self, Needed};
use crate::step;

#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Target {
    X86_64,
    Aarch64,
}

/// To build for aarch64 on another machine: compiler and C library, and what runs the program so that it writes its manual.
const CROSS: &[Needed] = &[
    Needed { program: "aarch64-linux-gnu-gcc", package: "gcc-aarch64-linux-gnu" },
    Needed { program: "/usr/aarch64-linux-gnu/lib/libc.a", package: "libc6-dev-arm64-cross" },
    Needed { program: "aarch64-linux-gnu-strip", package: "binutils-aarch64-linux-gnu" },
    Needed { program: "qemu-aarch64-static", package: "qemu-user-static" },
];

impl Target {
    pub fn named(name: &str) -> Result<Target> {
        match name {
            "x86_64" => Ok(Target::X86_64),
            "aarch64" => Ok(Target::Aarch64),
            _ => bail!("{name:?} is no target; there are x86_64 and aarch64"),
        }
    }

    pub fn of_this_machine() -> Result<Target> {
        Target::named(std::env::consts::ARCH)
    }

    fn triple(self) -> &'static str {
        match self {
            Target::X86_64 => "x86_64-unknown-linux-gnu",
            Target::Aarch64 => "aarch64-unknown-linux-gnu",
        }
    }
}

pub fn once(target: Target) -> Result<PathBuf> {
    prepare(target)?;
    let here = std::env::current_dir().context("where this is")?;
    build(target, &here, &step::target_directory()?)
}

/// Two builds, one hash: the second one of a clone, in another place.
pub fn twice(target: Target) -> Result<PathBuf> {
    if !step::output("git", &["status", "--porcelain"])?.is_empty() {
        bail!("--twice compares with a clone, which would lack what is not committed here");
    }
    let program = once(target)?;
    let elsewhere = step::target_directory()?.join("elsewhere");
    if elsewhere.exists() {
        std::fs::remove_dir_all(&elsewhere).with_context(|| format!("empty {}", elsewhere.display()))?;
    }
    let clone = elsewhere.join("clone");
    step::run("git", &["clone", "--quiet", ".", text(&clone)?])?;
    let again = build(target, &clone, &elsewhere.join("target"))?;
    let (first, second) = (sum_of(&program)?, sum_of(&again)?);
    print!("{first}{second}");
    if first != second {
        bail!("{} and {} differ", program.display(), again.display());
    }
    std::fs::remove_dir_all(&elsewhere).with_context(|| format!("remove {}", elsewhere.display()))?;
    Ok(program)
}

/// What a machine lacks to build for `target`.
fn prepare(target: Target) -> Result<()> {
    if target == Target::of_this_machine()? {
        return Ok(());
    }
    if target == Target::X86_64 {
        bail!("for x86_64 build on such a machine: only aarch64 is cross-compiled");
    }
    packages::install(CROSS)?;
    let library = step::output("rustc", &["--print", "target-libdir", "--target", target.triple()])?;
    match Path::new(library.trim()).exists() {
        true => Ok(()),
        false => step::run("rustup", &["target", "add", target.triple()])
            .with_context(|| format!("the compiler has no library for {}", target.triple())),
    }
}

fn build(target: Target, sources: &Path, directory: &Path) -> Result<PathBuf> {
    let triple = target.triple();
    let manifest = sources.join("Cargo.toml");
    let words = [
        ["build", "--release", "--locked", "--package", "ferry"].as_slice(),
        &["--manifest-path", text(&manifest)?, "--target", triple, "--target-dir", text(directory)?],
    ];
    let flags = flags(target, sources, directory)?.join("\u{1f}");
    // Where the C compiler finds rustc's own linker: it links for x86_64 anyway, and for aarch64 since the flags say so.
    let linker = linker()?;
    let mut environment =
        vec![("CARGO_ENCODED_RUSTFLAGS", flags.as_str()), ("COMPILER_PATH", text(&linker)?)];
    if target != Target::of_this_machine()? {
        environment.push(("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", "aarch64-linux-gnu-gcc"));
        environment.push(("CC_aarch64_unknown_linux_gnu", "aarch64-linux-gnu-gcc"));
    }
    step::cargo_with(&words.concat(), &environment)?;
    Ok(directory.join(triple).join("release/ferry"))
}

fn linker() -> Result<PathBuf> {
    let sysroot = PathBuf::from(step::output("rustc", &["--print", "sysroot"])?.trim());
    Ok(sysroot.join("lib/rustlib").join(Target::of_this_machine()?.triple()).join("bin/gcc-ld"))
}

/// What differs from a plain release build. Of two prefixes that match a path the later one counts.
fn flags(target: Target, sources: &Path, directory: &Path) -> Result<Vec<String>> {
    let home =
        std::env::var("CARGO_HOME").or_else(|_| std::env::var("HOME").map(|home| format!("{home}/.cargo")));
    let home = home.context("neither CARGO_HOME nor HOME says where crates lie")?;
    let mut flags = vec![
        "-Ctarget-feature=+crt-static".to_owned(),
        // What nm and perf call a function says for which types it is.
        "-Csymbol-mangling-version=v0".to_owned(),
        format!("--remap-path-prefix={}=ferry", sources.display()),
        format!("--remap-path-prefix={}=target", directory.display()),
        format!("--remap-path-prefix={home}=cargo"),
        // Pointers in constants: 1 bit each where it was 24 bytes. The C library that is linked in knows the form.
        "-Clink-arg=-Wl,--pack-dyn-relocs=relr".to_owned(),
    ];
    if target == Target::Aarch64 {
        flags.extend(["-Clink-arg=-fuse-ld=lld".to_owned(), "-Clink-arg=-Wl,--icf=all".to_owned()]);
    }
    Ok(flags)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_named_by_its_processor() {
        assert_eq!(Target::named("aarch64").expect("a target").triple(), "aarch64-unknown-linux-gnu");
        assert!(Target::named("riscv64").is_err());
    }

    #[test]
    fn no_path_of_the_machine_is_left() {
        let flags =
            flags(Target::X86_64, Path::new("/a b/ferry"), Path::new("/a b/ferry/target")).expect("flags");
        let at = |flag: &str| flags.iter().position(|other| other == flag).expect(flag);
        // The target directory lies below the sources.
        assert!(
            at("--remap-path-prefix=/a b/ferry=ferry") < at("--remap-path-prefix=/a b/ferry/target=target")
        );
    }
}
