//! The kubelet's flags that stand for a field of its configuration file: what is given here wins over the file.

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use serde_json::{Map, Value};

const HEADING: &str = "Settings of the configuration file; a flag wins over the file";

/// A flag, the path of its field, and how its value is written.
struct Setting(&'static str, &'static str, Form);

#[derive(Clone, Copy)]
enum Form {
    Text,
    Number,
    Switch,
    List,
    /// Pairs like `cpu=200m`, told apart by this character.
    Pairs(char),
    /// Taints like `key=value:NoSchedule`.
    Taints,
}

use Form::{List, Number, Pairs, Switch, Taints, Text};

const SETTINGS: &[Setting] = &[
    Setting("address", "address", Text),
    Setting("allowed-unsafe-sysctls", "allowedUnsafeSysctls", List),
    Setting("anonymous-auth", "authentication.anonymous.enabled", Switch),
    Setting("cgroup-driver", "cgroupDriver", Text),
    Setting("cgroup-root", "cgroupRoot", Text),
    Setting("client-ca-file", "authentication.x509.clientCAFile", Text),
    Setting("cluster-dns", "clusterDNS", List),
    Setting("cluster-domain", "clusterDomain", Text),
    Setting("container-log-max-files", "containerLogMaxFiles", Number),
    Setting("container-log-max-size", "containerLogMaxSize", Text),
    Setting("container-runtime-endpoint", "containerRuntimeEndpoint", Text),
    Setting("cpu-cfs-quota", "cpuCFSQuota", Switch),
    Setting("cpu-manager-policy", "cpuManagerPolicy", Text),
    Setting("enable-debugging-handlers", "enableDebuggingHandlers", Switch),
    Setting("eviction-hard", "evictionHard", Pairs('<')),
    Setting("eviction-max-pod-grace-period", "evictionMaxPodGracePeriod", Number),
    Setting("eviction-minimum-reclaim", "evictionMinimumReclaim", Pairs('=')),
    Setting("eviction-pressure-transition-period", "evictionPressureTransitionPeriod", Text),
    Setting("eviction-soft", "evictionSoft", Pairs('<')),
    Setting("eviction-soft-grace-period", "evictionSoftGracePeriod", Pairs('=')),
    Setting("file-check-frequency", "fileCheckFrequency", Text),
    Setting("image-gc-high-threshold", "imageGCHighThresholdPercent", Number),
    Setting("image-gc-low-threshold", "imageGCLowThresholdPercent", Number),
    Setting("kube-reserved", "kubeReserved", Pairs('=')),
    Setting("max-pods", "maxPods", Number),
    Setting("minimum-image-ttl-duration", "imageMinimumGCAge", Text),
    Setting("node-status-update-frequency", "nodeStatusUpdateFrequency", Text),
    Setting("pod-cidr", "podCIDR", Text),
    Setting("pod-manifest-path", "staticPodPath", Text),
    Setting("pod-max-pids", "podPidsLimit", Number),
    Setting("port", "port", Number),
    Setting("provider-id", "providerID", Text),
    Setting("register-node", "registerNode", Switch),
    Setting("register-with-taints", "registerWithTaints", Taints),
    Setting("reserved-cpus", "reservedSystemCPUs", Text),
    Setting("resolv-conf", "resolvConf", Text),
    Setting("seccomp-default", "seccompDefault", Switch),
    Setting("serialize-image-pulls", "serializeImagePulls", Switch),
    Setting("sync-frequency", "syncFrequency", Text),
    Setting("system-reserved", "systemReserved", Pairs('=')),
    Setting("tls-cert-file", "tlsCertFile", Text),
    Setting("tls-private-key-file", "tlsPrivateKeyFile", Text),
];

/// The fields that were given.
#[derive(Default, Clone)]
pub struct SettingFlags(pub Map<String, Value>);

impl Form {
    fn value(self, text: &str) -> Result<Value, String> {
        match self {
            Text => Ok(text.into()),
            Number => text.parse::<i64>().map(Value::from).map_err(|_| format!("{text:?} is no number")),
            Switch => text
                .parse::<bool>()
                .map(Value::from)
                .map_err(|_| format!("{text:?} is neither true nor false")),
            List => Ok(words(text).map(Value::from).collect()),
            Pairs(between) => words(text)
                .map(|word| pair(word, between))
                .collect::<Result<Map<_, _>, _>>()
                .map(Value::Object),
            Taints => words(text).map(taint).collect(),
        }
    }
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|word| !word.is_empty())
}

fn pair(word: &str, between: char) -> Result<(String, Value), String> {
    let (name, value) =
        word.split_once(between).ok_or_else(|| format!("{word:?} is no pair like name{between}value"))?;
    Ok((name.to_owned(), value.into()))
}

fn taint(word: &str) -> Result<Value, String> {
    let (named, effect) =
        word.rsplit_once(':').ok_or_else(|| format!("{word:?} is no taint like key=value:NoSchedule"))?;
    let (key, value) = named.split_once('=').unwrap_or((named, ""));
    let mut taint = serde_json::json!({"key": key, "effect": effect});
    if !value.is_empty() {
        taint["value"] = value.into();
    }
    Ok(taint)
}

impl Setting {
    fn argument(&self) -> Arg {
        let Setting(name, field, form) = *self;
        let argument = Arg::new(name)
            .long(name)
            .help(format!("Sets {field}"))
            .help_heading(HEADING)
            .value_parser(move |text: &str| form.value(text));
        match form {
            Switch => argument.num_args(0..=1).require_equals(true).default_missing_value("true"),
            // Given several times, they add up.
            List | Pairs(_) | Taints => argument.action(ArgAction::Append),
            Text | Number => argument.allow_hyphen_values(true),
        }
    }
}

/// `value` at the path, beside or below what is there.
fn put(fields: &mut Map<String, Value>, path: &str, value: Value) {
    match path.split_once('.') {
        Some((first, rest)) => {
            let below = fields.entry(first).or_insert_with(|| Value::Object(Map::new()));
            if let Value::Object(below) = below {
                put(below, rest, value);
            }
        }
        None => match (fields.get_mut(path), value) {
            (Some(Value::Array(known)), Value::Array(more)) => known.extend(more),
            (Some(Value::Object(known)), Value::Object(more)) => known.extend(more),
            (_, value) => _ = fields.insert(path.to_owned(), value),
        },
    }
}

impl Args for SettingFlags {
    fn augment_args(command: Command) -> Command {
        command.args(SETTINGS.iter().map(Setting::argument))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for SettingFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut fields = Map::new();
        for Setting(name, path, _) in SETTINGS {
            if matches.value_source(name) != Some(ValueSource::CommandLine) {
                continue;
            }
            for value in matches.get_many::<Value>(name).into_iter().flatten() {
                put(&mut fields, path, value.clone());
            }
        }
        Ok(SettingFlags(fields))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use serde_json::json;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        settings: SettingFlags,
    }

    fn check(words: &[&str], expected: Value) {
        let line = Line::try_parse_from(["kubelet"].iter().chain(words)).expect("flags");
        assert_eq!(Value::Object(line.settings.0), expected, "{words:?}");
    }

    #[test]
    fn flags_are_fields_of_the_file() {
        check(&[], json!({}));
        check(
            &["--max-pods=7", "--cgroup-driver", "systemd"],
            json!({"maxPods": 7, "cgroupDriver": "systemd"}),
        );
        check(
            &["--anonymous-auth=false", "--client-ca-file=/ca"],
            json!({"authentication": {
            "anonymous": {"enabled": false}, "x509": {"clientCAFile": "/ca"}}}),
        );
        check(
            &["--seccomp-default", "--cluster-dns=1.1.1.1,2.2.2.2"],
            json!({"seccompDefault": true, "clusterDNS": ["1.1.1.1", "2.2.2.2"]}),
        );
        check(
            &[
                "--eviction-hard=memory.available<100Mi,nodefs.available<10%",
                "--kube-reserved=cpu=1",
                "--kube-reserved=memory=1Gi",
            ],
            json!({"evictionHard": {"memory.available": "100Mi", "nodefs.available": "10%"},
                "kubeReserved": {"cpu": "1", "memory": "1Gi"}}),
        );
        check(
            &["--register-with-taints=a=b:NoSchedule,c:NoExecute"],
            json!({"registerWithTaints": [
            {"key": "a", "value": "b", "effect": "NoSchedule"}, {"key": "c", "effect": "NoExecute"}]}),
        );
        for bad in
            ["--max-pods=many", "--kube-reserved=cpu", "--register-with-taints=a", "--anonymous-auth=maybe"]
        {
            assert!(Line::try_parse_from(["kubelet", bad]).is_err(), "{bad}");
        }
    }
}
