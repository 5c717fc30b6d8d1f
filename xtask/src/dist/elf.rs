//! What a program says of itself: for which machine it is, and what it needs of the host.

use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::step;

pub struct Elf {
    /// As Debian calls it.
    pub architecture: &'static str,
    /// The C library's version that it needs; `None` for one that brings all it needs.
    pub dynamic: Option<String>,
}

impl Elf {
    pub fn of(file: &Path) -> Result<Elf> {
        let name = file.to_str().with_context(|| format!("{} is no text", file.display()))?;
        let head = step::output("readelf", &["--file-header", "--program-headers", "--wide", name])?;
        let architecture =
            architecture(&head).with_context(|| format!("{name} is for no machine we know"))?;
        let dynamic = match head.contains("INTERP") {
            false => None,
            true => Some(library(&step::output("readelf", &["--version-info", "--wide", name])?)?),
        };
        Ok(Elf { architecture, dynamic })
    }

    /// What removes its symbols.
    pub fn strip(&self) -> &'static str {
        if self.is_foreign() { "aarch64-linux-gnu-strip" } else { "strip" }
    }

    /// What runs it on this machine, if the machine cannot itself.
    pub fn emulator(&self) -> Option<&'static str> {
        self.is_foreign().then_some("qemu-aarch64-static")
    }

    fn is_foreign(&self) -> bool {
        self.architecture == "arm64" && std::env::consts::ARCH != "aarch64"
    }
}

fn architecture(head: &str) -> Option<&'static str> {
    let machine = head.lines().find_map(|line| line.trim().strip_prefix("Machine:"))?.trim();
    match machine {
        "Advanced Micro Devices X86-64" => Some("amd64"),
        "AArch64" => Some("arm64"),
        _ => None,
    }
}

/// The newest version of glibc's that a symbol is asked for.
fn library(versions: &str) -> Result<String> {
    let numbers = versions.split("GLIBC_").skip(1).filter_map(|rest| {
        let number = rest.split(|letter: char| !letter.is_ascii_digit() && letter != '.').next()?;
        let (major, minor) = number.split_once('.')?;
        Some((major.parse::<u32>().ok()?, minor.split('.').next()?.parse::<u32>().ok()?))
    });
    match numbers.max() {
        Some((major, minor)) => Ok(format!("libc6 (>= {major}.{minor}), libgcc-s1")),
        None => bail!("the program is dynamic and does not say which C library it needs"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_and_the_library_are_read() {
        let head = "ELF Header:\n  Class: ELF64\n  Machine:                           AArch64\n";
        assert_eq!(architecture(head), Some("arm64"));
        assert_eq!(architecture("  Machine: MIPS"), None);
        let versions = "Name: GLIBC_2.2.5  Flags: none\n Name: GLIBC_2.34\n Name: GLIBC_2.4 Name: GCC_3.0\n";
        assert_eq!(library(versions).unwrap(), "libc6 (>= 2.34), libgcc-s1");
        assert!(library("nothing").is_err());
    }
}
