//! `ferry why KIND/NAME`: why it was deleted, evicted, restarted, scaled or changed, by whom, and because of what.
//!
//! [`decide`] reads the recorded history and is pure. What is true now (a pod that waits, a node that is not ready) is
//! read from the API and told below it.

pub mod change;
pub mod decide;
pub mod tell;

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use ferry_client::Client;
use serde_json::json;

use crate::error::Error;
use crate::fetch::{self, Lives, Selection};
use crate::{kubeconfig, print_all, reason, warn};
pub use decide::{Question, Reason, What, why};

#[derive(Args)]
pub struct Flags {
    /// Explain this object: pod/x, deployment/web, node/one
    object: String,
    /// Only explain events of this kind
    #[arg(value_enum)]
    what: Option<What>,
    /// List the writes of this field and their causes, for example spec.replicas
    #[arg(long, value_name = "PATH", conflicts_with = "what")]
    field: Option<String>,
    /// Namespace of the object [default: the kubeconfig context's]
    #[arg(short, long)]
    namespace: Option<String>,
    /// Of several objects that had this name, explain the one with this uid
    #[arg(long, value_name = "UID")]
    uid: Option<String>,
    /// Number of events to explain, the latest first
    #[arg(long, default_value_t = 5)]
    limit: usize,
    /// Data directory of the cluster; its admin.kubeconfig is used
    #[arg(long, conflicts_with = "kubeconfig")]
    data_dir: Option<PathBuf>,
    /// Kubeconfig file [default: $KUBECONFIG, then ~/.kube/config]
    #[arg(long)]
    kubeconfig: Option<PathBuf>,
    /// Output format
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// A few lines
    Text,
    Json,
}

pub async fn run(flags: Flags) -> Result<(), Error> {
    let client = fetch::connect(kubeconfig(flags.kubeconfig.as_ref(), flags.data_dir.as_ref())).await?;
    let namespace = flags.namespace.clone().unwrap_or_else(|| client.default_namespace().to_owned());
    let asked = Selection::Object {
        object: flags.object.clone(),
        namespace: namespace.clone(),
        lives: Lives::Writes,
    };
    let found = fetch::found(&client, &asked).await?;
    warn(&found);
    let object = found.object.clone().unwrap_or_else(|| flags.object.clone());
    let question = match (&flags.field, flags.what) {
        (Some(field), _) => Question::Field(field.clone()),
        (None, Some(what)) => Question::Only(what),
        (None, None) => Question::Anything,
    };
    let mut reasons = why(&found.records, &object, &question);
    reasons.retain(|reason| flags.uid.is_none() || reason.uid == flags.uid);
    reasons.truncate(flags.limit);
    let now = match flags.field {
        Some(_) => None,
        None => now(&client, &object, &found.records).await?,
    };
    if reasons.is_empty() && now.is_none() {
        return Err(Error::NothingRecorded(asked.to_string()));
    }
    let text = match flags.output {
        Output::Json => json!({ "object": object, "reasons": reasons, "now": now }).to_string(),
        Output::Text => {
            // The scheduler's refusal is told already.
            let is_pending =
                reasons.iter().any(|reason| reason.what == What::Pending && reason.until.is_none());
            tell::tell(&reasons, now.as_deref().filter(|_| !is_pending))
        }
    };
    print_all(&text)
}

/// What is wrong with it at this moment, if it is a pod or a node.
async fn now(
    client: &Client,
    object: &str,
    records: &[ferry_trace::Record],
) -> Result<Option<String>, Error> {
    if let Some((namespace, name)) = reason::pod_name(object, "") {
        let live = fetch::pod(client, &namespace, &name).await?;
        return Ok(live.and_then(|(pod, events)| reason::reason(&pod, &events, records)));
    }
    match object.strip_prefix("nodes/") {
        Some(name) => Ok(fetch::node(client, name).await?.as_ref().and_then(reason::node_reason)),
        None => Ok(None),
    }
}
