//! What types, fields and parameters are for, read from `table/descriptions.txt`. Its own header says what its lines mean.
//!
//! The text lies in the program compressed. It is read when a document is made and forgotten afterwards.

use std::collections::HashMap;
use std::io::Read;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::types::Type;

static COMPRESSED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptions.deflate"));

#[cfg(test)]
thread_local! {
    /// How often this thread has read the table.
    pub static READINGS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

#[derive(Debug, Default)]
pub struct Descriptions {
    /// By `GROUP/TYPE`.
    types: HashMap<String, Described>,
    /// Fields by the end of their type's name, or `*`.
    any: HashMap<String, Fields>,
    parameters: Fields,
}

#[derive(Debug, Default)]
struct Described {
    text: String,
    fields: Fields,
}

type Fields = HashMap<String, String>;

impl Descriptions {
    /// Whoever makes several documents keeps them meanwhile.
    pub fn get() -> Arc<Descriptions> {
        static SHARED: Mutex<Weak<Descriptions>> = Mutex::new(Weak::new());
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(descriptions) = shared.upgrade() {
            return descriptions;
        }
        #[cfg(test)]
        READINGS.with(|readings| readings.set(readings.get() + 1));
        let mut text = String::new();
        flate2::read::DeflateDecoder::new(COMPRESSED)
            .read_to_string(&mut text)
            .expect("the table is part of the program and a test reads it");
        let descriptions =
            Arc::new(parse(&text).expect("the table is part of the program and a test reads it"));
        *shared = Arc::downgrade(&descriptions);
        descriptions
    }

    /// What a type is, by its full name, as in `io.k8s.api.core.v1.Pod`.
    pub fn of_type(&self, name: &str) -> Option<String> {
        let (group, short) = group_and_name(name);
        if let Some(described) = self.types.get(&format!("{group}/{short}")) {
            return Some(described.text.clone());
        }
        match short.strip_suffix("List")? {
            "" => None,
            kind => Some(format!("A list of {kind} objects.")),
        }
    }

    pub fn of_field(&self, ty: &Type, field: &str) -> Option<&str> {
        let (group, short) = group_and_name(&ty.name);
        if let Some(text) =
            self.types.get(&format!("{group}/{short}")).and_then(|described| described.fields.get(field))
        {
            return Some(text);
        }
        let suffixes = ["Condition", "List"].into_iter().filter(|suffix| short.ends_with(suffix));
        suffixes.chain(["*"]).find_map(|suffix| self.any.get(suffix)?.get(field)).map(String::as_str)
    }

    pub fn of_parameter(&self, name: &str) -> Option<&str> {
        self.parameters.get(name).map(String::as_str)
    }
}

/// `core` and `Pod` of `io.k8s.api.core.v1.Pod`. Some packages have no version.
fn group_and_name(name: &str) -> (&str, &str) {
    let mut parts = name.rsplit('.');
    let short = parts.next().unwrap_or("");
    let is_version = |part: &&str| {
        part.strip_prefix('v').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    (parts.find(|part| !is_version(part)).unwrap_or(""), short)
}

/// Where the rows below belong to.
enum Place {
    Nowhere,
    Type(String),
    Any(String),
    Parameters,
}

fn parse(text: &str) -> Result<Descriptions, String> {
    let mut descriptions = Descriptions::default();
    let (mut group, mut place) = ("", Place::Nowhere);
    for (number, line) in text.lines().enumerate() {
        let bad = || format!("line {}: {line}", number + 1);
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some(row) = line.strip_prefix("  ") {
            let (field, text) = row.split_once(' ').ok_or_else(bad)?;
            let fields = match &place {
                Place::Nowhere => return Err(bad()),
                Place::Type(name) => &mut descriptions.types.entry(name.clone()).or_default().fields,
                Place::Any(suffix) => descriptions.any.entry(suffix.clone()).or_default(),
                Place::Parameters => &mut descriptions.parameters,
            };
            if fields.insert(field.to_string(), text.to_string()).is_some() {
                return Err(bad());
            }
            continue;
        }
        let words: Vec<&str> = line.splitn(3, ' ').collect();
        place = match words[..] {
            ["group", name] => {
                group = name;
                Place::Nowhere
            }
            ["type", name, text] => {
                let name = format!("{group}/{name}");
                let described = Described { text: text.to_string(), fields: Fields::new() };
                if descriptions.types.insert(name.clone(), described).is_some() {
                    return Err(bad());
                }
                Place::Type(name)
            }
            ["any", suffix] => Place::Any(suffix.to_string()),
            ["parameters"] => Place::Parameters,
            _ => return Err(bad()),
        };
    }
    Ok(descriptions)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Types;

    const SCALARS: [&str; 8] = [
        "meta/Time",
        "meta/MicroTime",
        "meta/FieldsV1",
        "meta/Patch",
        "resource/Quantity",
        "intstr/IntOrString",
        "runtime/RawExtension",
        "apiextensions/JSON",
    ];

    #[test]
    fn every_row_is_about_something_that_is_there() {
        let descriptions = Descriptions::get();
        let mut fields: HashMap<String, Vec<&str>> = HashMap::new();
        for ty in Types::builtin().iter() {
            let (group, short) = group_and_name(&ty.name);
            let names = ty.fields.iter().map(|field| field.name.as_ref());
            fields.entry(format!("{group}/{short}")).or_default().extend(names);
        }
        for (name, described) in &descriptions.types {
            let known = fields.get(name);
            assert!(known.is_some() || SCALARS.contains(&name.as_str()), "there is no {name}");
            let is_known = |field: &&String| known.is_some_and(|known| known.contains(&field.as_str()));
            let unknown: Vec<&String> = described.fields.keys().filter(|field| !is_known(field)).collect();
            assert!(unknown.is_empty(), "{name} has no {unknown:?}");
        }
    }

    #[test]
    fn every_kind_that_is_served_is_described() {
        let descriptions = Descriptions::get();
        for kind in crate::kinds::builtin() {
            let name = kind.definition_name();
            assert!(descriptions.of_type(&name).is_some(), "{name}");
            let Some(schema) = kind.codec.typed() else { continue };
            for field in &schema.root().fields {
                assert!(descriptions.of_field(schema.root(), &field.name).is_some(), "{name}.{}", field.name);
            }
        }
    }

    #[test]
    fn common_types_have_a_description_for_every_field() {
        let descriptions = Descriptions::get();
        let types = Types::builtin();
        for name in [
            "core.v1.PodSpec",
            "core.v1.PodStatus",
            "core.v1.Container",
            "core.v1.Probe",
            "core.v1.Volume",
            "core.v1.VolumeMount",
            "core.v1.SecurityContext",
            "core.v1.PodSecurityContext",
            "core.v1.ResourceRequirements",
            "core.v1.ServiceSpec",
            "core.v1.ServicePort",
            "core.v1.NodeSpec",
            "core.v1.PersistentVolumeClaimSpec",
            "core.v1.ConfigMap",
            "core.v1.Secret",
            "apps.v1.DeploymentSpec",
            "apps.v1.ReplicaSetSpec",
            "apps.v1.StatefulSetSpec",
            "apps.v1.DaemonSetSpec",
            "batch.v1.JobSpec",
            "batch.v1.CronJobSpec",
            "networking.v1.IngressSpec",
            "networking.v1.NetworkPolicySpec",
            "autoscaling.v2.HorizontalPodAutoscalerSpec",
            "autoscaling.v1.HorizontalPodAutoscalerSpec",
            "policy.v1.PodDisruptionBudgetSpec",
            "rbac.v1.PolicyRule",
            "storage.v1.StorageClass",
        ] {
            let name = format!("io.k8s.api.{name}");
            let ty = types.get(types.by_name(&name).expect("in the table"));
            let missing = ty.fields.iter().filter(|field| descriptions.of_field(ty, &field.name).is_none());
            let missing: Vec<&str> = missing.map(|field| field.name.as_ref()).collect();
            assert!(missing.is_empty(), "{name}: {missing:?}");
        }
    }

    #[test]
    fn rows_that_cannot_be_read_are_named() {
        assert_eq!(parse("group a\n  x y").expect_err("no type"), "line 2:   x y");
        assert_eq!(parse("type T one\ntype T two").expect_err("twice"), "line 2: type T two");
        assert!(parse("nonsense").is_err());
    }
}
