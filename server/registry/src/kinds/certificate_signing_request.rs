//! CertificateSigningRequest: it says who asked, its spec never changes, and only `approval` decides on it.

use ferry_api::certificate_request::CertificateRequest;
use ferry_api::{FieldErrors, Object, User};
use jiff::Timestamp;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use serde_json::{Value, json};

use crate::columns::Column;
use crate::metadata::timestamp;
use crate::strategy::{NameRule, Rules, Selectable, StrategyOptions, Typed};

pub static STRATEGY: Typed<CertificateSigningRequest, RequestRules> = Typed::new(RequestRules);

pub struct RequestRules;

const DECISIONS: [&str; 2] = ["Approved", "Denied"];
const SHORTEST: i32 = 600;

impl Rules<CertificateSigningRequest> for RequestRules {
    fn stamp_requester(&self, object: &mut Object, user: &User) {
        let spec = object.section_mut("spec");
        for field in ["username", "uid", "groups", "extra"] {
            spec.remove(field);
        }
        spec.insert("username".into(), user.name.as_str().into());
        if !user.uid.is_empty() {
            spec.insert("uid".into(), user.uid.as_str().into());
        }
        if !user.groups.is_empty() {
            spec.insert("groups".into(), json!(user.groups));
        }
        if !user.extra.is_empty() {
            spec.insert("extra".into(), json!(user.extra));
        }
    }

    fn prepare_update(&self, new: &mut Object, old: &Object) {
        keep(new, old, "spec");
    }

    fn prepare_action(&self, subresource: &str, new: &mut Object, old: &Object) {
        if subresource != "approval" {
            return;
        }
        let mut conditions = new.get(&["status", "conditions"]).cloned().unwrap_or_else(|| json!([]));
        let now = timestamp(Timestamp::now().as_second());
        for condition in conditions.as_array_mut().into_iter().flatten() {
            if let Value::Object(condition) = condition {
                super::checks::set_default(condition, "lastUpdateTime", now.as_str());
                super::checks::set_default(condition, "lastTransitionTime", now.as_str());
            }
        }
        keep(new, old, "spec");
        keep(new, old, "status");
        new.section_mut("status").insert("conditions".into(), conditions);
    }

    fn validate(&self, request: &CertificateSigningRequest, errors: &mut FieldErrors) {
        let spec = &request.spec;
        if spec.request.0.is_empty() {
            errors.invalid("spec.request", Value::Null, "PEM block type must be CERTIFICATE REQUEST");
        } else if let Err(malformed) = CertificateRequest::read(&spec.request.0) {
            errors.invalid("spec.request", json!(spec.request), &malformed.to_string());
        }
        if spec.usages.as_ref().is_none_or(Vec::is_empty) {
            errors.required("spec.usages", "");
        }
        let usages = json!(spec.usages);
        super::rules::certificate_usages(&usages, errors);
        super::rules::signer_name(&spec.signer_name, errors);
        if let Some(seconds) = spec.expiration_seconds.filter(|seconds| *seconds < SHORTEST) {
            errors.invalid(
                "spec.expirationSeconds",
                seconds,
                "may not specify a duration less than 600 seconds (10 minutes)",
            );
        }
    }

    fn options(&self) -> StrategyOptions {
        StrategyOptions { name: NameRule::PathSegment, ..StrategyOptions::default() }
    }

    fn judges_status(&self) -> bool {
        true
    }

    fn validate_status_update(
        &self,
        new: &CertificateSigningRequest,
        old: &CertificateSigningRequest,
        errors: &mut FieldErrors,
    ) {
        for kind in DECISIONS {
            let word = match (has(old, kind), has(new, kind)) {
                (true, false) => "remove",
                (false, true) => "add",
                _ => continue,
            };
            errors.forbidden(
                "status.conditions",
                &format!("updates may not {word} a condition of type {kind:?}"),
            );
        }
        let certificate = |request: &CertificateSigningRequest| {
            request
                .status
                .as_ref()
                .and_then(|status| status.certificate.clone())
                .filter(|bytes| !bytes.0.is_empty())
        };
        if certificate(old).is_some() && certificate(new) != certificate(old) {
            errors.forbidden("status.certificate", "updates may not modify a certificate once it is set");
        }
    }

    fn validate_action(
        &self,
        _subresource: &str,
        new: &CertificateSigningRequest,
        old: &CertificateSigningRequest,
        errors: &mut FieldErrors,
    ) {
        for kind in DECISIONS.into_iter().filter(|kind| has(old, kind) && !has(new, kind)) {
            errors.forbidden(
                "status.conditions",
                &format!("updates may not remove a condition of type {kind:?}"),
            );
        }
        if DECISIONS.iter().all(|kind| has(new, kind)) {
            errors.invalid(
                "status.conditions",
                "Denied",
                "Approved and Denied conditions are mutually exclusive",
            );
        }
    }

    fn judged_actions(&self) -> &'static [&'static str] {
        &["approval"]
    }

    fn selectable(&self) -> &[Selectable] {
        static FIELDS: &[Selectable] = &[Selectable::new("spec.signerName", "spec.signerName", "")];
        FIELDS
    }

    fn columns(&self) -> &[Column] {
        super::tables::cluster::CERTIFICATE_SIGNING_REQUEST
    }
}

fn has(request: &CertificateSigningRequest, kind: &str) -> bool {
    let conditions = request.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.into_iter().flatten().any(|condition| condition.type_ == kind)
}

fn keep(new: &mut Object, old: &Object, section: &str) {
    match old.0.get(section) {
        Some(value) => new.0.insert(section.into(), value.clone()),
        None => new.0.remove(section),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_approval_changes_the_conditions_only() {
        let old =
            Object::from_value(json!({"spec": {"signerName": "a/b"}, "status": {"certificate": "eA=="}}))
                .expect("an object");
        let mut new = Object::from_value(json!({
            "spec": {"signerName": "c/d"}, "status": {"conditions": [{"type": "Approved", "status": "True"}]},
        }))
        .expect("an object");
        RequestRules.prepare_action("approval", &mut new, &old);
        assert_eq!(new.text_at(&["spec", "signerName"]), "a/b");
        assert_eq!(new.text_at(&["status", "certificate"]), "eA==");
        let condition = new.get(&["status", "conditions"]).and_then(|list| list.get(0)).expect("a condition");
        assert!(condition["lastTransitionTime"].is_string() && condition["type"] == "Approved");
    }
}
