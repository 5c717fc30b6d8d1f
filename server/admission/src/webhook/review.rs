//! Encodes the AdmissionReview for a webhook, and decodes its response. Pure.

use std::collections::BTreeMap;

use base64::Engine;
use ferry_api::Status;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::chain::Request;
use crate::expressions::request_value;
use crate::versions::Versioned;

const GROUP: &str = "admission.k8s.io";

/// The first version of the webhook's list that is known here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReviewVersion {
    V1,
    V1beta1,
}

impl ReviewVersion {
    pub fn choose(versions: &[String]) -> Result<ReviewVersion, String> {
        let known = |version: &String| match version.as_str() {
            "v1" => Some(ReviewVersion::V1),
            "v1beta1" => Some(ReviewVersion::V1beta1),
            _ => None,
        };
        let chosen = versions.iter().find_map(known);
        chosen
            .ok_or_else(|| "webhook does not accept known AdmissionReview versions (v1, v1beta1)".to_string())
    }

    fn word(self) -> &'static str {
        match self {
            ReviewVersion::V1 => "v1",
            ReviewVersion::V1beta1 => "v1beta1",
        }
    }
}

pub fn encode(version: ReviewVersion, uid: &str, request: &Request<'_>, versioned: &Versioned) -> Value {
    let mut about = request_value(request, versioned);
    about["uid"] = uid.into();
    about["object"] = versioned.object.clone();
    about["oldObject"] = versioned.old.clone();
    json!({"kind": "AdmissionReview", "apiVersion": format!("{GROUP}/{}", version.word()), "request": about})
}

/// The response of a webhook, independent of the version of AdmissionReview.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct WebhookVerdict {
    pub allowed: bool,
    pub status: Option<Status>,
    /// A JSON patch; empty when nothing is to be changed.
    pub patch: Vec<u8>,
    pub audit_annotations: BTreeMap<String, String>,
    pub warnings: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Review {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    response: Option<Response>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Response {
    #[serde(default)]
    uid: String,
    #[serde(default)]
    allowed: bool,
    status: Option<Status>,
    patch: Option<String>,
    patch_type: Option<String>,
    audit_annotations: Option<BTreeMap<String, String>>,
    warnings: Option<Vec<String>>,
}

/// Reads an answer, and refuses one that is no answer to this question.
pub fn read(
    body: &[u8],
    version: ReviewVersion,
    uid: &str,
    may_patch: bool,
) -> Result<WebhookVerdict, String> {
    let review: Review = serde_json::from_slice(body)
        .map_err(|error| format!("couldn't get version/kind; json parse error: {error}"))?;
    let wanted = format!("{GROUP}/{}", version.word());
    if version == ReviewVersion::V1 && (review.api_version != wanted || review.kind != "AdmissionReview") {
        return Err(format!(
            "expected webhook response of {wanted}, Kind=AdmissionReview, got {}, Kind={}",
            review.api_version, review.kind
        ));
    }
    let response = review.response.ok_or("webhook response was absent")?;
    if version == ReviewVersion::V1 && response.uid != uid {
        return Err(format!("expected response.uid={uid:?}, got {:?}", response.uid));
    }
    let text = response.patch.unwrap_or_else(String::new);
    let patch = base64::engine::general_purpose::STANDARD
        .decode(&text)
        .map_err(|error| format!("response.patch is not base64: {error}"))?;
    check_patch(version, !patch.is_empty(), response.patch_type.as_deref(), may_patch)?;
    Ok(WebhookVerdict {
        allowed: response.allowed,
        status: response.status,
        patch: if may_patch { patch } else { Vec::new() },
        audit_annotations: response.audit_annotations.unwrap_or_else(BTreeMap::new),
        warnings: response.warnings.unwrap_or_else(Vec::new),
    })
}

/// The old version forgives a patch without a type and ignores patches that may not be.
fn check_patch(
    version: ReviewVersion,
    has_patch: bool,
    patch_type: Option<&str>,
    may_patch: bool,
) -> Result<(), String> {
    if version == ReviewVersion::V1beta1 {
        return Ok(());
    }
    match (may_patch, has_patch, patch_type) {
        (false, true, _) => Err("validating webhook may not return response.patch".into()),
        (false, false, Some(_)) => Err("validating webhook may not return response.patchType".into()),
        (false, false, None) => Ok(()),
        (true, true, None) => Err("webhook returned response.patch but not response.patchType".into()),
        (true, false, Some(_)) => Err("webhook returned response.patchType but not response.patch".into()),
        (true, true, Some("JSONPatch")) | (true, false, None) => Ok(()),
        (true, true, Some(other)) => Err(format!("webhook returned invalid response.patchType of {other:?}")),
    }
}

/// A refusal, with the webhook's name and never with a code that would look like success.
pub fn refusal(webhook: &str, status: Option<Status>) -> Status {
    let denied = format!("admission webhook {webhook:?} denied the request");
    let mut status = status.unwrap_or_else(|| Status::new(0, "", ""));
    (status.kind, status.api_version) = ("Status".into(), "v1".into());
    if status.code < 400 {
        status.code = 400;
    }
    if ["", "Success"].contains(&status.status.as_str()) {
        status.status = "Failure".into();
    }
    status.message = match (status.message.as_str(), status.reason.as_str()) {
        ("", "") => format!("{denied} without explanation"),
        ("", reason) => format!("{denied}: {reason}"),
        (message, _) => format!("{denied}: {message}"),
    };
    status
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(response: Value, may_patch: bool, expected: Result<bool, &str>) {
        let review =
            json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response});
        let read = read(review.to_string().as_bytes(), ReviewVersion::V1, "u", may_patch);
        assert_eq!(read.map(|answered| answered.allowed), expected.map_err(String::from), "{review}");
    }

    #[test]
    fn only_an_answer_to_the_question_counts() {
        check(json!({"uid": "u", "allowed": true}), true, Ok(true));
        check(json!({"uid": "u", "allowed": false}), true, Ok(false));
        check(json!({"uid": "v", "allowed": true}), true, Err("expected response.uid=\"u\", got \"v\""));
        check(Value::Null, true, Err("webhook response was absent"));
        let patch = |patch_type: Value| json!({"uid": "u", "allowed": true, "patch": "W10=", "patchType": patch_type});
        check(patch(json!("JSONPatch")), true, Ok(true));
        check(patch(json!("Merge")), true, Err("webhook returned invalid response.patchType of \"Merge\""));
        check(patch(Value::Null), true, Err("webhook returned response.patch but not response.patchType"));
        check(patch(json!("JSONPatch")), false, Err("validating webhook may not return response.patch"));
        let other = json!({"apiVersion": "v1", "kind": "Pod", "response": {"uid": "u", "allowed": true}});
        assert_eq!(
            read(other.to_string().as_bytes(), ReviewVersion::V1, "u", true),
            Err("expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview, got v1, Kind=Pod"
                .into())
        );
        let old = json!({"response": {"allowed": true, "patch": "W10="}});
        assert!(read(old.to_string().as_bytes(), ReviewVersion::V1beta1, "u", true).is_ok());
    }

    #[test]
    fn a_refusal_is_never_a_success() {
        let check = |status: Option<Value>, code: u16, message: &str| {
            let status = status.map(|status| serde_json::from_value(status).expect("a Status"));
            let refused = refusal("x.io", status);
            assert_eq!((refused.code, refused.message.as_str()), (code, message));
            assert_eq!(refused.status, "Failure");
        };
        check(None, 400, "admission webhook \"x.io\" denied the request without explanation");
        check(
            Some(json!({"message": "no", "code": 403, "reason": "Forbidden"})),
            403,
            "admission webhook \"x.io\" denied the request: no",
        );
        check(
            Some(json!({"reason": "Why", "code": 200, "status": "Success"})),
            400,
            "admission webhook \"x.io\" denied the request: Why",
        );
    }
}
