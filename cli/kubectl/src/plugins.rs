//! Plugins: programs named `kubectl-…` in PATH that run as commands kubectl does not have.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// Runs the plugin that a line names, if there is one: the longest name first, none with fewer than
/// `fewest` words. It takes this process's place.
pub fn run(line: &[String], fewest: usize) -> Result<()> {
    let words: Vec<String> =
        line.iter().take_while(|word| !word.starts_with('-')).map(|word| word.replace('-', "_")).collect();
    if words.is_empty() {
        let first = line.first().map_or("", String::as_str);
        return Err(Error::plain(format!("Error: flags cannot be placed before plugin name: {first}")));
    }
    for count in (fewest.max(1)..=words.len()).rev() {
        let Some(path) = look_up(&format!("kubectl-{}", words[..count].join("-"))) else { continue };
        let error = std::process::Command::new(&path).args(&line[count..]).exec();
        return Err(Error::plain(format!("Error: {}: {error}", path.display())));
    }
    Ok(())
}

/// A program in PATH, or at its path.
pub fn look_up(program: &str) -> Option<PathBuf> {
    if program.contains('/') {
        return Some(PathBuf::from(program)).filter(|path| is_executable(path));
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|directory| directory.join(program)).find(|file| is_executable(file))
}

pub fn is_executable(path: &Path) -> bool {
    std::fs::metadata(path)
        .is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}
