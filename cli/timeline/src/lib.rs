//! `ferry trace`: what happened when, and because of what.
//!
//! The server keeps every span of the cluster in a bounded ring and answers with the causal chain of an object or a
//! command (`/ferry/v1/trace`). This room asks for it and shows it:
//!
//! ```text
//! fetch ── records ──▶ chapters (a Story: steps by chapter) ──▶ waterfall | mermaid
//!    │                     ▲                                        + reason, if a pod is not well
//!  live ───────────────────┘          records ──▶ otlp, json
//! ```
//!
//! Everything between the records and the text is pure. It deliberately knows nothing of how spans are made, and
//! nothing of kinds beyond Pod and Event, whose status and messages say why a pod is not running.
//!
//! Start reading at [`chapters`], then [`waterfall`].

pub mod chapters;
pub mod error;
pub mod fetch;
pub mod live;
pub mod mermaid;
pub mod otlp;
pub mod reason;
pub mod waterfall;

use std::ffi::OsString;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use ferry_client::Client;
use ferry_trace::Record;
use serde_json::json;

use chapters::{Detail, Story, story};
pub use error::Error;
use fetch::Selection;

#[derive(Args)]
pub struct Flags {
    /// What to follow: deployment/nginx, pod/x, service/nginx
    object: Option<String>,
    /// Follow the last write that somebody made
    #[arg(long, conflicts_with = "object")]
    last: bool,
    /// Follow a trace by its identifier
    #[arg(long, value_name = "TRACE", conflicts_with_all = ["object", "last"])]
    id: Option<String>,
    #[arg(short, long)]
    namespace: Option<String>,
    /// The cluster whose administrator asks
    #[arg(long, conflicts_with = "kubeconfig")]
    data_dir: Option<PathBuf>,
    /// Without it and --data-dir: $KUBECONFIG, then ~/.kube/config
    #[arg(long)]
    kubeconfig: Option<PathBuf>,
    #[arg(short, long, value_enum, default_value_t = Output::Waterfall)]
    output: Output,
    /// Also show requests of components step by step, and reconciles that changed nothing
    #[arg(long)]
    all: bool,
    /// Send the spans to an OpenTelemetry collector: http://HOST:4318
    #[arg(long, value_name = "URL")]
    otlp: Option<String>,
    /// How long a command's consequences are waited for
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    timeout: u64,
    /// A command to run and to follow: -- kubectl run …
    #[arg(last = true, conflicts_with_all = ["object", "last", "id"])]
    command: Vec<OsString>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// Bars by chapter, for a terminal
    Waterfall,
    /// Every record, in causal order
    Json,
    /// A Gantt chart, for a page
    Mermaid,
}

pub async fn run(flags: Flags) -> Result<(), Error> {
    let kubeconfig = flags
        .kubeconfig
        .clone()
        .or_else(|| flags.data_dir.as_ref().map(|directory| directory.join("admin.kubeconfig")));
    let client = fetch::connect(kubeconfig.clone()).await?;
    let namespace = flags.namespace.clone().unwrap_or_else(|| client.default_namespace().to_owned());
    if !flags.command.is_empty() {
        let followed = live::Command {
            words: flags.command.clone(),
            kubeconfig,
            patience: Duration::from_secs(flags.timeout),
            is_shown: flags.output == Output::Waterfall,
        };
        let records = live::follow(&client, followed).await?;
        return show(&flags, &client, &records, None).await;
    }
    let selection = match (&flags.object, &flags.id) {
        (Some(object), _) => Selection::Object { object: object.clone(), namespace: namespace.clone() },
        (None, Some(id)) => Selection::Trace(id.clone()),
        (None, None) if flags.last => Selection::Last,
        (None, None) => return Err(Error::NothingAsked),
    };
    let records = fetch::records(&client, &selection).await?;
    let pod = flags.object.as_deref().and_then(|object| reason::pod_name(object, &namespace));
    if records.is_empty() && pod.is_none() {
        return Err(Error::NothingRecorded(selection.to_string()));
    }
    show(&flags, &client, &records, pod).await
}

async fn show(
    flags: &Flags,
    client: &Client,
    records: &[Record],
    pod: Option<(String, String)>,
) -> Result<(), Error> {
    if let Some(url) = &flags.otlp {
        let sent = otlp::send(url, records).await?;
        eprintln!("sent {sent} spans to {url}");
    }
    let detail = if flags.all { Detail::All } else { Detail::Chapters };
    let text = match flags.output {
        Output::Json => json!({ "records": records }).to_string(),
        Output::Mermaid => mermaid::gantt(&story(records, detail)),
        Output::Waterfall => {
            let story = story(records, detail);
            let reasons = reasons(client, records, pod, &story).await?;
            let style = waterfall::Style { width: width(), has_color: std::io::stdout().is_terminal() };
            waterfall::render(&story, &reasons, &style)
        }
    };
    print_all(&text)
}

/// A reader that has seen enough, `head` say, is no failure.
fn print_all(text: &str) -> Result<(), Error> {
    use std::io::Write;
    match writeln!(std::io::stdout().lock(), "{}", text.trim_end()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(Error::Print(error)),
        _ => Ok(()),
    }
}

/// Why the pods of this story are not well, those that are not.
async fn reasons(
    client: &Client,
    records: &[Record],
    pod: Option<(String, String)>,
    story: &Story,
) -> Result<Vec<String>, Error> {
    let pods = match pod {
        Some(pod) => vec![pod],
        None => story.pods(),
    };
    let mut reasons = Vec::new();
    for (namespace, name) in pods {
        if let Some((pod, events)) = fetch::pod(client, &namespace, &name).await? {
            reasons.extend(reason::reason(&pod, &events, records));
        }
    }
    Ok(reasons)
}

fn width() -> usize {
    let columns = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    columns.unwrap_or(120).clamp(80, 240)
}
