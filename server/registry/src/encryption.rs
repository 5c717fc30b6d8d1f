//! Which resources are encrypted in the store, and with which keys: upstream's EncryptionConfiguration
//! (`--encryption-provider-config`). The encrypting itself is the store's.

use std::collections::HashMap;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ferry_api::{FieldErrors, GroupResource};
use ferry_store::encryption::{Encryption, Providers, Scheme};
use serde::Deserialize;

use crate::registry::ROOT;

const API_VERSION: &str = "apiserver.config.k8s.io/v1";
const KIND: &str = "EncryptionConfiguration";
/// Any resource, or any group.
const ANY: &str = "*";

/// The file, read: what is done with the values of each resource.
pub struct EncryptedResources {
    rules: HashMap<GroupResource, Arc<Providers>>,
    /// Which built-in resource lies below a prefix; custom ones tell it by their path.
    prefixes: HashMap<String, GroupResource>,
}

#[derive(Debug, thiserror::Error)]
pub enum BadEncryption {
    #[error("{0}")]
    Malformed(String),
    #[error("{}", list(.0))]
    Invalid(FieldErrors),
}

fn list(errors: &FieldErrors) -> String {
    errors.0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct File {
    api_version: String,
    kind: String,
    #[serde(default)]
    resources: Vec<ResourceProviders>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ResourceProviders {
    #[serde(default)]
    resources: Vec<String>,
    #[serde(default)]
    providers: Vec<Provider>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Provider {
    identity: Option<Identity>,
    aescbc: Option<Keys>,
    aesgcm: Option<Keys>,
    secretbox: Option<Keys>,
    kms: Option<serde_json::Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Identity {}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Keys {
    #[serde(default)]
    keys: Vec<Key>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Key {
    #[serde(default)]
    name: String,
    #[serde(default)]
    secret: String,
}

impl EncryptedResources {
    pub fn parse(yaml: &str) -> Result<EncryptedResources, BadEncryption> {
        let malformed = |why: &dyn std::fmt::Display| BadEncryption::Malformed(why.to_string());
        let file: File = ferry_api::yaml::one(yaml).map_err(|error| malformed(&error))?;
        if file.api_version != API_VERSION || file.kind != KIND {
            return Err(malformed(&format!("expected a {KIND} of {API_VERSION}")));
        }
        let mut errors = FieldErrors::default();
        let rules = rules(&file, &mut errors);
        if !errors.is_empty() {
            return Err(BadEncryption::Invalid(errors));
        }
        let stored =
            ferry_api::kinds::builtin().iter().filter(|row| row.is_storage_version() && row.is_stored());
        Ok(EncryptedResources {
            rules,
            prefixes: stored.map(|row| (row.storage_prefix.to_string(), row.group_resource())).collect(),
        })
    }

    /// The resource whose objects lie at `key`. `services/specs/` is longer than `services/`, so the longest prefix
    /// counts. What is no object (leases of servers, a cluster's own facts) belongs to none.
    fn resource_of(&self, key: &str) -> Option<GroupResource> {
        let path = key.strip_prefix(ROOT)?;
        let folders = path.match_indices('/').map(|(at, _)| &path[..at]).collect::<Vec<_>>();
        if let Some(resource) = folders.iter().rev().find_map(|folder| self.prefixes.get(*folder)) {
            return Some(resource.clone());
        }
        let (group, resource) = folders.get(1)?.split_once('/')?;
        group.contains('.').then(|| GroupResource::new(group.to_string(), resource.to_string()))
    }
}

impl Encryption for EncryptedResources {
    fn of(&self, key: &str) -> Option<Arc<Providers>> {
        let GroupResource { group, resource } = self.resource_of(key)?;
        let rule = |group: &str, resource: &str| {
            self.rules.get(&GroupResource::new(group.to_string(), resource.to_string()))
        };
        rule(&group, &resource).or_else(|| rule(&group, ANY)).or_else(|| rule(ANY, ANY)).cloned()
    }
}

fn rules(file: &File, errors: &mut FieldErrors) -> HashMap<GroupResource, Arc<Providers>> {
    if file.resources.is_empty() {
        errors.required("resources", "at least one resources is required");
    }
    let mut named: HashMap<GroupResource, Vec<&Provider>> = HashMap::new();
    for (at, entry) in file.resources.iter().enumerate() {
        let path = format!("resources[{at}]");
        if entry.resources.is_empty() {
            errors.required(format!("{path}.resources"), "at least one resource is required");
        }
        if entry.providers.is_empty() {
            errors.required(format!("{path}.providers"), "at least one provider is required");
        }
        check_overlap(&format!("{path}.resources"), &entry.resources, errors);
        for (at, name) in entry.resources.iter().enumerate() {
            let path = format!("{path}.resources[{at}]");
            if let Some(why) = misnamed(name) {
                errors.invalid(&path, name.as_str(), why);
            }
            let resource = parse(name);
            // What a wildcard above has taken never reaches this rule.
            let masks = [GroupResource::new(resource.group.clone(), ANY.to_string()), parse("*.*")];
            if let Some(mask) =
                masks.iter().find(|mask| **mask != resource && named_before(&named, mask, entry))
            {
                let why = format!("is masked by the earlier rule {:?}", written(mask));
                errors.invalid(&path, name.as_str(), &why);
            }
            named.entry(resource).or_default().extend(&entry.providers);
        }
        // Said once for each provider, however many resources it is for.
        for (at, provider) in entry.providers.iter().enumerate() {
            add(&mut Providers::default(), provider, &format!("{path}.providers[{at}]"), errors);
        }
    }
    named
        .into_iter()
        .map(|(resource, given)| {
            let mut providers = Providers::default();
            for provider in given {
                add(&mut providers, provider, "", &mut FieldErrors::default());
            }
            (resource, Arc::new(providers))
        })
        .collect()
}

/// Whether an entry above `entry` names `mask`; those beside it in one list are told of as overlapping.
fn named_before(
    named: &HashMap<GroupResource, Vec<&Provider>>,
    mask: &GroupResource,
    entry: &ResourceProviders,
) -> bool {
    named.contains_key(mask) && !entry.resources.iter().any(|name| parse(name) == *mask)
}

fn add(providers: &mut Providers, provider: &Provider, path: &str, errors: &mut FieldErrors) {
    let Provider { identity, aescbc, aesgcm, secretbox, kms } = provider;
    let kinds = [identity.is_some(), aescbc.is_some(), aesgcm.is_some(), secretbox.is_some(), kms.is_some()];
    match kinds.iter().filter(|given| **given).count() {
        1 => {}
        0 => errors.invalid(path, "provider", "none of identity, aescbc, aesgcm, secretbox is in it"),
        _ => errors.invalid(path, "provider", "more than one provider in a single element of the list"),
    }
    if kms.is_some() {
        let can = ["identity", "aescbc", "aesgcm", "secretbox"];
        errors.not_supported(path, "kms", &can);
    }
    if identity.is_some() {
        providers.then_identity();
    }
    let with_keys = [
        (Scheme::AesCbc, aescbc, "aescbc"),
        (Scheme::AesGcm, aesgcm, "aesgcm"),
        (Scheme::Secretbox, secretbox, "secretbox"),
    ];
    for (scheme, keys, word) in with_keys {
        let Some(Keys { keys }) = keys else { continue };
        let path = format!("{path}.{word}.keys");
        if keys.is_empty() {
            errors.required(&path, "at least one key is required");
        }
        for (at, key) in keys.iter().enumerate() {
            add_key(providers, scheme, key, &format!("{path}[{at}]"), errors);
        }
    }
}

/// No message repeats a secret.
fn add_key(providers: &mut Providers, scheme: Scheme, key: &Key, path: &str, errors: &mut FieldErrors) {
    if key.name.is_empty() {
        errors.required(format!("{path}.name"), "name is a mandatory field for a key");
    }
    if key.secret.is_empty() {
        return errors.required(format!("{path}.secret"), "secret is a mandatory field for a key");
    }
    let path = format!("{path}.secret");
    match STANDARD.decode(&key.secret) {
        Err(_) => errors.invalid(path, "REDACTED", "secrets must be base64 encoded"),
        Ok(secret) => {
            if let Err(bad) = providers.then_key(scheme, &key.name, &secret) {
                let why = format!(
                    "secret is not of the expected length, got {}, expected one of {:?}",
                    bad.size, bad.expected
                );
                errors.invalid(path, "REDACTED", &why);
            }
        }
    }
}

fn check_overlap(path: &str, names: &[String], errors: &mut FieldErrors) {
    let resources: Vec<GroupResource> = names.iter().map(|name| parse(name)).collect();
    let pairs = || {
        let others = |at: usize| resources[at + 1..].iter();
        resources.iter().enumerate().flat_map(move |(at, one)| others(at).map(move |other| (one, other)))
    };
    let value = || serde_json::json!(names);
    if pairs().any(|(one, other)| one == other) {
        errors.invalid(path, value(), "the same resource cannot be specified multiple times");
    }
    let any = parse("*.*");
    let overlap = |(one, other): (&GroupResource, &GroupResource)| {
        let all = *one == any || *other == any;
        let group = one.group == other.group && (one.resource == ANY || other.resource == ANY);
        one != other && (all || group)
    };
    if pairs().any(overlap) {
        errors.invalid(
            path,
            value(),
            "overlapping resources such as 'secrets' and '*.' in one list mask each other",
        );
    }
}

fn misnamed(name: &str) -> Option<&'static str> {
    let GroupResource { group, resource } = parse(name);
    if name.chars().any(char::is_uppercase) {
        return Some("resource name should not contain capital letters");
    }
    match (&*group, &*resource) {
        ("", ANY) if !name.contains('.') => {
            Some("use '*.' for all of the core group, or '*.*' for everything")
        }
        ("", "apiserveripinfo" | "serviceipallocations" | "servicenodeportallocations") => {
            Some("resources which do not have REST API/s cannot be encrypted")
        }
        ("events.k8s.io", _) => Some("events are stored in the core group: use 'events'"),
        ("extensions", _) => Some("'extensions' group has been removed and cannot be used for encryption"),
        (ANY, resource) if resource != ANY => {
            Some("encrypting the same resource across groups is not supported")
        }
        _ => None,
    }
}

/// `deployments.apps`, `secrets`, `*.` (the core group), `*.apps`, `*.*`.
fn parse(name: &str) -> GroupResource {
    let (resource, group) = name.split_once('.').unwrap_or((name, ""));
    GroupResource::new(group.to_string(), resource.to_string())
}

fn written(resource: &GroupResource) -> String {
    format!("{}.{}", resource.resource, resource.group)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=";

    fn file(resources: &str) -> String {
        format!("apiVersion: {API_VERSION}\nkind: {KIND}\nresources:\n{resources}")
    }

    fn rule(resources: &str, providers: &str) -> String {
        format!("- resources: [{resources}]\n  providers: [{providers}]\n")
    }

    #[test]
    fn the_most_specific_rule_counts() {
        let of_secrets = rule("secrets", &format!("{{aescbc: {{keys: [{{name: a, secret: {KEY}}}]}}}}"));
        let rest = ["deployments.apps", "'*.apps'", "'*.'", "'*.*'"].map(|name| rule(name, "{identity: {}}"));
        let read = |parts: &[&String]| {
            let text: String = parts.iter().map(|part| part.as_str()).collect();
            EncryptedResources::parse(&file(&text)).expect("well formed")
        };
        let few = read(&[&of_secrets, &rest[0]]);
        assert!(few.of("/registry/secrets/default/a").is_some());
        assert!(few.of("/registry/deployments/default/a").is_some());
        for other in [
            "/registry/configmaps/default/a",
            "/registry/replicasets/default/a",
            "/registry/secretsx/default/a",
            "/registry/example.com/widgets/default/a",
            "/registry/masterleases/10.0.0.1",
            "/ferry/founding",
        ] {
            assert!(few.of(other).is_none(), "{other}");
        }
        let all = read(&[&of_secrets, &rest[0], &rest[1], &rest[2], &rest[3]]);
        let same = |one: &str, other: &str| {
            let of = |key: &str| all.of(key).unwrap_or_else(|| panic!("{key} has a rule"));
            Arc::ptr_eq(&of(one), &of(other))
        };
        assert!(!same("/registry/secrets/a/b", "/registry/configmaps/a/b"));
        assert!(same("/registry/services/specs/a/b", "/registry/services/endpoints/a/b"));
        assert!(same("/registry/replicasets/a/b", "/registry/statefulsets/a/b"));
        assert!(!same("/registry/replicasets/a/b", "/registry/deployments/a/b"));
        assert!(same("/registry/example.com/widgets/a/b", "/registry/roles/a/b"));
        assert!(all.of("/registry/masterleases/10.0.0.1").is_none());
    }

    #[test]
    fn encryption_configuration_errors_contain_no_secrets() {
        fn check(resources: &str, expected: &str) {
            let refused = EncryptedResources::parse(&file(resources)).err().expect("an error").to_string();
            assert!(refused.contains(expected), "{resources}: {refused}");
            assert!(!refused.contains("hidden"), "{refused}");
        }
        let identity = "{identity: {}}";
        check("  []", "at least one");
        check(&rule("", identity), "resources[0].resources");
        check(&rule("secrets", ""), "resources[0].providers");
        check(&rule("Secrets", identity), "capital letters");
        check(&rule("'*'", identity), "use '*.'");
        check(&rule("events.events.k8s.io", identity), "use 'events'");
        check(&rule("'secrets.*'", identity), "across groups");
        check(&rule("secrets, secrets", identity), "multiple times");
        check(&rule("secrets, '*.'", identity), "overlapping");
        check(&[rule("'*.'", identity), rule("secrets", identity)].concat(), "masked by the earlier rule");
        check(&rule("secrets", "{identity: {}, kms: {}}"), "more than one provider");
        check(&rule("secrets", "{kms: {name: x, endpoint: y}}"), "supported values");
        check(&rule("secrets", "{}"), "none of");
        check(&rule("secrets", "{aesgcm: {keys: []}}"), "providers[0].aesgcm.keys");
        check(&rule("secrets", "{aesgcm: {keys: [{name: a}]}}"), "keys[0].secret");
        check(&rule("secrets", "{aesgcm: {keys: [{name: a, secret: '?hidden'}]}}"), "base64");
        check(
            &rule("secrets", "{secretbox: {keys: [{name: a, secret: c2hvcnQ=}]}}"),
            "expected length, got 5",
        );
        check(&rule("secrets", "{aesctr: {}}"), "aesctr");
        assert!(EncryptedResources::parse("kind: Pod").is_err());
    }
}
