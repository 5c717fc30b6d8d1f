//! HTTP's side of the verbs: read the request, call the registry, write the response. [`actions::decide`] chooses the
//! action; a verb has one for all kinds.

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
use jiff::Timestamp;
use tokio::runtime::{Handle, RuntimeFlavor};

use crate::actions::{self, Action};
use crate::api::Api;
use crate::body::Response;
use crate::negotiate::{Encoding, MediaType, View, negotiate_among};
use crate::request::{Request, WriteOptions, namespace_of};
use crate::request_info::{RequestInfo, segment_problem};
use crate::served::Place;
use crate::subresources::{eviction, pod_binding, reviews};
use crate::{component_statuses, resource_metrics, respond};

pub const ALL_VIEWS: &[View] = &[View::Whole, View::Table, View::PartialMetadata];

/// What takes less time to decode and to judge than handing the worker's other tasks over does.
const SMALL_BODY: usize = 64 << 10;

pub async fn dispatch(api: &Arc<Api>, request: &Request) -> Result<Response, Status> {
    match request.body.len() {
        0..=SMALL_BODY => act(api, request).await,
        _ => aside(act(api, request)).await,
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

/// Computes for long, as [`aside`] does.
pub fn aside_now<T>(compute: impl FnOnce() -> T) -> T {
    match Handle::try_current().map(|handle| handle.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(compute),
        _ => compute(),
    }
}

async fn act(api: &Arc<Api>, request: &Request) -> Result<Response, Status> {
    let info = &request.info;
    let served = api.served();
    let Some(Place { kind, resource }) = served.place(&info.group, &info.version, &info.resource) else {
        return match served.has_group(&info.group) && !served.is_custom(&info.group) {
            true => Err(Status::no_such_path()),
            false => Ok(respond::page_not_found()),
        };
    };
    check_segments(info)?;
    request.warn(kind.deprecation.iter().map(|warning| warning.to_string()));
    let target = || -> Result<Target<'_>, Status> {
        let resource = resource.as_ref().ok_or_else(Status::no_such_path)?;
        Ok(Target { api, request, kind, resource })
    };
    let action = match actions::decide(&request.method, info, kind) {
        Ok(action) => action,
        Err(status) if kind.generation.is_some() => return nowhere(status, info, kind),
        Err(status) => return Err(status),
    };
    match action {
        Action::Get => read::get(target()?).await,
        Action::List => read::list(target()?).await,
        Action::Watch => watch::watch(target()?).await,
        Action::Create => create::create(target()?).await,
        Action::Update => update::update(target()?).await,
        Action::Patch => patch::patch(target()?).await,
        Action::Delete => delete::delete(target()?).await,
        Action::DeleteCollection => delete::delete_collection(target()?).await,
        Action::Scale => scale::scale(target()?).await,
        Action::BindPod => pod_binding::bind(target()?).await,
        Action::BindNamedPod => pod_binding::bind_by_body(api, request).await,
        Action::EvictPod => eviction::evict(target()?).await,
        Action::RequestToken => reviews::token(target()?).await,
        Action::PodStream | Action::Proxy => api.node_connection.connect(target()?).await,
        Action::Review(review) => reviews::review(api, request, kind, review).await,
        Action::ComponentStatuses => component_statuses::answer(api, request, kind).await,
        Action::ResourceMetrics => resource_metrics::answer(api, request, kind).await,
    }
}

/// The answer where a custom resource has no such path: a page where the scope is wrong, else words about the object.
fn nowhere(status: Status, info: &RequestInfo, kind: &Kind) -> Result<Response, Status> {
    let whole_cluster = info.namespace.is_empty();
    let scope_fits = kind.is_namespaced() != whole_cluster;
    match status.code {
        404 if scope_fits && !info.subresource.is_empty() => {
            Err(Status::not_found(&kind.group_resource(), &info.name))
        }
        404 => Ok(respond::page_not_found()),
        405 if !scope_fits => Ok(respond::page_not_found()),
        _ => Err(status),
    }
}

/// Refuses names that a path would read as something else, whatever authorization decided.
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

    pub fn media_type(&self) -> Result<MediaType, Status> {
        let whole: &[Encoding] = match self.kind.codec.has_protobuf() {
            true => &[Encoding::Json, Encoding::Yaml, Encoding::Protobuf],
            false => &[Encoding::Json, Encoding::Yaml],
        };
        negotiate_among(&self.request.headers, ALL_VIEWS, whole)
    }
}
