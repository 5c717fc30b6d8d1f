//! Service.

use ferry_api::{FieldErrors, Object};
use k8s_openapi::api::core::v1::Service;
use serde_json::{Value, json};

use crate::columns::{AGE, Column};
use crate::strategy::{NameRule, Rules, Traits, Typed};

pub static STRATEGY: Typed<Service, ServiceRules> = Typed::new(ServiceRules);

pub struct ServiceRules;

impl Rules<Service> for ServiceRules {
    fn default(&self, object: &mut Object) {
        for port in
            object.section_mut("spec").get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten()
        {
            let number = port.get("port").cloned();
            if let (Value::Object(port), Some(number)) = (port, number) {
                port.entry("targetPort").or_insert(number);
            }
        }
    }

    fn prepare_create(&self, object: &mut Object) {
        object.0.insert("status".into(), json!({"loadBalancer": {}}));
    }

    fn validate(&self, service: &Service, errors: &mut FieldErrors) {
        let Some(spec) = &service.spec else {
            errors.required("spec.ports", "");
            return;
        };
        let headless = spec.cluster_ip.as_deref() == Some("None");
        let external = spec.type_.as_deref() == Some("ExternalName");
        if spec.ports.as_ref().is_none_or(Vec::is_empty) && !headless && !external {
            errors.required("spec.ports", "");
        }
    }

    fn columns(&self) -> &'static [Column] {
        static COLUMNS: &[Column] = &[
            Column::text("Type", |object, _| object.text_at(&["spec", "type"]).into()),
            Column::text("Cluster-IP", |object, _| object.text_at(&["spec", "clusterIP"]).into()),
            AGE,
        ];
        COLUMNS
    }

    fn traits(&self) -> Traits {
        Traits {
            name: NameRule::Dns1035Label,
            create_on_update: true,
            answers_deleted: true,
            ..Traits::default()
        }
    }
}
