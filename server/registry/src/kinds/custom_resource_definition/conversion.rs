//! How objects get from one version to another: as they are, or by a webhook.

use ferry_api::{FieldErrors, names};
use serde_json::Value;

use super::super::admission::webhook_configuration::{self as webhook, ClientConfig};
use super::super::checks::{self, Path};
use super::text;

const KNOWN_REVIEWS: &[&str] = &["v1", "v1beta1"];

/// What an update may keep though a new definition may not have it.
#[derive(Debug, Clone, Copy)]
pub struct Allowed {
    pub unreadable_ca_bundle: bool,
    pub unknown_reviews: bool,
}

impl Allowed {
    /// A certificate that cannot be read is allowed until the definition is established.
    pub const CREATE: Allowed = Allowed { unreadable_ca_bundle: true, unknown_reviews: false };

    pub fn update(old: &Value, established: bool) -> Allowed {
        let reviews = reviews(old);
        let bundle = client_config(old).and_then(|config| config.ca_bundle);
        let bundle = bundle.filter(|bundle| !bundle.is_empty());
        Allowed {
            unreadable_ca_bundle: !established
                || bundle.is_some_and(|bundle| !webhook::is_ca_bundle(&bundle)),
            unknown_reviews: !reviews.is_empty() && !reviews.iter().any(|it| is_known(it)),
        }
    }
}

pub fn judge(conversion: &Value, preserves: bool, allowed: Allowed, errors: &mut FieldErrors) {
    let spec = Path::root("spec");
    let path = spec.child("conversion");
    let strategy = text(&conversion["strategy"]);
    if strategy != "None" && preserves {
        let why = "must be None if spec.preserveUnknownFields is true";
        errors.invalid(path.child("strategy"), strategy, why);
    }
    checks::one_of(errors, path.child("strategy"), Some(strategy), &["None", "Webhook"]);
    let reviews = reviews(conversion);
    let at_config = path.child("webhookClientConfig");
    let at_reviews = path.child("conversionReviewVersions");
    if strategy != "Webhook" {
        let why = "should not be set when strategy is not set to Webhook";
        if client_config(conversion).is_some() {
            errors.forbidden(at_config, why);
        }
        if !reviews.is_empty() {
            errors.forbidden(at_reviews, why);
        }
        return;
    }
    match client_config(conversion) {
        None => errors.required(at_config, "required when strategy is set to Webhook"),
        Some(config) => {
            webhook::target(&config, at_config, errors);
            if !allowed.unreadable_ca_bundle {
                webhook::ca_bundle(&config, at_config, errors);
            }
        }
    }
    review_versions(&reviews, at_reviews, allowed, errors);
}

fn review_versions(reviews: &[&str], path: Path<'_>, allowed: Allowed, errors: &mut FieldErrors) {
    if reviews.is_empty() {
        errors.required(path, "");
        return;
    }
    for (index, version) in reviews.iter().enumerate() {
        if reviews[..index].contains(version) {
            errors.invalid(path.index(index), *version, "duplicate version");
            continue;
        }
        checks::named(errors, path.index(index), version, names::dns1035_label);
    }
    if !allowed.unknown_reviews && !reviews.iter().any(|version| is_known(version)) {
        let why = format!("must include at least one of {}", KNOWN_REVIEWS.join(", "));
        errors.invalid(path, reviews.to_vec(), &why);
    }
}

fn is_known(version: &str) -> bool {
    KNOWN_REVIEWS.contains(&version)
}

fn reviews(conversion: &Value) -> Vec<&str> {
    let reviews = conversion.pointer("/webhook/conversionReviewVersions").and_then(Value::as_array);
    reviews.into_iter().flatten().map(text).collect()
}

fn client_config(conversion: &Value) -> Option<ClientConfig> {
    let config = conversion.pointer("/webhook/clientConfig").filter(|config| config.is_object())?;
    serde_json::from_value(config.clone()).ok()
}
