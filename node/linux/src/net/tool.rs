//! Running a packet rule tool: the change goes in on standard input, one call, all or nothing.

use std::{
    io::{self, Write},
    process::{Command, Stdio},
};

#[derive(Debug, thiserror::Error)]
pub enum ToolError {
    #[error("{tool} cannot be run: {source}")]
    Start { tool: String, source: io::Error },
    #[error("{tool} refused the change: {message}")]
    Refused { tool: String, message: String },
}

/// Feeds `input` to the tool and returns what it printed. The tool runs in the calling thread's network
/// namespace. `LC_ALL=C`: its messages are read by [`ToolError`]'s users.
pub(super) fn feed(tool: &str, arguments: &[&str], input: &str) -> Result<String, ToolError> {
    let start = |source| ToolError::Start { tool: tool.into(), source };
    let mut child = Command::new(tool)
        .args(arguments)
        .env("LC_ALL", "C")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(start)?;
    let mut stdin = child.stdin.take().expect("standard input was asked for");
    // The input is written beside the reading: a tool that prints before it has read all would
    // otherwise wait for us while we wait for it.
    let output = std::thread::scope(|scope| {
        let writer = scope.spawn(move || stdin.write_all(input.as_bytes()));
        let output = child.wait_with_output();
        // A tool that refuses early closes its end; its exit status tells more than the broken pipe.
        drop(writer.join());
        output
    })
    .map_err(start)?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let message = String::from_utf8_lossy(&output.stderr);
    // nft repeats the refused line, which may be megabytes of elements: the head says what and where.
    let head: String = message.trim().chars().take(600).collect();
    Err(ToolError::Refused { tool: tool.into(), message: head })
}

/// Loads a module of the kernel, if it is not there.
pub fn load_module(name: &str) -> Result<(), ToolError> {
    feed("modprobe", &[name], "").map(drop)
}
