//! Addresses for a plugin: from `host-local` in this process, or from another IPAM plugin by its name.

use std::{
    io::Write,
    process::{Command as Process, Stdio},
};

use serde::Deserialize;

use super::{CniResult, Code, Command, Error, Invocation, Plugin, Result, config::Network, host_local};

/// The IPAM plugin's type, if the configuration has one.
pub(super) fn kind(network: &Network) -> Option<&str> {
    network.whole.get("ipam")?.get("type")?.as_str().filter(|kind| !kind.is_empty())
}

/// Hands the call to the IPAM plugin. `None`: there is none, or it answers nothing (DEL, CHECK, …).
pub(super) fn call(network: &Network, invocation: &Invocation) -> Result<Option<CniResult>> {
    let Some(kind) = kind(network) else {
        return Ok(None);
    };
    let _span = ferry_trace::span("cni.addresses");
    match Plugin::named(kind) {
        Some(Plugin::HostLocal) => host_local::call(network, invocation),
        _ => delegate(kind, network, invocation),
    }
}

fn delegate(kind: &str, network: &Network, invocation: &Invocation) -> Result<Option<CniResult>> {
    let failed = |code, message: String| Error::new(code, format!("IPAM plugin {kind}: {message}"));
    // The type becomes a file name: it must not lead out of the plugin directories.
    let found = (!kind.contains('/'))
        .then(|| invocation.path.iter().map(|folder| folder.join(kind)).find(|path| path.is_file()))
        .flatten();
    let program = found.ok_or_else(|| failed(Code::InvalidConfig, "not found in CNI_PATH".into()))?;
    // The environment is passed on as it is: an IPAM plugin is called with its caller's words.
    let mut child = Process::new(program)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .map_err(|error| failed(Code::Io, error.to_string()))?;
    let mut stdin = child.stdin.take().expect("standard input was asked for");
    // A plugin that does not read its input closes the pipe; its answer tells what it thinks of it.
    let _ = stdin.write_all(network.whole.to_string().as_bytes());
    drop(stdin);
    let output = child.wait_with_output().map_err(|error| failed(Code::Io, error.to_string()))?;
    if !output.status.success() {
        #[derive(Deserialize)]
        struct PluginError {
            code: u32,
            msg: String,
            #[serde(default)]
            details: String,
        }
        return Err(match serde_json::from_slice::<PluginError>(&output.stdout) {
            Ok(said) => Error { code: said.code, message: said.msg, details: said.details },
            Err(_) => failed(Code::Io, format!("ended with {} and no error", output.status)),
        });
    }
    if invocation.command != Command::Add {
        return Ok(None);
    }
    let result = serde_json::from_slice(&output.stdout)
        .map_err(|error| failed(Code::Decode, format!("its result: {error}")))?;
    Ok(Some(result))
}
