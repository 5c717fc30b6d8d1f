//! `ferry ui`: a link that opens the page once, as the caller.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, bail};
use clap::Args;
use ferry_client::Kubeconfig;
use serde::Deserialize;

#[derive(Args)]
pub struct Flags {
    /// Data directory of the cluster whose administrator signs in
    #[arg(long, conflicts_with = "kubeconfig")]
    data_dir: Option<PathBuf>,
    /// Kubeconfig with the credentials to sign in with [default: $KUBECONFIG, then ~/.kube/config]
    #[arg(long)]
    kubeconfig: Option<PathBuf>,
    /// Print the link without opening a browser
    #[arg(long)]
    no_open: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Link {
    link: String,
    expires_in_seconds: u64,
}

pub fn run(flags: &Flags) -> anyhow::Result<()> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("start the runtime")?;
    let (url, seconds) = runtime.block_on(link(flags))?;
    println!("{url}");
    eprintln!("the link works once, within {} minutes", seconds / 60);
    if !flags.no_open && has_display() && !open(&url) {
        eprintln!("no browser could be started; please open it yourself");
    }
    Ok(())
}

async fn link(flags: &Flags) -> anyhow::Result<(String, u64)> {
    let path = flags.kubeconfig.clone();
    let path = path.or_else(|| flags.data_dir.as_ref().map(|directory| directory.join("admin.kubeconfig")));
    let kubeconfig = Kubeconfig { path, user_agent: Some("ferry-ui".into()), ..Kubeconfig::default() };
    let server = ferry_client::read_kubeconfig(&kubeconfig).await?.cluster_url;
    let client = ferry_client::connect(&kubeconfig).await?;
    let request = http::Request::post("/ui/links").body(Vec::new()).context("make the request")?;
    let answer = match client.request_text(request).await {
        Err(kube::Error::Api(status)) if status.code == 404 => {
            bail!("{server} has no web page: it is not a Ferry server")
        }
        answer => answer.context("ask for a link")?,
    };
    let link: Link = serde_json::from_str(&answer).context("read the answer")?;
    // Behind the `#`, where no server and no log sees it.
    let url = format!("{}/ui/#link={}", server.to_string().trim_end_matches('/'), link.link);
    Ok((url, link.expires_in_seconds))
}

fn has_display() -> bool {
    ["DISPLAY", "WAYLAND_DISPLAY"]
        .iter()
        .any(|name| std::env::var_os(name).is_some_and(|value| !value.is_empty()))
}

/// Whether a browser was asked. It is not waited for: some end with their window only.
fn open(url: &str) -> bool {
    let mut command = Command::new("xdg-open");
    command.arg(url).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().is_ok()
}
