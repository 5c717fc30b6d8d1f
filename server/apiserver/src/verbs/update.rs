//! PUT: the whole object, as it should be.

use ferry_api::{Object, Status};
use ferry_patch::managed_fields::Versions;
use ferry_registry::verbs::update::Change;
use parking_lot::Mutex;

use super::Target;
use crate::body::Response;
use crate::respond;

pub async fn update(target: Target<'_>) -> Result<Response, Status> {
    let media_type = target.media_type()?;
    let options = target.request.write_options("UpdateOptions")?;
    let object = target.request.decode(target.kind, target.resource, options.validation)?;
    if object.name().is_empty() {
        return Err(Status::bad_request("name must be provided"));
    }
    let call = target.call(&options);
    // It is tried again only when another write came first; then the body is read again.
    let first = Mutex::new(Some(object));
    let transform = |_: Option<&Object>, _: &dyn Versions| match first.lock().take() {
        Some(object) => Ok(object),
        None => target.request.decode(target.kind, target.resource, options.validation),
    };
    let change = Change {
        transform: &transform,
        tracked: false,
        may_create: target.resource.strategy.options().create_on_update
            && target.request.info.subresource.is_empty(),
        uid: None,
    };
    let (answer, created) = target.api.registry.update(&call, change).await?;
    respond::answer(target, if created { 201 } else { 200 }, &answer, media_type).await
}
