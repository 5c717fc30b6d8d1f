//! `--force`: an object that cannot be changed is deleted and made again. The server is asked whether
//! it would take the new object before the old one is deleted, and the old one comes back if the new
//! one is refused all the same.

use serde_json::Value;

use super::delete::{Options, delete_all};
use crate::cli::Cli;
use crate::error::{Error, Result};
use crate::fields::Fields;
use crate::selection::Info;
use crate::write::Writer;

/// One object to delete and make again.
pub struct Replacement {
    pub info: Info,
    /// What stands there now, if anything does.
    pub old: Option<Value>,
}

impl Replacement {
    /// Reads what stands there and asks the server about the new object; nothing is changed.
    pub async fn plan(writer: &Writer<'_>, info: Info) -> Result<Self> {
        let old = current(writer.cli, &info).await?;
        match writer.try_create(&info.resource, &info.namespace, &info.object).await {
            Err(error) if is_final(&error) => Err(error),
            _ => Ok(Replacement { info, old }),
        }
    }

    /// Creates the new object, or puts the old one back and says why.
    pub async fn create(&self, writer: &Writer<'_>) -> Result<Value> {
        let Info { resource, namespace, object, .. } = &self.info;
        let refused = match writer.create(resource, namespace, object).await {
            Ok(created) => return Ok(created),
            Err(error) => error,
        };
        let Some(old) = &self.old else { return Err(refused) };
        match writer.create(resource, namespace, old).await {
            Ok(_) => Err(refused),
            Err(lost) => Err(Error::message(format!(
                "An error occurred force-replacing the existing object with the newly provided one:\n\n{refused}.\n\nAdditionally, an error occurred attempting to restore the original object:\n\n{lost}"
            ))),
        }
    }
}

/// Deletes what stands in the way of the new objects. What could not be deleted is left out of the
/// answer: its error is among `errors`, and it has no room for a successor.
pub async fn make_room(
    cli: &Cli,
    replacements: Vec<Replacement>,
    options: &Options,
    errors: &mut Vec<Error>,
) -> Result<Vec<Replacement>> {
    let infos: Vec<Info> = replacements.iter().map(|replacement| replacement.info.clone()).collect();
    let before = errors.len();
    delete_all(cli, &infos, options, true, errors).await?;
    if errors.len() == before {
        return Ok(replacements);
    }
    let mut free = Vec::new();
    for replacement in replacements {
        match current(cli, &replacement.info).await {
            Ok(None) => free.push(replacement),
            Ok(Some(_)) => {}
            Err(error) => errors.push(error),
        }
    }
    Ok(free)
}

async fn current(cli: &Cli, info: &Info) -> Result<Option<Value>> {
    match cli.client()?.get_json(&info.path()).await {
        Ok(object) => Ok(Some(object)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether a refusal would be the same once the old object is gone. A name, an address, a port or a
/// quota that the old object holds is free by then, and a webhook that takes no dry run says nothing.
fn is_final(error: &Error) -> bool {
    let Error::Status(status) = error else { return false };
    match status.reason.as_str() {
        "Invalid" => {
            let causes = status.details.list("causes");
            !causes.iter().any(|cause| cause.text("message").contains("already allocated"))
                && !status.message.contains("already allocated")
        }
        "BadRequest" => !status.message.contains("dry run"),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Status;
    use serde_json::json;

    #[test]
    fn only_a_refusal_that_stays_one_keeps_the_old_object() {
        let check = |reason: &str, message: &str, expected: bool| {
            let details = json!({"causes": [{"field": "spec.x", "message": message}]});
            let status =
                Status { code: 422, reason: reason.to_owned(), message: message.to_owned(), details };
            assert_eq!(is_final(&Error::Status(Box::new(status))), expected, "{reason}: {message}");
        };
        check("Invalid", "Required value", true);
        check("Invalid", "Invalid value: \"10.0.0.1\": provided IP is already allocated", false);
        check("BadRequest", "strict decoding error: unknown field \"spec.x\"", true);
        check("BadRequest", "admission webhook \"w\" does not support dry run", false);
        check("AlreadyExists", "pods \"x\" already exists", false);
        check("Forbidden", "exceeded quota", false);
    }
}
