//! A plugin's result, kept in the newest form and written in the version asked for.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::Version;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CniResult {
    #[serde(default)]
    pub interfaces: Vec<Interface>,
    #[serde(default)]
    pub ips: Vec<IpConfig>,
    #[serde(default)]
    pub routes: Vec<RouteConfig>,
    #[serde(default)]
    pub dns: Dns,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Interface {
    pub name: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub mac: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub sandbox: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct IpConfig {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<usize>,
    pub address: IpNet,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<IpAddr>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RouteConfig {
    pub dst: IpNet,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gw: Option<IpAddr>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<u32>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dns {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nameservers: Vec<String>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub domain: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub search: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
}

impl CniResult {
    pub fn render(&self, version: Version) -> String {
        let mut result = json!(self);
        result["cniVersion"] = version.to_string().into();
        for list in ["interfaces", "ips", "routes"] {
            if result[list].as_array().is_some_and(Vec::is_empty) {
                result.as_object_mut().expect("a struct is an object").remove(list);
            }
        }
        // Before 1.0.0 each address names its family.
        if version < Version::V1_0_0 {
            for_each(&mut result, "ips", |ip| {
                let is_ipv6 = ip["address"].as_str().is_some_and(|address| address.contains(':'));
                ip.insert("version".into(), if is_ipv6 { "6" } else { "4" }.into());
            });
        }
        // What 1.1.0 added is left out for older readers.
        if version < Version::V1_1_0 {
            for_each(&mut result, "interfaces", |interface| drop(interface.remove("mtu")));
            for_each(&mut result, "routes", |route| {
                route.remove("mtu");
                route.remove("priority");
            });
        }
        result.to_string()
    }
}

fn for_each(result: &mut Value, list: &str, change: impl Fn(&mut Map<String, Value>)) {
    let items = result.get_mut(list).and_then(Value::as_array_mut);
    for item in items.into_iter().flatten() {
        change(item.as_object_mut().expect("lists of a result hold objects"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_reads_as_its_version_says() {
        let result = CniResult {
            interfaces: vec![Interface { name: "eth0".into(), mtu: Some(1400), ..Interface::default() }],
            ips: vec![IpConfig {
                interface: Some(0),
                address: "10.1.0.2/24".parse().unwrap(),
                gateway: Some("10.1.0.1".parse().unwrap()),
            }],
            ..CniResult::default()
        };
        let read = |version| serde_json::from_str::<Value>(&result.render(version)).unwrap();
        let ip = json!({"interface": 0, "address": "10.1.0.2/24", "gateway": "10.1.0.1"});
        let mut with_version = ip.clone();
        with_version["version"] = "4".into();
        assert_eq!(
            read(Version::V0_3_1),
            json!({"cniVersion": "0.3.1", "interfaces": [{"name": "eth0"}], "ips": [with_version], "dns": {}})
        );
        assert_eq!(
            read(Version::V1_1_0),
            json!({"cniVersion": "1.1.0", "interfaces": [{"name": "eth0", "mtu": 1400}], "ips": [ip], "dns": {}})
        );
        let again: CniResult = serde_json::from_value(read(Version::V0_3_1)).unwrap();
        assert_eq!(again.ips, result.ips);
    }
}
