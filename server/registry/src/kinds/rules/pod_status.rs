//! What the scheduler, controllers and kubelets may write into a pod's status.

use std::collections::HashSet;

use ferry_api::{FieldErrors, names};
use serde_json::Value;

use super::field::{self, Context, Field};
use super::format;
use crate::kinds::checks::IMMUTABLE;

const HEALTH: &[&str] = &["Healthy", "Unhealthy", "Unknown"];
const MAX_HEALTH_MESSAGE: usize = 1024;

pub fn pod(status: Field<'_>, context: &Context<'_>, errors: &mut FieldErrors) {
    status.child("nominatedNodeName").optional_name(names::dns1123_subdomain, errors);
    let class = status.child("qosClass");
    let before = context.old_object.map(|old| old.text_at(&["status", "qosClass"]));
    if class.is_given() && before.is_some_and(|before| !before.is_empty() && before != class.text()) {
        class.invalid(IMMUTABLE, errors);
    }
    let spec = context.object.get(&["spec", "resourceClaims"]).and_then(Value::as_array);
    let claims = status.child("resourceClaimStatuses");
    claims.each(|claim| {
        let name = claim.child("name");
        let known = spec.into_iter().flatten().any(|entry| field::text(entry, "name") == name.text());
        if !known {
            name.invalid("must match the name of an entry in `spec.resourceClaims`", errors);
        }
        claim.child("resourceClaimName").optional_name(names::dns1123_subdomain, errors);
    });
    extended_resource_claim(status.child("extendedResourceClaimStatus"), context, errors);
    let (one, all) = (status.child("podIP"), status.child("podIPs"));
    addresses(all, errors);
    // where only one is told it is the list's
    if all.items().is_empty() && one.is_given() {
        for why in format::ip(one.text()) {
            errors.invalid(all.path.index(0), one.text(), &why);
        }
    }
    let (one, all) = (status.child("hostIP"), status.child("hostIPs"));
    let first = all.items().first().map(|first| field::text(first, "ip"));
    if let Some(first) = first.filter(|first| *first != one.text()) {
        errors.invalid(all.path.index(0).child("ip"), first, "must be equal to `hostIP`");
    }
    addresses(all, errors);
    for (statuses, containers) in
        [("containerStatuses", "containers"), ("initContainerStatuses", "initContainers")]
    {
        status.child(statuses).each(|status| device_health(status, containers, context, errors));
    }
    status.child("ephemeralContainerStatuses").each(|status| {
        let health = status.child("allocatedResourcesStatus");
        if !health.items().is_empty() {
            errors.forbidden(health.path, "must not be specified in container status");
        }
    });
}

fn addresses(list: Field<'_>, errors: &mut FieldErrors) {
    list.each(|address| {
        for why in format::ip(address.child("ip").text()) {
            errors.invalid(address.path, address.child("ip").text(), &why);
        }
    });
}

/// A container of the pod, or an init container.
fn container<'o>(context: &Context<'o>, list: &str, name: &str) -> Option<&'o Value> {
    let containers = context.object.get(&["spec", list]).and_then(Value::as_array);
    containers.into_iter().flatten().find(|container| field::text(container, "name") == name)
}

fn requests(container: &Value, resource: &str) -> bool {
    let resources = container.get("resources").and_then(|resources| resources.get("requests"));
    resources.is_some_and(|requests| requests.get(resource).is_some())
}

/// The claim that the scheduler has made for extended resources, and what of it each container has.
fn extended_resource_claim(status: Field<'_>, context: &Context<'_>, errors: &mut FieldErrors) {
    if !status.is_given() {
        return;
    }
    let mappings = status.child("requestMappings");
    if mappings.items().is_empty() {
        errors.required(mappings.path, "at least one request mapping is required");
    }
    let mut seen = HashSet::new();
    let request_path = status.child("requestName");
    mappings.each(|mapping| {
        let (name, resource) = (mapping.child("containerName"), mapping.child("resourceName"));
        let request = mapping.child("requestName");
        let known = ["containers", "initContainers"].into_iter();
        let container = known.filter_map(|list| container(context, list, name.text())).next();
        match container {
            None => name.invalid(
                "must match the name of an entry in spec.initContainers.name or spec.containers.name",
                errors,
            ),
            Some(container) if !requests(container, resource.text()) => resource.invalid(
                "must match the extended resource name of an entry in spec.initContainers.resources.requests or \
                 spec.containers.resources.requests",
                errors,
            ),
            Some(_) => {}
        }
        // without the place in the list, as upstream tells it
        for why in names::dns1123_label(request.text()) {
            errors.invalid(request_path.path, request.text(), &why);
        }
        if !seen.insert([name.text(), resource.text(), request.text()].map(str::to_owned)) {
            for field in [&name, &resource, &request] {
                errors.duplicate(field.path, field.text());
            }
        }
    });
    status.child("resourceClaimName").required_name(names::dns1123_subdomain, errors);
}

/// The health of the devices that a container has.
fn device_health(status: Field<'_>, list: &str, context: &Context<'_>, errors: &mut FieldErrors) {
    let container = container(context, list, status.child("name").text());
    status.child("allocatedResourcesStatus").each(|resource| {
        let name = resource.child("name");
        // A container that is not there is none of this rule's business.
        if let Some(why) = container.and_then(|container| unasked(container, name.text())) {
            name.invalid(why, errors);
        }
        let mut seen = HashSet::new();
        resource.child("resources").each(|device| {
            device.child("health").one_of(HEALTH, errors);
            let message = device.child("message");
            if message.value.is_some() && message.text().is_empty() {
                errors.required(message.path, "must be non-empty if specified");
            } else if message.text().len() > MAX_HEALTH_MESSAGE {
                errors.too_long(message.path, MAX_HEALTH_MESSAGE);
            }
            let id = device.child("resourceID");
            if !seen.insert(id.text().to_owned()) {
                errors.duplicate(id.path, id.text());
            }
        });
    });
}

/// Why a container cannot have a resource of this name.
fn unasked(container: &Value, resource: &str) -> Option<&'static str> {
    let Some(claim) = resource.strip_prefix("claim:") else {
        let why = "must match one of the container's resource requests";
        return (!requests(container, resource)).then_some(why);
    };
    let claims = container.get("resources").and_then(|resources| resources.get("claims"));
    let mut claims = claims.and_then(Value::as_array).into_iter().flatten();
    let is_named = claims.any(|entry| {
        let (name, request) = (field::text(entry, "name"), field::text(entry, "request"));
        if request.is_empty() { claim == name } else { claim.split_once('/') == Some((name, request)) }
    });
    let why = "must match one of the container's resource claims in a format 'claim:<claimName>/<request>' or \
               'claim:<claimName>' if request is empty";
    (!is_named).then_some(why)
}
