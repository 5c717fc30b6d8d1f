//! The oldest compiler that Ferry promises to build with (`rust-version` in Cargo.toml). No toolchain is pinned: whoever has
//! a newer stable one needs no other. So what is promised has to be checked: with that very version, where it is there.

use anyhow::{Context, Result, bail};

use crate::step;

pub fn check() -> Result<()> {
    let manifest = std::fs::read_to_string("Cargo.toml").context("read Cargo.toml")?;
    let promised = promised(&manifest).context("Cargo.toml names no rust-version")?;
    let used = step::output("rustc", &["--version"])?;
    println!("==> the oldest compiler promised is {promised}; this is {}", used.trim());
    match compare(promised, &used)? {
        std::cmp::Ordering::Less => {
            bail!("this compiler is older than {promised}, which Cargo.toml asks for")
        }
        // All that follows is built with it.
        std::cmp::Ordering::Equal => Ok(()),
        std::cmp::Ordering::Greater if has(promised) => {
            step::run("rustup", &["run", promised, "cargo", "check", "--workspace", "--quiet"])
        }
        std::cmp::Ordering::Greater => {
            println!("    not checked: `rustup toolchain install {promised}` brings it");
            Ok(())
        }
    }
}

fn promised(manifest: &str) -> Option<&str> {
    manifest.lines().find_map(|line| line.strip_prefix("rust-version = \"")?.strip_suffix('"'))
}

/// The compiler in use beside what is promised, by release and not by patch.
fn compare(promised: &str, used: &str) -> Result<std::cmp::Ordering> {
    let used = used.split(' ').nth(1).context("rustc names no version")?;
    let release = |version: &str| -> Option<(u32, u32)> {
        let mut parts = version.split(['.', '-']);
        Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
    };
    let used = release(used).with_context(|| format!("{used:?} is no version"))?;
    let promised = release(promised).with_context(|| format!("{promised:?} is no version"))?;
    Ok(used.cmp(&promised))
}

fn has(version: &str) -> bool {
    step::output("rustup", &["run", version, "cargo", "--version"]).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_compiler_is_compared_by_its_release() {
        use std::cmp::Ordering::{Equal, Greater, Less};
        for (used, expected) in [("1.95.1", Equal), ("1.94.9", Less), ("1.100.0-nightly", Greater)] {
            let used = format!("rustc {used} (59807616e 2026-04-14)\n");
            assert_eq!(compare("1.95", &used).expect("a version"), expected, "{used}");
        }
        assert!(compare("1.95", "rustc").is_err());
    }

    #[test]
    fn every_crate_promises_the_same() {
        let manifest = std::fs::read_to_string("../Cargo.toml").expect("the workspace");
        assert!(promised(&manifest).is_some());
        for file in step::output("git", &["ls-files", "../*/Cargo.toml"]).expect("files").lines() {
            let text = std::fs::read_to_string(file).expect("a manifest");
            let own = text.contains("rust-version.workspace = true");
            // The fuzz programs are a workspace of their own.
            assert!(own || file.contains("fuzz/Cargo.toml"), "{file} does not say rust-version");
        }
    }
}
