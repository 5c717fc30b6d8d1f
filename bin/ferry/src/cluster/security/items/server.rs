//! The API server: its flags, its responses to requests without credentials, and its TLS.

use std::path::PathBuf;
use std::time::Duration;

use super::Item;
use crate::cluster::security::Finding;
use crate::cluster::security::facts::{Facts, ServerFacts};

/// What the port answers.
pub(super) fn port(facts: &Facts) -> Vec<Finding> {
    let open =
        facts.anonymous.iter().filter(|(path, code)| *path != "/healthz" && ![401, 403].contains(code));
    let open = open.map(|(path, code)| format!("{path} answers {code}")).collect();
    let plain = if facts.answers_plainly { "is answered" } else { "is not answered" };
    vec![
        Item(
            "1.2.1",
            "requests without credentials are refused",
            "take away what ClusterRoleBindings give to system:anonymous and system:unauthenticated",
        )
        .must_find_none(open, "only health and version are answered"),
        Item("1.2.15", "profiling is off", "this server has no profiling; find what answers at that path")
            .must(facts.profiling == 404, format!("/debug/pprof/ answers {}", facts.profiling)),
        Item(
            "1.2.24",
            "the API is served over TLS only",
            "the program that listens on the server's port is not Ferry's",
        )
        .must(!facts.answers_plainly, format!("HTTP without TLS {plain}")),
        // rustls has no older versions and no weaker ciphers.
        Item(
            "1.2.29",
            "TLS 1.2 and 1.3 with forward secrecy and authenticated encryption only",
            "build Ferry with rustls' own list of suites",
        )
        .must(weak_suites().is_empty(), format!("{} cipher suites are offered", suites().len())),
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

/// What the flags say.
pub(super) fn flags(server: &ServerFacts) -> Vec<Finding> {
    let mut findings = vec![credential_files(server)];
    findings.extend(authorization(&server.authorization_modes));
    findings.extend(admission(server));
    findings.extend(audit(server));
    findings.push(request_timeout(server.request_timeout));
    findings.push(encryption(server));
    findings.extend(etcd(server));
    findings
}

fn credential_files(server: &ServerFacts) -> Finding {
    let files = [&server.token_auth_file, &server.basic_auth_file].into_iter().flatten();
    Item(
        "1.2.2",
        "no passwords and tokens in files",
        "use certificates, service accounts or OIDC, and leave the flag out",
    )
    .must_find_none(
        files.map(|path| path.display().to_string()).collect(),
        "neither --token-auth-file nor --basic-auth-file",
    )
}

fn authorization(modes: &[String]) -> Vec<Finding> {
    let found = if modes.is_empty() { "none".to_string() } else { modes.join(",") };
    let has_mode = |mode: &str| modes.iter().any(|it| it == mode);
    vec![
        Item("1.2.6", "AlwaysAllow is not an authorization mode", "take it out of --authorization-mode")
            .must(!has_mode("AlwaysAllow"), found.clone()),
        Item("1.2.7", "the Node authorizer is on", "add Node to --authorization-mode")
            .must(has_mode("Node"), found.clone()),
        Item("1.2.8", "RBAC is on", "add RBAC to --authorization-mode").must(has_mode("RBAC"), found),
    ]
}

fn admission(server: &ServerFacts) -> Vec<Finding> {
    let is_on = |plugin: &str| server.enabled_plugins.iter().any(|it| it == plugin);
    let pulls = is_on("AlwaysPullImages");
    let mut findings = vec![
        Item("1.2.10", "AlwaysAdmit is off", "take AlwaysAdmit out of --enable-admission-plugins")
            .must(!is_on("AlwaysAdmit"), "AlwaysAdmit is not enabled"),
        Item(
            "1.2.11",
            "AlwaysPullImages is on",
            "--enable-admission-plugins=AlwaysPullImages, where the tenants of a node do not trust each other",
        )
        .should(pulls, format!("AlwaysPullImages is {}", if pulls { "enabled" } else { "not enabled" })),
    ];
    let required = [
        ("1.2.12", "pods run as service accounts", "ServiceAccount"),
        ("1.2.13", "terminating namespaces take no new objects", "NamespaceLifecycle"),
        ("1.2.14", "kubelets change their own node and pods only", "NodeRestriction"),
        ("5.2.1", "pod security standards can be enforced", "PodSecurity"),
    ];
    findings.extend(required.map(|(id, title, plugin)| {
        let is_off = server.disabled_plugins.iter().any(|it| it == plugin);
        let found = format!("{plugin} is {}", if is_off { "disabled" } else { "in effect" });
        Item(id, title, "take it out of --disable-admission-plugins").must(!is_off, found)
    }));
    findings
}

fn audit(server: &ServerFacts) -> Vec<Finding> {
    let path = |path: Option<&PathBuf>| path.map(|path| path.display().to_string());
    let sink = path(server.audit_log.as_ref().or(server.audit_webhook.as_ref()));
    let policy = path(server.audit_policy.as_ref());
    let mut findings = vec![
        Item(
            "1.2.16",
            "requests are audited",
            "--audit-policy-file with --audit-log-path or --audit-webhook-config-file",
        )
        .must(sink.is_some(), format!("to {}", sink.as_deref().unwrap_or("nowhere"))),
        Item(
            "3.2.1",
            "an audit policy is set",
            "--audit-policy-file: at the least level Metadata for everything",
        )
        .must(policy.is_some(), policy.unwrap_or_else(|| "none".into())),
    ];
    if server.audit_log.is_some() {
        let (age, backups) = (u64::from(server.audit_max_age), server.audit_max_backup as u64);
        let limits = [
            ("1.2.17", "audit logs are kept for 30 days", age, 30, "--audit-log-maxage=30"),
            ("1.2.18", "ten audit logs are kept", backups, 10, "--audit-log-maxbackup=10"),
            (
                "1.2.19",
                "an audit log may grow to 100 MB",
                server.audit_max_size,
                100,
                "--audit-log-maxsize=100",
            ),
        ];
        // 0 stands for no limit.
        findings.extend(limits.map(|(id, title, limit, least, remedy)| match limit {
            0 => Item(id, title, remedy).should(true, "no limit"),
            limit => Item(id, title, remedy).should(limit >= least, limit.to_string()),
        }));
    }
    findings
}

fn request_timeout(timeout: Duration) -> Finding {
    let accepted = Duration::from_secs(1)..=Duration::from_secs(300);
    Item("1.2.20", "requests have a time limit", "--request-timeout between a second and five minutes")
        .should(accepted.contains(&timeout), format!("{} s", timeout.as_secs()))
}

fn encryption(server: &ServerFacts) -> Finding {
    let provider = server.secrets_provider.as_deref();
    Item(
        "1.2.27",
        "Secrets are encrypted in the store",
        "--encryption-provider-config with secretbox before identity; docs/security.md shows the file",
    )
    .must(
        provider.is_some_and(|provider| provider != "identity"),
        provider.map_or_else(|| "they are not".to_string(), |provider| format!("by {provider}")),
    )
}

/// None for the embedded store.
fn etcd(server: &ServerFacts) -> Vec<Finding> {
    if server.etcd_servers.is_empty() {
        return Vec::new();
    }
    let plain = server.etcd_servers.iter().filter(|url| !url.starts_with("https://"));
    vec![
        Item("1.2.26", "etcd is reached over TLS", "https:// in --etcd-servers, and --etcd-cafile")
            .must_find_none(plain.cloned().collect(), "https, with its authority"),
        Item(
            "1.2.23",
            "the server shows etcd a certificate",
            "--etcd-certfile, --etcd-keyfile and --etcd-cafile",
        )
        .must(
            server.etcd_certificate && server.etcd_ca,
            format!("certificate: {}, authority: {}", server.etcd_certificate, server.etcd_ca),
        ),
    ]
}
