//! Kernel settings under `/proc/sys/net`, of the calling thread's namespace.

use std::{fs, io};

/// Sets `net/...` to a value; true when it had another one.
pub fn set(name: &str, value: &str) -> io::Result<bool> {
    let path = format!("/proc/sys/{name}");
    if fs::read_to_string(&path)?.trim() == value {
        return Ok(false);
    }
    fs::write(&path, value)?;
    Ok(true)
}

pub fn get(name: &str) -> io::Result<String> {
    Ok(fs::read_to_string(format!("/proc/sys/{name}"))?.trim().to_string())
}
