//! What is asked about the server itself: its state, its members, its alarms, and all of its data at once.

use std::fs::File;
use std::io::{self, BufWriter, Read, Seek, SeekFrom};
use std::pin::Pin;

use bytes::Bytes;
use ferry_etcd_api::etcdserverpb::{
    AlarmMember, AlarmRequest, AlarmResponse, AlarmType, AuthStatusRequest, AuthStatusResponse,
    DefragmentRequest, DefragmentResponse, HashKvRequest, HashKvResponse, HashRequest, HashResponse, Member,
    MemberListRequest, MemberListResponse, SnapshotResponse, StatusRequest, StatusResponse,
};
use ferry_store::embedded::Located;
use ferry_store::{Revision, Span, Store};
use futures::Stream;
use prost::Message;
use sha2::{Digest, Sha256};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use crate::bolt::Bolt;
use crate::failure::{Failure, Result};
use crate::kv::key_value;
use crate::service::{RAFT_TERM, Service};

/// The version of etcd whose API this is.
pub const VERSION: &str = "3.5.21";
pub const CLUSTER_VERSION: &str = "3.5.0";
/// Bytes of a snapshot in one message.
const CHUNK: usize = 64 << 10;
/// What etcd looks for in its file; all but the first two are empty here.
const EMPTY_BUCKETS: [&str; 7] =
    ["alarm", "auth", "authRoles", "authUsers", "cluster", "members", "members_removed"];

pub type Blobs = Pin<Box<dyn Stream<Item = std::result::Result<SnapshotResponse, Status>> + Send>>;

impl Service {
    pub async fn status(&self, _: StatusRequest) -> Result<StatusResponse> {
        let (header, usage) = (self.current_header().await?, self.store.usage().await?);
        let revision = header.map_or(0, |header| header.revision.unsigned_abs());
        Ok(StatusResponse {
            header,
            version: VERSION.into(),
            db_size: usage.size as i64,
            leader: self.member.id,
            // Every revision stands for one entry of the log.
            raft_index: revision,
            raft_term: RAFT_TERM,
            raft_applied_index: revision,
            errors: if usage.no_space { vec!["NOSPACE".into()] } else { Vec::new() },
            db_size_in_use: usage.in_use as i64,
            ..Default::default()
        })
    }

    /// An alarm ends by itself when there is space again, so none can be set or cleared.
    pub async fn alarm(&self, _: AlarmRequest) -> Result<AlarmResponse> {
        let no_space = self.store.usage().await?.no_space;
        let alarm = AlarmMember { member_id: self.member.id, alarm: AlarmType::Nospace as i32 };
        let alarms = if no_space { vec![alarm] } else { Vec::new() };
        Ok(AlarmResponse { header: self.current_header().await?, alarms })
    }

    /// The store reclaims space by itself.
    pub async fn defragment(&self, _: DefragmentRequest) -> Result<DefragmentResponse> {
        Ok(DefragmentResponse { header: self.current_header().await? })
    }

    pub async fn member_list(&self, _: MemberListRequest) -> Result<MemberListResponse> {
        let member = Member {
            id: self.member.id,
            name: self.member.name.clone(),
            peer_ur_ls: self.member.peer_urls.clone(),
            client_ur_ls: self.member.client_urls.clone(),
            is_learner: false,
        };
        Ok(MemberListResponse { header: self.current_header().await?, members: vec![member] })
    }

    pub async fn auth_status(&self, _: AuthStatusRequest) -> Result<AuthStatusResponse> {
        Ok(AuthStatusResponse { header: self.current_header().await?, enabled: false, auth_revision: 1 })
    }

    pub async fn hash(&self, _: HashRequest) -> Result<HashResponse> {
        let HashKvResponse { header, hash, .. } = self.hash_kv(HashKvRequest { revision: 0 }).await?;
        Ok(HashResponse { header, hash })
    }

    pub async fn hash_kv(&self, request: HashKvRequest) -> Result<HashKvResponse> {
        let at = (request.revision > 0).then_some(Revision(request.revision));
        let (entries, _, revision) = self.store.entries(&Span::all(), at, usize::MAX)?;
        let hash = tokio::task::spawn_blocking(move || {
            let mut hash = crc32fast::Hasher::new();
            for entry in entries {
                hash.update(&key_value(entry.read()?).encode_to_vec());
            }
            Ok::<_, ferry_store::Error>(hash.finalize())
        });
        let hash = hash.await.map_err(|error| Failure::unavailable(error.to_string()))??;
        Ok(HashKvResponse {
            header: Some(self.header(revision)),
            hash,
            compact_revision: self.store.compacted_revision().0,
            hash_revision: at.unwrap_or(revision).0,
        })
    }

    /// All current keys as a file of etcd's, with its SHA-256 at the end.
    pub fn snapshot(&self) -> Result<Blobs> {
        let (entries, _, revision) = self.store.entries(&Span::all(), None, usize::MAX)?;
        let (header, leases) = (self.header(revision), self.leases.granted());
        let (sender, receiver) = mpsc::channel(2);
        tokio::task::spawn_blocking(move || {
            let sent = write_file(entries, &leases, revision).and_then(|(file, size)| {
                send_file(file, size, |remaining_bytes, blob| {
                    let (header, version) = (Some(header), VERSION.to_owned());
                    let part = SnapshotResponse { header, remaining_bytes, blob, version };
                    sender.blocking_send(Ok(part)).is_ok()
                })
            });
            if let Err(error) = sent {
                let words = format!("etcdserver: cannot take a snapshot: {error}");
                sender.blocking_send(Err(Failure::unavailable(words).into())).ok();
            }
        });
        Ok(Box::pin(ReceiverStream::new(receiver)))
    }
}

/// Writes etcd's file without a name: it goes when it is closed.
fn write_file(
    mut entries: Vec<Located>,
    leases: &[(i64, i64)],
    revision: Revision,
) -> io::Result<(File, u64)> {
    // etcd's keys are revisions.
    entries.sort_by_key(|entry| (entry.mod_revision(), entry.sub()));
    let mut bolt = Bolt::new(BufWriter::new(tempfile::tempfile()?))?;
    let keys = entries.iter().map(|entry| {
        let kv = key_value(entry.read().map_err(io::Error::other)?);
        Ok::<_, io::Error>((revision_key(entry.mod_revision(), entry.sub()), kv.encode_to_vec()))
    });
    bolt.bucket("key", keys)?;
    // History before this revision is not in the file.
    let compacted = revision_key(revision, 0);
    let meta = [
        (b"consistent_index".to_vec(), revision.0.to_be_bytes().to_vec()),
        (b"finishedCompactRev".to_vec(), compacted.clone()),
        (b"scheduledCompactRev".to_vec(), compacted),
        (b"term".to_vec(), RAFT_TERM.to_be_bytes().to_vec()),
    ];
    bolt.bucket("meta", meta.into_iter().map(Ok::<_, io::Error>))?;
    let leases = leases.iter().map(|(id, ttl)| {
        Ok::<_, io::Error>((id.to_be_bytes().to_vec(), Lease { id: *id, ttl: *ttl }.encode_to_vec()))
    });
    bolt.bucket("lease", leases)?;
    for name in EMPTY_BUCKETS {
        bolt.bucket(name, std::iter::empty::<io::Result<_>>())?;
    }
    let (out, size) = bolt.finish()?;
    Ok((out.into_inner().map_err(|error| error.into_error())?, size))
}

/// As etcd stores one.
#[derive(Clone, PartialEq, Message)]
struct Lease {
    #[prost(int64, tag = "1")]
    id: i64,
    #[prost(int64, tag = "2")]
    ttl: i64,
}

fn revision_key(revision: Revision, sub: u32) -> Vec<u8> {
    [&revision.0.to_be_bytes()[..], b"_", &i64::from(sub).to_be_bytes()].concat()
}

fn send_file(mut file: File, size: u64, send: impl Fn(u64, Bytes) -> bool) -> io::Result<()> {
    file.seek(SeekFrom::Start(0))?;
    let mut hash = Sha256::new();
    let mut left = size;
    while left > 0 {
        let mut chunk = vec![0; CHUNK.min(left as usize)];
        file.read_exact(&mut chunk)?;
        hash.update(&chunk);
        left -= chunk.len() as u64;
        if !send(left, chunk.into()) {
            return Ok(());
        }
    }
    send(0, Bytes::copy_from_slice(&hash.finalize()));
    Ok(())
}
