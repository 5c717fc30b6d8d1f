//! What the runtime says in the environment: the command, the container, its namespace and interface.

use std::path::PathBuf;

use ferry_linux::net::Namespace;

use super::{Code, Error, Result};

/// Ordered newest first, see [`super::Version::first_command_set`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Command {
    Gc,
    Status,
    Check,
    Add,
    Del,
    Version,
}

impl Command {
    pub fn from_environment(environment: &dyn Fn(&str) -> Option<String>) -> Result<Self> {
        match environment("CNI_COMMAND").as_deref() {
            Some("ADD") => Ok(Command::Add),
            Some("DEL") => Ok(Command::Del),
            Some("CHECK") => Ok(Command::Check),
            Some("GC") => Ok(Command::Gc),
            Some("STATUS") => Ok(Command::Status),
            Some("VERSION") => Ok(Command::Version),
            other => {
                let message = format!("unknown CNI_COMMAND {:?}", other.unwrap_or(""));
                Err(Error::new(Code::InvalidEnvironment, message))
            }
        }
    }
}

#[derive(Debug)]
pub struct Invocation {
    pub command: Command,
    pub container_id: String,
    pub netns: Option<PathBuf>,
    pub ifname: String,
    /// Pairs of `CNI_ARGS`.
    pub args: Vec<(String, String)>,
    /// Where further plugins are found.
    pub path: Vec<PathBuf>,
}

impl Invocation {
    pub fn from_environment(command: Command, environment: &dyn Fn(&str) -> Option<String>) -> Result<Self> {
        let set = |name: &str| environment(name).filter(|value| !value.is_empty());
        let invocation = Self {
            command,
            container_id: set("CNI_CONTAINERID").unwrap_or_default(),
            netns: set("CNI_NETNS").map(PathBuf::from),
            ifname: set("CNI_IFNAME").unwrap_or_default(),
            args: parse_args(&set("CNI_ARGS").unwrap_or_default())?,
            path: set("CNI_PATH").map(|paths| std::env::split_paths(&paths).collect()).unwrap_or_default(),
        };
        invocation.check()?;
        Ok(invocation)
    }

    /// The pod's namespace; a vanished one has a code of its own.
    pub fn namespace(&self) -> Result<Namespace> {
        let path = self.netns.as_deref().ok_or_else(|| missing("CNI_NETNS"))?;
        Namespace::open(path).map_err(|error| {
            let code = if error.is_not_found() { Code::UnknownContainer } else { Code::Kernel };
            Error::new(code, error.to_string())
        })
    }

    /// The value of a `CNI_ARGS` pair.
    pub fn arg(&self, name: &str) -> Option<&str> {
        self.args.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    fn check(&self) -> Result<()> {
        match self.command {
            Command::Gc | Command::Status | Command::Version => return Ok(()),
            Command::Add | Command::Check if self.netns.is_none() => {
                return Err(missing("CNI_NETNS"));
            }
            Command::Add | Command::Check | Command::Del => {}
        }
        if self.container_id.is_empty() {
            return Err(missing("CNI_CONTAINERID"));
        }
        if !is_identifier(&self.container_id) {
            return Err(invalid("CNI_CONTAINERID", &self.container_id));
        }
        if self.ifname.is_empty() {
            return Err(missing("CNI_IFNAME"));
        }
        let forbidden = |c: char| c == '/' || c == ':' || c.is_whitespace();
        if self.ifname.len() > 15 || self.ifname.contains(forbidden) || matches!(&*self.ifname, "." | "..") {
            return Err(invalid("CNI_IFNAME", &self.ifname));
        }
        Ok(())
    }
}

/// The specification's shape of container identifiers and network names. They become file names.
pub(super) fn is_identifier(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-'))
}

fn parse_args(text: &str) -> Result<Vec<(String, String)>> {
    text.split(';')
        .filter(|pair| !pair.is_empty())
        .map(|pair| match pair.split_once('=') {
            Some((key, value)) => Ok((key.into(), value.into())),
            None => Err(invalid("CNI_ARGS", text)),
        })
        .collect()
}

fn missing(name: &str) -> Error {
    Error::new(Code::InvalidEnvironment, format!("required environment variable {name} is missing"))
}

fn invalid(name: &str, value: &str) -> Error {
    Error::new(
        Code::InvalidEnvironment,
        format!("environment variable {name} has the invalid value {value:?}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(command: &str, pairs: &[(&str, &str)], expected: std::result::Result<(), Code>) {
        let environment =
            |name: &str| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| value.to_string());
        let command = match command {
            "ADD" => Command::Add,
            "DEL" => Command::Del,
            _ => Command::Gc,
        };
        let outcome = Invocation::from_environment(command, &environment).map(drop).map_err(|e| e.code);
        assert_eq!(outcome, expected.map_err(|code| code as u32), "{command:?} {pairs:?}");
    }

    #[test]
    fn each_command_asks_for_its_variables() {
        let full = [("CNI_CONTAINERID", "c1"), ("CNI_NETNS", "/proc/self/ns/net"), ("CNI_IFNAME", "eth0")];
        let bad = Err(Code::InvalidEnvironment);
        check("ADD", &full, Ok(()));
        check("ADD", &full[..2], bad);
        check("ADD", &[full[0], full[2]], bad);
        check("DEL", &[full[0], full[2]], Ok(()));
        check("DEL", &full[1..], bad);
        check("GC", &[], Ok(()));
        check("DEL", &[("CNI_CONTAINERID", "../x"), full[2]], bad);
        check("DEL", &[full[0], ("CNI_IFNAME", "a/b")], bad);
        check("DEL", &[full[0], ("CNI_IFNAME", "sixteen-letters-")], bad);
        check("DEL", &[full[0], full[2], ("CNI_ARGS", "IP")], bad);
        check("DEL", &[full[0], full[2], ("CNI_ARGS", "IgnoreUnknown=1;K8S_POD_NAME=a")], Ok(()));
    }
}
