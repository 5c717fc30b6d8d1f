//! How device plugins come: they call the kubelet's own Registration service on `device-plugins/kubelet.sock`, and again
//! whenever that socket is made anew, or they put a socket below `plugins_registry` like other plugins.

use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::Arc;

use ferry_api::names::qualified_name;
use ferry_client::CancellationToken;
use ferry_plugins_api::deviceplugin::registration_server::{Registration, RegistrationServer};
use ferry_plugins_api::deviceplugin::{Empty, RegisterRequest};
use futures::future::BoxFuture;
use futures::{FutureExt, TryFutureExt};
use tonic::{Request, Response, Status};

use super::DevicePlugins;
use crate::grpc_socket;
use crate::metrics;
use crate::plugins::{Handler, Plugin};

/// The type that those below `plugins_registry` say they are of.
pub const TYPE: &str = "DevicePlugin";

const VERSION: &str = "v1beta1";
const SOCKET: &str = "kubelet.sock";

/// Lets plugins register until stopped. Sockets that are there are of plugins that ended, or that come again.
pub async fn run(plugins: Arc<DevicePlugins>, stop: CancellationToken) {
    let listener =
        remove_sockets(&plugins.directory).and_then(|()| grpc_socket::bind(&plugins.directory.join(SOCKET)));
    match listener {
        Ok(listener) => {
            let service = RegistrationServer::new(Service { plugins, stop: stop.clone() });
            grpc_socket::serve(listener, service, stop).await;
        }
        Err(error) => tracing::error!(%error, "device plugins cannot register at this kubelet"),
    }
}

fn remove_sockets(directory: &Path) -> io::Result<()> {
    std::fs::create_dir_all(directory)?;
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_socket() {
            match std::fs::remove_file(entry.path()) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
    }
    Ok(())
}

struct Service {
    plugins: Arc<DevicePlugins>,
    stop: CancellationToken,
}

#[tonic::async_trait]
impl Registration for Service {
    async fn register(&self, request: Request<RegisterRequest>) -> Result<Response<Empty>, Status> {
        let request = request.into_inner();
        let resource = &request.resource_name;
        let mut span = ferry_trace::Span::root("kubelet.register_device_plugin", None);
        span.set("resource", resource.as_str());
        let refused = |span: &mut ferry_trace::Span, problem: String| {
            span.fail_unquoted(&problem);
            tracing::warn!(resource, problem, "device plugin not registered");
            Err(Status::unknown(problem))
        };
        let judged =
            judge_version(std::slice::from_ref(&request.version)).and_then(|()| judge_name(resource));
        if let Err(problem) = judged {
            return refused(&mut span, problem);
        }
        metrics::plugin_registered(resource);
        // Below the directory, also where it begins with a slash.
        let socket = self.plugins.directory.join(request.endpoint.trim_start_matches('/'));
        let socket = socket.display().to_string();
        match span.in_scope(self.plugins.register(resource, &socket, &self.stop)).await {
            Ok(()) => Ok(Response::new(Empty {})),
            Err(error) => refused(&mut span, error.to_string()),
        }
    }
}

/// Takes up plugins whose sockets stand below `plugins_registry`.
pub struct Watched(pub Arc<DevicePlugins>);

impl Handler for Watched {
    fn validate(&self, plugin: &Plugin) -> Result<(), String> {
        if judge_version(&plugin.versions).is_err() {
            let versions = plugin.versions.join(" ");
            return Err(format!(
                "manager version, {VERSION}, is not among plugin supported versions [{versions}]"
            ));
        }
        judge_name(&plugin.name).map_err(|problem| format!("invalid name of device plugin socket: {problem}"))
    }

    fn register<'a>(
        &'a self,
        plugin: &'a Plugin,
        stop: &'a CancellationToken,
    ) -> BoxFuture<'a, Result<(), String>> {
        let registered = self.0.register(&plugin.name, &plugin.endpoint, stop);
        registered.map_err(|error| error.to_string()).boxed()
    }

    fn deregister(&self, name: &str, endpoint: &str) {
        self.0.deregister(name, endpoint);
    }
}

fn judge_version(versions: &[String]) -> Result<(), String> {
    match versions.iter().any(|version| version == VERSION) {
        true => Ok(()),
        false => Err(format!(
            "requested API version {:?} is not supported by kubelet. Supported version is [{VERSION:?}]",
            versions.join(" ")
        )),
    }
}

/// A resource is somebody's whose name is of a domain, and not Kubernetes' own.
fn judge_name(resource: &str) -> Result<(), String> {
    let is_native = !resource.contains('/') || resource.contains("kubernetes.io/");
    let is_extended = !is_native
        && !resource.starts_with("requests.")
        && qualified_name(&format!("requests.{resource}")).is_empty();
    if is_extended { Ok(()) } else { Err(format!("the ResourceName {resource:?} is invalid")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_others_are_taken() {
        for (name, expected) in [
            ("nvidia.com/gpu", true),
            ("smarter-devices/ttyUSB0", true),
            ("gpu", false),
            ("kubernetes.io/gpu", false),
            ("requests.example.com/gpu", false),
            ("example.com/", false),
            ("example.com/a b", false),
        ] {
            assert_eq!(judge_name(name).is_ok(), expected, "{name}");
        }
        assert_eq!(judge_version(&["v1alpha1".into(), "v1beta1".into()]), Ok(()));
        let said = judge_version(&["v1alpha".into()]).expect_err("too old");
        assert_eq!(
            said,
            r#"requested API version "v1alpha" is not supported by kubelet. Supported version is ["v1beta1"]"#
        );
    }
}
