//! Kinds that make pods from a template and go on doing so.

use ferry_api::FieldErrors;
use ferry_api::field_error::Reason;
use ferry_api::selector::LabelSelector;
use serde_json::{Value, json};

use super::field::{self, Context, Field};
use super::{placement, pods};
use crate::kinds::checks;

/// A selector that must be there and select something; the kind is named in the error.
fn own_selector(selector: Field<'_>, kind: &str, errors: &mut FieldErrors) {
    if !selector.is_given() {
        return errors.required(selector.path, "");
    }
    placement::label_selector(selector, errors);
    if is_unset(selector) {
        placement::refuse_selector(selector, &format!("empty selector is invalid for {kind}"), errors);
    }
}

/// One that is there and asks for nothing; none at all selects nothing.
fn is_everything(selector: Field<'_>) -> bool {
    selector.is_given() && is_unset(selector)
}

fn is_unset(selector: Field<'_>) -> bool {
    selector.child("matchLabels").is_empty() && selector.child("matchExpressions").is_empty()
}

/// Whether a structured selector selects the labels of the template; `None` when it cannot be understood.
fn selects(selector: Field<'_>, template: Field<'_>) -> Option<bool> {
    let Some(value) = selector.value else { return Some(false) };
    let parsed = LabelSelector::from_structured(Some(value)).ok()?;
    let metadata = template.child("metadata");
    let labels = metadata.child("labels");
    Some(parsed.matches(|key| labels.get(key).and_then(Value::as_str)))
}

fn mismatch(template: Field<'_>, errors: &mut FieldErrors) {
    let metadata = template.child("metadata");
    let labels = metadata.child("labels");
    errors.invalid(labels.path, labels.json(), "`selector` does not match template `labels`");
}

fn lasting(template: Field<'_>, kind: &str, errors: &mut FieldErrors) {
    let spec = template.child("spec");
    spec.child("restartPolicy").one_of(&["Always"], errors);
    if spec.has("activeDeadlineSeconds") {
        errors.forbidden(
            spec.path.child("activeDeadlineSeconds"),
            &format!("activeDeadlineSeconds in {kind} is not Supported"),
        );
    }
}

/// Selector and template of a Deployment or a ReplicaSet.
fn replicated(spec: Field<'_>, kind: &str, context: &Context<'_>, errors: &mut FieldErrors) {
    let (selector, template) = (spec.child("selector"), spec.child("template"));
    own_selector(selector, kind, errors);
    match selects(selector, template) {
        None => placement::refuse_selector(selector, "invalid label selector", errors),
        Some(matching) => {
            if !matching && !is_everything(selector) {
                mismatch(template, errors);
            }
            pods::judge_template(template, context, errors);
            lasting(template, "ReplicaSet", errors);
        }
    }
}

pub fn deployment(spec: Field<'_>, context: &Context<'_>, errors: &mut FieldErrors) {
    replicated(spec, "deployment", context, errors);
}

pub fn replica_set(spec: Field<'_>, context: &Context<'_>, errors: &mut FieldErrors) {
    // Upstream tells it so.
    replicated(spec, "deployment", context, errors);
}

pub fn daemon_set(spec: Field<'_>, context: &Context<'_>, errors: &mut FieldErrors) {
    let (selector, template) = (spec.child("selector"), spec.child("template"));
    placement::label_selector(selector, errors);
    if selects(selector, template) == Some(false) {
        mismatch(template, errors);
    }
    if selector.is_given() && is_unset(selector) {
        placement::refuse_selector(selector, "empty selector is invalid for daemonset", errors);
    }
    pods::judge_template(template, context, errors);
    lasting(template, "DaemonSet", errors);
}

pub fn replication_controller(spec: Field<'_>, context: &Context<'_>, errors: &mut FieldErrors) {
    let (selector, template) = (spec.child("selector"), spec.child("template"));
    selector.required("", errors);
    let replicas = spec.child("replicas");
    if replicas.is_given() {
        replicas.not_negative(errors);
    } else {
        errors.required(replicas.path, "");
    }
    if !template.is_given() {
        return errors.required(template.path, "");
    }
    let metadata = template.child("metadata");
    let labels = metadata.child("labels");
    let matching = selector.entries().all(|(key, value)| labels.get(key) == Some(value));
    if !matching {
        mismatch(template, errors);
    }
    pods::judge_template(template, context, errors);
    lasting(template, "ReplicationController", errors);
}

pub fn stateful_set(spec: Field<'_>, context: &Context<'_>, errors: &mut FieldErrors) {
    let (selector, template) = (spec.child("selector"), spec.child("template"));
    own_selector(selector, "statefulset", errors);
    match selects(selector, template) {
        None => placement::refuse_selector(selector, "", errors),
        Some(matching) => {
            if !matching && !is_everything(selector) {
                mismatch(template, errors);
            }
            let completed = with_claims(spec, template);
            let template = Field { value: completed.as_ref(), path: template.path };
            pods::judge_template(template, context, errors);
            pods::judge_metadata(template, errors);
        }
    }
    lasting(template, "StatefulSet", errors);
}

/// The template with a volume for each claim, and without the names that the set gives its pods.
fn with_claims(spec: Field<'_>, template: Field<'_>) -> Option<Value> {
    let mut completed = template.value?.clone();
    let pod = completed.get_mut("spec")?.as_object_mut()?;
    pod.remove("subdomain");
    pod.remove("hostname");
    let claims = spec.child("volumeClaimTemplates");
    if !claims.items().is_empty() {
        let names: Vec<&str> = claims
            .items()
            .iter()
            .map(|claim| claim.pointer("/metadata/name").and_then(Value::as_str).unwrap_or(""))
            .collect();
        let mut volumes: Vec<Value> = names
            .iter()
            .map(|name| json!({"name": name, "persistentVolumeClaim": {"claimName": name}}))
            .collect();
        let own = pod.get("volumes").and_then(Value::as_array).into_iter().flatten();
        volumes.extend(own.filter(|volume| !names.contains(&field::text(volume, "name"))).cloned());
        pod.insert("volumes".into(), volumes.into());
    }
    Some(completed)
}

pub fn stateful_set_strategy(strategy: Field<'_>, context: &Context<'_>, errors: &mut FieldErrors) {
    let rolling = strategy.child("rollingUpdate");
    let refuse = |path, type_name, value, why: &str, errors: &mut FieldErrors| {
        let printed = context.printed_as(type_name, value);
        errors.push(path, Reason::Invalid, format!("{printed}: {why}"));
    };
    match strategy.child("type").text() {
        "" => errors.required(strategy.path, ""),
        "OnDelete" => {
            if rolling.is_given() {
                refuse(
                    rolling.path,
                    "apps.v1.RollingUpdateStatefulSetStrategy",
                    rolling.value,
                    "only allowed for updateStrategy 'RollingUpdate'",
                    errors,
                );
            }
        }
        "RollingUpdate" => {
            rolling.child("partition").not_negative(errors);
            let unavailable = rolling.child("maxUnavailable");
            if unavailable.is_given() {
                int_or_percent(unavailable, errors);
                if share(unavailable) == 0 {
                    unavailable.invalid("cannot be 0", errors);
                }
                at_most_all(unavailable, errors);
            }
        }
        _ => refuse(
            strategy.path,
            "apps.v1.StatefulSetUpdateStrategy",
            strategy.value,
            "must be 'RollingUpdate' or 'OnDelete'",
            errors,
        ),
    }
}

/// A count, or a share as a percentage.
pub fn int_or_percent(field: Field<'_>, errors: &mut FieldErrors) {
    match field.value {
        Some(Value::String(text)) => checks::named(errors, field.path, text, ferry_api::names::percent),
        _ => field.not_negative(errors),
    }
}

pub fn at_most_all(field: Field<'_>, errors: &mut FieldErrors) {
    if percent(field).is_some_and(|share| share > 100) {
        field.invalid("must not be greater than 100%", errors);
    }
}

fn percent(field: Field<'_>) -> Option<i64> {
    field.text().strip_suffix('%')?.parse().ok()
}

fn share(field: Field<'_>) -> i64 {
    percent(field).unwrap_or_else(|| match field.value {
        Some(Value::String(text)) => text.parse().unwrap_or(0),
        _ => field.number(),
    })
}

/// A budget, or a strategy's bound: a count or a percentage up to 100.
pub fn budget(field: Field<'_>, _: &Context<'_>, errors: &mut FieldErrors) {
    if field.is_given() {
        int_or_percent(field, errors);
        at_most_all(field, errors);
    }
}

pub fn budget_bounds(spec: Field<'_>, context: &Context<'_>, errors: &mut FieldErrors) {
    if spec.has("minAvailable") && spec.has("maxUnavailable") {
        let printed = context.printed(spec.value);
        let why = format!("{printed}: minAvailable and maxUnavailable cannot be both set");
        errors.push(spec.path, Reason::Invalid, why);
    }
}

pub fn deployment_strategy(strategy: Field<'_>, context: &Context<'_>, errors: &mut FieldErrors) {
    let rolling = strategy.child("rollingUpdate");
    match strategy.child("type").text() {
        "Recreate" => {
            if rolling.is_given() {
                errors.forbidden(rolling.path, "may not be specified when strategy `type` is 'Recreate'");
            }
        }
        "RollingUpdate" if !rolling.is_given() => {
            errors.required(rolling.path, "this should be defaulted and never be nil");
        }
        "RollingUpdate" => {
            let (unavailable, surge) = (rolling.child("maxUnavailable"), rolling.child("maxSurge"));
            int_or_percent(unavailable, errors);
            int_or_percent(surge, errors);
            if share(unavailable) == 0 && share(surge) == 0 {
                errors.invalid(unavailable.path, unavailable.json(), "may not be 0 when `maxSurge` is 0");
            }
            at_most_all(unavailable, errors);
        }
        _ => unknown_strategy(strategy, context, &["Recreate", "RollingUpdate"], errors),
    }
}

pub fn daemon_set_strategy(strategy: Field<'_>, context: &Context<'_>, errors: &mut FieldErrors) {
    let rolling = strategy.child("rollingUpdate");
    match strategy.child("type").text() {
        "OnDelete" => {}
        "RollingUpdate" if !rolling.is_given() => errors.required(rolling.path, ""),
        "RollingUpdate" => {
            let (unavailable, surge) = (rolling.child("maxUnavailable"), rolling.child("maxSurge"));
            int_or_percent(unavailable, errors);
            int_or_percent(surge, errors);
            at_most_all(unavailable, errors);
            at_most_all(surge, errors);
            match (share(unavailable) != 0, share(surge) != 0) {
                (true, true) => surge.invalid("may not be set when maxUnavailable is non-zero", errors),
                (false, false) => errors.required(unavailable.path, "cannot be 0 when maxSurge is 0"),
                _ => {}
            }
        }
        _ => unknown_strategy(strategy, context, &["RollingUpdate", "OnDelete"], errors),
    }
}

/// The whole strategy is quoted.
fn unknown_strategy(strategy: Field<'_>, context: &Context<'_>, known: &[&str], errors: &mut FieldErrors) {
    let words: Vec<String> = known.iter().map(|word| format!("{word:?}")).collect();
    let printed = context.printed(strategy.value);
    let detail = format!("{printed}: supported values: {}", words.join(", "));
    errors.push(strategy.path, Reason::NotSupported, detail);
}

pub fn progress_deadline(deadline: Field<'_>, context: &Context<'_>, errors: &mut FieldErrors) {
    if !deadline.is_given() {
        return;
    }
    deadline.not_negative(errors);
    let ready = context.sibling("minReadySeconds").and_then(Value::as_i64).unwrap_or(0);
    if deadline.number() <= ready {
        deadline.invalid("must be greater than minReadySeconds", errors);
    }
}

/// Counters of a status that cannot be above another one.
pub fn status_counters(status: Field<'_>, _: &Context<'_>, errors: &mut FieldErrors) {
    let all = status.child("replicas").number();
    for field in
        ["fullyLabeledReplicas", "updatedReplicas", "currentReplicas", "readyReplicas", "availableReplicas"]
    {
        let counter = status.child(field);
        if counter.number() > all {
            errors.invalid(counter.path, counter.number(), "cannot be greater than status.replicas");
        }
    }
    let (available, ready) = (status.child("availableReplicas"), status.child("readyReplicas"));
    if available.number() > ready.number() {
        errors.invalid(available.path, available.number(), "cannot be greater than readyReplicas");
    }
}

/// A ControllerRevision keeps an object.
pub fn revision_data(data: Field<'_>, _: &Context<'_>, errors: &mut FieldErrors) {
    match data.value {
        None => errors.required(data.path, "data is mandatory"),
        Some(Value::Object(_)) => {}
        Some(_) => errors.required(data.path, "data must be a valid JSON object"),
    }
}

pub fn stateful_set_policy(policy: Field<'_>, _: &Context<'_>, errors: &mut FieldErrors) {
    if !["OrderedReady", "Parallel"].contains(&policy.text()) {
        policy.invalid("must be 'OrderedReady' or 'Parallel'", errors);
    }
}
