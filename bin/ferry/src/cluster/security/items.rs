//! What the facts come to: one function for each group of items, without any reading of its own.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Namespace, Pod};
use k8s_openapi::api::rbac::v1::{PolicyRule, RoleRef, Subject};

use super::facts::{Facts, FileFact, ServerFacts};
use super::{Finding, Verdict};

/// A certificate that ends sooner should have been renewed: that happens when two thirds of its life are over.
const SOON: Duration = Duration::from_secs(7 * 86_400);
/// What is named in a line of findings.
const NAMED: usize = 5;
const ENFORCE: &str = "pod-security.kubernetes.io/enforce";
/// Made by every cluster, and not for workloads.
const SYSTEM: &[&str] = &["kube-system", "kube-public", "kube-node-lease"];

pub fn judge(facts: &Facts) -> Vec<Finding> {
    let mut findings = files(&facts.files);
    findings.extend(certificates(facts));
    findings.extend(access(facts));
    findings.extend(server(&facts.server));
    findings.extend(kubelets(facts));
    findings.extend(rights(facts));
    findings.extend(workloads(facts));
    findings
}

/// Passes where nothing offends; else what does is named.
fn finding(
    id: &'static str,
    title: &'static str,
    otherwise: Verdict,
    offending: Vec<String>,
    fine: impl Into<String>,
    remedy: &'static str,
) -> Finding {
    if offending.is_empty() {
        return Finding { id, title, verdict: Verdict::Pass, found: fine.into(), remedy: "" };
    }
    let more = offending.len().saturating_sub(NAMED);
    let mut found = offending[..offending.len().min(NAMED)].join(", ");
    if more > 0 {
        found.push_str(&format!(" and {more} more"));
    }
    Finding { id, title, verdict: otherwise, found, remedy }
}

fn one(
    id: &'static str,
    title: &'static str,
    otherwise: Verdict,
    is_fine: bool,
    found: impl Into<String>,
    remedy: &'static str,
) -> Finding {
    let (verdict, remedy) = if is_fine { (Verdict::Pass, "") } else { (otherwise, remedy) };
    Finding { id, title, verdict, found: found.into(), remedy }
}

fn files(files: &[FileFact]) -> Vec<Finding> {
    let extension =
        |file: &FileFact| file.path.extension().and_then(|it| it.to_str()).unwrap_or("").to_string();
    let name = |file: &FileFact| {
        file.path.file_name().map(|it| it.to_string_lossy().into_owned()).unwrap_or_default()
    };
    let in_store = |file: &FileFact| file.path.parent().is_some_and(|parent| parent.ends_with("store"));
    let in_pki = |file: &FileFact| {
        file.path.ends_with("pki") || file.path.parent().is_some_and(|parent| parent.ends_with("pki"))
    };
    let wider_than = |allowed: u32, select: &dyn Fn(&FileFact) -> bool| -> Vec<String> {
        let wide = files.iter().filter(|file| select(file) && file.mode & 0o777 & !allowed != 0);
        wide.map(|file| format!("{} is {:o}", file.path.display(), file.mode)).collect()
    };
    let not_roots = |select: &dyn Fn(&FileFact) -> bool| -> Vec<String> {
        let others = files.iter().filter(|file| select(file) && (file.user, file.group) != (0, 0));
        others.map(|file| format!("{} is of {}:{}", file.path.display(), file.user, file.group)).collect()
    };
    let is_store = |file: &FileFact| (file.is_directory && name(file) == "store") || in_store(file);
    let is_admin = |file: &FileFact| extension(file) == "kubeconfig" || name(file) == "server-token";
    let is_key = |file: &FileFact| !file.is_directory && extension(file) == "key";
    let is_certificate = |file: &FileFact| {
        !file.is_directory && in_pki(file) && matches!(extension(file).as_str(), "crt" | "pem" | "pub")
    };
    let fail = Verdict::Fail;
    vec![
        finding(
            "1.1.11",
            "the store is for its owner alone",
            fail,
            wider_than(0o700, &is_store),
            "700 and 600",
            "chmod -R go= DATA_DIR/store",
        ),
        finding(
            "1.1.12",
            "the store is root's",
            fail,
            not_roots(&is_store),
            "root:root",
            "chown -R root:root DATA_DIR/store",
        ),
        finding(
            "1.1.13",
            "kubeconfigs and tokens of administrators are for their owner alone",
            fail,
            wider_than(0o600, &is_admin),
            "600",
            "chmod 600 DATA_DIR/*.kubeconfig DATA_DIR/server-token",
        ),
        finding(
            "1.1.14",
            "kubeconfigs and tokens of administrators are root's",
            fail,
            not_roots(&is_admin),
            "root:root",
            "chown root:root DATA_DIR/*.kubeconfig DATA_DIR/server-token",
        ),
        finding(
            "1.1.19",
            "keys and certificates are root's",
            fail,
            not_roots(&in_pki),
            "root:root",
            "chown -R root:root DATA_DIR/pki",
        ),
        finding(
            "1.1.20",
            "certificates are written by their owner alone",
            fail,
            wider_than(0o644, &is_certificate),
            "644 or less",
            "chmod go-w DATA_DIR/pki/*.crt",
        ),
        finding(
            "1.1.21",
            "keys are for their owner alone",
            fail,
            wider_than(0o600, &is_key),
            "600",
            "chmod 600 DATA_DIR/pki/*.key",
        ),
        finding(
            "F.1",
            "the data directory is written by its owner alone",
            fail,
            wider_than(0o755, &|file| file.is_directory),
            "755 or less",
            "chmod go-w DATA_DIR",
        ),
    ]
}

fn certificates(facts: &Facts) -> Vec<Finding> {
    let ends = |limit: Duration| -> Vec<String> {
        let ending = facts.certificates.iter().filter(|(_, end)| *end <= facts.now + limit);
        ending.map(|(path, _)| file_name(path)).collect()
    };
    let expired = ends(Duration::ZERO);
    let remedy = "a running server renews its certificates by itself; see its log for why it does not";
    vec![match expired.is_empty() {
        false => finding("F.2", "certificates are valid", Verdict::Fail, expired, "", remedy),
        true => {
            let fine = format!("{} certificates, none ends within a week", facts.certificates.len());
            finding("F.2", "certificates are valid", Verdict::Warn, ends(SOON), fine, remedy)
        }
    }]
}

fn file_name(path: &Path) -> String {
    path.file_name().map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into_owned())
}

/// What nobody in particular is told.
fn access(facts: &Facts) -> Vec<Finding> {
    let open =
        facts.anonymous.iter().filter(|(path, code)| *path != "/healthz" && ![401, 403].contains(code));
    let open = open.map(|(path, code)| format!("{path} answers {code}")).collect();
    vec![
        finding(
            "1.2.1",
            "requests without credentials are refused",
            Verdict::Fail,
            open,
            "only health and version are answered",
            "take away what ClusterRoleBindings give to system:anonymous and system:unauthenticated",
        ),
        one(
            "1.2.15",
            "profiling is off",
            Verdict::Fail,
            facts.profiling == 404,
            format!("/debug/pprof/ answers {}", facts.profiling),
            "this server has no profiling; what answers at that path?",
        ),
        one(
            "1.2.24",
            "the API is served over TLS only",
            Verdict::Fail,
            !facts.answers_plainly,
            if facts.answers_plainly {
                "HTTP without TLS is answered"
            } else {
                "HTTP without TLS is not answered"
            },
            "what listens at the server's port is no server of Ferry's",
        ),
        // rustls has no older versions and no weaker ciphers, whatever is asked for.
        one(
            "1.2.29",
            "TLS 1.2 and 1.3 with forward secrecy and authenticated encryption only",
            Verdict::Fail,
            weak_suites().is_empty(),
            format!("{} cipher suites are offered", suites().len()),
            "build Ferry with rustls' own list of suites",
        ),
    ]
}

fn suites() -> Vec<String> {
    let provider = ferry_auth::tls::provider();
    provider.cipher_suites.iter().map(|suite| format!("{:?}", suite.suite())).collect()
}

fn weak_suites() -> Vec<String> {
    let is_strong = |name: &String| {
        let has_secrecy = name.starts_with("TLS13_") || name.starts_with("TLS_ECDHE_");
        has_secrecy && (name.contains("GCM") || name.contains("CHACHA20"))
    };
    suites().into_iter().filter(|name| !is_strong(name)).collect()
}

fn server(server: &ServerFacts) -> Vec<Finding> {
    let modes = &server.authorization_modes;
    let has_mode = |mode: &str| modes.iter().any(|it| it == mode);
    let said = |list: &[String]| if list.is_empty() { "none".to_string() } else { list.join(",") };
    let is_off = |plugin: &str| server.disabled_plugins.iter().any(|it| it == plugin);
    let is_on = |plugin: &str| server.enabled_plugins.iter().any(|it| it == plugin);
    let files: Vec<String> = [&server.token_auth_file, &server.basic_auth_file]
        .into_iter()
        .flatten()
        .map(|path| path.display().to_string())
        .collect();
    let (fail, warn) = (Verdict::Fail, Verdict::Warn);
    let mut findings = vec![
        finding(
            "1.2.2",
            "no passwords and tokens in files",
            fail,
            files,
            "neither --token-auth-file nor --basic-auth-file",
            "use certificates, service accounts or OIDC, and leave the flag out",
        ),
        one(
            "1.2.6",
            "not everything is allowed",
            fail,
            !has_mode("AlwaysAllow"),
            said(modes),
            "take AlwaysAllow out of --authorization-mode",
        ),
        one(
            "1.2.7",
            "nodes are held to their own pods",
            fail,
            has_mode("Node"),
            said(modes),
            "add Node to --authorization-mode",
        ),
        one(
            "1.2.8",
            "rights are given by RBAC",
            fail,
            has_mode("RBAC"),
            said(modes),
            "add RBAC to --authorization-mode",
        ),
        one(
            "1.2.10",
            "admission judges",
            fail,
            !is_on("AlwaysAdmit"),
            "AlwaysAdmit is not enabled",
            "take AlwaysAdmit out of --enable-admission-plugins",
        ),
        one(
            "1.2.11",
            "images are asked of their registry for each pod",
            warn,
            is_on("AlwaysPullImages"),
            if is_on("AlwaysPullImages") {
                "AlwaysPullImages is enabled"
            } else {
                "AlwaysPullImages is not enabled"
            },
            "--enable-admission-plugins=AlwaysPullImages, where the tenants of a node do not trust each other",
        ),
    ];
    for (id, title, plugin) in [
        ("1.2.12", "pods run as service accounts", "ServiceAccount"),
        ("1.2.13", "nothing is made in namespaces that end", "NamespaceLifecycle"),
        ("1.2.14", "kubelets change their own node and pods only", "NodeRestriction"),
        ("5.2.1", "a pod security standard can be enforced", "PodSecurity"),
    ] {
        let found = format!("{plugin} is {}", if is_off(plugin) { "disabled" } else { "in effect" });
        findings.push(one(
            id,
            title,
            fail,
            !is_off(plugin),
            found,
            "take it out of --disable-admission-plugins",
        ));
    }
    findings.extend(audit(server));
    findings.push(one(
        "1.2.20",
        "requests have a time limit",
        warn,
        (Duration::from_secs(1)..=Duration::from_secs(300)).contains(&server.request_timeout),
        format!("{} s", server.request_timeout.as_secs()),
        "--request-timeout between a second and five minutes",
    ));
    findings.push(encryption(server));
    if !server.etcd_servers.is_empty() {
        let plain: Vec<String> =
            server.etcd_servers.iter().filter(|url| !url.starts_with("https://")).cloned().collect();
        findings.push(finding(
            "1.2.26",
            "etcd is reached over TLS",
            fail,
            plain,
            "https, with its authority",
            "https:// in --etcd-servers, and --etcd-cafile",
        ));
        findings.push(one(
            "1.2.23",
            "the server shows etcd a certificate",
            fail,
            server.etcd_certificate && server.etcd_ca,
            format!("certificate: {}, authority: {}", server.etcd_certificate, server.etcd_ca),
            "--etcd-certfile, --etcd-keyfile and --etcd-cafile",
        ));
    }
    findings
}

fn audit(server: &ServerFacts) -> Vec<Finding> {
    let is_written = server.audit_log.is_some() || server.audit_webhook.is_some();
    let sink = server.audit_log.as_ref().or(server.audit_webhook.as_ref());
    let sink = sink.map_or_else(|| "nowhere".to_string(), |path| path.display().to_string());
    let warn = Verdict::Warn;
    let mut findings = vec![
        one(
            "1.2.16",
            "requests are written down",
            Verdict::Fail,
            is_written,
            format!("to {sink}"),
            "--audit-policy-file with --audit-log-path or --audit-webhook-config-file",
        ),
        one(
            "3.2.1",
            "an audit policy says what is written down",
            Verdict::Fail,
            server.audit_policy.is_some(),
            server.audit_policy.as_ref().map_or_else(|| "none".into(), |path| path.display().to_string()),
            "--audit-policy-file: at the least level Metadata for everything",
        ),
    ];
    if server.audit_log.is_some() {
        // 0 stands for no limit: then nothing is taken away.
        let keeps = |number: u64, least: u64| number == 0 || number >= least;
        let rows = [
            (
                "1.2.17",
                "audit logs are kept for 30 days",
                u64::from(server.audit_max_age),
                30,
                "--audit-log-maxage=30",
            ),
            (
                "1.2.18",
                "ten audit logs are kept",
                server.audit_max_backup as u64,
                10,
                "--audit-log-maxbackup=10",
            ),
            (
                "1.2.19",
                "an audit log may grow to 100 MB",
                server.audit_max_size,
                100,
                "--audit-log-maxsize=100",
            ),
        ];
        for (id, title, number, least, remedy) in rows {
            let found = if number == 0 { "no limit".to_string() } else { number.to_string() };
            findings.push(one(id, title, warn, keeps(number, least), found, remedy));
        }
    }
    findings
}

fn encryption(server: &ServerFacts) -> Finding {
    let provider = server.secrets_provider.as_deref();
    one(
        "1.2.27",
        "Secrets are encrypted in the store",
        Verdict::Fail,
        provider.is_some_and(|provider| provider != "identity"),
        provider.map_or_else(|| "they are not".to_string(), |provider| format!("by {provider}")),
        "--encryption-provider-config with secretbox before identity; docs/security.md shows the file",
    )
}

fn kubelets(facts: &Facts) -> Vec<Finding> {
    let open = facts.kubelets.iter().filter_map(|kubelet| match kubelet.anonymous {
        Some(401 | 403) => None,
        Some(code) => Some(format!("{} answers {code}", kubelet.node)),
        None => None,
    });
    let silent = facts.kubelets.iter().filter(|kubelet| kubelet.anonymous.is_none());
    let telling = facts.kubelets.iter().filter(|kubelet| kubelet.read_only_port);
    let asked = facts.kubelets.iter().filter(|kubelet| kubelet.anonymous.is_some()).count();
    let mut findings = vec![
        finding(
            "4.2.1",
            "kubelets refuse requests without credentials",
            Verdict::Fail,
            open.collect(),
            format!("{asked} asked"),
            "authentication.anonymous.enabled: false and authorization.mode: Webhook in the kubelet's file",
        ),
        finding(
            "4.2.4",
            "kubelets have no read-only port",
            Verdict::Fail,
            telling.map(|kubelet| kubelet.node.clone()).collect(),
            "10255 is closed",
            "readOnlyPort: 0 in the kubelet's file",
        ),
    ];
    let silent: Vec<String> = silent.map(|kubelet| kubelet.node.clone()).collect();
    if !silent.is_empty() {
        let remedy = "look at these nodes by themselves";
        findings.push(finding("4.2.2", "kubelets were asked", Verdict::Warn, silent, "", remedy));
    }
    findings
}

fn rights(facts: &Facts) -> Vec<Finding> {
    let warn = Verdict::Warn;
    let is_admin = |role: &RoleRef| role.kind == "ClusterRole" && role.name == "cluster-admin";
    let named = |subject: &Subject| format!("{} {}", subject.kind, subject.name);
    let admins: Vec<String> = facts
        .cluster_role_bindings
        .iter()
        .filter(|binding| is_admin(&binding.role_ref))
        .flat_map(|binding| binding.subjects.iter().flatten())
        .filter(|subject| subject.name != "system:masters")
        .map(named)
        .collect();
    let everybody = |subject: &&Subject| {
        matches!(subject.name.as_str(), "system:anonymous" | "system:unauthenticated")
            && subject.kind != "ServiceAccount"
    };
    // What every cluster gives to everybody: its version and health.
    let public = |name: &str| name == "system:public-info-viewer";
    let for_everybody: Vec<String> = facts
        .cluster_role_bindings
        .iter()
        .filter(|binding| !public(&binding.role_ref.name))
        .filter(|binding| binding.subjects.iter().flatten().any(|subject| everybody(&subject)))
        .map(|binding| binding.metadata.name.clone().unwrap_or_default())
        .collect();
    let is_wild = |rule: &PolicyRule| {
        let star = |list: &Option<Vec<String>>| list.iter().flatten().any(|word| word == "*");
        rule.verbs.iter().any(|verb| verb == "*") && star(&rule.resources) && star(&rule.api_groups)
    };
    let wild: Vec<String> = facts
        .cluster_roles
        .iter()
        .filter(|role| role.rules.iter().flatten().any(is_wild))
        .filter_map(|role| role.metadata.name.clone())
        .filter(|name| name != "cluster-admin" && !name.starts_with("system:"))
        .collect();
    let is_default = |subject: &Subject| subject.kind == "ServiceAccount" && subject.name == "default";
    let bindings = facts.cluster_role_bindings.iter().map(|it| (&it.metadata, &it.subjects));
    let bindings = bindings.chain(facts.role_bindings.iter().map(|it| (&it.metadata, &it.subjects)));
    let for_default: Vec<String> = bindings
        .filter(|(_, subjects)| subjects.iter().flatten().any(is_default))
        .map(|(metadata, _)| metadata.name.clone().unwrap_or_default())
        .collect();
    let mounting: Vec<String> = facts
        .service_accounts
        .iter()
        .filter(|account| account.metadata.name.as_deref() == Some("default"))
        .filter(|account| account.automount_service_account_token != Some(false))
        .filter_map(|account| account.metadata.namespace.clone())
        .filter(|namespace| !SYSTEM.contains(&namespace.as_str()))
        .collect();
    vec![
        finding(
            "5.1.1",
            "cluster-admin is for few",
            warn,
            admins,
            "only system:masters",
            "bind a narrower role where one does",
        ),
        finding(
            "5.1.13",
            "nothing is given to everybody",
            Verdict::Fail,
            for_everybody,
            "no binding but that of version and health",
            "delete these ClusterRoleBindings",
        ),
        finding(
            "5.1.3",
            "roles name what they allow",
            warn,
            wild,
            "no role of * but cluster-admin",
            "name groups, resources and verbs",
        ),
        finding(
            "5.1.5",
            "default service accounts have no rights",
            Verdict::Fail,
            for_default,
            "no binding names one",
            "give the workload an account of its own",
        ),
        finding(
            "5.1.6",
            "default service accounts give no tokens away",
            warn,
            mounting.iter().map(|namespace| format!("namespace {namespace}")).collect(),
            "automountServiceAccountToken is false",
            "automountServiceAccountToken: false on the account default of these namespaces",
        ),
    ]
}

fn workloads(facts: &Facts) -> Vec<Finding> {
    let warn = Verdict::Warn;
    let name = |namespace: &Namespace| namespace.metadata.name.clone().unwrap_or_default();
    let own: Vec<&Namespace> =
        facts.namespaces.iter().filter(|namespace| !SYSTEM.contains(&name(namespace).as_str())).collect();
    let unenforced = own.iter().filter(|namespace| {
        let level = namespace.metadata.labels.iter().flatten().find(|(label, _)| *label == ENFORCE);
        level.is_none_or(|(_, level)| level == "privileged")
    });
    let isolated: BTreeSet<&str> =
        facts.network_policies.iter().filter_map(|policy| policy.metadata.namespace.as_deref()).collect();
    let pods_in: BTreeSet<&str> =
        facts.pods.iter().filter_map(|pod| pod.metadata.namespace.as_deref()).collect();
    let unisolated: Vec<String> = own
        .iter()
        .map(|namespace| name(namespace))
        .filter(|name| pods_in.contains(name.as_str()) && !isolated.contains(name.as_str()))
        .collect();
    let pods = |offends: &dyn Fn(&Pod) -> bool| -> Vec<String> {
        let namespace = |pod: &Pod| pod.metadata.namespace.clone().unwrap_or_default();
        let offending =
            facts.pods.iter().filter(|pod| !SYSTEM.contains(&namespace(pod).as_str()) && offends(pod));
        offending
            .map(|pod| format!("{}/{}", namespace(pod), pod.metadata.name.clone().unwrap_or_default()))
            .collect()
    };
    let spec = |pod: &Pod, is: &dyn Fn(&k8s_openapi::api::core::v1::PodSpec) -> Option<bool>| {
        pod.spec.as_ref().and_then(is) == Some(true)
    };
    let privileged = |pod: &Pod| {
        let spec = pod.spec.iter();
        let containers =
            spec.flat_map(|spec| spec.containers.iter().chain(spec.init_containers.iter().flatten()));
        containers
            .filter_map(|container| container.security_context.as_ref())
            .any(|it| it.privileged == Some(true))
    };
    let in_default = facts.pods.iter().filter(|pod| pod.metadata.namespace.as_deref() == Some("default"));
    let remedy = "kubectl label namespace NAME pod-security.kubernetes.io/enforce=baseline";
    vec![
        finding("5.2.2", "no privileged containers", warn, pods(&privileged), "none", remedy),
        finding(
            "5.2.3",
            "no pods in the host's processes",
            warn,
            pods(&|pod| spec(pod, &|it| it.host_pid)),
            "none",
            remedy,
        ),
        finding(
            "5.2.4",
            "no pods in the host's IPC",
            warn,
            pods(&|pod| spec(pod, &|it| it.host_ipc)),
            "none",
            remedy,
        ),
        finding(
            "5.2.5",
            "no pods in the host's network",
            warn,
            pods(&|pod| spec(pod, &|it| it.host_network)),
            "none",
            remedy,
        ),
        finding(
            "F.3",
            "namespaces enforce a pod security standard",
            warn,
            unenforced.map(|namespace| name(namespace)).collect(),
            "all but the system's",
            remedy,
        ),
        finding(
            "5.3.2",
            "namespaces with pods have network policies",
            warn,
            unisolated,
            "all of them",
            "apply a NetworkPolicy that denies by default, and one for what is needed",
        ),
        finding(
            "5.6.4",
            "the default namespace is not used",
            warn,
            in_default.filter_map(|pod| pod.metadata.name.clone()).collect(),
            "no pods in it",
            "give each application a namespace of its own",
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::facts::{KubeletFacts, secrets_provider};
    use super::*;
    use serde_json::json;
    use std::time::SystemTime;

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
    fn modes_and_owners_of_files() {
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
    fn certificates_that_end() {
        let ends = |seconds| ("/d/pki/a.crt".into(), SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
        check(|facts| facts.certificates.push(ends(0)), &[("F.2", Verdict::Fail)]);
        check(|facts| facts.certificates.push(ends(86_400)), &[("F.2", Verdict::Warn)]);
        check(|facts| facts.certificates.push(ends(30 * 86_400)), &[]);
    }

    #[test]
    fn what_is_answered_without_credentials() {
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
    fn flags_of_the_server() {
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
    fn rights_that_reach_far() {
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
    fn pods_and_namespaces() {
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
