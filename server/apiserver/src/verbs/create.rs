//! POST: a new object.

use ferry_api::Status;

use super::Target;
use crate::body::Response;
use crate::respond;

pub async fn create(target: Target<'_>) -> Result<Response, Status> {
    let media_type = target.media_type()?;
    if target.kind.terminating {
        return Err(Status::new(
            405,
            "MethodNotAllowed",
            "create not allowed while custom resource definition is terminating",
        ));
    }
    let options = target.request.write_options("CreateOptions")?;
    let object = target.request.decode(target.kind, target.resource, options.validation)?;
    let call = target.call(&options);
    let answer = target.api.registry.create(&call, object, false).await?;
    respond::answer(target, 201, &answer, media_type).await
}
