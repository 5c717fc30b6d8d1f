//! How etcd says that something cannot be: clients tell these answers apart by code and text.

use ferry_store::Error;
use tonic::{Code, Status};

#[derive(Debug)]
pub struct Failure(Status);

pub type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    pub fn invalid(words: impl Into<String>) -> Self {
        Failure(Status::new(Code::InvalidArgument, words))
    }

    pub fn empty_key() -> Self {
        Failure::invalid("etcdserver: key is not provided")
    }

    pub fn key_not_found() -> Self {
        Failure::invalid("etcdserver: key not found")
    }

    pub fn value_provided() -> Self {
        Failure::invalid("etcdserver: value is provided")
    }

    pub fn lease_provided() -> Self {
        Failure::invalid("etcdserver: lease is provided")
    }

    pub fn invalid_sort_option() -> Self {
        Failure::invalid("etcdserver: invalid sort option")
    }

    pub fn too_many_operations() -> Self {
        Failure::invalid("etcdserver: too many operations in txn request")
    }

    pub fn duplicate_key() -> Self {
        Failure::invalid("etcdserver: duplicate key given in txn request")
    }

    pub fn request_too_large() -> Self {
        Failure::invalid("etcdserver: request is too large")
    }

    /// etcd takes any bytes. The store keeps keys as text, as every key of Kubernetes is.
    pub fn key_is_not_text() -> Self {
        Failure::invalid("ferry: a key must be valid UTF-8")
    }

    pub fn lease_not_found() -> Self {
        Failure(Status::new(Code::NotFound, "etcdserver: requested lease not found"))
    }

    pub fn lease_exists() -> Self {
        Failure(Status::new(Code::FailedPrecondition, "etcdserver: lease already exists"))
    }

    pub fn lease_ttl_too_large() -> Self {
        Failure(Status::new(Code::OutOfRange, "etcdserver: too large lease TTL"))
    }

    pub fn unavailable(words: impl Into<String>) -> Self {
        Failure(Status::new(Code::Unavailable, words))
    }
}

impl Failure {
    /// What a page says of it.
    pub fn words(&self) -> &str {
        self.0.message()
    }
}

impl From<Failure> for Status {
    fn from(failure: Failure) -> Self {
        failure.0
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let (code, words) = match &error {
            Error::Compacted { .. } => {
                (Code::OutOfRange, "etcdserver: mvcc: required revision has been compacted".to_owned())
            }
            Error::FutureRevision { .. } => {
                (Code::OutOfRange, "etcdserver: mvcc: required revision is a future revision".to_owned())
            }
            Error::NoSpace { .. } => {
                (Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded".to_owned())
            }
            Error::TooLarge { .. } => return Failure::request_too_large(),
            Error::InvalidTransaction { .. } => return Failure::duplicate_key(),
            Error::Corrupt { .. } => (Code::DataLoss, format!("etcdserver: {error}")),
            Error::Conflict { .. } | Error::Unavailable { .. } => {
                (Code::Unavailable, format!("etcdserver: {error}"))
            }
        };
        Failure(Status::new(code, words))
    }
}
