//! What a container runtime hands a CNI plugin: the network configuration with the result of the plugin before, as JSON.

use ferry_cni::plugin::{CniResult, Plugin, Version, read_configuration};

pub fn run(data: &[u8]) {
    for (_, plugin) in Plugin::ALL {
        let _ = read_configuration(plugin, data);
    }
    if let Ok(result) = serde_json::from_slice::<CniResult>(data) {
        let rendered = result.render(Version::LATEST);
        let again: CniResult =
            serde_json::from_str(&rendered).unwrap_or_else(|why| panic!("{why}: {rendered}"));
        assert_eq!(again.render(Version::LATEST), rendered);
        let _ = result.render(Version::V0_3_0);
    }
}

pub fn seeds() -> Vec<Vec<u8>> {
    const RESULT: &str = r#"{"cniVersion":"1.0.0","interfaces":[{"name":"eth0","mac":"00:11:22:33:44:55","sandbox":"/run/netns/a"}],"ips":[{"interface":0,"address":"10.0.0.5/24","gateway":"10.0.0.1"}],"routes":[{"dst":"0.0.0.0/0","gw":"10.0.0.1","mtu":1500}],"dns":{"nameservers":["10.96.0.10"],"domain":"a","search":["b"],"options":["c"]}}"#;
    let configuration = format!(
        r#"{{"cniVersion":"1.0.0","name":"pods","type":"ferry-bridge","bridge":"cni0","isGateway":true,"ipMasq":true,"mtu":1450,"hairpinMode":true,"capabilities":{{"portMappings":true}},"ipam":{{"type":"host-local","ranges":[[{{"subnet":"10.244.0.0/24","rangeStart":"10.244.0.10","rangeEnd":"10.244.0.20","gateway":"10.244.0.1"}}],[{{"subnet":"fd00::/64"}}]],"routes":[{{"dst":"0.0.0.0/0"}}],"dataDir":"/run/a"}},"runtimeConfig":{{"portMappings":[{{"hostPort":80,"containerPort":8080,"protocol":"tcp","hostIP":"::1"}}],"ipRanges":[[{{"subnet":"10.1.0.0/16"}}]],"ips":["10.244.0.7/24"],"mac":"00:11:22:33:44:55","dns":{{"servers":["1.1.1.1"],"searches":["a"],"options":["b"]}}}},"prevResult":{RESULT},"cni.dev/valid-attachments":[{{"containerID":"a","ifname":"eth0"}}]}}"#
    );
    vec![
        RESULT.as_bytes().to_vec(),
        configuration.into_bytes(),
        br#"{"cniVersion":"0.3.0","name":"lo","type":"loopback"}"#.to_vec(),
    ]
}
