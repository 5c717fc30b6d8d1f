//! The conversation with one plugin: who it is, and whether it is taken.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ferry_client::CancellationToken;
use ferry_plugins_api::pluginregistration::registration_client::RegistrationClient;
use ferry_plugins_api::pluginregistration::{InfoRequest, PluginInfo, RegistrationStatus};
use tonic::transport::Channel;

use crate::cri::unix_channel;
use crate::devices::Devices;

/// A plugin says who it is within this, its socket opened and all.
const INFO_TIMEOUT: Duration = Duration::from_secs(10);
const NOTIFY_TIMEOUT: Duration = Duration::from_secs(5);
/// Who a plugin is fits in this.
const MAX_INFO_BYTES: usize = 1 << 20;

/// A plugin that is registered.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Registered {
    pub name: String,
    pub endpoint: String,
}

/// Asks who is there, takes it up if it can be, and tells it. In upstream's words.
pub(super) async fn register(
    socket: &Path,
    devices: &Arc<Devices>,
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
    let endpoint = if info.endpoint.is_empty() { shown.to_string() } else { info.endpoint.clone() };
    if let Err(problem) = take_up(&info, socket, &endpoint, devices, stop) {
        notify(&mut client, Some(&problem)).await?;
        return Err(problem);
    }
    if let Err(problem) = notify(&mut client, None).await {
        devices.drivers.deregister(&info.name, &endpoint);
        return Err(problem);
    }
    Ok(Registered { name: info.name, endpoint })
}

fn take_up(
    info: &PluginInfo,
    socket: &Path,
    endpoint: &str,
    devices: &Arc<Devices>,
    stop: &CancellationToken,
) -> Result<(), String> {
    match info.r#type.as_str() {
        "DRAPlugin" if info.name.is_empty() => {
            Err("RegisterPlugin error -- plugin validation failed with err: DRA driver name is empty".into())
        }
        "DRAPlugin" => {
            devices.register(&info.name, endpoint, &info.supported_versions, stop).map_err(|problem| {
                format!("RegisterPlugin error -- plugin registration failed with err: {problem}")
            })
        }
        other => Err(format!(
            "RegisterPlugin error -- no handler registered for plugin type: {other} at socket {}",
            socket.display()
        )),
    }
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
