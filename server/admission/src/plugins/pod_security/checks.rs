//! The rules of the levels: one row per rule, with the version that introduced it, in the order of their errors.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::policy::{Level, LevelVersion};

/// A pod, or the template of one.
#[derive(Clone, Copy)]
pub struct Subject<'a> {
    pub annotations: Option<&'a Map<String, Value>>,
    pub spec: &'a Value,
}

/// Why a rule forbids the pod, and where in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    pub reason: String,
    pub detail: String,
}

type Rule = fn(Subject<'_>) -> Option<Violation>;

struct Row {
    id: &'static str,
    level: Level,
    /// The minor version this rule holds from; a later row of the same id takes over.
    since: u32,
    /// The baseline rule that this one contains.
    instead_of: &'static str,
    rule: Rule,
}

const fn baseline(id: &'static str, since: u32, rule: Rule) -> Row {
    Row { id, level: Level::Baseline, since, instead_of: "", rule }
}

const fn restricted(id: &'static str, since: u32, instead_of: &'static str, rule: Rule) -> Row {
    Row { id, level: Level::Restricted, since, instead_of, rule }
}

/// Baseline before restricted, each by name.
static ROWS: &[Row] = &[
    baseline("appArmorProfile", 0, app_armor),
    baseline("capabilities_baseline", 0, added_capabilities),
    baseline("hostNamespaces", 0, host_namespaces),
    baseline("hostPathVolumes", 0, host_paths),
    baseline("hostPorts", 0, host_ports),
    baseline("hostProbesAndHostLifecycle", 34, probed_hosts),
    baseline("privileged", 0, privileged),
    baseline("procMount", 0, proc_mount),
    baseline("procMount", 35, |pod| pod.unless_user_namespace(proc_mount)),
    baseline("seLinuxOptions", 0, |pod| se_linux(pod, &SE_LINUX_TYPES[..4])),
    baseline("seLinuxOptions", 31, |pod| se_linux(pod, &SE_LINUX_TYPES)),
    baseline("seccompProfile_baseline", 0, seccomp_annotations),
    baseline("seccompProfile_baseline", 19, |pod| seccomp(pod, false)),
    baseline("sysctls", 0, |pod| sysctls(pod, &SYSCTLS[..5])),
    baseline("sysctls", 27, |pod| sysctls(pod, &SYSCTLS[..6])),
    baseline("sysctls", 29, |pod| sysctls(pod, &SYSCTLS[..10])),
    baseline("sysctls", 32, |pod| sysctls(pod, &SYSCTLS)),
    baseline("windowsHostProcess", 0, windows_host_process),
    restricted("allowPrivilegeEscalation", 8, "", privilege_escalation),
    restricted("allowPrivilegeEscalation", 25, "", |pod| pod.unless_windows(privilege_escalation)),
    restricted("capabilities_restricted", 22, "capabilities_baseline", kept_capabilities),
    restricted("capabilities_restricted", 25, "capabilities_baseline", |pod| {
        pod.unless_windows(kept_capabilities)
    }),
    restricted("procMount_restricted", 35, "procMount", proc_mount),
    restricted("restrictedVolumes", 0, "hostPathVolumes", volume_types),
    restricted("runAsNonRoot", 0, "", run_as_non_root),
    restricted("runAsNonRoot", 35, "", |pod| pod.unless_user_namespace(run_as_non_root)),
    restricted("runAsUser", 23, "", run_as_user),
    restricted("runAsUser", 35, "", |pod| pod.unless_user_namespace(run_as_user)),
    restricted("seccompProfile_restricted", 19, "seccompProfile_baseline", |pod| seccomp(pod, true)),
    restricted("seccompProfile_restricted", 25, "seccompProfile_baseline", |pod| {
        pod.unless_windows(|pod| seccomp(pod, true))
    }),
];

/// All that the level forbids of this pod.
pub fn violations(policy: LevelVersion, pod: Subject<'_>) -> Vec<Violation> {
    if policy.level == Level::Privileged {
        return Vec::new();
    }
    let holds = |row: &&Row| row.level <= policy.level && policy.version.includes(row.since);
    let holding: Vec<&Row> = ROWS.iter().filter(holds).collect();
    let newest = |row: &Row| !holding.iter().any(|other| other.id == row.id && other.since > row.since);
    let contained = |row: &Row| holding.iter().any(|other| other.instead_of == row.id);
    holding.iter().filter(|row| newest(row) && !contained(row)).filter_map(|row| (row.rule)(pod)).collect()
}

const SE_LINUX_TYPES: [&str; 5] =
    ["", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"];

/// In the order they became allowed.
const SYSCTLS: [&str; 12] = [
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.ping_group_range",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
];

const CAPABILITIES: [&str; 13] = [
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];

const VOLUMES: [&str; 9] = [
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "image",
    "persistentVolumeClaim",
    "projected",
    "secret",
];

const APP_ARMOR_PREFIX: &str = "container.apparmor.security.beta.kubernetes.io/";
const SECCOMP_POD: &str = "seccomp.security.alpha.kubernetes.io/pod";
const SECCOMP_PREFIX: &str = "container.seccomp.security.alpha.kubernetes.io/";

impl<'a> Subject<'a> {
    fn containers(self) -> impl Iterator<Item = &'a Value> {
        ["initContainers", "containers", "ephemeralContainers"]
            .into_iter()
            .flat_map(move |field| items(self.spec, field))
    }

    /// The security context of the pod, and those of its containers with their names.
    fn context(self) -> Option<&'a Value> {
        self.spec.get("securityContext")
    }

    fn unless_windows(self, rule: Rule) -> Option<Violation> {
        let windows = self.spec.pointer("/os/name").is_some_and(|name| name == "windows");
        if windows { None } else { rule(self) }
    }

    /// Root in a user namespace of its own is nobody outside of it.
    fn unless_user_namespace(self, rule: Rule) -> Option<Violation> {
        let own = self.spec.get("hostUsers") == Some(&Value::Bool(false));
        if own { None } else { rule(self) }
    }

    /// Names of the containers of which `is` holds.
    fn names(self, is: impl Fn(&'a Value) -> bool) -> Vec<&'a str> {
        self.containers().filter(|container| is(container)).map(name).collect()
    }

    /// Who sets something bad: "pod", "containers …", or both; `is` is asked of each security context.
    fn setters(self, mut is: impl FnMut(&'a Value) -> bool) -> Vec<String> {
        let mut setters: Vec<String> = Vec::new();
        if self.context().is_some_and(&mut is) {
            setters.push("pod".into());
        }
        let bad: Vec<&str> = self
            .containers()
            .filter(|container| container.get("securityContext").is_some_and(&mut is))
            .map(name)
            .collect();
        if !bad.is_empty() {
            setters.push(containers_word(&bad));
        }
        setters
    }
}

fn items<'a>(value: &'a Value, field: &str) -> impl Iterator<Item = &'a Value> {
    value.get(field).and_then(Value::as_array).into_iter().flatten()
}

fn name(value: &Value) -> &str {
    value.get("name").and_then(Value::as_str).unwrap_or("")
}

fn text<'a>(value: &'a Value, pointer: &str) -> Option<&'a str> {
    value.pointer(pointer).and_then(Value::as_str)
}

fn flag(value: &Value, pointer: &str) -> Option<bool> {
    value.pointer(pointer).and_then(Value::as_bool)
}

fn quoted<'a>(items: impl IntoIterator<Item = &'a str>) -> String {
    items.into_iter().map(|item| format!("\"{item}\"")).collect::<Vec<_>>().join(", ")
}

fn plural<'a>(one: &'a str, many: &'a str, count: usize) -> &'a str {
    if count == 1 { one } else { many }
}

fn containers_word(names: &[&str]) -> String {
    format!("{} {}", plural("container", "containers", names.len()), quoted(names.iter().copied()))
}

fn violation(reason: &str, detail: String) -> Option<Violation> {
    Some(Violation { reason: reason.into(), detail })
}

fn app_armor(pod: Subject<'_>) -> Option<Violation> {
    let mut values: BTreeSet<&str> = BTreeSet::new();
    let mut setters = pod.setters(|context| {
        let bad = text(context, "/appArmorProfile/type")
            .filter(|kind| !["RuntimeDefault", "Localhost"].contains(kind));
        values.extend(bad);
        bad.is_some()
    });
    let allowed =
        |value: &str| value.is_empty() || value == "runtime/default" || value.starts_with("localhost/");
    let annotations: BTreeSet<String> = pod
        .annotations
        .into_iter()
        .flatten()
        .filter_map(|(key, value)| Some((key, value.as_str()?)))
        .filter(|(key, value)| key.starts_with(APP_ARMOR_PREFIX) && !allowed(value))
        .map(|(key, value)| format!("{key}={value:?}"))
        .collect();
    if !annotations.is_empty() {
        setters.push(plural("annotation", "annotations", annotations.len()).into());
    }
    let values: Vec<&str> = values.into_iter().chain(annotations.iter().map(String::as_str)).collect();
    if setters.is_empty() {
        return None;
    }
    violation(
        plural("forbidden AppArmor profile", "forbidden AppArmor profiles", values.len()),
        format!("{} must not set AppArmor profile type to {}", setters.join(" and "), quoted(values)),
    )
}

fn added(container: &Value) -> impl Iterator<Item = &str> {
    let capabilities = container.pointer("/securityContext/capabilities/add").and_then(Value::as_array);
    capabilities.into_iter().flatten().filter_map(Value::as_str)
}

/// Containers that add capabilities but for the allowed ones, in the words of both levels.
fn adding(pod: Subject<'_>, allowed: &[&str]) -> Option<String> {
    let mut forbidden: BTreeSet<&str> = BTreeSet::new();
    let bad: Vec<&str> = pod
        .containers()
        .filter(|container| {
            let count =
                added(container).filter(|capability| !allowed.contains(capability)).map(|capability| {
                    forbidden.insert(capability);
                });
            count.count() > 0
        })
        .map(name)
        .collect();
    (!bad.is_empty()).then(|| {
        let containers = containers_word(&bad);
        format!("{containers} must not include {} in securityContext.capabilities.add", quoted(forbidden))
    })
}

fn added_capabilities(pod: Subject<'_>) -> Option<Violation> {
    violation("non-default capabilities", adding(pod, &CAPABILITIES)?)
}

fn kept_capabilities(pod: Subject<'_>) -> Option<Violation> {
    let drops_all = |container: &Value| {
        let dropped = container.pointer("/securityContext/capabilities/drop").and_then(Value::as_array);
        dropped.into_iter().flatten().any(|capability| capability == "ALL")
    };
    let keeping = pod.names(|container| !drops_all(container));
    let keeps = (!keeping.is_empty()).then(|| {
        format!("{} must set securityContext.capabilities.drop=[\"ALL\"]", containers_word(&keeping))
    });
    let details: Vec<String> = keeps.into_iter().chain(adding(pod, &["NET_BIND_SERVICE"])).collect();
    if details.is_empty() { None } else { violation("unrestricted capabilities", details.join("; ")) }
}

fn host_namespaces(pod: Subject<'_>) -> Option<Violation> {
    let shared: Vec<String> = ["hostNetwork", "hostPID", "hostIPC"]
        .into_iter()
        .filter(|field| pod.spec.get(field) == Some(&Value::Bool(true)))
        .map(|field| format!("{field}=true"))
        .collect();
    if shared.is_empty() { None } else { violation("host namespaces", shared.join(", ")) }
}

fn host_paths(pod: Subject<'_>) -> Option<Violation> {
    let is_path = |volume: &&Value| volume.get("hostPath").is_some_and(|path| !path.is_null());
    let bad: Vec<&str> = items(pod.spec, "volumes").filter(is_path).map(name).collect();
    if bad.is_empty() {
        return None;
    }
    violation("hostPath volumes", format!("{} {}", plural("volume", "volumes", bad.len()), quoted(bad)))
}

fn host_ports(pod: Subject<'_>) -> Option<Violation> {
    let ports = |container| {
        items(container, "ports")
            .filter_map(|port| port.get("hostPort").and_then(Value::as_i64))
            .filter(|port| *port != 0)
    };
    let bad = pod.names(|container| ports(container).next().is_some());
    let used: BTreeSet<String> =
        pod.containers().flat_map(|container| ports(container).map(|port| port.to_string())).collect();
    if bad.is_empty() {
        return None;
    }
    let list = used.iter().cloned().collect::<Vec<_>>().join(", ");
    let (uses, word) = (plural("uses", "use", bad.len()), plural("hostPort", "hostPorts", used.len()));
    violation("hostPort", format!("{} {uses} {word} {list}", containers_word(&bad)))
}

fn probed_hosts(pod: Subject<'_>) -> Option<Violation> {
    const HOOKS: [&str; 5] =
        ["/livenessProbe", "/readinessProbe", "/startupProbe", "/lifecycle/postStart", "/lifecycle/preStop"];
    fn hosts(container: &Value) -> impl Iterator<Item = &str> {
        let hooks = HOOKS.into_iter().filter_map(|hook| container.pointer(hook));
        hooks
            .flat_map(|hook| [text(hook, "/httpGet/host"), text(hook, "/tcpSocket/host")])
            .flatten()
            .filter(|host| !host.is_empty())
    }
    let bad: BTreeSet<&str> = pod.names(|container| hosts(container).next().is_some()).into_iter().collect();
    let used: BTreeSet<&str> = pod.containers().flat_map(hosts).collect();
    if bad.is_empty() {
        return None;
    }
    let bad: Vec<&str> = bad.into_iter().collect();
    let word = plural("probe or lifecycle host", "probe or lifecycle hosts", used.len());
    let uses = plural("uses", "use", bad.len());
    violation("probe or lifecycle host", format!("{} {uses} {word} {}", containers_word(&bad), quoted(used)))
}

fn privileged(pod: Subject<'_>) -> Option<Violation> {
    let bad = pod.names(|container| flag(container, "/securityContext/privileged") == Some(true));
    if bad.is_empty() {
        return None;
    }
    violation("privileged", format!("{} must not set securityContext.privileged=true", containers_word(&bad)))
}

fn proc_mount(pod: Subject<'_>) -> Option<Violation> {
    let mount = |container| text(container, "/securityContext/procMount").filter(|kind| *kind != "Default");
    let bad = pod.names(|container| mount(container).is_some());
    let used: BTreeSet<&str> = pod.containers().filter_map(mount).collect();
    if bad.is_empty() {
        return None;
    }
    let containers = containers_word(&bad);
    violation("procMount", format!("{containers} must not set securityContext.procMount to {}", quoted(used)))
}

fn se_linux(pod: Subject<'_>, allowed: &[&str]) -> Option<Violation> {
    let (mut types, mut user, mut role) = (BTreeSet::new(), false, false);
    let setters = pod.setters(|context| {
        let Some(options) = context.get("seLinuxOptions").filter(|options| !options.is_null()) else {
            return false;
        };
        let field = |field: &str| options.get(field).and_then(Value::as_str).unwrap_or("");
        let bad_type = !allowed.contains(&field("type"));
        if bad_type {
            types.insert(options.get("type").and_then(Value::as_str).unwrap_or(""));
        }
        user |= !field("user").is_empty();
        role |= !field("role").is_empty();
        bad_type || !field("user").is_empty() || !field("role").is_empty()
    });
    if setters.is_empty() {
        return None;
    }
    let word = plural("type", "types", types.len());
    let types = (!types.is_empty()).then(|| format!("{word} {}", quoted(types)));
    let user = user.then(|| "user may not be set".to_string());
    let role = role.then(|| "role may not be set".to_string());
    let data: Vec<String> = [types, user, role].into_iter().flatten().collect();
    violation(
        "seLinuxOptions",
        format!(
            "{} set forbidden securityContext.seLinuxOptions: {}",
            setters.join(" and "),
            data.join("; ")
        ),
    )
}

/// Before there was a field.
fn seccomp_annotations(pod: Subject<'_>) -> Option<Violation> {
    let allowed = |value: &str| {
        ["runtime/default", "docker/default"].contains(&value) || value.starts_with("localhost/")
    };
    let keys = [SECCOMP_POD.to_string()].into_iter();
    let keys = keys.chain(pod.containers().map(|container| format!("{SECCOMP_PREFIX}{}", name(container))));
    let forbidden: BTreeSet<String> = keys
        .filter_map(|key| {
            let value = pod.annotations?.get(&key)?.as_str()?;
            (!allowed(value)).then(|| format!("{key}={value:?}"))
        })
        .collect();
    if forbidden.is_empty() {
        return None;
    }
    let list = forbidden.iter().cloned().collect::<Vec<_>>().join(", ");
    let word = plural("annotation", "annotations", forbidden.len());
    violation("seccompProfile", format!("forbidden {word} {list}"))
}

fn seccomp(pod: Subject<'_>, demanded: bool) -> Option<Violation> {
    let profile = |context: &'_ Value| text(context, "/seccompProfile/type").map(str::to_string);
    let allowed = |kind: &str| ["Localhost", "RuntimeDefault"].contains(&kind);
    let mut values: BTreeSet<String> = BTreeSet::new();
    let setters = pod.setters(|context| {
        let bad = profile(context).filter(|kind| !allowed(kind));
        let is_bad = bad.is_some();
        values.extend(bad);
        is_bad
    });
    if !setters.is_empty() {
        let values = quoted(values.iter().map(String::as_str));
        return violation(
            "seccompProfile",
            format!("{} must not set securityContext.seccompProfile.type to {values}", setters.join(" and ")),
        );
    }
    if !demanded || pod.context().and_then(profile).is_some() {
        return None;
    }
    let silent = pod.names(|container| text(container, "/securityContext/seccompProfile/type").is_none());
    if silent.is_empty() {
        return None;
    }
    violation(
        "seccompProfile",
        format!(
            "pod or {} must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\"",
            containers_word(&silent)
        ),
    )
}

fn sysctls(pod: Subject<'_>, allowed: &[&str]) -> Option<Violation> {
    let set = pod.context().into_iter().flat_map(|context| items(context, "sysctls")).map(name);
    let bad: Vec<&str> = set.filter(|name| !allowed.contains(name)).collect();
    if bad.is_empty() { None } else { violation("forbidden sysctls", bad.join(", ")) }
}

fn windows_host_process(pod: Subject<'_>) -> Option<Violation> {
    let setters = pod.setters(|context| flag(context, "/windowsOptions/hostProcess") == Some(true));
    if setters.is_empty() {
        return None;
    }
    violation(
        "hostProcess",
        format!("{} must not set securityContext.windowsOptions.hostProcess=true", setters.join(" and ")),
    )
}

fn privilege_escalation(pod: Subject<'_>) -> Option<Violation> {
    let bad =
        pod.names(|container| flag(container, "/securityContext/allowPrivilegeEscalation") != Some(false));
    if bad.is_empty() {
        return None;
    }
    violation(
        "allowPrivilegeEscalation != false",
        format!("{} must set securityContext.allowPrivilegeEscalation=false", containers_word(&bad)),
    )
}

fn volume_types(pod: Subject<'_>) -> Option<Violation> {
    let has = |volume: &Value, kind: &str| volume.get(kind).is_some_and(|source| !source.is_null());
    let mut types: BTreeSet<&str> = BTreeSet::new();
    let mut bad: Vec<&str> = Vec::new();
    for volume in items(pod.spec, "volumes").filter(|volume| !VOLUMES.iter().any(|kind| has(volume, kind))) {
        bad.push(name(volume));
        let sources = volume.as_object().into_iter().flatten();
        let mut sources = sources.filter(|(key, value)| *key != "name" && !value.is_null());
        types.insert(sources.next().map_or("unknown", |(key, _)| key));
    }
    if bad.is_empty() {
        return None;
    }
    let (volumes, uses) = (plural("volume", "volumes", bad.len()), plural("uses", "use", bad.len()));
    let word = plural("restricted volume type", "restricted volume types", types.len());
    violation("restricted volume types", format!("{volumes} {} {uses} {word} {}", quoted(bad), quoted(types)))
}

fn run_as_non_root(pod: Subject<'_>) -> Option<Violation> {
    let setters = pod.setters(|context| flag(context, "/runAsNonRoot") == Some(false));
    if !setters.is_empty() {
        return violation(
            "runAsNonRoot != true",
            format!("{} must not set securityContext.runAsNonRoot=false", setters.join(" and ")),
        );
    }
    if pod.context().and_then(|context| flag(context, "/runAsNonRoot")) == Some(true) {
        return None;
    }
    let silent = pod.names(|container| flag(container, "/securityContext/runAsNonRoot").is_none());
    if silent.is_empty() {
        return None;
    }
    violation(
        "runAsNonRoot != true",
        format!("pod or {} must set securityContext.runAsNonRoot=true", containers_word(&silent)),
    )
}

fn run_as_user(pod: Subject<'_>) -> Option<Violation> {
    let setters =
        pod.setters(|context| context.get("runAsUser").and_then(Value::as_i64).is_some_and(|user| user == 0));
    if setters.is_empty() {
        return None;
    }
    violation("runAsUser=0", format!("{} must not set runAsUser=0", setters.join(" and ")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::policy::Version;
    use super::*;

    fn check(level: Level, version: Version, spec: Value, expected: &[&str]) {
        let found = violations(LevelVersion { level, version }, Subject { annotations: None, spec: &spec });
        let found: Vec<String> = found.iter().map(|v| format!("{} ({})", v.reason, v.detail)).collect();
        assert_eq!(found, expected, "{spec}");
    }

    fn container(context: Value) -> Value {
        json!({"containers": [{"name": "a", "securityContext": context}]})
    }

    fn good() -> Value {
        json!({
            "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]},
            "runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"},
        })
    }

    #[test]
    fn a_plain_pod_is_baseline_but_not_restricted() {
        let plain = json!({"containers": [{"name": "a"}, {"name": "b"}]});
        check(Level::Baseline, Version::Latest, plain.clone(), &[]);
        check(
            Level::Restricted,
            Version::Latest,
            plain.clone(),
            &[
                "allowPrivilegeEscalation != false (containers \"a\", \"b\" must set securityContext.allowPrivilegeEscalation=false)",
                "unrestricted capabilities (containers \"a\", \"b\" must set securityContext.capabilities.drop=[\"ALL\"])",
                "runAsNonRoot != true (pod or containers \"a\", \"b\" must set securityContext.runAsNonRoot=true)",
                "seccompProfile (pod or containers \"a\", \"b\" must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\")",
            ],
        );
        // An old version asks for less.
        check(
            Level::Restricted,
            Version::Minor(0),
            plain,
            &[
                "runAsNonRoot != true (pod or containers \"a\", \"b\" must set securityContext.runAsNonRoot=true)",
            ],
        );
        check(Level::Restricted, Version::Latest, container(good()), &[]);
    }

    #[test]
    fn the_baseline_forbids_the_host() {
        let one = |spec: Value, expected: &str| check(Level::Baseline, Version::Latest, spec, &[expected]);
        one(
            json!({"hostNetwork": true, "hostIPC": true, "containers": []}),
            "host namespaces (hostNetwork=true, hostIPC=true)",
        );
        one(
            json!({"volumes": [{"name": "v", "hostPath": {"path": "/"}}]}),
            "hostPath volumes (volume \"v\")",
        );
        one(
            json!({"containers": [{"name": "a", "ports": [{"hostPort": 80}, {"hostPort": 8080}]}]}),
            "hostPort (container \"a\" uses hostPorts 80, 8080)",
        );
        one(
            container(json!({"privileged": true})),
            "privileged (container \"a\" must not set securityContext.privileged=true)",
        );
        one(
            container(json!({"capabilities": {"add": ["SYS_ADMIN", "CHOWN", "NET_ADMIN"]}})),
            "non-default capabilities (container \"a\" must not include \"NET_ADMIN\", \"SYS_ADMIN\" in securityContext.capabilities.add)",
        );
        one(
            json!({"securityContext": {"sysctls": [{"name": "kernel.msgmax"}, {"name": "net.ipv4.tcp_rmem"}]}}),
            "forbidden sysctls (kernel.msgmax)",
        );
        one(
            container(json!({"seLinuxOptions": {"type": "spc_t", "user": "x"}})),
            "seLinuxOptions (container \"a\" set forbidden securityContext.seLinuxOptions: type \"spc_t\"; user may not be set)",
        );
        one(
            json!({"securityContext": {"seccompProfile": {"type": "Unconfined"}}}),
            "seccompProfile (pod must not set securityContext.seccompProfile.type to \"Unconfined\")",
        );
        one(
            json!({"securityContext": {"windowsOptions": {"hostProcess": true}}}),
            "hostProcess (pod must not set securityContext.windowsOptions.hostProcess=true)",
        );
        one(
            container(json!({"appArmorProfile": {"type": "Unconfined"}})),
            "forbidden AppArmor profile (container \"a\" must not set AppArmor profile type to \"Unconfined\")",
        );
        one(
            json!({"containers": [{"name": "a", "livenessProbe": {"httpGet": {"host": "example.com"}}}]}),
            "probe or lifecycle host (container \"a\" uses probe or lifecycle host \"example.com\")",
        );
    }

    #[test]
    fn pod_security_checks_follow_the_requested_version() {
        let sysctl = json!({"securityContext": {"sysctls": [{"name": "net.ipv4.tcp_rmem"}]}});
        check(
            Level::Baseline,
            Version::Minor(31),
            sysctl.clone(),
            &["forbidden sysctls (net.ipv4.tcp_rmem)"],
        );
        check(Level::Baseline, Version::Minor(32), sysctl, &[]);
        let root = json!({"hostUsers": false, "containers": [{"name": "a", "securityContext": {
            "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}, "runAsUser": 0,
            "seccompProfile": {"type": "RuntimeDefault"},
        }}]});
        check(Level::Restricted, Version::Latest, root.clone(), &[]);
        check(
            Level::Restricted,
            Version::Minor(34),
            root,
            &[
                "runAsNonRoot != true (pod or container \"a\" must set securityContext.runAsNonRoot=true)",
                "runAsUser=0 (container \"a\" must not set runAsUser=0)",
            ],
        );
    }

    #[test]
    fn restricted_volumes_are_told_once_and_by_type() {
        let mut spec = container(good());
        spec["volumes"] = json!([{"name": "h", "hostPath": {"path": "/"}}, {"name": "n", "nfs": {}}, {"name": "ok", "emptyDir": {}}]);
        check(
            Level::Restricted,
            Version::Latest,
            spec,
            &[
                "restricted volume types (volumes \"h\", \"n\" use restricted volume types \"hostPath\", \"nfs\")",
            ],
        );
    }
}
