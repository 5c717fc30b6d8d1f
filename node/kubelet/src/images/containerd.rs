//! containerd's own services beside CRI, on the same socket: importing an
//! image that no registry has, and the events that CRI of version 1.6 lacks.
//!
//! Only what Ferry calls is written out. Another runtime answers
//! "unimplemented" to all of it, and Ferry goes on without.

use std::collections::HashMap;

use prost::Message;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::metadata::MetadataValue;
use tonic::transport::Channel;
use tonic::{Code, Request, Status, Streaming};
use tonic_prost::ProstCodec;

use super::oci::{Blob, Image};
use crate::cri;

/// The namespace in which containerd keeps what belongs to CRI.
const NAMESPACE: &str = "k8s.io";
const CHUNK: usize = 1 << 20;

#[derive(Clone)]
pub struct Client {
    channel: Channel,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Endpoint(#[from] cri::Error),
    #[error("{action}: {}", status.message())]
    Call { action: &'static str, status: Box<Status> },
    #[error("importing {name}: the upload ended early")]
    Short { name: String },
}

fn failed(action: &'static str) -> impl Fn(Status) -> Error {
    move |status| Error::Call { action, status: Box::new(status) }
}

impl Client {
    pub fn new(endpoint: &str) -> Result<Self, Error> {
        Ok(Self { channel: cri::unix_channel(endpoint)? })
    }

    /// Stores an image under its name, replacing what had that name. A lease
    /// keeps the garbage collector off until the name holds the blobs.
    pub async fn import(&self, image: &Image) -> Result<(), Error> {
        let lease = format!("ferry-import-{}", uuid::Uuid::new_v4());
        let create = LeaseRequest { id: lease.clone() };
        self.unary::<_, ()>("/containerd.services.leases.v1.Leases/Create", create, None)
            .await
            .map_err(failed("taking a lease"))?;
        let imported = self.import_leased(image, &lease).await;
        // an abandoned lease expires with containerd's next collection at worst
        let delete = LeaseRequest { id: lease };
        if let Err(status) =
            self.unary::<_, ()>("/containerd.services.leases.v1.Leases/Delete", delete, None).await
        {
            tracing::debug!(%status, "import lease not deleted");
        }
        imported
    }

    async fn import_leased(&self, image: &Image, lease: &str) -> Result<(), Error> {
        for blob in &image.blobs {
            self.write(blob, lease).await?;
        }
        let record = ImageRecord {
            name: image.name.clone(),
            labels: HashMap::from([("io.cri-containerd.image".into(), "managed".into())]),
            target: Some(Descriptor {
                media_type: image.target.media_type.clone(),
                digest: image.target.digest.clone(),
                size: image.target.data.len() as i64,
            }),
        };
        let request = ImageRequest { image: Some(record) };
        let created: Result<ImageRequest, Status> =
            self.unary("/containerd.services.images.v1.Images/Create", request.clone(), Some(lease)).await;
        match created {
            Ok(_) => Ok(()),
            Err(status) if status.code() == Code::AlreadyExists => self
                .unary::<_, ImageRequest>(
                    "/containerd.services.images.v1.Images/Update",
                    request,
                    Some(lease),
                )
                .await
                .map(|_| ())
                .map_err(failed("replacing the image")),
            Err(status) => Err(failed("naming the image")(status)),
        }
    }

    async fn write(&self, blob: &Blob, lease: &str) -> Result<(), Error> {
        let total = blob.data.len() as i64;
        let mut requests = Vec::new();
        for (index, chunk) in blob.data.chunks(CHUNK).enumerate() {
            requests.push(WriteRequest {
                action: WriteAction::Write as i32,
                reference: format!("ferry-{}", blob.digest),
                total,
                expected: blob.digest.clone(),
                offset: (index * CHUNK) as i64,
                data: chunk.to_vec(),
                labels: HashMap::new(),
            });
        }
        // labels tell the collector which blobs this one needs
        let references = blob.children.iter().enumerate();
        let labels =
            references.map(|(index, child)| (format!("containerd.io/gc.ref.content.{index}"), child.clone()));
        requests.push(WriteRequest {
            action: WriteAction::Commit as i32,
            reference: format!("ferry-{}", blob.digest),
            total,
            expected: blob.digest.clone(),
            offset: total,
            data: vec![],
            labels: labels.collect(),
        });
        let mut grpc = self.grpc().await.map_err(failed("connecting"))?;
        let request = self.request(futures::stream::iter(requests), Some(lease));
        let path = PathAndQuery::from_static("/containerd.services.content.v1.Content/Write");
        let codec = ProstCodec::<WriteRequest, WriteResponse>::default();
        let answers = grpc.streaming(request, path, codec).await.map_err(failed("writing a blob"));
        let mut answers = match answers {
            Ok(answers) => answers.into_inner(),
            Err(Error::Call { status, .. }) if status.code() == Code::AlreadyExists => return Ok(()),
            Err(error) => return Err(error),
        };
        loop {
            match answers.message().await {
                Ok(Some(answer)) if answer.action == WriteAction::Commit as i32 => return Ok(()),
                Ok(Some(_)) => {}
                Ok(None) => return Err(Error::Short { name: blob.digest.clone() }),
                Err(status) if status.code() == Code::AlreadyExists => return Ok(()),
                Err(status) => return Err(failed("writing a blob")(status)),
            }
        }
    }

    /// Every exit of a process in a container, as it happens.
    pub async fn exits(&self) -> Result<Exits, Error> {
        let filters = vec![format!(r#"topic=="/tasks/exit",namespace=="{NAMESPACE}""#)];
        let mut grpc = self.grpc().await.map_err(failed("connecting"))?;
        let request = self.request(SubscribeRequest { filters }, None);
        let path = PathAndQuery::from_static("/containerd.services.events.v1.Events/Subscribe");
        let codec = ProstCodec::<SubscribeRequest, Envelope>::default();
        let answer =
            grpc.server_streaming(request, path, codec).await.map_err(failed("subscribing to events"))?;
        Ok(Exits { stream: answer.into_inner() })
    }

    async fn unary<Q, A>(&self, method: &'static str, message: Q, lease: Option<&str>) -> Result<A, Status>
    where
        Q: Message + Send + Sync + 'static,
        A: Message + Default + Send + Sync + 'static,
    {
        let mut grpc = self.grpc().await?;
        let codec = ProstCodec::<Q, A>::default();
        let request = self.request(message, lease);
        Ok(grpc.unary(request, PathAndQuery::from_static(method), codec).await?.into_inner())
    }

    async fn grpc(&self) -> Result<Grpc<Channel>, Status> {
        let mut grpc = Grpc::new(self.channel.clone());
        grpc.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
        Ok(grpc)
    }

    fn request<T>(&self, message: T, lease: Option<&str>) -> Request<T> {
        let mut request = Request::new(message);
        request.metadata_mut().insert("containerd-namespace", MetadataValue::from_static(NAMESPACE));
        if let Some(lease) = lease.and_then(|lease| lease.parse().ok()) {
            request.metadata_mut().insert("containerd-lease", lease);
        }
        request
    }
}

/// The ids of containers (and sandboxes) whose main process ended.
pub struct Exits {
    stream: Streaming<Envelope>,
}

impl Exits {
    pub async fn next(&mut self) -> Result<Option<String>, Error> {
        while let Some(envelope) = self.stream.message().await.map_err(failed("reading events"))? {
            let Some(event) = envelope.event else { continue };
            let Ok(exit) = TaskExit::decode(event.value.as_slice()) else { continue };
            // a process of `exec` has an id of its own
            if exit.id == exit.container_id || exit.id.is_empty() {
                return Ok(Some(exit.container_id));
            }
        }
        Ok(None)
    }
}

#[derive(Clone, PartialEq, Message)]
struct LeaseRequest {
    #[prost(string, tag = "1")]
    id: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
enum WriteAction {
    Stat = 0,
    Write = 1,
    Commit = 2,
}

#[derive(Clone, PartialEq, Message)]
struct WriteRequest {
    #[prost(enumeration = "WriteAction", tag = "1")]
    action: i32,
    #[prost(string, tag = "2")]
    reference: String,
    #[prost(int64, tag = "3")]
    total: i64,
    #[prost(string, tag = "4")]
    expected: String,
    #[prost(int64, tag = "5")]
    offset: i64,
    #[prost(bytes = "vec", tag = "6")]
    data: Vec<u8>,
    #[prost(map = "string, string", tag = "7")]
    labels: HashMap<String, String>,
}

#[derive(Clone, PartialEq, Message)]
struct WriteResponse {
    #[prost(enumeration = "WriteAction", tag = "1")]
    action: i32,
}

#[derive(Clone, PartialEq, Message)]
struct ImageRequest {
    #[prost(message, optional, tag = "1")]
    image: Option<ImageRecord>,
}

#[derive(Clone, PartialEq, Message)]
struct ImageRecord {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(map = "string, string", tag = "2")]
    labels: HashMap<String, String>,
    #[prost(message, optional, tag = "3")]
    target: Option<Descriptor>,
}

#[derive(Clone, PartialEq, Message)]
struct Descriptor {
    #[prost(string, tag = "1")]
    media_type: String,
    #[prost(string, tag = "2")]
    digest: String,
    #[prost(int64, tag = "3")]
    size: i64,
}

#[derive(Clone, PartialEq, Message)]
struct SubscribeRequest {
    #[prost(string, repeated, tag = "1")]
    filters: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
struct Envelope {
    #[prost(string, tag = "3")]
    topic: String,
    #[prost(message, optional, tag = "4")]
    event: Option<AnyMessage>,
}

#[derive(Clone, PartialEq, Message)]
struct AnyMessage {
    #[prost(string, tag = "1")]
    type_url: String,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct TaskExit {
    #[prost(string, tag = "1")]
    container_id: String,
    #[prost(string, tag = "2")]
    id: String,
}
