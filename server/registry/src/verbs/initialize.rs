//! Objects that are not finished yet. Names in `metadata.initializers.pending` each stand for someone who
//! has still to act on a new object; until the list is empty only those who ask for unfinished objects see
//! it, and the request that created it waits.
//!
//! ```text
//!                  first name taken off         last name taken off
//!   created ──► pending [a, b] ──► pending [b] ──────────────────► visible (ADDED)
//!                      └──── result: Failure ──► deleted
//! ```

use ferry_api::{Object, Status};
use ferry_store::{Compare, Error, Operation as StoreOperation, Revision};
use serde_json::Value;

use super::create::transaction;
use super::{Call, ResponseObject, store_failure};
use crate::cache::{self, Delta};
use crate::registry::Registry;

/// The names that have still to act, first the one whose turn it is; `None` for a finished object.
pub fn pending(object: &Object) -> Option<Vec<&str>> {
    let initializers = object.meta("initializers").filter(|value| value.is_object())?;
    let names = initializers.get("pending").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    Some(names.iter().filter_map(|one| one.get("name")?.as_str()).collect())
}

/// What ended the initialization, if anything did.
pub fn result(object: &Object) -> Option<&Value> {
    object.meta("initializers")?.get("result").filter(|result| result.is_object())
}

/// The initialization failed: the object is not to be.
pub fn has_failed(object: &Object) -> bool {
    result(object).is_some_and(|result| result.get("status").and_then(Value::as_str) != Some("Success"))
}

impl Registry {
    /// Waits until the object that was created at `revision` is finished, and answers with what became
    /// of it.
    pub(super) async fn await_initialized(
        &self,
        call: &Call<'_>,
        namespace: &str,
        name: &str,
        revision: Revision,
    ) -> Result<ResponseObject, Status> {
        let mut span = ferry_trace::span("registry.awaitInitialized");
        span.object(&call.resource.stored.group_resource().to_string(), namespace, name);
        let cache = &call.resource.cache;
        let followed = span.in_scope(cache::until(cache, namespace, name, Some(revision), outcome));
        // The request's own deadline is as far away, and cannot say what was waited for.
        let ended = tokio::time::timeout(call.patience.mul_f32(0.75), followed).await.unwrap_or_else(|_| {
            let resource = &call.kind.plural;
            Err(Status::timeout(format!(
                "server has timed out waiting for the initialization of {resource} {name}"
            )))
        });
        ended.inspect_err(|status| {
            span.fail(status);
        })
    }

    /// An object whose initialization failed goes away, whatever finalizers it has: nobody ever saw it.
    pub(super) async fn remove_failed(&self, call: &Call<'_>, answer: &ResponseObject) -> Result<(), Status> {
        let ResponseObject::Entry(entry) = answer else { return Ok(()) };
        if !entry.uninitialized || call.dry_run {
            return Ok(());
        }
        let old = entry.read_object()?;
        if !has_failed(&old) {
            return Ok(());
        }
        let txn_parts = call.resource.strategy.txn_parts(self, None, Some(&old))?;
        let key = call.resource.store_key(entry.namespace(), entry.name());
        let compare = Compare::ModRevision { key: key.clone(), revision: entry.revision };
        let txn = transaction(call, compare, StoreOperation::Delete { key }, txn_parts);
        match self.commit(call, entry.namespace(), entry.name(), txn, Some(&old), None).await {
            // Someone else wrote or deleted it: theirs is the last word.
            Ok(_) | Err(Error::Conflict { .. }) => Ok(()),
            Err(error) => Err(store_failure(error)),
        }
    }
}

/// What became of a new object, once that is known.
fn outcome(seen: Option<Delta<'_>>) -> Option<Result<ResponseObject, Status>> {
    let deleted = || Some(Err(Status::internal("object deleted while waiting for creation")));
    let (entry, gone) = match seen {
        None => return deleted(),
        Some(Delta::Set { entry, .. }) => (entry, false),
        Some(Delta::Gone(entry)) => (entry, true),
    };
    let object = match entry.read_object() {
        Ok(object) => object,
        Err(status) => return Some(Err(status)),
    };
    if let Some(result) = result(&object).filter(|_| has_failed(&object)) {
        return Some(Err(failure(result)));
    }
    match gone {
        true => deleted(),
        false => (!entry.uninitialized).then(|| Ok(ResponseObject::Entry(entry.clone()))),
    }
}

/// The result of a failed initialization as the answer to who wanted the object.
fn failure(result: &Value) -> Status {
    let text = |field: &str| result.get(field).and_then(Value::as_str).unwrap_or("");
    let code = result.get("code").and_then(Value::as_u64).and_then(|code| u16::try_from(code).ok());
    let mut status =
        Status::new(code.filter(|code| *code >= 400).unwrap_or(500), text("reason"), text("message"));
    status.details = result.get("details").and_then(|details| serde_json::from_value(details.clone()).ok());
    status
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn object(initializers: Value) -> Object {
        Object::from_value(json!({"metadata": {"name": "x", "initializers": initializers}}))
            .expect("an object")
    }

    #[test]
    fn an_object_is_pending_failed_or_finished() {
        assert_eq!(pending(&object(Value::Null)), None);
        let names = object(json!({"pending": [{"name": "a"}, {"name": "b"}]}));
        assert_eq!(pending(&names), Some(vec!["a", "b"]));
        assert!(!has_failed(&names));
        assert!(has_failed(&object(json!({"pending": [], "result": {"status": "Failure"}}))));
        assert!(!has_failed(&object(json!({"pending": [], "result": {"status": "Success"}}))));
        let status = failure(&json!({"message": "too short", "reason": "Forbidden", "code": 403}));
        assert_eq!((status.code, status.message.as_str()), (403, "too short"));
    }
}
