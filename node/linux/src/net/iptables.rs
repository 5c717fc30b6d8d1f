//! iptables by `iptables-restore --noflush`: one call, and only the chains named in it change.

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
