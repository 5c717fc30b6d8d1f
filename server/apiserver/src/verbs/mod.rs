//! HTTP's side of the verbs: read the request, call the registry, write the answer. One function finds
//! the verb; no kind has a handler of its own.

mod create;
mod delete;
mod patch;
mod read;
mod scale;
mod update;
mod watch;

use std::sync::Arc;

use ferry_api::{Kind, Status};
use ferry_registry::Resource;
use ferry_registry::verbs::Call;
use http::Method;
use jiff::Timestamp;
use tokio::runtime::{Handle, RuntimeFlavor};

use crate::api::Api;
use crate::body::Response;
use crate::negotiate::{Encoding, View, Wanted, wanted_of};
use crate::request::{Request, WriteOptions, namespace_of};
use crate::request_info::{RequestInfo, segment_problem};
use crate::served::{Backend, Place};
use crate::{resource_metrics, respond, subresources};

pub const ALL_VIEWS: &[View] = &[View::Whole, View::Table, View::PartialMetadata];

/// What takes less time to decode and to judge than handing the worker's other tasks over does.
const SMALL_BODY: usize = 64 << 10;

pub async fn dispatch(api: &Arc<Api>, request: &Request) -> Result<Response, Status> {
    match request.body.len() {
        0..=SMALL_BODY => find_verb(api, request).await,
        _ => aside(find_verb(api, request)).await,
    }
}

/// Polls a future that computes for long without waiting: other threads take over this worker's tasks meanwhile, so that
/// timers and small requests are not held up. A runtime of one thread has no others.
async fn aside<F: Future>(future: F) -> F::Output {
    let mut future = std::pin::pin!(future);
    std::future::poll_fn(|context| match Handle::current().runtime_flavor() {
        RuntimeFlavor::MultiThread => tokio::task::block_in_place(|| future.as_mut().poll(context)),
        _ => future.as_mut().poll(context),
    })
    .await
}

async fn find_verb(api: &Arc<Api>, request: &Request) -> Result<Response, Status> {
    let info = &request.info;
    let served = api.served();
    let Some(Place { kind, backend }) = served.place(&info.group, &info.version, &info.resource) else {
        return match served.has_group(&info.group) {
            true => Err(Status::no_such_path()),
            false => Ok(respond::page_not_found()),
        };
    };
    check_segments(info)?;
    request.warn(kind.deprecation.iter().map(|warning| warning.to_string()));
    if info.name.is_empty() && !info.subresource.is_empty() {
        return Err(Status::no_such_path());
    }
    if info.verb == "watch" && ![Method::GET, Method::HEAD].contains(&request.method) {
        return Err(Status::method_not_allowed());
    }
    if kind.is_virtual() && !info.name.is_empty() {
        return Err(Status::no_such_path());
    }
    if kind.is_namespaced() && info.namespace.is_empty() {
        // All namespaces together can be read, no more.
        match info.verb {
            _ if !info.name.is_empty() => return Err(Status::no_such_path()),
            "list" | "watch" => {}
            _ => return Err(Status::method_not_allowed()),
        }
    }
    if info.name.is_empty() && ["update", "patch"].contains(&info.verb) {
        return Err(Status::method_not_allowed());
    }
    if !kind.is_namespaced() && !info.namespace.is_empty() && kind.plural != "namespaces" {
        return Err(Status::no_such_path());
    }
    if !info.subresource.is_empty() {
        // The old prefixes `/watch` and `/proxy` are no way to what hangs below an object.
        if ["watch", "proxy"].contains(&info.verb) {
            return Err(Status::no_such_path());
        }
        let sub = kind.subresource(&info.subresource).ok_or_else(Status::no_such_path)?;
        let allowed = match info.subresource.as_str() {
            "proxy" => true,
            "attach" | "exec" | "portforward" => [Method::GET, Method::POST].contains(&request.method),
            _ => sub.verbs.iter().any(|verb| verb == info.verb),
        };
        if !allowed {
            return Err(Status::method_not_allowed());
        }
        let Backend::Stored(resource) = backend else { return Err(Status::no_such_path()) };
        return subresources::dispatch(Target { api, request, kind, resource }).await;
    }
    if info.verb == "create" && !info.name.is_empty() {
        return Err(Status::method_not_allowed());
    }
    if !kind.has_verb(info.verb) {
        return Err(Status::method_not_allowed());
    }
    let resource = match backend {
        Backend::Review => return subresources::review(api, request, kind).await,
        Backend::Measured => return resource_metrics::answer(api, request, kind).await,
        Backend::Stored(resource) => resource,
    };
    let target = Target { api, request, kind, resource };
    match info.verb {
        "get" => read::get(target).await,
        "list" => read::list(target).await,
        "watch" => watch::watch(target).await,
        "create" => create::create(target).await,
        "update" => update::update(target).await,
        "patch" => patch::patch(target).await,
        "delete" => delete::delete(target).await,
        "deletecollection" => delete::delete_collection(target).await,
        _ => Err(Status::method_not_allowed()),
    }
}

/// Whatever authorization made of it, no handler works with a name that is a way to somewhere else.
fn check_segments(info: &RequestInfo) -> Result<(), Status> {
    for (what, segment) in [("Name", &info.name), ("Namespace", &info.namespace)] {
        if let Some(problem) = segment_problem(segment) {
            return Err(Status::bad_request(format!("{what} parameter invalid: {segment:?}: {problem}")));
        }
    }
    Ok(())
}

/// What a verb works on.
#[derive(Clone, Copy)]
pub struct Target<'a> {
    pub api: &'a Arc<Api>,
    pub request: &'a Request,
    /// The version the client speaks.
    pub kind: &'a Arc<Kind>,
    pub resource: &'a Arc<Resource>,
}

impl<'a> Target<'a> {
    /// The facts of the request, for the registry and admission.
    pub fn call(self, options: &'a WriteOptions) -> Call<'a> {
        let (request, info) = (self.request, &self.request.info);
        Call {
            resource: self.resource,
            kind: self.kind,
            namespace: namespace_of(self.kind, info),
            name: &info.name,
            subresource: &info.subresource,
            object_kind: None,
            user: &request.user,
            manager: &options.manager,
            dry_run: options.dry_run,
            options: &options.value,
            include_uninitialized: request.query.flag("includeUninitialized"),
            patience: request.patience().min(self.api.limits.request_timeout),
            now: Timestamp::now(),
            admission: &**self.api,
            warnings: &request.warnings,
            annotations: &request.annotations,
        }
    }

    pub fn wanted(&self) -> Result<Wanted, Status> {
        let whole: &[Encoding] = match self.kind.codec.has_protobuf() {
            true => &[Encoding::Json, Encoding::Yaml, Encoding::Protobuf],
            false => &[Encoding::Json, Encoding::Yaml],
        };
        let mut wanted = wanted_of(&self.request.headers, ALL_VIEWS, whole)?;
        wanted.pretty |= self.request.query.flag("pretty");
        Ok(wanted)
    }
}

/// A plain read or write of an object's main or status side, for subresources that are the object itself.
pub async fn whole_object(target: Target<'_>) -> Result<Response, Status> {
    match target.request.info.verb {
        "get" => read::get(target).await,
        "update" => update::update(target).await,
        "patch" => patch::patch(target).await,
        _ => Err(Status::method_not_allowed()),
    }
}

pub use scale::scale;
