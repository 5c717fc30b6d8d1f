//! `--raw`: one request, its answer printed untouched. `get`, `create`, `replace` and `delete`
//! take it.

use bytes::Bytes;
use http::Method;

use crate::cli::Cli;
use crate::error::{Error, Result};
use crate::transport::Request;

pub async fn run(cli: &Cli) -> Result<()> {
    let args = &cli.args;
    if !args.positional.is_empty() {
        return Err(Error::message("arguments may not be passed when --raw is specified"));
    }
    if args.bool("watch") || args.bool("watch-only") || !args.text("selector").is_empty() {
        return Err(Error::message(
            "--raw may not be specified with other flags that filter the server request or alter the output",
        ));
    }
    if !args.text("output").is_empty() {
        return Err(Error::message("--raw and --output are mutually exclusive"));
    }
    send(cli, Method::GET, Bytes::new()).await
}

pub async fn send(cli: &Cli, method: Method, body: Bytes) -> Result<()> {
    let path = cli.args.text("raw");
    if !path.starts_with('/') {
        return Err(Error::message(format!(
            "--raw must be a valid URL path: parse {path:?}: invalid URI for request"
        )));
    }
    let content_type = if body.is_empty() { "" } else { "application/json" };
    let request = Request { method, path, accept: "application/json, */*", content_type, body };
    let client = cli.client()?;
    let mut response = client.send(request).await?;
    if !response.status.is_success() {
        let status = response.status.as_u16();
        let body = client.read(response).await?;
        return Err(Error::Status(Box::new(crate::error::Status::from_response(status, &body, "GET", ""))));
    }
    while let Some(piece) = response.chunk().await? {
        cli.print_bytes(&piece)?;
        cli.flush()?;
    }
    Ok(())
}
