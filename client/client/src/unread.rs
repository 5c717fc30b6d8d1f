//! Requests whose answer is not read beyond its success. Most writes of a loop are such: what
//! has become of the object, its informer tells; decoding it once more would cost as much again.

use http::Request;
use kube::{Client, Error};

/// Sends a request as [`kube::core::Request`] makes them.
pub async fn send(
    client: &Client,
    request: Result<Request<Vec<u8>>, kube::core::request::Error>,
) -> Result<(), Error> {
    let request = request.map_err(Error::BuildRequest)?;
    client.request_text(request).await.map(drop)
}
