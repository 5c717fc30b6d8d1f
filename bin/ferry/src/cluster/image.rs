//! `ferry image load|ls`: images for a machine without a registry.

use std::fs::File;
use std::io::{IsTerminal, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use ferry_kubelet::cri;
use ferry_kubelet::images::containerd::{self, Source};
use ferry_kubelet::images::oci;
use serde_json::json;

use super::layout::{DEFAULT_DATA_DIR, Layout};
use super::output::{self, Lines};
use super::status::Output;
use crate::progress::Progress;

#[derive(Args)]
pub struct Flags {
    /// Data directory of the cluster or node
    #[arg(long, default_value = DEFAULT_DATA_DIR, global = true)]
    data_dir: PathBuf,
    /// Socket of the container runtime, if one was passed to `ferry up`
    #[arg(long, global = true)]
    container_runtime_endpoint: Option<String>,
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Load an archive (docker save, or an OCI layout as tar) into the node's runtime. The kubelet treats the image as just
    /// pulled, whatever the imagePullPolicy. All nodes can use images that were loaded on a server
    Load {
        /// Archive to load; - reads standard input
        file: PathBuf,
        /// Name of the image, if the archive contains none
        #[arg(long)]
        name: Option<String>,
    },
    /// List the images on the node
    Ls {
        /// Output format
        #[arg(short, long, value_enum)]
        output: Option<Output>,
    },
}

pub fn run(flags: &Flags) -> anyhow::Result<()> {
    let layout = Layout::of(&flags.data_dir)?;
    let executor = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    executor.block_on(async {
        let found =
            ferry_containerd::find(&layout.containerd(), flags.container_runtime_endpoint.as_deref()).await?;
        let Some(found) = found else {
            bail!("no container runtime runs for {}; `ferry up` starts one", layout.data_dir.display());
        };
        match &flags.action {
            Action::Load { file, name } => load(&found.endpoint, file, name.as_deref()).await,
            Action::Ls { output } => list(&found.endpoint, *output).await,
        }
    })
}

async fn load(endpoint: &str, file: &Path, name: Option<&str>) -> anyhow::Result<()> {
    let images = read(file, name)?;
    if images.is_empty() {
        bail!("{} holds no image", file.display());
    }
    let client = containerd::Client::new(endpoint)?;
    for image in &images {
        let size = image.blobs.iter().map(|blob| blob.data.len() as u64).sum();
        let progress = Progress::begin(format!("writing {}", image.name), Some(size));
        let imported = client.import_counted(image, Source::Loaded, progress.counter()).await;
        drop(progress);
        imported.with_context(|| format!("bring {} into the runtime", image.name))?;
        println!("{}", image.name);
    }
    Ok(())
}

fn read(file: &Path, name: Option<&str>) -> anyhow::Result<Vec<oci::Image>> {
    let archive: Box<dyn Read> = if file == Path::new("-") {
        if std::io::stdin().is_terminal() {
            bail!("standard input is a terminal; an archive is expected");
        }
        Box::new(std::io::stdin().lock())
    } else {
        Box::new(File::open(file).with_context(|| format!("read {}", file.display()))?)
    };
    // Neither standard input nor a pipe has a length.
    let size = std::fs::metadata(file).ok().map(|data| data.len()).filter(|size| *size > 0);
    let progress = Progress::begin(format!("reading {}", file.display()), size);
    oci::read_archive(progress.reader(archive), name)
        .with_context(|| format!("understand {}", file.display()))
}

async fn list(endpoint: &str, output: Option<Output>) -> anyhow::Result<()> {
    let mut images = cri::Client::new(endpoint)?.list_images().await.context("list the images")?;
    images.sort_by(|one, other| one.repo_tags.cmp(&other.repo_tags));
    match output {
        Some(Output::Json) => {
            let images: Vec<_> = images
                .iter()
                .map(|image| json!({"id": image.id, "tags": image.repo_tags, "bytes": image.size}))
                .collect();
            output::print_json(&images)
        }
        None => {
            let mut lines = Lines::default();
            lines.add(format!("{:<60} {:<14} {:>10}", "IMAGE", "ID", "SIZE"));
            for image in &images {
                let id = image.id.trim_start_matches("sha256:");
                let id = &id[..id.len().min(12)];
                let size = format!("{:.1}MB", image.size as f64 / 1e6);
                for tag in &image.repo_tags {
                    lines.add(format!("{tag:<60} {id:<14} {size:>10}"));
                }
            }
            lines.print()
        }
    }
}
