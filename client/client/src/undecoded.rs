//! Requests whose response is not decoded, only its success is read. Most writes of a loop are such: what
//! has become of the object, its informer tells; decoding it once more would cost as much again.

use futures::io;
use http::Request;
use kube::api::DeleteParams;
use kube::{Api, Client, Error};
use serde::Deserialize;

/// Sends a request as [`kube::core::Request`] makes them.
pub async fn send(
    client: &Client,
    request: Result<Request<Vec<u8>>, kube::core::request::Error>,
) -> Result<(), Error> {
    let request = request.map_err(Error::BuildRequest)?;
    // kube's future has some kilobytes, which would be moved with every future and task it is part of
    let answer = Box::pin(client.request_stream(request)).await?;
    // to its end, so that the connection hears of no reader who went away
    io::copy_buf(answer, &mut io::sink()).await.map_err(Error::ReadEvents)?;
    Ok(())
}

/// A deletion, which is answered with the object or with a status: to tell one from the other it would be read twice.
pub async fn delete<K: kube::Resource + Clone>(
    api: &Api<K>,
    name: &str,
    params: &DeleteParams,
) -> Result<(), Error> {
    let request = kube::core::Request::new(api.resource_url()).delete(name, params);
    send(&api.clone().into_client(), request).await
}

/// The same for a creation whose name the server chooses: of the answer only that is read.
pub async fn create(
    client: &Client,
    request: Result<Request<Vec<u8>>, kube::core::request::Error>,
) -> Result<String, Error> {
    #[derive(Deserialize)]
    struct Created {
        metadata: Named,
    }
    #[derive(Deserialize)]
    struct Named {
        name: String,
    }
    let request = request.map_err(Error::BuildRequest)?;
    client.request::<Created>(request).await.map(|created| created.metadata.name)
}
