//! Secret: ConfigMap's rules for its data, and what each well-known type must hold.

use ferry_api::{FieldErrors, Object};
use k8s_openapi::api::core::v1::Secret;

use super::config_map::{MAX_DATA, validate_key};
use crate::columns::Column;
use crate::strategy::{Rules, Selectable, Typed};

pub static STRATEGY: Typed<Secret, SecretRules> = Typed::new(SecretRules);

pub struct SecretRules;

/// The keys that a type requires.
const REQUIRED: &[(&str, &[&str])] = &[
    ("kubernetes.io/dockercfg", &[".dockercfg"]),
    ("kubernetes.io/dockerconfigjson", &[".dockerconfigjson"]),
    ("kubernetes.io/ssh-auth", &["ssh-privatekey"]),
    ("kubernetes.io/tls", &["tls.crt", "tls.key"]),
];

impl Rules<Secret> for SecretRules {
    /// `stringData` is how a person writes `data`.
    fn default(&self, object: &mut Object) {
        use base64::Engine;
        let Some(serde_json::Value::Object(texts)) = object.0.remove("stringData") else { return };
        let data = object.section_mut("data");
        for (key, text) in texts {
            let encoded = base64::prelude::BASE64_STANDARD.encode(text.as_str().unwrap_or(""));
            data.insert(key, encoded.into());
        }
    }

    fn validate(&self, secret: &Secret, errors: &mut FieldErrors) {
        let empty = Default::default();
        let data = secret.data.as_ref().unwrap_or(&empty);
        for key in data.keys() {
            validate_key("data", key, errors);
        }
        if data.values().map(|value| value.0.len()).sum::<usize>() > MAX_DATA {
            errors.too_long("data", MAX_DATA);
        }
        let kind = secret.type_.as_deref().unwrap_or("");
        for (_, keys) in REQUIRED.iter().filter(|(name, _)| *name == kind) {
            for key in *keys {
                match data.get(*key) {
                    None => errors.required(format!("data[{key}]"), ""),
                    Some(value) if kind.starts_with("kubernetes.io/docker") => {
                        if let Err(error) =
                            serde_json::from_slice::<serde_json::Map<_, serde_json::Value>>(&value.0)
                        {
                            errors.invalid(
                                format!("data[{key}]"),
                                "<secret contents redacted>",
                                &error.to_string(),
                            );
                        }
                    }
                    Some(_) => {}
                }
            }
        }
        if kind == "kubernetes.io/basic-auth"
            && !data.contains_key("username")
            && !data.contains_key("password")
        {
            errors.required("data[username]", "");
            errors.required("data[password]", "");
        }
        let account = "kubernetes.io/service-account.name";
        let named = secret
            .metadata
            .annotations
            .as_ref()
            .is_some_and(|have| have.get(account).is_some_and(|name| !name.is_empty()));
        if kind == "kubernetes.io/service-account-token" && !named {
            errors.required(format!("metadata.annotations[{account}]"), "");
        }
    }

    fn validate_update(&self, new: &Secret, old: &Secret, errors: &mut FieldErrors) {
        if new.type_ != old.type_ {
            errors.invalid("type", new.type_.clone(), "field is immutable");
        }
        if old.immutable == Some(true) {
            if new.immutable != Some(true) {
                errors.forbidden("immutable", "field is immutable when `immutable` is set");
            }
            if new.data != old.data {
                errors.forbidden("data", "field is immutable when `immutable` is set");
            }
        }
    }

    fn selectable(&self) -> &[Selectable] {
        static FIELDS: &[Selectable] = &[Selectable::new("type", "type", "")];
        FIELDS
    }

    fn columns(&self) -> &[Column] {
        super::tables::cluster::SECRET
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn string_data_becomes_data() {
        let mut object =
            Object::from_value(json!({"stringData": {"a": "x"}, "data": {"b": "eQ=="}})).expect("an object");
        SecretRules.default(&mut object);
        assert_eq!(object.into_value(), json!({"data": {"a": "eA==", "b": "eQ=="}}));
    }

    #[test]
    fn a_tls_secret_holds_both_halves() {
        let secret = Secret { type_: Some("kubernetes.io/tls".into()), ..Secret::default() };
        let mut errors = FieldErrors::default();
        SecretRules.validate(&secret, &mut errors);
        assert_eq!(errors.0.len(), 2);
    }
}
