//! StorageObjectInUseProtection: adds a finalizer to claims, volumes and VolumeAttributesClasses. A controller
//! removes it when they are no longer in use.

use std::sync::Arc;

use async_trait::async_trait;
use ferry_api::{Object, Status};
use ferry_registry::verbs::Operation;
use serde_json::{Value, json};

use super::Context;
use crate::chain::{Phase, Plugin, Request};

pub fn make(_: &Context) -> Arc<dyn Plugin> {
    Arc::new(StorageObjectInUseProtection)
}

struct StorageObjectInUseProtection;

fn finalizer(request: &Request<'_>) -> Option<&'static str> {
    match () {
        () if request.is_for("", "persistentvolumes") => Some("kubernetes.io/pv-protection"),
        () if request.is_for("", "persistentvolumeclaims") => Some("kubernetes.io/pvc-protection"),
        () if request.is_for("storage.k8s.io", "volumeattributesclasses") => {
            Some("kubernetes.io/vac-protection")
        }
        () => None,
    }
}

#[async_trait]
impl Plugin for StorageObjectInUseProtection {
    fn phases(&self) -> &'static [Phase] {
        &[Phase::Mutate]
    }

    fn handles(&self, request: &Request<'_>) -> bool {
        request.operation == Operation::Create && finalizer(request).is_some()
    }

    async fn mutate(
        &self,
        request: &Request<'_>,
        object: &mut Object,
        _old: Option<&Object>,
    ) -> Result<(), Status> {
        if let Some(finalizer) = finalizer(request) {
            protect(object, finalizer);
        }
        Ok(())
    }
}

fn protect(object: &mut Object, finalizer: &str) {
    if object.finalizers().any(|held| held == finalizer) {
        return;
    }
    let finalizers = object.metadata_mut().entry("finalizers").or_insert_with(|| json!([]));
    match finalizers {
        Value::Array(list) => list.push(finalizer.into()),
        other => *other = json!([finalizer]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_finalizer_is_there_once() {
        let mut claim = Object::from_value(json!({"metadata": {"finalizers": ["a"]}})).expect("an object");
        protect(&mut claim, "b");
        protect(&mut claim, "b");
        assert_eq!(claim.finalizers().collect::<Vec<_>>(), ["a", "b"]);
    }
}
