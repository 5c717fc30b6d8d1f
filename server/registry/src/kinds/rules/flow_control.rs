//! Priority and fairness: which requests a schema matches, and what a level allows.

use ferry_api::field_error::Reason;
use ferry_api::{FieldErrors, names};
use serde_json::Value;

use super::field::{Context, Field};

pub fn precedence(precedence: Field<'_>, context: &Context<'_>, errors: &mut FieldErrors) {
    let number = precedence.number();
    if number <= 0 {
        errors.invalid(precedence.path, number, "must be a positive value");
    }
    if number > 10_000 {
        errors.invalid(precedence.path, number, "must not be greater than 10000");
    }
    if number == 1 && context.object.name() != "exempt" {
        errors.invalid(
            precedence.path,
            number,
            "only the schema named 'exempt' may have matchingPrecedence 1",
        );
    }
}

/// The whole method is quoted.
pub fn distinguisher(method: Field<'_>, context: &Context<'_>, errors: &mut FieldErrors) {
    let kind = method.child("type");
    if method.is_given() && !["ByNamespace", "ByUser"].contains(&kind.text()) {
        let printed = context.printed(method.value);
        let detail = format!("{printed}: supported values: \"ByNamespace\", \"ByUser\"");
        errors.push(kind.path, Reason::NotSupported, detail);
    }
}

const VERBS: &[&str] =
    &["create", "delete", "deletecollection", "get", "list", "patch", "proxy", "update", "watch"];

pub fn rule(rule: Field<'_>, _: &Context<'_>, errors: &mut FieldErrors) {
    let subjects = rule.child("subjects");
    if subjects.items().is_empty() {
        errors.required(subjects.path, "subjects must contain at least one value");
    }
    subjects.each(|given| subject(given, errors));
    let (resources, others) = (rule.child("resourceRules"), rule.child("nonResourceRules"));
    if resources.items().is_empty() && others.items().is_empty() {
        errors.required(rule.path, "at least one of resourceRules and nonResourceRules has to be non-empty");
    }
    resources.each(|resource| resource_rule(resource, errors));
    others.each(|other| {
        verbs(other.child("verbs"), errors);
        let urls = other.child("nonResourceURLs");
        if !urls.required("nonResourceURLs must contain at least one value", errors) {
        } else if has_wildcard(urls) {
            alone(urls, "non-resource URLs", errors);
        } else {
            urls.each(|url| {
                if let Some(why) = bad_url(url.text()) {
                    errors.invalid(url.path, url.text(), why);
                }
            });
        }
    });
}

fn subject(subject: Field<'_>, errors: &mut FieldErrors) {
    let kinds = [("User", "user"), ("Group", "group"), ("ServiceAccount", "serviceAccount")];
    let kind = subject.child("kind");
    let Some((_, own)) = kinds.iter().find(|(name, _)| *name == kind.text()) else {
        return kind.one_of(&["Group", "ServiceAccount", "User"], errors);
    };
    let given = subject.child(own);
    let name = given.child("name");
    if !given.is_given() {
        errors.required(given.path, &format!("{own} is required when subject kind is '{}'", kind.text()));
    } else {
        if name.required("", errors) && *own == "serviceAccount" && name.text() != "*" {
            name.named(names::dns1123_subdomain, errors);
        }
        if *own == "serviceAccount" {
            let namespace = given.child("namespace");
            if namespace.required("must specify namespace for service account", errors) {
                namespace.named(names::dns1123_label, errors);
            }
        }
    }
    let order =
        if *own == "group" { ["serviceAccount", "user", ""] } else { ["serviceAccount", "user", "group"] };
    for field in order.iter().filter(|field| **field != *own && subject.has(field)) {
        let name = kinds.iter().find(|(_, other)| other == field).map_or("", |(name, _)| name);
        let why = format!("{field} is forbidden when subject kind is not '{name}'");
        errors.forbidden(subject.path.child(field), &why);
    }
}

fn has_wildcard(list: Field<'_>) -> bool {
    list.items().iter().any(|item| item == "*")
}

fn alone(list: Field<'_>, what: &str, errors: &mut FieldErrors) {
    if list.items().len() > 1 && has_wildcard(list) {
        list.invalid(&format!("if '*' is present, must not specify other {what}"), errors);
    }
}

fn verbs(verbs: Field<'_>, errors: &mut FieldErrors) {
    if !verbs.required("verbs must contain at least one value", errors) {
        return;
    }
    if has_wildcard(verbs) {
        return alone(verbs, "verbs", errors);
    }
    let known = |verb: &Value| verb.as_str().is_some_and(|verb| VERBS.contains(&verb));
    if !verbs.items().iter().all(known) {
        errors.not_supported(verbs.path, verbs.json(), VERBS);
    }
}

fn resource_rule(rule: Field<'_>, errors: &mut FieldErrors) {
    verbs(rule.child("verbs"), errors);
    let groups = rule.child("apiGroups");
    if groups.required("resource rules must supply at least one api group", errors) {
        alone(groups, "api groups", errors);
    }
    let resources = rule.child("resources");
    if resources.required("resource rules must supply at least one resource", errors) {
        alone(resources, "resources", errors);
    }
    let namespaces = rule.child("namespaces");
    if namespaces.items().is_empty() && !rule.child("clusterScope").flag() {
        errors.required(
            namespaces.path,
            "resource rules that are not cluster scoped must supply at least one namespace",
        );
    } else if has_wildcard(namespaces) {
        alone(namespaces, "namespaces", errors);
    } else {
        namespaces.each(|namespace| {
            for why in names::dns1123_label(namespace.text()) {
                let why = format!("each member of this list must be '*' or a DNS-1123 label; {why}");
                errors.invalid(namespace.path, namespace.text(), &why);
            }
        });
    }
}

fn bad_url(url: &str) -> Option<&'static str> {
    let stars = url.matches('*').count();
    match url {
        "" => Some("must not be empty"),
        "/" => None,
        _ if !url.starts_with('/') => Some("must start with slash"),
        _ if url.contains(' ') => Some("must not contain white-space"),
        _ if url.contains("//") => Some("must not contain double slash"),
        _ if stars > 1 || (stars == 1 && !url.ends_with("/*")) => {
            Some("wildcard can only do suffix matching")
        }
        _ => None,
    }
}

pub fn level(spec: Field<'_>, context: &Context<'_>, errors: &mut FieldErrors) {
    let (kind, limited, exempt) = (spec.child("type"), spec.child("limited"), spec.child("exempt"));
    if (context.object.name() == "exempt") != (kind.text() == "Exempt") {
        errors.invalid(kind.path, kind.text(), "must be 'Exempt' if and only if `name` is 'exempt'");
    }
    match kind.text() {
        "Exempt" => {
            if limited.is_given() {
                errors.forbidden(limited.path, "must be nil if the type is not Limited");
            }
            shares(exempt, errors);
            percent(exempt.child("lendablePercent"), errors);
        }
        "Limited" => {
            if exempt.is_given() {
                errors.forbidden(exempt.path, "must be nil if the type is Limited");
            }
            if limited.is_given() {
                shares(limited, errors);
                limit_response(limited.child("limitResponse"), errors);
                percent(limited.child("lendablePercent"), errors);
                let borrowing = limited.child("borrowingLimitPercent");
                if borrowing.number() < 0 {
                    borrowing.invalid("if specified, must be a non-negative integer", errors);
                }
            } else {
                errors.required(limited.path, "must not be empty when type is Limited");
            }
        }
        "" => errors.required(kind.path, ""),
        _ => kind.one_of(&["Exempt", "Limited"], errors),
    }
}

fn shares(level: Field<'_>, errors: &mut FieldErrors) {
    let shares = level.child("nominalConcurrencyShares");
    if shares.number() < 0 {
        shares.invalid("must be a non-negative integer", errors);
    }
}

fn percent(percent: Field<'_>, errors: &mut FieldErrors) {
    if percent.is_given() {
        percent.in_range(0, 100, errors);
    }
}

fn limit_response(response: Field<'_>, errors: &mut FieldErrors) {
    let (kind, queuing) = (response.child("type"), response.child("queuing"));
    match kind.text() {
        "Reject" => {
            if queuing.is_given() {
                errors.forbidden(queuing.path, "must be nil if limited.limitResponse.type is not Limited");
            }
        }
        "Queue" if !queuing.is_given() => {
            errors.required(queuing.path, "must not be empty if limited.limitResponse.type is Limited");
        }
        "Queue" => queues(queuing, errors),
        "" => errors.required(kind.path, ""),
        _ => kind.one_of(&["Queue", "Reject"], errors),
    }
}

const MOST_QUEUES: i64 = 10_000_000;
const HASH_BITS: f64 = 60.0;

fn queues(queuing: Field<'_>, errors: &mut FieldErrors) {
    let (length, queues, hand) =
        (queuing.child("queueLengthLimit"), queuing.child("queues"), queuing.child("handSize"));
    if length.number() <= 0 {
        errors.invalid(length.path, length.number(), "must be positive");
    }
    if queues.number() <= 0 {
        errors.invalid(queues.path, queues.number(), "must be positive");
    } else if queues.number() > MOST_QUEUES {
        queues.invalid(&format!("must not be greater than {MOST_QUEUES}"), errors);
    }
    if hand.number() <= 0 {
        errors.invalid(hand.path, hand.number(), "must be positive");
    } else if hand.number() > queues.number() {
        hand.invalid(&format!("should not be greater than queues ({})", queues.number()), errors);
    } else if entropy_bits(queues.number(), hand.number()) > HASH_BITS {
        let why = format!(
            "required entropy bits of deckSize {} and handSize {} should not be greater than 60",
            queues.number(),
            hand.number()
        );
        hand.invalid(&why, errors);
    }
}

/// How many bits of a hash it takes to deal a hand of this size.
fn entropy_bits(queues: i64, hand: i64) -> f64 {
    (0..hand.min(100)).map(|dealt| ((queues - dealt) as f64).log2()).sum::<f64>().ceil()
}
