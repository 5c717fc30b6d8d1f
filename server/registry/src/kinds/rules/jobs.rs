//! Jobs and the schedules that make them.

use std::collections::HashSet;

use ferry_api::field_error::Reason;
use ferry_api::{FieldErrors, names};
use serde_json::Value;

use super::field::{self, Context, Field};
use super::{format, placement, pods};
use crate::kinds::checks::Path;

const MANY: i64 = 100_000;
const FEWER: i64 = 10_000;

/// The spec of a Job, or of those that a CronJob makes.
pub fn spec(spec: Field<'_>, context: &Context<'_>, errors: &mut FieldErrors) {
    for field in [
        "parallelism",
        "completions",
        "activeDeadlineSeconds",
        "backoffLimit",
        "ttlSecondsAfterFinished",
        "backoffLimitPerIndex",
        "maxFailedIndexes",
    ] {
        spec.child(field).not_negative(errors);
    }
    let (per_index, failed) = (spec.child("backoffLimitPerIndex"), spec.child("maxFailedIndexes"));
    if failed.is_given() && !per_index.is_given() {
        errors.required(per_index.path, "when maxFailedIndexes is specified");
    }
    let manager = spec.child("managedBy");
    if manager.is_given() {
        format::domain_path(manager.text(), manager.path, errors);
        if manager.text().len() > 63 {
            errors.too_long(manager.path, 63);
        }
    }
    completion_mode(spec, errors);
    let failure = spec.child("podFailurePolicy");
    if failure.is_given() {
        failure_policy(failure, spec, errors);
    }
    let success = spec.child("successPolicy");
    let indexed = spec.child("completionMode").text() == "Indexed";
    if success.is_given() && !indexed {
        let printed = context.printed_as("batch.v1.SuccessPolicy", success.value);
        errors.push(success.path, Reason::Invalid, format!("{printed}: requires indexed completion mode"));
    } else if success.is_given() {
        success_policy(success, spec.child("completions").number(), errors);
    }
    let replacement = spec.child("podReplacementPolicy");
    if failure.is_given() {
        replacement.optional_one_of(&["Failed"], errors);
    } else {
        replacement.optional_one_of(&["Failed", "TerminatingOrFailed"], errors);
    }
    let template = spec.child("template");
    pods::judge_template(template, context, errors);
    let pod = template.child("spec");
    let policy = pod.child("restartPolicy");
    match policy.text() {
        "" | "Always" => errors.required(policy.path, r#"valid values: "OnFailure", "Never""#),
        "OnFailure" if failure.is_given() => {
            policy.invalid(r#"only "Never" is supported when podFailurePolicy is specified"#, errors);
        }
        _ => policy.one_of(&["OnFailure", "Never"], errors),
    }
}

fn completion_mode(spec: Field<'_>, errors: &mut FieldErrors) {
    let mode = spec.child("completionMode");
    let (completions, parallelism) = (spec.child("completions"), spec.child("parallelism"));
    let (per_index, failed) = (spec.child("backoffLimitPerIndex"), spec.child("maxFailedIndexes"));
    mode.optional_one_of(&["NonIndexed", "Indexed"], errors);
    match mode.text() {
        "Indexed" => {
            if !completions.is_given() {
                errors.required(completions.path, "when completion mode is Indexed");
            }
            if parallelism.number() > MANY {
                let why = format!("must be less than or equal to {MANY} when completion mode is Indexed");
                parallelism.invalid(&why, errors);
            }
            if completions.is_given() && failed.number() > completions.number() {
                failed.invalid("must be less than or equal to completions", errors);
            }
            if failed.number() > MANY {
                failed.invalid(&format!("must be less than or equal to {MANY}"), errors);
            }
            if completions.number() > MANY && per_index.is_given() {
                let above = format!(
                    "must be less than or equal to {FEWER} when completions are above {MANY} and used with backoff limit per index"
                );
                if !failed.is_given() {
                    let why = format!("must be specified when completions is above {MANY}");
                    errors.required(failed.path, &why);
                }
                if parallelism.number() > FEWER {
                    parallelism.invalid(&above, errors);
                }
                if failed.number() > FEWER {
                    failed.invalid(&above, errors);
                }
            }
        }
        "" | "NonIndexed" => {
            for field in [per_index, failed] {
                if field.is_given() {
                    field.invalid("requires indexed completion mode", errors);
                }
            }
        }
        _ => {}
    }
}

fn omitted(path: Path<'_>, why: &str, errors: &mut FieldErrors) {
    errors.push(path, Reason::Invalid, why.to_owned());
}

const ACTIONS: &[&str] = &["Count", "FailIndex", "FailJob", "Ignore"];

fn failure_policy(policy: Field<'_>, spec: Field<'_>, errors: &mut FieldErrors) {
    let rules = policy.child("rules");
    if rules.items().len() > 20 {
        errors.too_many(rules.path, rules.items().len(), 20);
    }
    let template = spec.child("template");
    let pod = template.child("spec");
    let lists = [pod.child("containers"), pod.child("initContainers")];
    let containers: HashSet<&str> =
        lists.iter().flat_map(|list| list.items()).map(|container| field::text(container, "name")).collect();
    rules.each(|rule| {
        let action = rule.child("action");
        match action.text() {
            "" => errors.required(action.path, r#"valid values: ["Count" "FailIndex" "FailJob" "Ignore"]"#),
            "FailIndex" if !spec.has("backoffLimitPerIndex") => {
                action.invalid("requires the backoffLimitPerIndex to be set", errors);
            }
            _ => action.one_of(ACTIONS, errors),
        }
        let (codes, conditions) = (rule.child("onExitCodes"), rule.child("onPodConditions"));
        if codes.is_given() {
            exit_codes(codes, &containers, errors);
        }
        pod_conditions(conditions, errors);
        match (codes.is_given(), conditions.items().is_empty()) {
            (true, false) => {
                omitted(
                    rule.path,
                    "specifying both OnExitCodes and OnPodConditions is not supported",
                    errors,
                );
            }
            (false, true) => {
                omitted(rule.path, "specifying one of OnExitCodes and OnPodConditions is required", errors);
            }
            _ => {}
        }
    });
}

fn pod_conditions(conditions: Field<'_>, errors: &mut FieldErrors) {
    if conditions.items().len() > 20 {
        errors.too_many(conditions.path, conditions.items().len(), 20);
    }
    conditions.each(|pattern| {
        pattern.child("type").named(names::qualified_name, errors);
        let status = pattern.child("status");
        if status.required(r#"valid values: ["False" "True" "Unknown"]"#, errors) {
            status.one_of(&["False", "True", "Unknown"], errors);
        }
    });
}

fn exit_codes(codes: Field<'_>, containers: &HashSet<&str>, errors: &mut FieldErrors) {
    let operator = codes.child("operator");
    if operator.required(r#"valid values: ["In" "NotIn"]"#, errors) {
        operator.one_of(&["In", "NotIn"], errors);
    }
    let container = codes.child("containerName");
    if container.is_given() && !containers.contains(container.text()) {
        container.invalid("must be one of the container or initContainer names in the pod template", errors);
    }
    let values = codes.child("values");
    let count = values.items().len();
    if count == 0 {
        errors.invalid(values.path, values.json(), "at least one value is required");
    } else if count > 255 {
        errors.too_many(values.path, count, 255);
    }
    let mut seen: HashSet<i64> = HashSet::new();
    values.each(|value| {
        if operator.text() == "In" && value.number() == 0 {
            value.invalid("must not be 0 for the In operator", errors);
        }
        if !seen.insert(value.number()) {
            errors.duplicate(value.path, value.number());
        }
    });
    if !values.items().is_sorted_by_key(|value| value.as_i64()) {
        values.invalid("must be ordered", errors);
    }
}

fn success_policy(policy: Field<'_>, completions: i64, errors: &mut FieldErrors) {
    let rules = policy.child("rules");
    rules.required("at least one rules must be specified when the successPolicy is specified", errors);
    if rules.items().len() > 20 {
        errors.too_many(rules.path, rules.items().len(), 20);
    }
    rules.each(|rule| {
        let (count, indexes) = (rule.child("succeededCount"), rule.child("succeededIndexes"));
        if !count.is_given() && !indexes.is_given() {
            errors.required(
                rule.path,
                "at least one of succeededCount or succeededIndexes must be specified",
            );
        }
        let mut total = 0;
        if indexes.is_given() {
            if indexes.text().len() > 64 << 10 {
                errors.too_long(indexes.path, 64 << 10);
            }
            match parse_indexes(indexes.text(), completions) {
                Ok(number) => total = number,
                Err(why) => indexes.invalid(&format!("error parsing succeededIndexes: {why}"), errors),
            }
        }
        if count.is_given() {
            count.not_negative(errors);
            if count.number() > completions {
                let why = format!(
                    "must be less than or equal to {completions} (the number of specified completions)"
                );
                count.invalid(&why, errors);
            }
            if indexes.is_given() && count.number() > total {
                let why = format!(
                    "must be less than or equal to {total} (the number of indexes in the specified succeededIndexes field)"
                );
                count.invalid(&why, errors);
            }
        }
    });
}

/// `1,3-5`: how many indexes it names.
fn parse_indexes(text: &str, completions: i64) -> Result<i64, String> {
    if text.is_empty() {
        return Ok(0);
    }
    let (mut last, mut total) = (None, 0);
    for interval in text.split(',') {
        let number = |part: &str| {
            let index: i64 =
                part.parse().map_err(|_| format!("cannot convert string to integer for index: {part:?}"))?;
            if index >= completions {
                return Err(format!("too large index: {part:?}"));
            }
            Ok(index)
        };
        let (first, end) = match interval.split_once('-') {
            Some((_, rest)) if rest.contains('-') => {
                return Err(format!(
                    "the fragment {interval:?} violates the requirement that an index interval can have at most two parts separated by '-'"
                ));
            }
            Some((first, end)) => (number(first)?, number(end)?),
            None => (number(interval)?, number(interval)?),
        };
        if last.is_some_and(|last| last >= first) {
            return Err(format!("non-increasing order, previous: {}, current: {first}", last.unwrap_or(0)));
        }
        if interval.contains('-') && first >= end {
            return Err(format!("non-increasing order, previous: {first}, current: {end}"));
        }
        total += end - first + 1;
        last = Some(end);
    }
    Ok(total)
}

/// What holds for a Job itself: its selector is made of its uid, and the names of its pods fit.
pub fn job(spec_field: Field<'_>, context: &Context<'_>, errors: &mut FieldErrors) {
    let object = context.object;
    let (selector, template) = (spec_field.child("selector"), spec_field.child("template"));
    let metadata = template.child("metadata");
    let labels = metadata.child("labels");
    if !spec_field.child("manualSelector").flag() && selector.is_given() {
        for (key, expected) in [
            ("controller-uid", object.uid()),
            ("job-name", object.name()),
            ("batch.kubernetes.io/controller-uid", object.uid()),
            ("batch.kubernetes.io/job-name", object.name()),
        ] {
            let why = format!("must be '{expected}'");
            match labels.get(key).and_then(Value::as_str) {
                None => errors.required(labels.path.key(key), &why),
                Some(label) if label != expected => {
                    errors.invalid(labels.path.key(key), labels.json(), &why);
                }
                Some(_) => {}
            }
        }
        let generated = |key: &str| match key {
            "controller-uid" | "batch.kubernetes.io/controller-uid" => Some(object.uid()),
            "job-name" | "batch.kubernetes.io/job-name" => Some(object.name()),
            _ => None,
        };
        let parsed = ferry_api::LabelSelector::from_structured(selector.value);
        if parsed.is_ok_and(|parsed| !parsed.matches(generated)) {
            placement::refuse_selector(selector, "`selector` not auto-generated", errors);
        }
    }
    spec(spec_field, context, errors);
    if selector.is_given() {
        placement::label_selector(selector, errors);
    } else {
        errors.required(selector.path, "");
    }
    let parsed = selector.value.map(|value| ferry_api::LabelSelector::from_structured(Some(value)));
    let matches = match parsed {
        None => Some(false),
        Some(parsed) => {
            parsed.ok().map(|parsed| parsed.matches(|key| labels.get(key).and_then(Value::as_str)))
        }
    };
    if matches == Some(false) {
        errors.invalid(labels.path, labels.json(), "`selector` does not match template `labels`");
    }
    let completions = spec_field.child("completions").number();
    if spec_field.child("completionMode").text() == "Indexed" && completions > 0 {
        let longest = format!("{}-{}", object.name(), completions - 1);
        if !names::dns1123_label(&longest).is_empty() {
            errors.invalid(
                "metadata.name",
                object.name(),
                &format!("will not able to create pod with invalid DNS label: {longest}"),
            );
        }
    }
}

/// The jobs that a CronJob makes.
pub fn job_template(template: Field<'_>, context: &Context<'_>, errors: &mut FieldErrors) {
    let own = template.child("spec");
    spec(own, context, errors);
    let selector = own.child("selector");
    if selector.is_given() {
        placement::refuse_selector(selector, "`selector` will be auto-generated", errors);
    }
    let manual = own.child("manualSelector");
    if manual.flag() {
        errors.not_supported(manual.path, true, &["nil", "false"]);
    }
}

pub fn cron_schedule(schedule: Field<'_>, _: &Context<'_>, errors: &mut FieldErrors) {
    if !schedule.required("", errors) {
        return;
    }
    if let Err(why) = crate::kinds::cron_job::parse_schedule(schedule.text()) {
        schedule.invalid(&why, errors);
    }
    if schedule.text().contains("TZ") {
        schedule.invalid("cannot use TZ or CRON_TZ in schedule, use timeZone field instead", errors);
    }
}

pub fn time_zone(zone: Field<'_>, _: &Context<'_>, errors: &mut FieldErrors) {
    if !zone.is_given() {
        return;
    }
    if zone.is_empty() {
        return zone.invalid("timeZone must be nil or non-empty string", errors);
    }
    let letters = |part: &str| {
        (1..=14).contains(&part.len())
            && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_+".contains(&byte))
    };
    let unknown = format!("unknown time zone {}", zone.text());
    let formed = zone
        .text()
        .split('/')
        .all(|part| part != "." && part != ".." && !part.starts_with('-') && letters(part));
    if !formed {
        return zone.invalid(&unknown, errors);
    }
    if zone.text().eq_ignore_ascii_case("local") {
        zone.invalid(
            "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones",
            errors,
        );
    }
    if zone.text() != "Local" && jiff::tz::TimeZone::get(zone.text()).is_err() {
        zone.invalid(&unknown, errors);
    }
}

/// The controller adds eleven characters to make the name of a job.
pub fn cron_name(_: Field<'_>, context: &Context<'_>, errors: &mut FieldErrors) {
    let name = context.object.name();
    if name.len() > names::DNS1035_LABEL_MAX - 11 {
        errors.invalid("metadata.name", name, "must be no more than 52 characters");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indexes_are_counted() {
        assert_eq!(parse_indexes("0,2-4", 5), Ok(4));
        assert_eq!(parse_indexes("", 5), Ok(0));
        assert!(parse_indexes("2,1", 5).is_err());
        assert!(parse_indexes("0-9", 5).is_err());
        assert!(parse_indexes("a", 5).is_err());
    }
}
