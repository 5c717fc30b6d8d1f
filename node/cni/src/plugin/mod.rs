//! One call of a CNI plugin: environment and standard input in, a result or an error out.
//!
//! ```text
//! runtime ── CNI_* and JSON ──► invocation ──► bridge ──► host-local (in process) or another IPAM
//!                                         ├──► portmap
//!                                         ├──► loopback
//!                                         └──► host-local (as a plugin of its own)
//! ```

mod bridge;
mod config;
mod error;
mod host_local;
mod invocation;
mod ipam;
mod leases;
mod loopback;
mod masquerade;
mod port_map;
mod result;
mod version;

use std::{
    io::{Read, Write},
    path::Path,
    process::ExitCode,
};

pub use error::{Code, Error};
pub use invocation::{Command, Invocation};
pub use result::{CniResult, Dns, Interface, IpConfig, RouteConfig};
pub use version::Version;

use config::{Network, parse};

type Result<T> = std::result::Result<T, Error>;

/// The plugins of this binary, each found by the name it is started under, with or without `ferry-`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plugin {
    Bridge,
    HostLocal,
    Loopback,
    PortMap,
}

impl Plugin {
    pub const ALL: [(&'static str, Plugin); 4] = [
        ("bridge", Plugin::Bridge),
        ("host-local", Plugin::HostLocal),
        ("loopback", Plugin::Loopback),
        ("portmap", Plugin::PortMap),
    ];

    pub fn named(name: &str) -> Option<Self> {
        let name = name.strip_prefix("ferry-").unwrap_or(name);
        Self::ALL.iter().find(|(own, _)| *own == name).map(|(_, plugin)| *plugin)
    }
}

/// The first thing a binary's `main` should ask. `None`: this is no plugin call, go on. A call is one
/// that has `CNI_COMMAND` set and a plugin's name as the program's.
pub fn main_if_called_as_plugin() -> Option<ExitCode> {
    std::env::var_os("CNI_COMMAND")?;
    let program = std::env::args_os().next()?;
    let plugin = Plugin::named(Path::new(&program).file_name()?.to_str()?)?;
    let mut input = Vec::new();
    let read = std::io::stdin().lock().read_to_end(&mut input);
    let mut output = std::io::stdout().lock();
    let code = match read {
        Ok(_) => run(plugin, &|name| std::env::var(name).ok(), &input, &mut output),
        Err(error) => {
            let error = Error::new(Code::Io, format!("reading the network configuration: {error}"));
            error.write(Version::LATEST, &mut output)
        }
    };
    Some(ExitCode::from(code))
}

/// One plugin call. Returns the exit code; whatever is to be said to the runtime is in `output`.
pub fn run(
    plugin: Plugin,
    environment: &dyn Fn(&str) -> Option<String>,
    input: &[u8],
    output: &mut dyn Write,
) -> u8 {
    // An error is answered in the version the runtime spoke, as far as it can be read.
    let spoken = config::spoken_version(input).unwrap_or(Version::LATEST);
    match call(plugin, environment, input) {
        Ok(answer) => match output.write_all(answer.as_bytes()) {
            Ok(()) => 0,
            // The runtime has gone away; there is nobody to tell.
            Err(_) => 1,
        },
        Err(error) => error.write(spoken, output),
    }
}

fn call(plugin: Plugin, environment: &dyn Fn(&str) -> Option<String>, input: &[u8]) -> Result<String> {
    let command = Command::from_environment(environment)?;
    if command == Command::Version {
        return Ok(version::answer(input));
    }
    let network = parse(input)?;
    let invocation = Invocation::from_environment(command, environment)?;
    if command < network.cni_version.first_command_set() {
        let message = format!("{command:?} is not known in CNI version {}", network.cni_version);
        return Err(Error::new(Code::IncompatibleVersion, message));
    }
    let mut span = ferry_trace::span("cni.call");
    span.set("command", format!("{command:?}")).set("plugin", format!("{plugin:?}"));
    let result = span.enter(|| match plugin {
        Plugin::Bridge => bridge::call(&network, &invocation),
        Plugin::HostLocal => host_local::call(&network, &invocation),
        Plugin::Loopback => loopback::call(&network, &invocation),
        Plugin::PortMap => port_map::call(&network, &invocation),
    })?;
    drop(span);
    leave_spans(&network, &invocation);
    Ok(result.map_or_else(String::new, |result| result.render(network.cni_version)))
}

/// Reads a configuration as a call of the plugin does, and does nothing with it.
pub fn read_configuration(plugin: Plugin, input: &[u8]) -> Result<()> {
    let network = parse(input)?;
    match plugin {
        Plugin::Bridge => bridge::read_configuration(&network),
        Plugin::HostLocal => host_local::read_configuration(&network),
        Plugin::Loopback => Ok(()),
        Plugin::PortMap => port_map::read_configuration(&network),
    }
}

/// For the kubelet, which waits for this pod's network: how long which part of it took.
fn leave_spans(network: &Network, invocation: &Invocation) {
    let directory = network.whole.get("traceDir").and_then(|directory| directory.as_str());
    if let Some(directory) = directory.filter(|_| invocation.command == Command::Add) {
        // A pod without a trace of its network runs as well as any.
        let _ = ferry_trace::handoff::leave(Path::new(directory), &invocation.container_id);
    }
}

/// What a plugin in the middle of a chain hands on: the result before it.
fn previous_result(network: &Network) -> Result<CniResult> {
    network.prev_result.clone().ok_or_else(|| {
        Error::new(Code::InvalidConfig, "the previous plugin's result is missing (prevResult)")
    })
}
