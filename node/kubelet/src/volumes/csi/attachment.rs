//! Waiting until a volume is attached to this node: who attaches it says so in its VolumeAttachment.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::Api;
use tokio::sync::watch;
use tokio::time::Instant;

use super::drivers::CALL_TIMEOUT;
use super::record::Record;

const FIRST_LOOK: Duration = Duration::from_millis(100);
const MAX_PAUSE: Duration = Duration::from_secs(5);

/// Why a volume is not attached.
#[derive(Debug, PartialEq, Eq)]
pub struct Refused {
    pub message: String,
    /// The attacher said that the node has as many volumes as it can have.
    pub is_exhausted: bool,
}

impl From<String> for Refused {
    fn from(message: String) -> Self {
        Refused { message, is_exhausted: false }
    }
}

/// What a VolumeAttachment says; `Ok(None)` while it has to be waited for.
fn attached(attachment: &VolumeAttachment) -> Result<Option<HashMap<String, String>>, Refused> {
    if attachment.metadata.deletion_timestamp.is_some() {
        return Err("volume attachment is being deleted".to_owned().into());
    }
    let Some(status) = &attachment.status else { return Ok(None) };
    if status.attached {
        return Ok(Some(status.attachment_metadata.clone().unwrap_or_default().into_iter().collect()));
    }
    let Some(error) = &status.attach_error else { return Ok(None) };
    let is_exhausted = error.error_code == Some(tonic::Code::ResourceExhausted as i32);
    match error.message.clone() {
        None if !is_exhausted => Ok(None),
        message => Err(Refused { message: message.unwrap_or_default(), is_exhausted }),
    }
}

fn is_reported(node: Option<&Arc<Node>>, name: &str) -> bool {
    let status = node.and_then(|node| node.status.as_ref());
    status.is_some_and(|status| status.volumes_in_use.iter().flatten().any(|each| each == name))
}

fn is_forbidden(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 403)
}

/// Waits until the API shows the volume as one that this node uses: nobody detaches it from then on.
pub async fn until_reported(
    mut nodes: watch::Receiver<Option<Arc<Node>>>,
    record: &Record,
) -> Result<(), String> {
    let name = record.unique_name();
    let reported = nodes.wait_for(|node| is_reported(node.as_ref(), &name));
    match tokio::time::timeout(CALL_TIMEOUT, reported).await {
        Ok(Ok(_)) => Ok(()),
        _ => Err("Volume has not been added to the list of VolumesInUse in the node's volume status".into()),
    }
}

/// What the attacher tells the driver's node service.
pub async fn until_attached(
    client: &kube::Client,
    mut nodes: watch::Receiver<Option<Arc<Node>>>,
    record: &Record,
) -> Result<HashMap<String, String>, Refused> {
    let api: Api<VolumeAttachment> = Api::all(client.clone());
    let deadline = Instant::now() + CALL_TIMEOUT;
    let mut pause = FIRST_LOOK;
    let mut last = None;
    while Instant::now() < deadline {
        nodes.mark_unchanged();
        match api.get_opt(&record.attachment_id).await {
            Ok(Some(attachment)) => match attached(&attachment) {
                Ok(Some(context)) => return Ok(context),
                Ok(None) => last = None,
                Err(problem) => last = Some(problem),
            },
            // a node may only read attachments of its own, so that one which is not there yet is forbidden too
            Ok(None) => last = None,
            Err(error) if is_forbidden(&error) => last = None,
            Err(error) => {
                last = Some(format!("volume {} has GET error: {error}", record.volume_handle).into());
            }
        }
        // who attaches says so in the node's status right after
        tokio::select! {
            _ = nodes.changed() => {}
            () = tokio::time::sleep(pause.min(deadline.saturating_duration_since(Instant::now()))) => {}
        }
        pause = (pause * 3 / 2).min(MAX_PAUSE);
    }
    Err(last.unwrap_or_else(|| {
        format!(
            "timed out waiting for external-attacher of {} CSI driver to attach volume {}",
            record.driver_name, record.volume_handle
        )
        .into()
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn an_attachment_says_when_it_is_done() {
        let attachment = |deleted: Value, status: Value| -> VolumeAttachment {
            serde_json::from_value(
                json!({"metadata": {"name": "a", "deletionTimestamp": deleted}, "status": status,
                "spec": {"attacher": "d", "nodeName": "n", "source": {"persistentVolumeName": "pv"}}}),
            )
            .expect("an attachment")
        };
        let is = |status: Value| attached(&attachment(Value::Null, status));
        assert_eq!(is(Value::Null), Ok(None));
        assert_eq!(is(json!({"attached": false})), Ok(None));
        let done = is(json!({"attached": true, "attachmentMetadata": {"device": "sdb"}}));
        assert_eq!(done, Ok(Some(HashMap::from([("device".into(), "sdb".into())]))));
        let refused =
            |error: Value| is(json!({"attached": false, "attachError": error})).expect_err("it is not");
        assert_eq!(refused(json!({"message": "no"})), "no".to_owned().into());
        assert_eq!(refused(json!({"message": "no", "errorCode": 5})), "no".to_owned().into());
        let full = Refused { message: "full".into(), is_exhausted: true };
        assert_eq!(refused(json!({"message": "full", "errorCode": 8})), full);
        let deleting = attachment(json!("2026-01-01T00:00:00Z"), json!({"attached": true}));
        assert!(attached(&deleting).is_err());
    }

    #[tokio::test]
    async fn the_nodes_status_is_waited_for() {
        let (sender, nodes) = watch::channel(None);
        let record = Record { driver_name: "d".into(), volume_handle: "h".into(), ..Record::default() };
        let waits = tokio::spawn(async move { until_reported(nodes, &record).await });
        let node = |names: Value| -> Arc<Node> {
            let node = json!({"metadata": {"name": "n"}, "status": {"volumesInUse": names}});
            Arc::new(serde_json::from_value(node).expect("a node"))
        };
        sender.send_replace(Some(node(json!(["kubernetes.io/csi/d^other"]))));
        sender.send_replace(Some(node(json!(["kubernetes.io/csi/d^h"]))));
        assert_eq!(waits.await.expect("it ends"), Ok(()));
    }
}
