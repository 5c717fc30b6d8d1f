//! Programs that are installed on the host.

/// Whether a program of that name would be found.
pub fn in_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/sbin:/usr/bin:/sbin:/bin".into());
    std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
}
