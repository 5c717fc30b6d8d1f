//! APIServices: parses them, and computes those that this server creates, one for each group version that it serves. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use ferry_api::kinds::priorities;
use ferry_api::{Kind, Status};
use ferry_registry::cache::Entry;
use ferry_store::Revision;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use serde_json::{Value, json};

pub const GROUP: &str = "apiregistration.k8s.io";
pub const PLURAL: &str = "apiservices";
const AUTOMANAGED: &str = "kube-aggregator.kubernetes.io/automanaged";

/// An APIService.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registration {
    pub uid: String,
    pub group: String,
    pub version: String,
    pub group_priority: u32,
    pub version_priority: u32,
    /// None: this server answers itself.
    pub service: Option<ServiceReference>,
    pub ca_bundle: Option<Vec<u8>>,
    pub skips_verification: bool,
    pub managed: Managed,
    /// What its condition says.
    pub is_available: bool,
    pub is_local: bool,
}

/// An existing APIService.
pub struct KnownApiService {
    pub revision: Revision,
    pub registration: Registration,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceReference {
    pub namespace: String,
    pub name: String,
    pub port: u16,
}

/// Whether this server keeps an APIService in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Managed {
    No,
    /// When it starts: an administrator may change it until then.
    OnStart,
    Always,
}

impl Managed {
    fn label(self) -> &'static str {
        match self {
            Managed::No => "",
            Managed::OnStart => "onstart",
            Managed::Always => "true",
        }
    }
}

impl Registration {
    pub fn read(entry: &Entry) -> Result<Registration, Status> {
        let service: APIService = ferry_api::view::of_json(&entry.json)
            .map_err(|error| Status::internal(format!("{} cannot be read: {error}", entry.key)))?;
        let spec = service.spec.unwrap_or_default();
        let conditions = service.status.and_then(|status| status.conditions).unwrap_or_default();
        let available = conditions.iter().find(|one| one.type_ == "Available" && one.status == "True");
        let reference = spec.service.map(|service| ServiceReference {
            namespace: service.namespace.unwrap_or_default(),
            name: service.name.unwrap_or_default(),
            port: service.port.and_then(|port| u16::try_from(port).ok()).unwrap_or(443),
        });
        let labels = service.metadata.labels.unwrap_or_default();
        let managed = match labels.get(AUTOMANAGED).map(String::as_str) {
            Some("onstart") => Managed::OnStart,
            Some("true") => Managed::Always,
            _ => Managed::No,
        };
        Ok(Registration {
            uid: service.metadata.uid.unwrap_or_default(),
            group: spec.group.unwrap_or_default(),
            version: spec.version.unwrap_or_default(),
            group_priority: u32::try_from(spec.group_priority_minimum).unwrap_or(0),
            version_priority: u32::try_from(spec.version_priority).unwrap_or(0),
            service: reference,
            ca_bundle: spec.ca_bundle.map(|bundle| bundle.0).filter(|bundle| !bundle.is_empty()),
            skips_verification: spec.insecure_skip_tls_verify.unwrap_or(false),
            managed,
            is_available: available.is_some(),
            is_local: available.is_some_and(|condition| condition.reason.as_deref() == Some("Local")),
        })
    }

    pub fn name(&self) -> String {
        format!("{}.{}", self.version, self.group)
    }

    /// Connections to a backend can be kept for as long as this stays.
    pub fn has_same_backend(&self, other: &Registration) -> bool {
        self.uid == other.uid
            && self.service == other.service
            && self.ca_bundle == other.ca_bundle
            && self.skips_verification == other.skips_verification
    }

    /// Nothing that this server would write into the spec is another.
    fn has_same_spec(&self, other: &Registration) -> bool {
        self.service == other.service
            && self.ca_bundle == other.ca_bundle
            && self.skips_verification == other.skips_verification
            && self.group_priority == other.group_priority
            && self.version_priority == other.version_priority
    }

    pub fn spec(&self) -> Value {
        let mut spec = json!({
            "version": self.version,
            "groupPriorityMinimum": self.group_priority, "versionPriority": self.version_priority,
        });
        if !self.group.is_empty() {
            spec["group"] = self.group.as_str().into();
        }
        spec
    }

    /// As it is created.
    pub fn object(&self) -> Value {
        json!({
            "apiVersion": format!("{GROUP}/v1"), "kind": "APIService",
            "metadata": {"name": self.name(), "labels": {AUTOMANAGED: self.managed.label()}},
            "spec": self.spec(),
        })
    }
}

/// The APIServices of what this server answers for itself, by name. What it measures has none: whoever brings a server
/// for that, as metrics-server is one, registers it and finds the name free. Registrations themselves have none either.
pub fn local<'k>(rows: impl IntoIterator<Item = &'k Kind>) -> BTreeMap<String, Registration> {
    let rows = rows.into_iter().filter(|row| !row.is_resource_metrics && row.group != GROUP);
    let registrations = rows.map(|row| Registration {
        uid: String::new(),
        group: row.group.to_string(),
        version: row.version.to_string(),
        group_priority: priorities::group_priority(&row.group),
        version_priority: priorities::version_priority(&row.group, &row.version),
        service: None,
        ca_bundle: None,
        skips_verification: false,
        // The rows of definitions have a generation.
        managed: if row.generation.is_some() { Managed::Always } else { Managed::OnStart },
        is_available: true,
        is_local: true,
    });
    registrations.map(|registration| (registration.name(), registration)).collect()
}

#[derive(Debug, PartialEq, Eq)]
pub enum Action {
    Create(String),
    SetSpec(String),
    Delete(String),
    /// Somebody took the service out of it.
    TellLocal(String),
}

/// What is to be done about the APIServices that there are. `first`: the server has just started.
pub fn plan(
    wanted: &BTreeMap<String, Registration>,
    current: &BTreeMap<Arc<str>, KnownApiService>,
    first: bool,
) -> Vec<Action> {
    let is_kept = |managed: Managed| match managed {
        Managed::No => false,
        Managed::OnStart => first,
        Managed::Always => true,
    };
    let missing = wanted.iter().filter(|(name, _)| !current.contains_key(name.as_str()));
    let missing = missing.filter(|(_, wanted)| is_kept(wanted.managed));
    let mut actions: Vec<Action> = missing.map(|(name, _)| Action::Create(name.clone())).collect();
    for (name, KnownApiService { registration: current, .. }) in current {
        match wanted.get(&**name) {
            None if is_kept(current.managed) => actions.push(Action::Delete(name.to_string())),
            Some(wanted) if is_kept(current.managed) && !current.has_same_spec(wanted) => {
                actions.push(Action::SetSpec(name.to_string()));
            }
            _ if current.service.is_none() && !current.is_local => {
                actions.push(Action::TellLocal(name.to_string()));
            }
            _ => {}
        }
    }
    actions
}

#[cfg(test)]
mod tests {
    use super::*;

    fn registration(managed: Managed, service: bool) -> Registration {
        Registration {
            uid: String::new(),
            group: "g".into(),
            version: "v1".into(),
            group_priority: 1000,
            version_priority: 100,
            service: service.then(|| ServiceReference { namespace: "a".into(), name: "b".into(), port: 443 }),
            ca_bundle: None,
            skips_verification: false,
            managed,
            is_available: true,
            is_local: !service,
        }
    }

    fn check(wanted: Option<Managed>, current: Option<(Managed, bool)>, first: bool, expected: &[Action]) {
        let wanted = wanted.map(|managed| ("v1.g".to_string(), registration(managed, false)));
        let current = current.map(|(managed, service)| {
            let registration = registration(managed, service);
            (Arc::from("v1.g"), KnownApiService { revision: Revision::default(), registration })
        });
        let found = plan(&wanted.into_iter().collect(), &current.into_iter().collect(), first);
        assert_eq!(found, expected);
    }

    #[test]
    fn registration_manages_only_its_own_apiservices() {
        use Managed::{Always, No, OnStart};
        let name = || "v1.g".to_string();
        check(Some(OnStart), None, true, &[Action::Create(name())]);
        check(Some(OnStart), None, false, &[]);
        check(Some(Always), None, false, &[Action::Create(name())]);
        check(Some(Always), Some((No, true)), true, &[]);
        check(Some(OnStart), Some((OnStart, true)), false, &[]);
        check(Some(OnStart), Some((OnStart, true)), true, &[Action::SetSpec(name())]);
        check(Some(Always), Some((Always, true)), false, &[Action::SetSpec(name())]);
        check(Some(Always), Some((Always, false)), false, &[]);
        check(None, Some((Always, false)), false, &[Action::Delete(name())]);
        check(None, Some((OnStart, false)), true, &[Action::Delete(name())]);
        check(None, Some((OnStart, false)), false, &[]);
        check(None, Some((No, false)), true, &[]);
    }

    #[test]
    fn every_version_of_a_group_is_registered_but_those_that_are_measured() {
        let names = local(ferry_api::kinds::builtin().iter().map(AsRef::as_ref));
        assert!(names.contains_key("v1.") && names.contains_key("v1.apps"));
        assert!(!names.contains_key("v1.apiregistration.k8s.io"));
        assert!(!names.contains_key("v1beta1.metrics.k8s.io"));
        assert_eq!(names["v1.apps"].object()["metadata"]["labels"][AUTOMANAGED], "onstart");
        assert_eq!(
            names["v1."].spec(),
            json!({"version": "v1", "groupPriorityMinimum": 18000, "versionPriority": 1})
        );
    }
}
