//! ServiceAccount: of the secrets it names it keeps the names.

use ferry_api::Object;
use serde::de::IgnoredAny;
use serde_json::Value;

use crate::columns::Column;
use crate::strategy::{Rules, Typed};

pub static STRATEGY: Typed<IgnoredAny, AccountRules> = Typed::new(AccountRules);

pub struct AccountRules;

impl Rules<IgnoredAny> for AccountRules {
    fn prepare_create(&self, object: &mut Object) {
        keep_names(object);
    }

    fn prepare_update(&self, new: &mut Object, _: &Object) {
        keep_names(new);
    }

    fn columns(&self) -> &[Column] {
        super::tables::cluster::AGED
    }
}

fn keep_names(object: &mut Object) {
    let secrets = object.0.get_mut("secrets").and_then(Value::as_array_mut);
    for secret in secrets.into_iter().flatten() {
        if let Value::Object(secret) = secret {
            secret.retain(|field, _| field == "name");
        }
    }
}
