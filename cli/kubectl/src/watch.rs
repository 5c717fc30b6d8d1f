//! A watch: one request whose answer does not end, an event per line.

use serde_json::Value;

use crate::error::{Error, Result, Status};
use crate::fields::Fields;
use crate::transport::{Client, Query, Request, Response, log};

pub struct Event {
    /// ADDED, MODIFIED, DELETED, BOOKMARK or ERROR.
    pub kind: String,
    pub object: Value,
}

pub struct Events {
    response: Response,
    buffer: Vec<u8>,
    verbosity: i64,
}

impl Events {
    pub async fn start(client: &Client, path: &str, query: Query, accept: &str) -> Result<Self> {
        let path = format!("{path}{}", query.with("watch", "true"));
        let response = client.send(Request::get(&path).accept(accept)).await?;
        if !response.status.is_success() {
            let status = response.status.as_u16();
            let body = client.read(response).await?;
            return Err(Error::Status(Box::new(Status::from_response(status, &body, "GET", ""))));
        }
        Ok(Events { response, buffer: Vec::new(), verbosity: client.verbosity() })
    }

    /// The next event, or `None` when the server or `--request-timeout` ended the watch.
    pub async fn next(&mut self) -> Result<Option<Event>> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                if line.iter().all(u8::is_ascii_whitespace) {
                    continue;
                }
                return Ok(Some(parse(&line)?));
            }
            let piece = match self.response.chunk().await {
                Err(error) if self.response.is_expired() => {
                    if self.verbosity >= 5 {
                        log::line(&format!(
                            "\"Unable to decode an event from the watch stream\" err={:?}",
                            error.to_string()
                        ));
                    }
                    return Ok(None);
                }
                piece => piece?,
            };
            match piece {
                Some(piece) => self.buffer.extend_from_slice(&piece),
                None if self.buffer.is_empty() => return Ok(None),
                None => return Ok(Some(parse(&std::mem::take(&mut self.buffer))?)),
            }
        }
    }
}

fn parse(line: &[u8]) -> Result<Event> {
    let mut event: Value = serde_json::from_slice(line)
        .map_err(|error| Error::message(format!("unable to decode a watch event: {error}")))?;
    let object = event.get_mut("object").map(Value::take).unwrap_or_default();
    Ok(Event { kind: event.text("type").to_owned(), object })
}
