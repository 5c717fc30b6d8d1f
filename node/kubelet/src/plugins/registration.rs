//! The conversation with one plugin: who it is, and whether it is taken.

use std::path::Path;
use std::time::Duration;

use ferry_client::CancellationToken;
use ferry_plugins_api::pluginregistration::registration_client::RegistrationClient;
use ferry_plugins_api::pluginregistration::{InfoRequest, RegistrationStatus};
use tonic::transport::Channel;

use super::{Handler, Handlers, Plugin};
use crate::cri::unix_channel;

/// A plugin says who it is within this, its socket opened and all.
const INFO_TIMEOUT: Duration = Duration::from_secs(10);
const NOTIFY_TIMEOUT: Duration = Duration::from_secs(5);
/// Who a plugin is fits in this.
const MAX_INFO_BYTES: usize = 1 << 20;

/// A plugin that is registered.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Registered {
    /// The type of the plugin.
    pub kind: String,
    pub name: String,
    pub endpoint: String,
}

/// Asks who is there, takes it up if it can be, and tells it. In upstream's words.
pub(super) async fn register(
    socket: &Path,
    handlers: &Handlers,
    stop: &CancellationToken,
) -> Result<Registered, String> {
    let shown = socket.display();
    let channel = unix_channel(&shown.to_string()).map_err(|error| error.to_string())?;
    let mut client = RegistrationClient::new(channel).max_decoding_message_size(MAX_INFO_BYTES);
    let asked = tokio::time::timeout(INFO_TIMEOUT, client.get_info(InfoRequest {}));
    let info = match asked.await {
        Ok(Ok(answer)) => answer.into_inner(),
        Ok(Err(status)) => {
            let problem =
                format!("failed to get plugin info using RPC GetInfo at socket {shown}, err: {status}");
            return Err(format!("RegisterPlugin error -- {problem}"));
        }
        Err(_) => return Err(format!("RegisterPlugin error -- no answer to GetInfo at socket {shown}")),
    };
    let kind = info.r#type;
    let endpoint = if info.endpoint.is_empty() { shown.to_string() } else { info.endpoint };
    let plugin = Plugin { name: info.name, endpoint, versions: info.supported_versions };
    let taken_up = match handlers.get(kind.as_str()) {
        Some(handler) => take_up(&**handler, &plugin, stop).await.map(|()| handler),
        None => Err(format!("no handler registered for plugin type: {kind} at socket {shown}")),
    };
    let handler = match taken_up {
        Ok(handler) => handler,
        Err(problem) => {
            let problem = format!("RegisterPlugin error -- {problem}");
            notify(&mut client, Some(&problem)).await?;
            return Err(problem);
        }
    };
    if let Err(problem) = notify(&mut client, None).await {
        handler.deregister(&plugin.name, &plugin.endpoint);
        return Err(problem);
    }
    Ok(Registered { kind, name: plugin.name, endpoint: plugin.endpoint })
}

async fn take_up(handler: &dyn Handler, plugin: &Plugin, stop: &CancellationToken) -> Result<(), String> {
    handler.validate(plugin).map_err(|problem| format!("plugin validation failed with err: {problem}"))?;
    let registered = handler.register(plugin, stop).await;
    registered.map_err(|problem| format!("plugin registration failed with err: {problem}"))
}

async fn notify(client: &mut RegistrationClient<Channel>, problem: Option<&str>) -> Result<(), String> {
    let error = problem.unwrap_or_default().to_owned();
    let status = RegistrationStatus { plugin_registered: problem.is_none(), error };
    match tokio::time::timeout(NOTIFY_TIMEOUT, client.notify_registration_status(status)).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(status)) => {
            Err(format!("RegisterPlugin error -- failed to send registration status: {status}"))
        }
        Err(_) => Err("RegisterPlugin error -- failed to send registration status in time".into()),
    }
}
