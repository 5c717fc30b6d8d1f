//! Output of commands. A closed pipe (`ferry status | head -1`) is not an error.

use std::fmt::Write as _;
use std::io::Write as _;

use anyhow::Context;
use serde::Serialize;

pub fn print(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error).context("print"),
        _ => Ok(()),
    }
}

pub fn print_json(value: &impl Serialize) -> anyhow::Result<()> {
    let mut text = serde_json::to_string_pretty(value).context("write JSON")?;
    text.push('\n');
    print(&text)
}

/// Lines that are gathered before they are printed.
#[derive(Default)]
pub struct Lines(String);

impl Lines {
    pub fn add(&mut self, line: impl std::fmt::Display) {
        // Memory takes everything.
        let _ = writeln!(self.0, "{line}");
    }

    pub fn print(&self) -> anyhow::Result<()> {
        print(&self.0)
    }
}
