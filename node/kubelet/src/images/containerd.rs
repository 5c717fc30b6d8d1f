//! containerd's own services beside CRI, on the same socket: importing an
//! image that no registry has, reading what an image is made of, and the
//! events that CRI of version 1.6 lacks.
//!
//! Only what Ferry calls is written out. Another runtime answers
//! "unimplemented" to all of it, and Ferry goes on without.

use std::collections::HashMap;

use bytes::Bytes;
use futures::stream::{self, Stream, StreamExt};
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
/// The label of images that no runtime pulled: where they came from.
const SOURCE_LABEL: &str = "ferry.dev/image-source";

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

    /// Stores an image under its name, replacing what had that name.
    pub async fn import(&self, image: &Image, source: Source) -> Result<(), Error> {
        self.import_counted(image, source, |_| {}).await
    }

    /// The same; `sent` is told how many bytes went.
    pub async fn import_counted(
        &self,
        image: &Image,
        source: Source,
        sent: impl Fn(u64) + Clone + Send + Sync + 'static,
    ) -> Result<(), Error> {
        let lease = self.lease().await?;
        let imported = async {
            for blob in &image.blobs {
                let chunks: Vec<Bytes> = blob.data.chunks(CHUNK).map(Bytes::copy_from_slice).collect();
                let content =
                    Content { digest: &blob.digest, size: blob.data.len() as u64, children: &blob.children };
                let sent = sent.clone();
                let chunks = stream::iter(chunks).inspect(move |chunk| sent(chunk.len() as u64));
                self.write(content, chunks, &lease).await?;
            }
            let Blob { media_type, digest, data, .. } = &image.target;
            let target =
                Target { media_type: media_type.clone(), digest: digest.clone(), size: data.len() as u64 };
            self.name(&image.name, target, source, &lease).await
        }
        .await;
        self.release(lease).await;
        imported
    }

    /// Keeps the garbage collector off what is written until a name holds it.
    pub async fn lease(&self) -> Result<Lease, Error> {
        let lease = Lease(format!("ferry-import-{}", uuid::Uuid::new_v4()));
        let create = LeaseRequest { id: lease.0.clone() };
        self.unary::<_, ()>("/containerd.services.leases.v1.Leases/Create", create, None)
            .await
            .map_err(failed("taking a lease"))?;
        Ok(lease)
    }

    pub async fn release(&self, lease: Lease) {
        // an abandoned lease expires with containerd's next collection at worst
        let delete = LeaseRequest { id: lease.0 };
        if let Err(status) =
            self.unary::<_, ()>("/containerd.services.leases.v1.Leases/Delete", delete, None).await
        {
            tracing::debug!(%status, "import lease not deleted");
        }
    }

    /// Gives content a name, and takes it from what had that name.
    pub async fn name(&self, name: &str, target: Target, source: Source, lease: &Lease) -> Result<(), Error> {
        let mut labels = HashMap::from([("io.cri-containerd.image".to_string(), "managed".to_string())]);
        labels.extend(source.label().map(|value| (SOURCE_LABEL.to_string(), value.to_string())));
        let target = Descriptor {
            media_type: target.media_type,
            digest: target.digest,
            size: i64::try_from(target.size).unwrap_or(i64::MAX),
        };
        let record = ImageRecord { name: name.into(), labels, target: Some(target) };
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

    /// Writes one blob as its chunks come. containerd takes it only if it has the digest.
    pub async fn write(
        &self,
        content: Content<'_>,
        chunks: impl Stream<Item = Bytes> + Send + 'static,
        lease: &Lease,
    ) -> Result<(), Error> {
        let total = i64::try_from(content.size).unwrap_or(i64::MAX);
        // of its own, so that two imports of one blob do not wait for each other
        let reference = format!("{}-{}", lease.0, content.digest);
        let request = WriteRequest {
            action: WriteAction::Write as i32,
            reference,
            total,
            expected: content.digest.to_string(),
            ..WriteRequest::default()
        };
        // labels tell the collector which blobs this one needs
        let children = content.children.iter().enumerate();
        let labels =
            children.map(|(index, child)| (format!("containerd.io/gc.ref.content.{index}"), child.clone()));
        let commit = WriteRequest {
            action: WriteAction::Commit as i32,
            offset: total,
            labels: labels.collect(),
            ..request.clone()
        };
        let mut offset = 0;
        let writes = chunks.map(move |chunk| {
            let write = WriteRequest { offset, data: chunk.to_vec(), ..request.clone() };
            offset += chunk.len() as i64;
            write
        });
        let mut grpc = self.grpc().await.map_err(failed("connecting"))?;
        let request = self.request(writes.chain(stream::iter([commit])), Some(lease));
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
                Ok(None) => return Err(Error::Short { name: content.digest.to_string() }),
                Err(status) if status.code() == Code::AlreadyExists => return Ok(()),
                Err(status) => return Err(failed("writing a blob")(status)),
            }
        }
    }

    /// Where the image of this full name came from and what it is, if there is one.
    pub async fn image(&self, name: &str) -> Result<Option<Named>, Error> {
        let request = NameRequest { name: name.into() };
        let found: Result<ImageRequest, Status> =
            self.unary("/containerd.services.images.v1.Images/Get", request, None).await;
        match found {
            Ok(answer) => Ok(answer.image.and_then(named)),
            // runtimes that are not containerd have no such service
            Err(status) if matches!(status.code(), Code::NotFound | Code::Unimplemented) => Ok(None),
            Err(status) => Err(failed("looking for an image")(status)),
        }
    }

    /// All images that were brought in by hand.
    pub async fn loaded(&self) -> Result<Vec<Named>, Error> {
        let filter = format!("labels.{SOURCE_LABEL:?}=={}", Source::Loaded.label().unwrap_or_default());
        let request = ListRequest { filters: vec![filter] };
        let answer: Result<ImagesAnswer, Status> =
            self.unary("/containerd.services.images.v1.Images/List", request, None).await;
        match answer {
            Ok(answer) => Ok(answer.images.into_iter().filter_map(named).collect()),
            // runtimes that are not containerd have no such service
            Err(status) if status.code() == Code::Unimplemented => Ok(vec![]),
            Err(status) => Err(failed("listing the images")(status)),
        }
    }

    /// How long a blob is; `None` where it is not there.
    pub async fn size(&self, digest: &str) -> Result<Option<u64>, Error> {
        let request = NameRequest { name: digest.into() };
        let answer: Result<InfoAnswer, Status> =
            self.unary("/containerd.services.content.v1.Content/Info", request, None).await;
        match answer {
            Ok(answer) => Ok(answer.info.and_then(|info| u64::try_from(info.size).ok())),
            Err(status) if status.code() == Code::NotFound => Ok(None),
            Err(status) => Err(failed("looking for a blob")(status)),
        }
    }

    /// A part of a blob, as containerd reads it.
    pub async fn read(
        &self,
        digest: &str,
        offset: u64,
        size: u64,
    ) -> Result<impl Stream<Item = Result<Bytes, Error>> + Send + use<>, Error> {
        let request = ReadRequest {
            digest: digest.into(),
            offset: i64::try_from(offset).unwrap_or(i64::MAX),
            size: i64::try_from(size).unwrap_or(i64::MAX),
        };
        let mut grpc = self.grpc().await.map_err(failed("connecting"))?;
        let path = PathAndQuery::from_static("/containerd.services.content.v1.Content/Read");
        let codec = ProstCodec::<ReadRequest, ReadAnswer>::default();
        let answer = grpc.server_streaming(self.request(request, None), path, codec).await;
        let stream = answer.map_err(failed("reading a blob"))?.into_inner();
        Ok(stream.map(|answer| answer.map(|answer| answer.data.into()).map_err(failed("reading a blob"))))
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

    async fn unary<Q, A>(&self, method: &'static str, message: Q, lease: Option<&Lease>) -> Result<A, Status>
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

    fn request<T>(&self, message: T, lease: Option<&Lease>) -> Request<T> {
        let mut request = Request::new(message);
        request.metadata_mut().insert("containerd-namespace", MetadataValue::from_static(NAMESPACE));
        if let Some(lease) = lease.and_then(|lease| lease.0.parse().ok()) {
            request.metadata_mut().insert("containerd-lease", lease);
        }
        request
    }
}

/// Where an image came from that no runtime pulled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Ferry made it, for itself.
    Ferry,
    /// By hand, on this node: as good as one from its registry, and given to other nodes.
    Loaded,
    /// From the server, where it was brought in by hand.
    Server,
}

impl Source {
    fn label(self) -> Option<&'static str> {
        match self {
            Source::Ferry => None,
            Source::Loaded => Some("loaded"),
            Source::Server => Some("server"),
        }
    }

    fn of(labels: &HashMap<String, String>) -> Option<Source> {
        let value = labels.get(SOURCE_LABEL)?;
        [Source::Loaded, Source::Server].into_iter().find(|source| source.label() == Some(value))
    }
}

/// Protects what is written until it has a name.
pub struct Lease(String);

/// A blob that is to be written.
#[derive(Clone, Copy)]
pub struct Content<'a> {
    pub digest: &'a str,
    pub size: u64,
    /// Digests of the blobs this one names.
    pub children: &'a [String],
}

/// What a name points to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    pub media_type: String,
    pub digest: String,
    pub size: u64,
}

/// An image under one of its names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    pub name: String,
    pub target: Target,
    /// `None` for one that a runtime pulled.
    pub source: Option<Source>,
}

fn named(record: ImageRecord) -> Option<Named> {
    let target = record.target?;
    Some(Named {
        name: record.name,
        source: Source::of(&record.labels),
        target: Target {
            media_type: target.media_type,
            digest: target.digest,
            size: u64::try_from(target.size).ok()?,
        },
    })
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

/// Asks by name or by digest.
#[derive(Clone, PartialEq, Message)]
struct NameRequest {
    #[prost(string, tag = "1")]
    name: String,
}

#[derive(Clone, PartialEq, Message)]
struct ListRequest {
    #[prost(string, repeated, tag = "1")]
    filters: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
struct ImagesAnswer {
    #[prost(message, repeated, tag = "1")]
    images: Vec<ImageRecord>,
}

#[derive(Clone, PartialEq, Message)]
struct InfoAnswer {
    #[prost(message, optional, tag = "1")]
    info: Option<Info>,
}

#[derive(Clone, PartialEq, Message)]
struct Info {
    #[prost(int64, tag = "2")]
    size: i64,
}

#[derive(Clone, PartialEq, Message)]
struct ReadRequest {
    #[prost(string, tag = "1")]
    digest: String,
    #[prost(int64, tag = "2")]
    offset: i64,
    #[prost(int64, tag = "3")]
    size: i64,
}

#[derive(Clone, PartialEq, Message)]
struct ReadAnswer {
    #[prost(bytes = "vec", tag = "2")]
    data: Vec<u8>,
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
