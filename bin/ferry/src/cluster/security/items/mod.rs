//! The items of the benchmark, one file for each group: pure functions from [`Facts`] to findings.

mod files;
mod kubelets;
mod rights;
mod server;
mod workloads;

use super::facts::Facts;
use super::{Finding, Verdict};

const ENFORCE: &str = "pod-security.kubernetes.io/enforce";
/// The namespaces of every cluster that are not for workloads.
const SYSTEM_NAMESPACES: &[&str] = &["kube-system", "kube-public", "kube-node-lease"];

pub fn judge(facts: &Facts) -> Vec<Finding> {
    let mut findings = files::permissions(&facts.files);
    findings.push(files::certificates(facts));
    findings.extend(server::port(facts));
    findings.extend(server::flags(&facts.server));
    findings.extend(kubelets::kubelets(facts));
    findings.extend(rights::rights(facts));
    findings.extend(workloads::workloads(facts));
    findings
}

/// An item's number, its title and its remedy. An item that `must` hold fails where it does not; one that `should` warns.
struct Item(&'static str, &'static str, &'static str);

impl Item {
    /// A finding names so many offenders and counts the others.
    const NAMED: usize = 5;

    fn must(self, holds: bool, found: impl Into<String>) -> Finding {
        self.finding(if holds { Verdict::Pass } else { Verdict::Fail }, found.into())
    }

    fn should(self, holds: bool, found: impl Into<String>) -> Finding {
        self.finding(if holds { Verdict::Pass } else { Verdict::Warn }, found.into())
    }

    /// `fine` is what the finding says where nothing offends.
    fn must_find_none(self, offenders: Vec<String>, fine: impl Into<String>) -> Finding {
        self.must(offenders.is_empty(), Self::named(&offenders).unwrap_or_else(|| fine.into()))
    }

    fn should_find_none(self, offenders: Vec<String>, fine: impl Into<String>) -> Finding {
        self.should(offenders.is_empty(), Self::named(&offenders).unwrap_or_else(|| fine.into()))
    }

    fn named(offenders: &[String]) -> Option<String> {
        let (named, others) = offenders.split_at(offenders.len().min(Self::NAMED));
        match (named, others.len()) {
            ([], _) => None,
            (named, 0) => Some(named.join(", ")),
            (named, more) => Some(format!("{} and {more} more", named.join(", "))),
        }
    }

    fn finding(self, verdict: Verdict, found: String) -> Finding {
        let Item(id, title, remedy) = self;
        Finding { id, title, verdict, found, remedy: if verdict == Verdict::Pass { "" } else { remedy } }
    }
}

#[cfg(test)]
mod tests {
    use super::super::facts::{FileFact, KubeletFacts, ServerFacts, secrets_provider};
    use super::*;
    use k8s_openapi::api::core::v1::{Namespace, Pod};
    use serde_json::json;
    use std::collections::BTreeSet;
    use std::time::{Duration, SystemTime};

    fn facts() -> Facts {
        Facts {
            files: Vec::new(),
            certificates: Vec::new(),
            now: SystemTime::UNIX_EPOCH,
            server: ServerFacts {
                authorization_modes: vec!["Node".into(), "RBAC".into()],
                audit_policy: Some("/etc/policy.yaml".into()),
                audit_log: Some("/var/log/audit.log".into()),
                audit_max_age: 30,
                audit_max_backup: 10,
                audit_max_size: 100,
                secrets_provider: Some("secretbox".into()),
                enabled_plugins: vec!["AlwaysPullImages".into()],
                request_timeout: Duration::from_secs(60),
                ..ServerFacts::default()
            },
            anonymous: vec![("/api/v1/namespaces", 403), ("/healthz", 200)],
            answers_plainly: false,
            profiling: 404,
            kubelets: Vec::new(),
            namespaces: Vec::new(),
            pods: Vec::new(),
            service_accounts: Vec::new(),
            network_policies: Vec::new(),
            cluster_roles: Vec::new(),
            cluster_role_bindings: Vec::new(),
            role_bindings: Vec::new(),
        }
    }

    fn object<T: serde::de::DeserializeOwned>(value: serde_json::Value) -> T {
        serde_json::from_value(value).unwrap()
    }

    /// The items that do not pass.
    fn offending(facts: &Facts) -> Vec<(&'static str, Verdict)> {
        let findings = judge(facts).into_iter().filter(|finding| finding.verdict != Verdict::Pass);
        findings.map(|finding| (finding.id, finding.verdict)).collect()
    }

    fn check(change: impl FnOnce(&mut Facts), expected: &[(&str, Verdict)]) {
        let mut facts = facts();
        change(&mut facts);
        assert_eq!(offending(&facts), expected);
    }

    #[test]
    fn a_hardened_cluster_passes_everything_and_every_item_has_one_line() {
        check(|_| {}, &[]);
        let findings = judge(&facts());
        let ids: BTreeSet<&str> = findings.iter().map(|finding| finding.id).collect();
        assert_eq!(ids.len(), findings.len(), "an id stands twice");
        assert!(findings.len() > 35, "{}", findings.len());
    }

    #[test]
    fn files_with_wide_modes_or_other_owners_fail() {
        let file = |path: &str, mode, user| FileFact {
            path: path.into(),
            is_directory: false,
            mode,
            user,
            group: user,
        };
        let fail = Verdict::Fail;
        check(|facts| facts.files.push(file("/d/pki/ca.key", 0o640, 0)), &[("1.1.21", fail)]);
        check(|facts| facts.files.push(file("/d/pki/ca.crt", 0o664, 0)), &[("1.1.20", fail)]);
        check(|facts| facts.files.push(file("/d/pki/ca.crt", 0o644, 7)), &[("1.1.19", fail)]);
        check(|facts| facts.files.push(file("/d/admin.kubeconfig", 0o644, 0)), &[("1.1.13", fail)]);
        check(|facts| facts.files.push(file("/d/server-token", 0o600, 1)), &[("1.1.14", fail)]);
        check(
            |facts| facts.files.push(file("/d/store/00000001.log", 0o640, 1)),
            &[("1.1.11", fail), ("1.1.12", fail)],
        );
        let directory = FileFact { is_directory: true, ..file("/d", 0o777, 0) };
        check(|facts| facts.files.push(directory), &[("F.1", fail)]);
        check(|facts| facts.files.push(file("/d/ferry.log", 0o644, 0)), &[]);
    }

    #[test]
    fn expired_certificates_fail_and_overdue_ones_warn() {
        let ends = |seconds| ("/d/pki/a.crt".into(), SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
        check(|facts| facts.certificates.push(ends(0)), &[("F.2", Verdict::Fail)]);
        check(|facts| facts.certificates.push(ends(86_400)), &[("F.2", Verdict::Warn)]);
        check(|facts| facts.certificates.push(ends(30 * 86_400)), &[]);
    }

    #[test]
    fn open_ports_of_servers_and_kubelets_fail() {
        let fail = Verdict::Fail;
        check(|facts| facts.anonymous.push(("/metrics", 200)), &[("1.2.1", fail)]);
        check(|facts| facts.anonymous.push(("/apis", 500)), &[("1.2.1", fail)]);
        check(|facts| facts.profiling = 200, &[("1.2.15", fail)]);
        check(|facts| facts.answers_plainly = true, &[("1.2.24", fail)]);
        let kubelet =
            |anonymous, read_only_port| KubeletFacts { node: "n".into(), anonymous, read_only_port };
        check(|facts| facts.kubelets.push(kubelet(Some(401), false)), &[]);
        check(|facts| facts.kubelets.push(kubelet(Some(200), true)), &[("4.2.1", fail), ("4.2.4", fail)]);
        check(|facts| facts.kubelets.push(kubelet(None, false)), &[("4.2.2", Verdict::Warn)]);
    }

    #[test]
    fn insecure_flags_of_the_server_fail() {
        let (fail, warn) = (Verdict::Fail, Verdict::Warn);
        check(
            |facts| facts.server.authorization_modes = vec!["AlwaysAllow".into()],
            &[("1.2.6", fail), ("1.2.7", fail), ("1.2.8", fail)],
        );
        check(|facts| facts.server.token_auth_file = Some("/t".into()), &[("1.2.2", fail)]);
        check(|facts| facts.server.disabled_plugins = vec!["NodeRestriction".into()], &[("1.2.14", fail)]);
        check(|facts| facts.server.disabled_plugins = vec!["PodSecurity".into()], &[("5.2.1", fail)]);
        check(|facts| facts.server.enabled_plugins = Vec::new(), &[("1.2.11", warn)]);
        check(
            |facts| (facts.server.audit_log, facts.server.audit_policy) = (None, None),
            &[("1.2.16", fail), ("3.2.1", fail)],
        );
        check(|facts| facts.server.audit_max_age = 7, &[("1.2.17", warn)]);
        check(|facts| facts.server.audit_max_backup = 0, &[]);
        check(|facts| facts.server.secrets_provider = None, &[("1.2.27", fail)]);
        check(|facts| facts.server.secrets_provider = Some("identity".into()), &[("1.2.27", fail)]);
        check(
            |facts| facts.server.etcd_servers = vec!["http://e:2379".into()],
            &[("1.2.26", fail), ("1.2.23", fail)],
        );
        check(|facts| facts.server.request_timeout = Duration::from_secs(3600), &[("1.2.20", warn)]);
    }

    #[test]
    fn the_provider_of_secrets_is_the_first_of_the_first_entry_that_names_them() {
        let entry = |resources: &[&str], provider: &str| json!({"resources": resources, "providers": [{provider: {}}, {"identity": {}}]});
        let found = |entries: Vec<serde_json::Value>| secrets_provider(&json!({"resources": entries}));
        assert_eq!(found(vec![entry(&["configmaps"], "aesgcm")]), None);
        let both = vec![entry(&["configmaps"], "aesgcm"), entry(&["secrets"], "secretbox")];
        assert_eq!(found(both).as_deref(), Some("secretbox"));
        assert_eq!(found(vec![entry(&["*.*"], "identity")]).as_deref(), Some("identity"));
    }

    #[test]
    fn bindings_and_roles_that_reach_far_are_found() {
        let (fail, warn) = (Verdict::Fail, Verdict::Warn);
        let binding = |role: &str, kind: &str, name: &str| {
            object(
                json!({"metadata": {"name": "b"}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
                "subjects": [{"kind": kind, "name": name}]}),
            )
        };
        check(
            |facts| facts.cluster_role_bindings.push(binding("cluster-admin", "Group", "system:masters")),
            &[],
        );
        check(
            |facts| facts.cluster_role_bindings.push(binding("cluster-admin", "User", "jane")),
            &[("5.1.1", warn)],
        );
        check(
            |facts| facts.cluster_role_bindings.push(binding("view", "Group", "system:unauthenticated")),
            &[("5.1.13", fail)],
        );
        check(
            |facts| {
                facts.cluster_role_bindings.push(binding(
                    "system:public-info-viewer",
                    "Group",
                    "system:unauthenticated",
                ))
            },
            &[],
        );
        check(
            |facts| facts.cluster_role_bindings.push(binding("view", "ServiceAccount", "default")),
            &[("5.1.5", fail)],
        );
        let role = |name: &str| {
            object(
                json!({"metadata": {"name": name}, "rules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]}),
            )
        };
        check(|facts| facts.cluster_roles.push(role("mine")), &[("5.1.3", warn)]);
        check(|facts| facts.cluster_roles.push(role("cluster-admin")), &[]);
        let account = |automount| {
            object(
                json!({"metadata": {"name": "default", "namespace": "shop"}, "automountServiceAccountToken": automount}),
            )
        };
        check(|facts| facts.service_accounts.push(account(true)), &[("5.1.6", warn)]);
        check(|facts| facts.service_accounts.push(account(false)), &[]);
    }

    #[test]
    fn privileged_pods_and_unguarded_namespaces_warn() {
        let warn = Verdict::Warn;
        let pod = |namespace: &str, spec: serde_json::Value| {
            object::<Pod>(json!({"metadata": {"name": "p", "namespace": namespace}, "spec": spec}))
        };
        let privileged = json!({"containers": [{"name": "c", "securityContext": {"privileged": true}}]});
        check(|facts| facts.pods.push(pod("shop", privileged.clone())), &[("5.2.2", warn)]);
        check(|facts| facts.pods.push(pod("kube-system", privileged)), &[]);
        let host = json!({"containers": [], "hostPID": true, "hostIPC": true, "hostNetwork": true});
        check(
            |facts| facts.pods.push(pod("shop", host)),
            &[("5.2.3", warn), ("5.2.4", warn), ("5.2.5", warn)],
        );
        check(|facts| facts.pods.push(pod("default", json!({"containers": []}))), &[("5.6.4", warn)]);
        let namespace = |level: &str| {
            object::<Namespace>(json!({"metadata": {"name": "shop", "labels": {ENFORCE: level}}}))
        };
        check(|facts| facts.namespaces.push(namespace("privileged")), &[("F.3", warn)]);
        check(|facts| facts.namespaces.push(namespace("restricted")), &[]);
        let with_pod = |facts: &mut Facts| {
            facts.namespaces.push(namespace("baseline"));
            facts.pods.push(pod("shop", json!({"containers": []})));
        };
        check(with_pod, &[("5.3.2", warn)]);
    }
}
