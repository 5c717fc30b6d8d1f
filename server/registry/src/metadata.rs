//! What every kind's metadata goes through: names, system fields, and the rules all objects share.

use std::collections::HashSet;

use ferry_api::field_error::Quoted;
use ferry_api::{FieldErrors, Object, Status, names};
use jiff::Timestamp;
use rand::RngExt;
use serde_json::Value;

use crate::strategy::{NameRule, StrategyOptions};
use crate::verbs::Call;

/// Letters and digits that form no words and are not mistaken for each other.
const NAME_ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
const SUFFIX: usize = 5;
const LONGEST_BASE: usize = 63 - SUFFIX;
const LARGEST_ANNOTATIONS: usize = 256 * 1024;

pub fn generate_name(object: &mut Object) {
    let name = generated_name(object.meta_text("generateName"));
    object.set_meta("name", name);
}

/// A name that begins with `base` and that nobody has, very likely.
pub fn generated_name(base: &str) -> String {
    let mut end = base.len().min(LONGEST_BASE);
    while !base.is_char_boundary(end) {
        end -= 1;
    }
    let mut rng = rand::rng();
    let suffix: String =
        (0..SUFFIX).map(|_| NAME_ALPHABET[rng.random_range(0..NAME_ALPHABET.len())] as char).collect();
    format!("{}{suffix}", &base[..end])
}

/// Before admission: the object belongs where the request says.
pub fn begin_create(object: &mut Object, call: &Call<'_>) -> Result<(), Status> {
    match_place(object, call)?;
    dedup_owners(object, call);
    Ok(())
}

/// Where the object would be stored, so after all that may refuse it and never on a dry run: clients expect to hear of a
/// refusal first. What is no revision, and 0, is passed over.
pub fn check_is_new(resource_version: &str, call: &Call<'_>) -> Result<(), Status> {
    match resource_version.parse::<u64>() {
        Ok(1..) if !call.dry_run => {
            Err(Status::unexpected("resourceVersion should not be set on objects to be created"))
        }
        _ => Ok(()),
    }
}

/// After admission: what only the server sets.
pub fn finish_create(object: &mut Object, call: &Call<'_>, strategy_options: &StrategyOptions) {
    for field in
        ["selfLink", "deletionTimestamp", "deletionGracePeriodSeconds", "resourceVersion", "generation"]
    {
        object.remove_meta(field);
    }
    object.set_meta("uid", uuid::Uuid::new_v4().to_string());
    object.set_meta("creationTimestamp", timestamp(call.now.as_second()));
    if strategy_options.generation && !strategy_options.counts_from_zero {
        object.set_meta("generation", 1);
    }
    if let Some(finalizer) = strategy_options.first_finalizer
        && !object.finalizers().any(|name| name == finalizer)
    {
        let mut finalizers: Vec<Value> = object.finalizers().map(Value::from).collect();
        finalizers.push(finalizer.into());
        object.set_meta("finalizers", finalizers);
    }
}

pub fn begin_update(new: &mut Object, old: &Object, call: &Call<'_>) -> Result<(), Status> {
    match_place(new, call)?;
    if new.name().is_empty() {
        new.set_meta("name", call.name);
    }
    new.remove_meta("selfLink");
    copy(new, old, "generation");
    copy(new, old, "creationTimestamp");
    // It was compared already; from here on the two objects differ in what the client changed only.
    copy(new, old, "resourceVersion");
    if new.uid().is_empty() {
        copy(new, old, "uid");
    }
    dedup_owners(new, call);
    Ok(())
}

/// After admission, which could have touched them: nobody changes a deletion by an update.
pub fn finish_update(new: &mut Object, old: &Object) {
    copy(new, old, "generation");
    copy(new, old, "creationTimestamp");
    copy(new, old, "deletionTimestamp");
    copy(new, old, "deletionGracePeriodSeconds");
}

/// `new.metadata.field = old.metadata.field`, absence included.
pub fn copy(new: &mut Object, old: &Object, field: &str) {
    match old.meta(field) {
        Some(value) => new.set_meta(field, value.clone()),
        None => {
            new.remove_meta(field);
        }
    }
}

/// Nothing but its grace period holds a deleted object.
pub fn may_vanish(object: &Object) -> bool {
    object.finalizers().next().is_none()
        && object.meta("deletionGracePeriodSeconds").and_then(Value::as_i64).unwrap_or(0) == 0
}

pub fn timestamp(seconds: i64) -> String {
    Timestamp::from_second(seconds)
        .map(|time| time.to_string())
        .unwrap_or_else(|_| Timestamp::MAX.to_string())
}

pub fn seconds_of(timestamp: &str) -> Option<i64> {
    timestamp.parse::<Timestamp>().ok().map(Timestamp::as_second)
}

/// The object is where the request says, or goes there if it does not say.
pub fn match_place(object: &mut Object, call: &Call<'_>) -> Result<(), Status> {
    let wanted = if call.resource.stored.is_namespaced() { call.namespace } else { "" };
    match (object.namespace().is_empty(), object.namespace() == wanted) {
        (_, true) => {}
        (true, false) => object.set_meta("namespace", wanted),
        (false, false) if wanted.is_empty() => {
            object.remove_meta("namespace");
        }
        (false, false) => {
            return Err(Status::bad_request(
                "the namespace of the provided object does not match the namespace sent on the request",
            ));
        }
    }
    if !call.name.is_empty()
        && call.subresource.is_empty()
        && !object.name().is_empty()
        && object.name() != call.name
    {
        return Err(Status::bad_request(format!(
            "the name of the object ({}) does not match the name on the URL ({})",
            object.name(),
            call.name
        )));
    }
    Ok(())
}

fn dedup_owners(object: &mut Object, call: &Call<'_>) {
    if drop_repeated_owners(object) {
        call.warn([".metadata.ownerReferences contains duplicate entries; API server dedups owner references in 1.20+, and may reject such requests as early as 1.24; please fix your requests".to_string()]);
    }
}

/// Two references to one owner are one. Whether there were two.
pub fn drop_repeated_owners(object: &mut Object) -> bool {
    let Some(Value::Array(owners)) = object.meta("ownerReferences") else { return false };
    let mut seen: HashSet<&Value> = HashSet::with_capacity(owners.len());
    let kept: Vec<&Value> = owners.iter().filter(|owner| seen.insert(owner)).collect();
    if kept.len() == owners.len() {
        return false;
    }
    let kept: Vec<Value> = kept.into_iter().cloned().collect();
    object.set_meta("ownerReferences", kept);
    true
}

pub fn validate(
    object: &Object,
    namespaced: bool,
    strategy_options: &StrategyOptions,
    errors: &mut FieldErrors,
) {
    let rule = strategy_options.name;
    let generate_name = object.meta_text("generateName");
    if !generate_name.is_empty() {
        // The name made from it ends in a letter, so a trailing dash is no fault of the prefix.
        let prefix =
            generate_name.strip_suffix('-').map_or(generate_name.to_string(), |rest| format!("{rest}a"));
        for why in name_faults(object, &prefix, rule) {
            errors.invalid("metadata.generateName", generate_name, &why);
        }
    }
    if object.name().is_empty() {
        errors.required("metadata.name", "name or generateName is required");
    } else {
        for why in name_faults(object, object.name(), rule) {
            errors.invalid("metadata.name", object.name(), &why);
        }
    }
    if namespaced {
        if object.namespace().is_empty() {
            errors.required("metadata.namespace", "");
        } else {
            for why in names::dns1123_label(object.namespace()) {
                errors.invalid("metadata.namespace", object.namespace(), &why);
            }
        }
    } else if !object.namespace().is_empty() {
        errors.forbidden("metadata.namespace", "not allowed on this type");
    }
    validate_shared(object, strategy_options, errors);
}

pub fn validate_update(
    new: &Object,
    old: &Object,
    strategy_options: &StrategyOptions,
    errors: &mut FieldErrors,
) {
    for field in ["name", "namespace", "uid", "creationTimestamp"] {
        if new.meta(field) != old.meta(field) {
            errors.invalid(format!("metadata.{field}"), new.meta_text(field), "field is immutable");
        }
    }
    // The only names that another field may make wrong.
    if strategy_options.name == NameRule::AfterSigner {
        for why in name_faults(new, new.name(), strategy_options.name) {
            errors.invalid("metadata.name", new.name(), &why);
        }
    }
    if old.is_deleting() {
        let have: HashSet<&str> = old.finalizers().collect();
        let added: Vec<&str> = new.finalizers().filter(|name| !have.contains(name)).collect();
        if !added.is_empty() {
            let list: Vec<String> = added.iter().map(|name| format!("{name:?}")).collect();
            errors.forbidden(
                "metadata.finalizers",
                &format!(
                    "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
                    list.join(", ")
                ),
            );
        }
    }
    validate_shared(new, strategy_options, errors);
}

fn validate_shared(object: &Object, strategy_options: &StrategyOptions, errors: &mut FieldErrors) {
    validate_labels(object, errors);
    validate_annotations(object, errors);
    validate_owners(object, errors);
    validate_finalizers(object, strategy_options.plain_finalizers, errors);
}

pub fn validate_labels(object: &Object, errors: &mut FieldErrors) {
    for (key, value) in object.labels() {
        for why in names::qualified_name(key) {
            errors.invalid("metadata.labels", key, &why);
        }
        for why in names::label_value(value) {
            errors.invalid("metadata.labels", value, &why);
        }
    }
}

pub fn validate_annotations(object: &Object, errors: &mut FieldErrors) {
    if let Some(Value::Object(annotations)) = object.meta("annotations") {
        let mut size = 0;
        for (key, value) in annotations {
            for why in names::qualified_name(&key.to_ascii_lowercase()) {
                errors.invalid("metadata.annotations", key.as_str(), &why);
            }
            size += key.len() + value.as_str().map_or(0, str::len);
        }
        if size > LARGEST_ANNOTATIONS {
            errors.too_long("metadata.annotations", LARGEST_ANNOTATIONS);
        }
    }
}

fn validate_owners(object: &Object, errors: &mut FieldErrors) {
    let Some(given @ Value::Array(owners)) = object.meta("ownerReferences") else { return };
    let mut controller: Option<String> = None;
    for (index, owner) in owners.iter().enumerate() {
        let text = |field: &str| owner.get(field).and_then(Value::as_str).unwrap_or("");
        let path = format!("metadata.ownerReferences[{index}]");
        for (field, why) in [
            ("apiVersion", "version must not be empty"),
            ("kind", "must not be empty"),
            ("name", "must not be empty"),
            ("uid", "must not be empty"),
        ] {
            if text(field).is_empty() {
                errors.invalid(format!("{path}.{field}"), text(field), why);
            }
        }
        if text("apiVersion") == "v1" && text("kind") == "Event" {
            errors.invalid(&path, owner.clone(), "/v1, Kind=Event is disallowed from being an owner");
        }
        if owner.get("controller").and_then(Value::as_bool) == Some(true) {
            match &controller {
                Some(first) => errors.invalid(
                    "metadata.ownerReferences",
                    Quoted(given),
                    &format!(
                        "Only one reference can have Controller set to true. Found \"true\" in references for {first} and {}",
                        text("name")
                    ),
                ),
                None => controller = Some(text("name").to_string()),
            }
        }
    }
}

fn validate_finalizers(object: &Object, plain: bool, errors: &mut FieldErrors) {
    let (mut orphans, mut foreground) = (false, false);
    for (index, name) in object.finalizers().enumerate() {
        for why in names::qualified_name(name) {
            errors.invalid("metadata.finalizers", name, &why);
        }
        if !plain && !name.contains('/') && !["orphan", "foregroundDeletion", "kubernetes"].contains(&name) {
            errors.invalid(
                format!("metadata.finalizers[{index}]"),
                name,
                "name is neither a standard finalizer name nor is it fully qualified",
            );
        }
        orphans |= name == "orphan";
        foreground |= name == "foregroundDeletion";
    }
    if orphans && foreground {
        let list: Vec<&str> = object.finalizers().collect();
        errors.invalid(
            "metadata.finalizers",
            list.into_iter().map(Value::from).collect::<Vec<_>>(),
            "finalizer orphan and foregroundDeletion cannot be both set",
        );
    }
}

fn name_faults(object: &Object, name: &str, rule: NameRule) -> Vec<String> {
    match rule {
        NameRule::DnsSubdomain => names::dns1123_subdomain(name),
        NameRule::DnsLabel => names::dns1123_label(name),
        NameRule::Dns1035Label => names::dns1035_label(name),
        NameRule::PathSegment => path_segment(name),
        NameRule::IpAddress => ip_address(name),
        NameRule::ConfigMapKey => names::config_map_key(name),
        NameRule::GroupResource => group_resource(name),
        NameRule::AfterSigner => after_signer(name, object.text_at(&["spec", "signerName"])),
    }
}

/// A colon stands for the slash in a signer's name, and another between it and the rest.
fn after_signer(name: &str, signer: &str) -> Vec<String> {
    if signer.is_empty() {
        return match name.contains(':') {
            true => vec!["ClusterTrustBundle without signer name must not have \":\" in its name".into()],
            false => names::dns1123_subdomain(name),
        };
    }
    let prefix = format!("{}:", signer.replace('/', ":"));
    match name.strip_prefix(&prefix) {
        Some(rest) => names::dns1123_subdomain(rest),
        None => {
            vec![format!("ClusterTrustBundle for signerName {signer} must be named with prefix {prefix}")]
        }
    }
}

fn group_resource(name: &str) -> Vec<String> {
    let Some((group, resource)) = name.rsplit_once('.') else {
        return vec!["name must be in the form of <group>.<resource>".into()];
    };
    let told = |part: &str, wrong: Vec<String>| {
        wrong.into_iter().map(move |why| format!("the {part} segment {why}")).collect::<Vec<_>>()
    };
    let mut wrong = told("group", names::dns1123_subdomain(group));
    wrong.extend(told("resource", names::dns1035_label(resource)));
    wrong
}

fn ip_address(name: &str) -> Vec<String> {
    match name.parse::<std::net::IpAddr>() {
        Ok(address) if address.to_string() == name => Vec::new(),
        Ok(address) => vec![format!("must be in canonical form (\"{address}\")")],
        Err(_) => vec!["must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)".into()],
    }
}

/// Anything that can stand between two slashes of a URL.
fn path_segment(name: &str) -> Vec<String> {
    if name == "." || name == ".." {
        return vec![format!("may not be '{name}'")];
    }
    ["/", "%"]
        .iter()
        .filter(|part| name.contains(**part))
        .map(|part| format!("may not contain '{part}'"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn faults(object: Value) -> Vec<String> {
        let object = Object::from_value(object).expect("an object");
        let mut errors = FieldErrors::default();
        validate(&object, true, &StrategyOptions::PLAIN, &mut errors);
        errors.0.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn every_fault_of_the_metadata_is_named() {
        let found =
            faults(json!({"metadata": {"namespace": "a", "labels": {"-": "b c"}, "finalizers": ["x"]}}));
        assert_eq!(found.len(), 4, "{found:#?}");
        assert_eq!(found[0], "metadata.name: Required value: name or generateName is required");
        assert!(
            faults(json!({"metadata": {"namespace": "a", "name": "ok", "generateName": "web-"}})).is_empty()
        );
    }

    #[test]
    fn generated_names_keep_within_a_label() {
        let mut object =
            Object::from_value(json!({"metadata": {"generateName": "x".repeat(80)}})).expect("an object");
        generate_name(&mut object);
        assert_eq!(object.name().len(), 63);
    }

    #[test]
    fn many_controllers_are_refused_in_few_words() {
        let owners: Vec<Value> = (0..4_000)
            .map(|index| json!({"apiVersion": "v1", "kind": "A", "name": format!("a{index}"), "uid": "u", "controller": true}))
            .collect();
        let object = json!({"metadata": {"namespace": "a", "name": "a", "ownerReferences": owners}});
        let object = Object::from_value(object).expect("an object");
        let mut errors = FieldErrors::default();
        validate(&object, true, &StrategyOptions::PLAIN, &mut errors);
        let status = Status::invalid("", "ConfigMap", "a", &errors);
        assert!(status.message.contains("Found \"true\" in references for a0 and a1"), "{status}");
        assert!(status.message.ends_with("more errors]"), "{status}");
        assert!(status.to_json().len() < 256 << 10, "{}", status.to_json().len());
    }
}
