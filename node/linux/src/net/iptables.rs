//! iptables by `iptables-restore --noflush`: one call, and only the chains named in it change.

use std::fs;
use std::io;

use super::tool::{ToolError, feed};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    V4,
    V6,
}

impl Family {
    fn command(self, suffix: &str) -> String {
        match self {
            Family::V4 => format!("iptables{suffix}"),
            Family::V6 => format!("ip6tables{suffix}"),
        }
    }
}

/// Applies `*table … COMMIT` sections; each section is atomic. Waits for the lock others may hold.
pub fn restore(family: Family, script: &str) -> Result<(), ToolError> {
    feed(&family.command("-restore"), &["--noflush", "-w", "5"], script).map(drop)
}

/// The rules of one table in the format [`restore`] reads.
pub fn save(family: Family, table: &str) -> Result<String, ToolError> {
    feed(&family.command("-save"), &["-t", table], "")
}

/// The filter table of the kernel's older packet filter (`iptables-legacy`), which neither nft nor today's iptables
/// shows. `None` where nobody has used it in this namespace: to ask for a table makes it.
pub fn save_legacy_filter(family: Family) -> Result<Option<String>, ToolError> {
    let names = match family {
        Family::V4 => "/proc/thread-self/net/ip_tables_names",
        Family::V6 => "/proc/thread-self/net/ip6_tables_names",
    };
    match fs::read_to_string(names) {
        Ok(names) if names.lines().any(|name| name == "filter") => {}
        // A kernel without it, or without a filter table.
        _ => return Ok(None),
    }
    match feed(&family.command("-legacy-save"), &["-t", "filter"], "") {
        // Where there is one variant of the tools only, it has the plain name.
        Err(ToolError::Start { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            let version = feed(&family.command(""), &["--version"], "")?;
            if version.contains("nf_tables") { Ok(None) } else { save(family, "filter").map(Some) }
        }
        saved => saved.map(Some),
    }
}
