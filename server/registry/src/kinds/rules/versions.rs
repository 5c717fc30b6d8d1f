//! Versions of programs and of stored objects: LeaseCandidate, StorageVersion, StorageVersionMigration.

use std::collections::{HashMap, HashSet};

use ferry_api::field_error::Reason;
use ferry_api::{FieldErrors, names};
use semver::Version;
use serde_json::Value;

use super::conditions;
use super::field::{self, Context, Field};
use super::nodes;
use crate::kinds::checks::{self, IMMUTABLE};

/// A program is not older than what it pretends to be. What cannot be read counts as version 0.
pub fn candidate(spec: Field<'_>, _: &Context<'_>, errors: &mut FieldErrors) {
    let (binary, emulation) = (spec.child("binaryVersion"), spec.child("emulationVersion"));
    let given = !binary.is_empty() && !emulation.is_empty();
    if given && version(binary).cmp_precedence(&version(emulation)).is_lt() {
        binary.invalid("must be greater than or equal to `emulationVersion`", errors);
    }
}

/// How a leader is chosen among candidates.
pub fn candidate_strategy(strategy: Field<'_>, context: &Context<'_>, errors: &mut FieldErrors) {
    let spec = Field { value: context.object.get(&["spec"]), path: checks::Path::root("spec") };
    let emulation = spec.child("emulationVersion");
    let is_zero = version(emulation).cmp_precedence(&Version::new(0, 0, 0)).is_eq();
    if strategy.text() == "OldestEmulationVersion" && is_zero {
        errors.required(emulation.path, "must be specified when `strategy` is 'OldestEmulationVersion'");
    }
    nodes::lease_strategy(strategy, context, errors);
}

fn version(field: Field<'_>) -> Version {
    Version::parse(field.text()).unwrap_or(Version::new(0, 0, 0))
}

/// In which versions API servers write and read a resource.
pub fn storage_version(status: Field<'_>, _: &Context<'_>, errors: &mut FieldErrors) {
    let servers = status.child("storageVersions");
    let mut seen: HashSet<String> = HashSet::new();
    servers.each(|server| {
        let id = server.child("apiServerID");
        if !seen.insert(id.text().to_owned()) {
            errors.duplicate(id.path, id.text());
        }
        server_versions(server, errors);
    });
    common_version(status, errors);
    storage_conditions(status, errors);
}

fn server_versions(server: Field<'_>, errors: &mut FieldErrors) {
    server.child("apiServerID").named(names::dns1123_subdomain, errors);
    let (encoding, decodable) = (server.child("encodingVersion"), server.child("decodableVersions"));
    encoding.named(api_version, errors);
    decodable.each(|version| version.named(api_version, errors));
    let decodes = |version: &str| decodable.items().iter().any(|known| known.as_str() == Some(version));
    if !decodes(encoding.text()) {
        let why = format!("decodableVersions must include encodingVersion {}", encoding.text());
        decodable.invalid(&why, errors);
    }
    server.child("servedVersions").each(|served| {
        served.named(api_version, errors);
        if !decodes(served.text()) {
            let known: Vec<&str> = decodable.items().iter().filter_map(Value::as_str).collect();
            let why = format!(
                "individual served version : {} must be included in decodableVersions : [{}]",
                served.text(),
                known.join(" ")
            );
            served.invalid(&why, errors);
        }
    });
}

/// The version that all servers write is told where they agree, and only there.
fn common_version(status: Field<'_>, errors: &mut FieldErrors) {
    let servers = status.child("storageVersions");
    let mut versions = servers.items().iter().map(|server| field::text(server, "encodingVersion"));
    let first = versions.next().filter(|first| versions.all(|version| version == *first));
    let told = status.child("commonEncodingVersion");
    match (first, told.value) {
        (None, Some(_)) => told.invalid(
            "should be nil if servers do not agree on the same encoding version, or if there is no server reporting \
             the supported versions yet",
            errors,
        ),
        (Some(common), None) => told.invalid(&format!("the common encoding version is {common}"), errors),
        (Some(common), Some(_)) if told.text() != common => {
            told.invalid(&format!("the actual common encoding version is {common}"), errors);
        }
        _ => {}
    }
}

/// Upstream tells them at the status itself.
fn storage_conditions(status: Field<'_>, errors: &mut FieldErrors) {
    let mut seen: HashMap<String, usize> = HashMap::new();
    let list = status.child("conditions");
    for (index, condition) in list.items().iter().enumerate() {
        let condition = Field { value: Some(condition), path: status.path.index(index) };
        let kind = condition.child("type");
        if let Some(before) = seen.insert(kind.text().to_owned(), index) {
            let why =
                format!("the type of the condition is not unique, it also appears in conditions[{before}]");
            kind.invalid(&why, errors);
        }
        kind.named(names::qualified_name, errors);
        condition.child("status").named(names::qualified_name, errors);
        condition.child("reason").required("", errors);
        condition.child("message").required("", errors);
    }
}

/// `group/version` or `version`, and what is wrong with it in one error.
fn api_version(text: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    let version = match text.split('/').collect::<Vec<_>>().as_slice() {
        [version] => *version,
        [group, version] => {
            match group.is_empty() {
                true => wrong.push("group part: must be non-empty".into()),
                false => wrong.extend(prefixed("group part: ", names::dns1123_subdomain(group))),
            }
            *version
        }
        _ => {
            return vec![
                "an apiVersion is a DNS-1035 label, which must consist of lower case alphanumeric characters or '-', \
                 start with an alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or \
                 'abc-123', regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?') with an optional DNS subdomain \
                 prefix and '/' (e.g. 'example.com/MyVersion')"
                    .into(),
            ];
        }
    };
    match version.is_empty() {
        true => wrong.push("version part: must be non-empty".into()),
        false => wrong.extend(prefixed("version part: ", names::dns1035_label(version))),
    }
    if wrong.is_empty() { wrong } else { vec![wrong.join(",")] }
}

fn prefixed(prefix: &str, wrong: Vec<String>) -> impl Iterator<Item = String> {
    wrong.into_iter().map(move |why| format!("{prefix}{why}"))
}

/// A migration ends once, in success or in failure, and is about one point in time.
pub fn migration(status: Field<'_>, context: &Context<'_>, errors: &mut FieldErrors) {
    let version = status.child("resourceVersion");
    let is_number = |text: &str| !text.starts_with('0') && text.bytes().all(|byte| byte.is_ascii_digit());
    if !version.is_empty() && !is_number(version.text()) {
        version.invalid(&format!("resource version is not well formed: {}", version.text()), errors);
    }
    let list = status.child("conditions");
    conditions::judge(list, errors);
    let before = |path: &[&str]| context.old_object.and_then(|old| old.get(path));
    let had = before(&["status", "resourceVersion"]).and_then(Value::as_str).unwrap_or("");
    if !had.is_empty() && had != version.text() {
        errors.invalid(version.path, version.text(), IMMUTABLE);
    }
    let had = before(&["status", "conditions"]);
    let (succeeded, failed) =
        (conditions::holds(list.value, "Succeeded"), conditions::holds(list.value, "Failed"));
    let mut refuse = |why: &str| {
        let told = list.items().iter().map(|item| context.printed_as("meta.v1.Condition", Some(item)));
        let told = match list.value {
            Some(_) => format!("[{}]", told.collect::<Vec<_>>().join(",")),
            None => "null".to_owned(),
        };
        errors.push(list.path, Reason::Invalid, format!("{told}: {why}"));
    };
    if succeeded && failed {
        refuse("Both success and failed conditions cannot be true at the same time");
    }
    if conditions::holds(had, "Succeeded") && !succeeded {
        refuse("Success condition cannot be set to false once it is true");
    }
    if conditions::holds(had, "Failed") && !failed {
        refuse("Failed condition cannot be set to false once it is true");
    }
}
