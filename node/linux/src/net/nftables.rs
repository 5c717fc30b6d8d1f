//! nftables by `nft -f -`: one script is one transaction of the kernel.

use super::tool::{ToolError, feed};

/// Applies a script; nothing of it holds when any of it is refused.
pub fn apply(script: &str) -> Result<(), ToolError> {
    feed("nft", &["-f", "-"], script).map(drop)
}

/// The current rules of one table as text, `None` when there is no such table.
pub fn list_table(family: &str, name: &str) -> Result<Option<String>, ToolError> {
    match feed("nft", &["list", "table", family, name], "") {
        Ok(text) => Ok(Some(text)),
        Err(ToolError::Refused { message, .. }) if message.contains("No such file or directory") => Ok(None),
        Err(error) => Err(error),
    }
}

/// Removes a table, if it is there. Adding it first makes the deletion hold either way.
pub fn delete_table(family: &str, name: &str) -> Result<(), ToolError> {
    apply(&format!("add table {family} {name}\ndelete table {family} {name}\n"))
}

/// The whole rule set, of all owners, as text: for comparing before and after.
pub fn list_ruleset() -> Result<String, ToolError> {
    feed("nft", &["list", "ruleset"], "")
}

/// The rules of one chain; `place` is its family, table and name.
pub fn list_chain(place: &str) -> Result<String, ToolError> {
    let words: Vec<&str> = ["list", "chain"].into_iter().chain(place.split(' ')).collect();
    feed("nft", &words, "")
}

/// All base chains, one `nft` line each, to see whether a firewall of the host drops what is forwarded.
pub fn list_chains() -> Result<String, ToolError> {
    feed("nft", &["list", "chains"], "")
}
