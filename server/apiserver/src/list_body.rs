//! The body of a list: written while it is being sent, from the snapshot's entries. Large items are the cache's own bytes,
//! so a slow client needs one chunk of memory, whatever the list's length.

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use ferry_api::{Kind, Object, Status, protobuf, yaml};
use ferry_registry::Resource;
use ferry_registry::cache::Entry;
use http::header::CONTENT_TYPE;
use serde_json::{Map, Value};

use crate::body::{Body, PIECE, Response};
use crate::compress::FiniteStream;
use crate::negotiate::MediaType;
use crate::{chunked_copy, respond};

/// Items from this length on are not copied.
const LARGE: usize = PIECE / 2;
/// Lists of fewer items are written at once, unless they are long.
const FEW: usize = 16;

/// Writes an item: into the chunk, or up to the bytes that it returns, which follow the chunk.
pub trait WriteItem: FnMut(&mut BytesMut, &Entry) -> Result<Option<Bytes>, Status> + Send + 'static {}

impl<W: FnMut(&mut BytesMut, &Entry) -> Result<Option<Bytes>, Status> + Send + 'static> WriteItem for W {}

/// A JSON list: what stands `before` its items says all but them.
pub fn json(
    before: String,
    entries: Vec<Arc<Entry>>,
    mut write: impl WriteItem,
    wanted: MediaType,
) -> Result<Response, Status> {
    let mut is_first = true;
    let write = move |chunk: &mut BytesMut, entry: &Entry| {
        if !std::mem::take(&mut is_first) {
            chunk.put_u8(b',');
        }
        write(chunk, entry)
    };
    respond(before.into(), entries, write, Bytes::from_static(b"]}"), wanted)
}

/// Items as they are in the cache.
pub fn whole_items(resource: Arc<Resource>, kind: Arc<Kind>) -> impl WriteItem {
    // Built-in kinds: the list's kind says it all. Custom ones keep theirs, as clients expect.
    let head = kind.codec.typed().map(|_| respond::type_head(&kind));
    move |chunk, entry| {
        let mut json = resource.json_of(entry, &kind)?;
        if let Some(head) = &head
            && json.starts_with(head.as_bytes())
        {
            chunk.put_u8(b'{');
            json = json.split_off(head.len());
        }
        Ok(append(chunk, json))
    }
}

/// Items that are made of the objects.
pub fn values(
    resource: Arc<Resource>,
    kind: Arc<Kind>,
    value_of: impl Fn(&Object) -> Value + Send + 'static,
) -> impl WriteItem {
    move |chunk, entry| {
        let value = value_of(&respond::parse(&resource.json_of(entry, &kind)?)?);
        serde_json::to_writer(chunk.writer(), &value)
            .map_err(|error| Status::internal(format!("an item cannot be written: {error}")))?;
        Ok(None)
    }
}

/// A YAML list: `list` is all of it but its items, which are in the field `field`.
pub fn yaml(
    list: &Map<String, Value>,
    field: &str,
    entries: Vec<Arc<Entry>>,
    value_of: impl Fn(&Object) -> Value + Send + 'static,
    (resource, kind): (Arc<Resource>, Arc<Kind>),
    wanted: MediaType,
) -> Result<Response, Status> {
    let (before, behind) = yaml::around_items(list, field);
    let before = format!("{before}{}\n", if entries.is_empty() { " []" } else { "" });
    let write = move |chunk: &mut BytesMut, entry: &Entry| {
        let value = value_of(&respond::parse(&resource.json_of(entry, &kind)?)?);
        let item = value.as_object().ok_or_else(|| Status::internal("an item is no object"))?;
        Ok(append(chunk, yaml::encode_item(item).into()))
    };
    respond(before.into(), entries, write, behind.into(), wanted)
}

/// A list of the items' protobuf, as the cache keeps it.
pub fn protobuf(
    resource: &Arc<Resource>,
    kind: &Arc<Kind>,
    entries: Vec<Arc<Entry>>,
    metadata: &Map<String, Value>,
    wanted: MediaType,
) -> Result<Response, Status> {
    let mut length = 0;
    for entry in &entries {
        let item = message_of(resource, kind, entry)?.len();
        protobuf::item_head(item, |_| length += 1);
        length += item;
    }
    let around = protobuf::encode_around_items(&kind.api_version(), &kind.list_kind, metadata, length);
    let (before, behind) = around.map_err(respond::internal)?;
    let (resource, kind) = (resource.clone(), kind.clone());
    let write = move |chunk: &mut BytesMut, entry: &Entry| {
        let message = message_of(&resource, &kind, entry)?;
        protobuf::item_head(message.len(), |byte| chunk.put_u8(byte));
        Ok(append(chunk, message))
    };
    respond(before.into(), entries, write, behind.into(), wanted)
}

/// An entry never changes, so this is the same whenever it is asked for.
fn message_of(resource: &Resource, kind: &Kind, entry: &Entry) -> Result<Bytes, Status> {
    let envelope = respond::protobuf_of(resource, kind, entry)?;
    let message = protobuf::message_of(&envelope).map_err(respond::internal)?;
    Ok(envelope.slice_ref(message))
}

fn append(chunk: &mut BytesMut, item: Bytes) -> Option<Bytes> {
    if item.len() >= LARGE {
        return Some(item);
    }
    chunked_copy::append(chunk, &item);
    None
}

fn respond(
    before: Bytes,
    entries: Vec<Arc<Entry>>,
    write: impl WriteItem,
    behind: Bytes,
    wanted: MediaType,
) -> Result<Response, Status> {
    let builder = http::Response::builder().status(200).header(CONTENT_TYPE, wanted.content_type());
    let is_short = entries.len() < FEW && entries.iter().map(|entry| entry.json.len()).sum::<usize>() < LARGE;
    let mut items = Items { before, entries: entries.into_iter(), write, behind, large: None };
    if is_short {
        let mut whole = BytesMut::new();
        while let Some(chunk) = items.next()? {
            whole.extend_from_slice(&chunk);
        }
        return Ok(respond::finish(builder, whole.freeze().into()));
    }
    let chunks = std::iter::from_fn(move || {
        // The head is sent already: cutting the list short is the only way to say so.
        items.next().unwrap_or_else(|error| {
            tracing::error!(%error, "an object of a list cannot be written");
            None
        })
    });
    Ok(respond::finish(builder.extension(FiniteStream), Body::stream(futures::stream::iter(chunks))))
}

struct Items<W> {
    before: Bytes,
    entries: std::vec::IntoIter<Arc<Entry>>,
    write: W,
    behind: Bytes,
    /// Follows the chunk that was last.
    large: Option<Bytes>,
}

impl<W: WriteItem> Items<W> {
    fn next(&mut self) -> Result<Option<Bytes>, Status> {
        if let Some(large) = self.large.take() {
            return Ok(Some(large));
        }
        let mut chunk = BytesMut::new();
        chunk.extend_from_slice(&std::mem::take(&mut self.before));
        while chunk.len() < PIECE {
            let Some(entry) = self.entries.next() else {
                chunk.extend_from_slice(&std::mem::take(&mut self.behind));
                break;
            };
            if chunk.capacity() < PIECE && !self.entries.as_slice().is_empty() {
                chunk.reserve(PIECE + 8 * 1024);
            }
            self.large = (self.write)(&mut chunk, &entry)?;
            if self.large.is_some() {
                break;
            }
        }
        // A large item may have nothing before it.
        let next = if chunk.is_empty() { self.large.take() } else { Some(chunk.freeze()) };
        Ok(next.filter(|bytes| !bytes.is_empty()))
    }
}
