//! `ferry trace`: what happened when, and because of what. `ferry why`: why an object is as it is.
//!
//! The server keeps the spans of the cluster, the newest in memory and those of the last days on disk, and answers with
//! the causal chain of an object or a command (`/ferry/v1/trace`). This room asks for it and shows it:
//!
//! ```text
//! fetch ── records ──▶ chapters (a Story: steps by chapter) ──▶ waterfall (on an axis) | mermaid
//!    │                     ▲  └─ critical: what the last step waited for   + reason, if a pod is not well
//!    │                     │
//!  live ───────────────────┘          records ──▶ why, otlp, perfetto, json
//! ```
//!
//! Everything between the records and the text is pure. It deliberately knows nothing of how spans are made, and
//! nothing of kinds beyond Pod and Event, whose status and messages say why a pod is not running.
//!
//! Start reading at [`chapters`], then [`waterfall`], then [`why`].

pub mod error;
pub mod fetch;
pub mod live;
pub mod mermaid;
pub mod otlp;
pub mod perfetto;
pub mod reason;
mod terminal;
pub mod waterfall;
pub mod why;

use std::ffi::OsString;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use ferry_client::Client;
use ferry_trace::Record;
use ferry_trace::clocks::{self, Correction};
pub use ferry_trace::{axis, chapters};
use serde_json::json;

use chapters::{Detail, Story, story};
pub use error::Error;
use fetch::{Found, Lives, Selection};
use terminal::inert;

#[derive(Args)]
pub struct Flags {
    /// Show the trace of this object: deployment/nginx, pod/x, service/nginx
    object: Option<String>,
    /// Show the last write by a user and its effects
    #[arg(long, conflicts_with = "object")]
    last: bool,
    /// Show the trace with this identifier
    #[arg(long, value_name = "TRACE", conflicts_with_all = ["object", "last"])]
    id: Option<String>,
    /// Show the cause and the effects of a revision (a resourceVersion)
    #[arg(long, value_name = "REVISION", conflicts_with_all = ["object", "last", "id"])]
    revision: Option<i64>,
    /// Show the writes of a user and their effects
    #[arg(long, value_name = "USER", conflicts_with_all = ["object", "last", "id", "revision"])]
    user: Option<String>,
    /// Of several objects that had this name, show the one with this uid instead of the latest
    #[arg(long, value_name = "UID", requires = "object")]
    uid: Option<String>,
    /// Show all objects that had this name, if it was deleted and created again
    #[arg(long, requires = "object", conflicts_with = "uid")]
    all: bool,
    /// Print each span of the cluster as it ends, one JSON object per line; with --otlp, send it to a collector instead
    #[arg(long, conflicts_with_all = ["object", "last", "id", "revision", "user"])]
    follow: bool,
    /// Also show the filters of components' requests and reconciles that changed nothing
    #[arg(long)]
    steps: bool,
    /// Namespace of the object [default: the kubeconfig context's]
    #[arg(short, long)]
    namespace: Option<String>,
    /// Data directory of the cluster; its admin.kubeconfig is used
    #[arg(long, conflicts_with = "kubeconfig")]
    data_dir: Option<PathBuf>,
    /// Kubeconfig file [default: $KUBECONFIG, then ~/.kube/config]
    #[arg(long)]
    kubeconfig: Option<PathBuf>,
    /// Output format
    #[arg(short, long, value_enum, default_value_t = Output::Waterfall)]
    output: Output,
    /// Send the spans to an OpenTelemetry collector over HTTP, for example http://127.0.0.1:4318
    #[arg(long, value_name = "URL")]
    otlp: Option<String>,
    /// With a command: how long to wait for its effects
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    timeout: u64,
    /// Run this command and show its trace live: -- kubectl run …
    #[arg(last = true, conflicts_with_all = ["object", "last", "id", "revision", "user", "follow"])]
    command: Vec<OsString>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// A waterfall chart for a terminal
    Waterfall,
    /// Every recorded span, in causal order
    Json,
    /// A Mermaid Gantt chart, for Markdown and web pages
    Mermaid,
    /// Chrome's trace event format, for ui.perfetto.dev and chrome://tracing
    Perfetto,
}

/// The file that names the cluster, where a flag does.
fn kubeconfig(kubeconfig: Option<&PathBuf>, data_dir: Option<&PathBuf>) -> Option<PathBuf> {
    kubeconfig.cloned().or_else(|| data_dir.map(|directory| directory.join("admin.kubeconfig")))
}

pub async fn run(flags: Flags) -> Result<(), Error> {
    let kubeconfig = kubeconfig(flags.kubeconfig.as_ref(), flags.data_dir.as_ref());
    let client = fetch::connect(kubeconfig.clone()).await?;
    if flags.follow {
        return live::follow_all(&client, flags.otlp.as_deref()).await;
    }
    let namespace = flags.namespace.clone().unwrap_or_else(|| client.default_namespace().to_owned());
    if !flags.command.is_empty() {
        let followed = live::Command {
            words: flags.command.clone(),
            kubeconfig,
            patience: Duration::from_secs(flags.timeout),
            is_shown: flags.output == Output::Waterfall,
        };
        let mut records = live::follow(&client, followed).await?;
        let clocks = clocks::correct(&mut records);
        return show(&flags, &client, Found { records, clocks, ..Found::default() }, None).await;
    }
    let selection = selection(&flags, &namespace)?;
    let found = fetch::found(&client, &selection).await?;
    let pod = flags.object.as_deref().and_then(|object| reason::pod_name(object, &namespace));
    if found.records.is_empty() && pod.is_none() {
        return Err(Error::NothingRecorded(selection.to_string()));
    }
    show(&flags, &client, found, pod).await
}

fn selection(flags: &Flags, namespace: &str) -> Result<Selection, Error> {
    if let Some(object) = &flags.object {
        let lives = match &flags.uid {
            Some(uid) => Lives::Uid(uid.clone()),
            None if flags.all => Lives::All,
            None => Lives::Latest,
        };
        return Ok(Selection::Object { object: object.clone(), namespace: namespace.to_owned(), lives });
    }
    let named = flags.id.clone().map(Selection::Trace);
    let named = named.or(flags.revision.map(Selection::Revision)).or(flags.user.clone().map(Selection::User));
    named.or(flags.last.then_some(Selection::Last)).ok_or(Error::NothingAsked)
}

async fn show(
    flags: &Flags,
    client: &Client,
    found: Found,
    pod: Option<(String, String)>,
) -> Result<(), Error> {
    let records = &found.records;
    if let Some(url) = &flags.otlp {
        let sent = otlp::Collector::at(url)?.send(records).await?;
        eprintln!("sent {sent} spans to {url}");
    }
    warn(&found);
    let detail = if flags.steps { Detail::All } else { Detail::Chapters };
    let text = match flags.output {
        Output::Json => json!({ "records": records, "lives": found.lives }).to_string(),
        Output::Mermaid => mermaid::gantt(&story(records, detail)),
        Output::Perfetto => perfetto::events(records).to_string(),
        Output::Waterfall => {
            let story = story(records, detail);
            let reasons = reasons(client, records, pod, &story).await?;
            if records.is_empty() && reasons.is_empty() {
                return Err(Error::NothingRecorded(flags.object.clone().unwrap_or_default()));
            }
            let style = waterfall::Style { width: width(), has_color: std::io::stdout().is_terminal() };
            let object = found.object.as_deref().unwrap_or_default();
            let others = waterfall::other_lives(object, &found.lives, found.uid.as_deref());
            waterfall::render(&story, &reasons, &style) + &others
        }
    };
    print_all(&text)
}

/// What the answer lacks, said where it does not get into what is printed for programs.
fn warn(found: &Found) {
    if found.is_cut {
        eprintln!("the trace has more than 50,000 spans; the oldest are left out");
    }
    for clock in &found.clocks {
        eprintln!("{}", clock_line(clock));
    }
    if found.dropped > 0 {
        eprintln!("{} spans are lost: they ended faster than they could be written to disk", found.dropped);
    }
    if let Some(failure) = &found.failure {
        eprintln!("the history is not written to disk: {}", inert(failure));
    }
}

fn clock_line(clock: &Correction) -> String {
    let seconds = Duration::from_nanos(clock.offset.unsigned_abs()).as_secs_f64();
    let side = if clock.offset > 0 { "behind" } else { "ahead" };
    format!(
        "the clock of {} is {seconds:.3} s {side}; its spans are shifted, because an effect would begin before its cause",
        inert(&clock.source)
    )
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
