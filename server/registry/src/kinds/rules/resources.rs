//! Amounts of resources: which names there are, and what their quantities may be.

use std::collections::HashSet;

use ferry_api::field_error::Reason;
use ferry_api::{FieldErrors, Quantity, names};

use super::field::{self, Context, Field};
use crate::kinds::checks::{NOT_NEGATIVE, Path};

const COUNTED: &[&str] = &[
    "pods",
    "resourcequotas",
    "services",
    "replicationcontrollers",
    "secrets",
    "configmaps",
    "persistentvolumeclaims",
    "services.nodeports",
    "services.loadbalancers",
];
const COMPUTED: &[&str] = &[
    "cpu",
    "memory",
    "ephemeral-storage",
    "requests.cpu",
    "requests.memory",
    "requests.ephemeral-storage",
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
    "requests.storage",
];

pub fn is_native(name: &str) -> bool {
    !name.contains('/') || name.contains("kubernetes.io/")
}

pub fn is_extended(name: &str) -> bool {
    !is_native(name)
        && !name.starts_with("requests.")
        && names::qualified_name(&format!("requests.{name}")).is_empty()
}

fn is_huge_pages(name: &str) -> bool {
    name.starts_with("hugepages-")
}

fn is_quota_huge_pages(name: &str) -> bool {
    is_huge_pages(name) || name.starts_with("requests.hugepages-")
}

pub fn is_quota_name(name: &str) -> bool {
    COUNTED.contains(&name) || COMPUTED.contains(&name) || is_quota_huge_pages(name)
}

pub fn may_overcommit(name: &str) -> bool {
    is_native(name) && !is_huge_pages(name)
}

fn is_whole(name: &str) -> bool {
    COUNTED.contains(&name) || is_extended(name)
}

/// The name of any resource. Whether it is one.
pub fn any_name(name: &str, path: Path<'_>, errors: &mut FieldErrors) -> bool {
    let wrong = names::qualified_name(name);
    for why in &wrong {
        errors.invalid(path, name, why);
    }
    if !wrong.is_empty() {
        return false;
    }
    let standard = is_quota_name(name) || name == "storage";
    if !name.contains('/') && !standard {
        errors.invalid(path, name, "must be a standard resource type or fully qualified");
        return false;
    }
    true
}

/// A resource that containers ask for.
pub fn container_name(name: &str, path: Path<'_>, errors: &mut FieldErrors) {
    any_name(name, path, errors);
    if !name.contains('/') {
        if !["cpu", "memory", "ephemeral-storage"].contains(&name) && !is_huge_pages(name) {
            errors.invalid(path, name, "must be a standard resource for containers");
        }
    } else if !is_native(name) && !is_extended(name) {
        errors.invalid(path, name, "doesn't follow extended resource name standard");
    }
}

/// A resource that a whole pod asks for.
fn pod_name(name: &str, path: Path<'_>, errors: &mut FieldErrors) {
    if any_name(name, path, errors) && !["cpu", "memory"].contains(&name) && !is_huge_pages(name) {
        errors.not_supported(path, name, &["cpu", "hugepages-", "memory"]);
    }
}

pub fn quota_name(name: &str, path: Path<'_>, errors: &mut FieldErrors) {
    any_name(name, path, errors);
    if !name.contains('/') && !is_quota_name(name) {
        errors.invalid(path, name, "must be a standard resource for quota");
    }
}

pub fn amount(name: &str, field: Field<'_>, errors: &mut FieldErrors) {
    let Some(quantity) = field.quantity() else { return };
    if quantity.is_negative() {
        errors.invalid(field.path, field.text(), NOT_NEGATIVE);
    }
    if is_whole(name) && quantity.milli() % 1000 != 0 {
        errors.invalid(field.path, field.text(), "must be an integer");
    }
}

/// A quantity that is not below zero.
pub fn not_negative(field: Field<'_>, _: &Context<'_>, errors: &mut FieldErrors) {
    if field.quantity().is_some_and(|quantity| quantity.is_negative()) {
        errors.invalid(field.path, field.text(), NOT_NEGATIVE);
    }
}

pub fn positive(field: Field<'_>, errors: &mut FieldErrors) {
    if field.quantity().is_some_and(|quantity| quantity.is_negative() || quantity.is_zero()) {
        errors.invalid(field.path, field.text(), "must be greater than zero");
    }
}

/// Requests and limits of a container.
pub fn of_container(field: Field<'_>, claims: &HashSet<&str>, errors: &mut FieldErrors) {
    requirements(field, container_name, claims, errors);
}

/// Requests and limits of a whole pod.
pub fn of_pod(field: Field<'_>, claims: &HashSet<&str>, errors: &mut FieldErrors) {
    requirements(field, pod_name, claims, errors);
}

/// What a pod costs beside its containers: limits without requests.
pub fn overhead(field: Field<'_>, _: &Context<'_>, errors: &mut FieldErrors) {
    let limits = Path::child(&field.path, "limits");
    let mut seen = Seen::default();
    for (name, value) in field.entries() {
        limit(name, Field::of(value, limits.key(name)), container_name, &mut seen, errors);
    }
    if seen.huge_pages && !seen.compute {
        errors.forbidden(field.path, "HugePages require cpu or memory");
    }
}

/// The same in a RuntimeClass.
pub fn overhead_of_class(field: Field<'_>, context: &Context<'_>, errors: &mut FieldErrors) {
    overhead(Field { value: field.get("podFixed"), path: field.path }, context, errors);
}

#[derive(Default)]
struct Seen {
    compute: bool,
    huge_pages: bool,
}

fn limit(
    name: &str,
    field: Field<'_>,
    name_rule: fn(&str, Path<'_>, &mut FieldErrors),
    seen: &mut Seen,
    errors: &mut FieldErrors,
) {
    name_rule(name, field.path, errors);
    amount(name, field, errors);
    huge_pages(name, field, seen, errors);
    seen.compute |= ["cpu", "memory"].contains(&name);
}

fn huge_pages(name: &str, field: Field<'_>, seen: &mut Seen, errors: &mut FieldErrors) {
    if !is_huge_pages(name) {
        return;
    }
    seen.huge_pages = true;
    let size = Quantity::parse(name.trim_start_matches("hugepages-")).ok();
    let size = size.filter(|size| !size.is_negative() && size.milli() % 1000 == 0).map(|size| size.value());
    let divisible = size
        .filter(|size| *size > 0)
        .zip(field.quantity())
        .is_some_and(|(size, amount)| amount.value() % size == 0);
    if !divisible {
        let why = format!("{} is not positive integer multiple of {name}", field.text());
        errors.invalid(field.path, field.text(), &why);
    }
}

fn requirements(
    field: Field<'_>,
    name_rule: fn(&str, Path<'_>, &mut FieldErrors),
    claims: &HashSet<&str>,
    errors: &mut FieldErrors,
) {
    if !field.is_given() {
        return;
    }
    let (limits, requests) = (field.child("limits"), field.child("requests"));
    let mut seen = Seen::default();
    limits.each_entry(|name, value| limit(name, value, name_rule, &mut seen, errors));
    requests.each_entry(|name, value| {
        name_rule(name, value.path, errors);
        amount(name, value, errors);
        match limits.get(name).and_then(|limit| limit.as_str()) {
            Some(limit) => {
                let quantities = value.quantity().zip(Quantity::parse(limit).ok());
                let order = quantities.and_then(|(request, limit)| request.partial_cmp(&limit));
                match order {
                    Some(std::cmp::Ordering::Equal) | None => {}
                    Some(_) if !may_overcommit(name) => {
                        let why = format!("must be equal to {name} limit of {limit}");
                        errors.invalid(requests.path, value.text(), &why);
                    }
                    Some(std::cmp::Ordering::Greater) => {
                        let why = format!("must be less than or equal to {name} limit of {limit}");
                        errors.invalid(requests.path, value.text(), &why);
                    }
                    Some(std::cmp::Ordering::Less) => {}
                }
            }
            None if !may_overcommit(name) => {
                errors.required(limits.path, "Limit must be set for non overcommitable resources");
            }
            None => {}
        }
        huge_pages(name, value, &mut seen, errors);
        seen.compute |= ["cpu", "memory"].contains(&name);
    });
    if seen.huge_pages && !seen.compute {
        errors.forbidden(field.path, "HugePages require cpu or memory");
    }
    claim_names(field.child("claims"), claims, errors);
}

fn claim_names(field: Field<'_>, known: &HashSet<&str>, errors: &mut FieldErrors) {
    let mut seen: HashSet<String> = HashSet::new();
    field.each(|claim| {
        let (name, request) = (field::text(&claim.json(), "name").to_owned(), claim.child("request"));
        if name.is_empty() {
            return errors.required(claim.path, "");
        }
        if seen.contains(&name) {
            errors.duplicate(claim.path, name.as_str());
        } else {
            let mut key = name.clone();
            if !request.text().is_empty() {
                request.named(names::dns1123_label, errors);
                key = format!("{name}/{}", request.text());
            }
            if seen.contains(&key) {
                errors.duplicate(claim.path, key.as_str());
            } else if request.text().is_empty() {
                let prefix = format!("{name}/");
                for _ in seen.iter().filter(|seen| seen.starts_with(&prefix)) {
                    errors.duplicate(claim.path, name.as_str());
                }
            }
            seen.insert(key);
        }
        if !known.contains(name.as_str()) {
            let mut names: Vec<&str> = known.iter().copied().collect();
            names.sort_unstable();
            let of =
                if names.is_empty() { " which is empty".into() } else { format!(": {}", names.join(", ")) };
            let detail = format!("{name:?}: must be one of the names in pod.spec.resourceClaims{of}");
            errors.push(claim.path, Reason::NotFound, detail);
        }
    });
}

/// The amounts of a quota, or those that are used of it.
pub fn quota_amounts(field: Field<'_>, _: &Context<'_>, errors: &mut FieldErrors) {
    field.each_entry(|name, value| {
        quota_name(name, value.path, errors);
        amount(name, value, errors);
    });
}

const SCOPES: &[&str] = &[
    "Terminating",
    "NotTerminating",
    "BestEffort",
    "NotBestEffort",
    "PriorityClass",
    "VolumeAttributesClass",
    "CrossNamespacePodAffinity",
];

fn scope_fits(scope: &str, resource: &str) -> bool {
    let compute = ["cpu", "memory", "limits.cpu", "limits.memory", "requests.cpu", "requests.memory"]
        .contains(&resource);
    match scope {
        "BestEffort" => resource == "pods",
        "VolumeAttributesClass" => ["persistentvolumeclaims", "requests.storage"].contains(&resource),
        scope if SCOPES.contains(&scope) => resource == "pods" || compute,
        _ => true,
    }
}

/// Which objects a quota counts.
pub fn quota_scopes(field: Field<'_>, context: &Context<'_>, errors: &mut FieldErrors) {
    let hard = context.sibling("hard").and_then(|hard| hard.as_object());
    let misfits = |scope: &str| {
        let names = hard.into_iter().flat_map(|hard| hard.keys());
        names.filter(|name| is_quota_name(name) && !scope_fits(scope, name)).count()
    };
    let scopes: Vec<&str> = field.items().iter().filter_map(|scope| scope.as_str()).collect();
    for scope in &scopes {
        if !SCOPES.contains(scope) {
            field.invalid("unsupported scope", errors);
        }
        for _ in 0..misfits(scope) {
            field.invalid("unsupported scope applied to resource", errors);
        }
    }
    for _ in 0..conflicting(&scopes) {
        field.invalid("conflicting scopes", errors);
    }
}

fn conflicting(scopes: &[&str]) -> usize {
    let pairs = [["BestEffort", "NotBestEffort"], ["NotTerminating", "Terminating"]];
    pairs.iter().filter(|pair| pair.iter().all(|scope| scopes.contains(scope))).count()
}

pub fn quota_scope_selector(field: Field<'_>, context: &Context<'_>, errors: &mut FieldErrors) {
    if !field.is_given() {
        return;
    }
    let hard = context.sibling("hard").and_then(|hard| hard.as_object());
    let list = field.child("matchExpressions");
    let mut scopes = Vec::new();
    for requirement in list.items() {
        let scope = field::text(requirement, "scopeName");
        let operator = field::text(requirement, "operator");
        let values = requirement.get("values").and_then(|values| values.as_array()).map_or(0, Vec::len);
        if !SCOPES.contains(&scope) {
            errors.invalid(list.path.child("scopeName"), scope, "unsupported scope");
        }
        for name in hard.into_iter().flat_map(|hard| hard.keys()) {
            if is_quota_name(name) && !scope_fits(scope, name) {
                let printed = context.printed(field.value);
                let why = format!("{printed}: unsupported scope applied to resource");
                errors.push(list.path, Reason::Invalid, why);
            }
        }
        if SCOPES.contains(&scope)
            && !["PriorityClass", "VolumeAttributesClass"].contains(&scope)
            && operator != "Exists"
        {
            errors.invalid(
                list.path.child("operator"),
                operator,
                "must be 'Exists' when scope is any of ResourceQuotaScopeTerminating, ResourceQuotaScopeNotTerminating, ResourceQuotaScopeBestEffort, ResourceQuotaScopeNotBestEffort or ResourceQuotaScopeCrossNamespacePodAffinity",
            );
        }
        match operator {
            "In" | "NotIn" if values == 0 => errors.required(
                list.path.child("values"),
                "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector",
            ),
            "Exists" | "DoesNotExist" if values > 0 => errors.invalid(
                list.path.child("values"),
                requirement.get("values").cloned().unwrap_or_default(),
                "must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector",
            ),
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            _ => errors.invalid(list.path.child("operator"), operator, "not a valid selector operator"),
        }
        scopes.push(scope);
    }
    for _ in 0..conflicting(&scopes) {
        let given = context.sibling("scopes").cloned().unwrap_or_default();
        errors.invalid(list.path, given, "conflicting scopes");
    }
}
