//! The network configuration on standard input: what all plugins share, the rest as it came.

use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;

use super::{CniResult, Code, Error, Result, Version, invocation::is_identifier, result::Dns};

/// The fields every plugin knows, and the whole configuration for those that only some know.
#[derive(Debug)]
pub(super) struct Network {
    pub cni_version: Version,
    pub name: String,
    pub prev_result: Option<CniResult>,
    pub dns: Dns,
    pub runtime: RuntimeConfig,
    pub valid_attachments: Vec<Attachment>,
    pub whole: Value,
}

/// What the runtime passes for capabilities the configuration declares.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct RuntimeConfig {
    pub port_mappings: Vec<PortMapping>,
    pub ip_ranges: Option<Value>,
    pub ips: Vec<String>,
    pub mac: Option<String>,
    pub dns: Option<RuntimeDns>,
}

/// As the runtime spells it: `servers` and `searches`, unlike the result's words.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct RuntimeDns {
    pub servers: Vec<String>,
    pub searches: Vec<String>,
    pub options: Vec<String>,
}

/// containerd writes the names with capitals, which Go's reader takes as well.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PortMapping {
    #[serde(alias = "HostPort")]
    pub host_port: u16,
    #[serde(alias = "ContainerPort")]
    pub container_port: u16,
    #[serde(default = "tcp", alias = "Protocol")]
    pub protocol: String,
    #[serde(default, rename = "hostIP", alias = "HostIP")]
    pub host_ip: String,
}

fn tcp() -> String {
    "tcp".into()
}

/// A container's interface the runtime still knows of, for GC.
#[derive(Debug, Deserialize, PartialEq, Eq)]
pub(super) struct Attachment {
    #[serde(rename = "containerID")]
    pub container_id: String,
    pub ifname: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Common {
    cni_version: Option<String>,
    #[serde(default)]
    name: String,
    prev_result: Option<Value>,
    dns: Option<Dns>,
    runtime_config: Option<RuntimeConfig>,
    #[serde(default, rename = "cni.dev/valid-attachments")]
    valid_attachments: Vec<Attachment>,
}

impl Network {
    /// The fields of one plugin.
    pub fn section<T: DeserializeOwned>(&self) -> Result<T> {
        T::deserialize(&self.whole).map_err(|error| Error::new(Code::InvalidConfig, error.to_string()))
    }

    /// DNS by the runtime's word, else by the configuration's.
    pub fn dns(&self) -> Dns {
        match &self.runtime.dns {
            Some(dns) => Dns {
                nameservers: dns.servers.clone(),
                search: dns.searches.clone(),
                options: dns.options.clone(),
                domain: self.dns.domain.clone(),
            },
            None => self.dns.clone(),
        }
    }
}

pub(super) fn parse(input: &[u8]) -> Result<Network> {
    let decode =
        |error: serde_json::Error| Error::new(Code::Decode, format!("network configuration: {error}"));
    let whole: Value = serde_json::from_slice(input).map_err(decode)?;
    let asked = whole.get("cniVersion").and_then(Value::as_str).unwrap_or("0.1.0");
    let Some(cni_version) = Version::parse(asked) else {
        let mut error =
            Error::new(Code::IncompatibleVersion, format!("CNI version {asked} is not supported"));
        error.details = format!("supported are {} to {}", Version::V0_3_0, Version::LATEST);
        return Err(error);
    };
    let common = Common::deserialize(&whole).map_err(decode)?;
    debug_assert!(common.cni_version.is_some(), "a supported version was read from it");
    if !is_identifier(&common.name) {
        return Err(Error::new(Code::InvalidConfig, format!("invalid network name {:?}", common.name)));
    }
    let prev_result = common
        .prev_result
        .filter(|value| !value.is_null())
        .map(serde_json::from_value)
        .transpose()
        .map_err(|error| Error::new(Code::Decode, format!("prevResult: {error}")))?;
    Ok(Network {
        cni_version,
        name: common.name,
        prev_result,
        dns: common.dns.unwrap_or_default(),
        runtime: common.runtime_config.unwrap_or_default(),
        valid_attachments: common.valid_attachments,
        whole,
    })
}

/// The version in the configuration, if it can be read and is supported.
pub(super) fn spoken_version(input: &[u8]) -> Option<Version> {
    let value: Value = serde_json::from_slice(input).ok()?;
    Version::parse(value.get("cniVersion")?.as_str()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_mappings_are_read_as_the_specification_and_as_containerd_write_them() {
        let wanted = PortMapping {
            host_port: 80,
            container_port: 8080,
            protocol: "TCP".into(),
            host_ip: "::1".into(),
        };
        for text in [
            r#"{"hostPort":80,"containerPort":8080,"protocol":"TCP","hostIP":"::1"}"#,
            r#"{"HostPort":80,"ContainerPort":8080,"Protocol":"TCP","HostIP":"::1"}"#,
        ] {
            assert_eq!(serde_json::from_str::<PortMapping>(text).expect(text), wanted);
        }
    }
}
