//! Names: a pod's host name, `/etc/hosts` and `/etc/resolv.conf`.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::Pod;

use crate::cri::DnsConfig;
use crate::pod;

const MAX_HOST_NAME: usize = 63;
const MAX_NAMESERVERS: usize = 3;
const MAX_SEARCHES: usize = 32;

/// The node's own resolver settings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostResolver {
    pub servers: Vec<String>,
    pub searches: Vec<String>,
    pub options: Vec<String>,
}

impl HostResolver {
    pub fn parse(text: &str) -> Self {
        let mut resolver = Self::default();
        for line in text.lines() {
            let mut words = line.split_whitespace();
            match words.next() {
                Some("nameserver") => resolver.servers.extend(words.next().map(str::to_string)),
                // the last line of its kind counts
                Some("search") => {
                    resolver.searches =
                        words.map(|domain| domain.trim_end_matches('.').to_string()).collect();
                }
                Some("options") => resolver.options = words.map(str::to_string).collect(),
                _ => {}
            }
        }
        resolver.searches.retain(|domain| !domain.is_empty());
        resolver
    }
}

/// What goes into a pod's resolv.conf.
pub fn dns_config(pod: &Pod, cluster_dns: &[IpAddr], domain: &str, host: &HostResolver) -> DnsConfig {
    let policy = pod::spec(pod).dns_policy.as_deref().unwrap_or("ClusterFirst");
    let from_host = || DnsConfig {
        servers: host.servers.clone(),
        searches: host.searches.clone(),
        options: host.options.clone(),
    };
    let cluster_first = match policy {
        "ClusterFirstWithHostNet" => true,
        "ClusterFirst" => !pod::uses_host_network(pod),
        _ => false,
    };
    let mut config = match policy {
        "None" => DnsConfig::default(),
        _ if cluster_first && !cluster_dns.is_empty() => {
            let mut searches = Vec::new();
            if !domain.is_empty() {
                let namespace = pod::namespace(pod);
                searches.extend([
                    format!("{namespace}.svc.{domain}"),
                    format!("svc.{domain}"),
                    domain.to_string(),
                ]);
            }
            searches.extend(host.searches.iter().cloned());
            DnsConfig {
                servers: cluster_dns.iter().map(IpAddr::to_string).collect(),
                searches,
                options: vec!["ndots:5".into()],
            }
        }
        _ => from_host(),
    };
    if let Some(own) = &pod::spec(pod).dns_config {
        config.servers.extend(own.nameservers.iter().flatten().cloned());
        config.searches.extend(own.searches.iter().flatten().cloned());
        for option in own.options.iter().flatten() {
            let name = option.name.as_deref().unwrap_or_default();
            config.options.retain(|each| each.split(':').next() != Some(name));
            config.options.push(match &option.value {
                Some(value) => format!("{name}:{value}"),
                None => name.to_string(),
            });
        }
    }
    unique(&mut config.servers);
    unique(&mut config.searches);
    config.servers.truncate(MAX_NAMESERVERS);
    config.searches.truncate(MAX_SEARCHES);
    config
}

fn unique(list: &mut Vec<String>) {
    let mut seen = std::collections::HashSet::new();
    list.retain(|each| seen.insert(each.clone()));
}

/// The pod's host name, and the domain below the cluster's where it has one.
pub fn host_name(pod: &Pod, cluster_domain: &str, node_host_name: &str) -> (String, Option<String>) {
    if pod::uses_host_network(pod) {
        return (node_host_name.to_string(), None);
    }
    let spec = pod::spec(pod);
    if let Some(name) = spec.hostname_override.as_deref().filter(|name| !name.is_empty()) {
        return (name.to_string(), None);
    }
    let name = spec.hostname.as_deref().filter(|name| !name.is_empty()).unwrap_or_else(|| pod::name(pod));
    let name = name.get(..MAX_HOST_NAME).unwrap_or(name).trim_end_matches(['-', '.']).to_string();
    let domain = spec
        .subdomain
        .as_deref()
        .filter(|subdomain| !subdomain.is_empty())
        .map(|subdomain| format!("{subdomain}.{}.svc.{cluster_domain}", pod::namespace(pod)));
    (name, domain)
}

/// The hosts file of a pod. On the host network it is the node's, marked.
pub fn hosts_file(pod: &Pod, ips: &[String], name: &str, domain: Option<&str>, node_file: &str) -> String {
    let mut text = if pod::uses_host_network(pod) {
        format!("# Kubernetes-managed hosts file (host network).\n{node_file}")
    } else {
        let mut text = String::from(
            "# Kubernetes-managed hosts file.\n\
             127.0.0.1\tlocalhost\n\
             ::1\tlocalhost ip6-localhost ip6-loopback\n\
             fe00::0\tip6-localnet\n\
             fe00::0\tip6-mcastprefix\n\
             fe00::1\tip6-allnodes\n\
             fe00::2\tip6-allrouters\n",
        );
        for ip in ips {
            match domain {
                Some(domain) => text.push_str(&format!("{ip}\t{name}.{domain}\t{name}\n")),
                None => text.push_str(&format!("{ip}\t{name}\n")),
            }
        }
        text
    };
    let mut aliases = pod::spec(pod).host_aliases.iter().flatten().peekable();
    if aliases.peek().is_some() {
        text.push_str("\n# Entries added by HostAliases.\n");
    }
    for alias in aliases {
        let names = alias.hostnames.as_deref().unwrap_or_default().join("\t");
        text.push_str(&format!("{}\t{names}\n", alias.ip));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(spec: serde_json::Value) -> Pod {
        let mut spec = spec;
        spec["containers"] = json!([]);
        serde_json::from_value(json!({"metadata": {"name": "web-0", "namespace": "ns"}, "spec": spec}))
            .expect("well formed")
    }

    #[track_caller]
    fn check(spec: serde_json::Value, expected: &str) {
        let host =
            HostResolver::parse("nameserver 192.0.2.1\nsearch old\nsearch corp.example.\noptions rotate\n");
        let config = dns_config(&pod(spec), &[IpAddr::from([10, 96, 0, 10])], "cluster.local", &host);
        let shown = format!(
            "{} | {} | {}",
            config.servers.join(" "),
            config.searches.join(" "),
            config.options.join(" ")
        );
        assert_eq!(shown, expected);
    }

    #[test]
    fn resolver_settings_follow_the_policy() {
        let cluster =
            "10.96.0.10 | ns.svc.cluster.local svc.cluster.local cluster.local corp.example | ndots:5";
        let host = "192.0.2.1 | corp.example | rotate";
        check(json!({}), cluster);
        check(json!({"dnsPolicy": "ClusterFirst", "hostNetwork": true}), host);
        check(json!({"dnsPolicy": "ClusterFirstWithHostNet", "hostNetwork": true}), cluster);
        check(json!({"dnsPolicy": "Default"}), host);
        let own = json!({"nameservers": ["192.0.2.9"], "searches": ["x"], "options": [{"name": "ndots", "value": "2"}, {"name": "edns0"}]});
        check(json!({"dnsPolicy": "None", "dnsConfig": own}), "192.0.2.9 | x | ndots:2 edns0");
        check(
            json!({"dnsConfig": own}),
            "10.96.0.10 192.0.2.9 | ns.svc.cluster.local svc.cluster.local cluster.local corp.example x | ndots:2 edns0",
        );
    }

    #[test]
    fn names_and_hosts_of_a_pod() {
        let named = pod(
            json!({"hostname": "db", "subdomain": "sub", "hostAliases": [{"ip": "1.2.3.4", "hostnames": ["a", "b"]}]}),
        );
        let (name, domain) = host_name(&named, "cluster.local", "node");
        assert_eq!((name.as_str(), domain.as_deref()), ("db", Some("sub.ns.svc.cluster.local")));
        let hosts = hosts_file(&named, &["10.0.0.5".into()], &name, domain.as_deref(), "");
        assert!(hosts.starts_with("# Kubernetes-managed hosts file.\n"));
        assert!(hosts.contains("10.0.0.5\tdb.sub.ns.svc.cluster.local\tdb\n"));
        assert!(hosts.ends_with("# Entries added by HostAliases.\n1.2.3.4\ta\tb\n"));
        assert_eq!(host_name(&pod(json!({})), "cluster.local", "node"), ("web-0".into(), None));
        assert_eq!(
            host_name(&pod(json!({"hostNetwork": true})), "cluster.local", "node"),
            ("node".into(), None)
        );
    }
}
