//! Plugins that tests bring register as upstream's do: the kubelet finds a socket and asks who is there.

use std::future::Future;
use std::path::Path;

use ferry_plugins_api::pluginregistration::registration_server::{Registration, RegistrationServer};
use ferry_plugins_api::pluginregistration::{
    InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse,
};
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Request, Response, Status};

struct Plugin(PluginInfo);

/// What a plugin says of itself: its type, its name, where it serves and the version it speaks.
pub fn info(kind: &str, name: &str, endpoint: &Path, version: &str) -> PluginInfo {
    PluginInfo {
        r#type: kind.into(),
        name: name.into(),
        endpoint: endpoint.to_str().unwrap().into(),
        supported_versions: vec![version.into()],
    }
}

/// Listens at the socket, and answers there for as long as the future is polled.
pub fn serve(plugin: PluginInfo, socket: &Path) -> impl Future<Output = ()> + Send + use<> {
    let asks = UnixListenerStream::new(UnixListener::bind(socket).unwrap());
    let server = tonic::transport::Server::builder().add_service(RegistrationServer::new(Plugin(plugin)));
    async move { server.serve_with_incoming(asks).await.unwrap() }
}

#[tonic::async_trait]
impl Registration for Plugin {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(self.0.clone()))
    }

    async fn notify_registration_status(
        &self,
        status: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        assert!(status.get_ref().plugin_registered, "{:?}", status.get_ref());
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}
