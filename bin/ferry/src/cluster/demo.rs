//! `ferry demo`: the life of one command, on this machine and also without the internet.
//!
//! Every step is a command that the user could type, and is shown as such. Everything is made in a namespace of the
//! demo's own, which goes at its end.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Args;
use ferry_client::{Api, Client, Kubeconfig};
use ferry_kubelet::cri;
use ferry_kubelet::images::containerd::{self, Source};
use ferry_kubelet::images::oci;
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::api::ListParams;

use super::layout::{DEFAULT_DATA_DIR, Layout};
use super::{facts, invocation, server, status};

const NAMESPACE: &str = "ferry-demo";
const REPLICAS: usize = 3;
/// The image that everybody knows.
const NGINX: &str = "nginx";
/// The image that Ferry carries, and the program in it.
const OWN_IMAGE: &str = "localhost/ferry/web";
static OWN_PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/web"));
/// A registry gets this long to give an image.
const PULL: Duration = Duration::from_secs(60);
const PATIENCE: Duration = Duration::from_secs(120);
const STEP: Duration = Duration::from_millis(100);
/// One call of a page.
const CALL: Duration = Duration::from_secs(2);
const CALLS: usize = 6;

#[derive(Args)]
pub struct Flags {
    /// Data directory of the cluster, which is started if it does not run
    #[arg(long, default_value = DEFAULT_DATA_DIR)]
    data_dir: PathBuf,
    /// Image with a web server on port 80 [default: nginx, or Ferry's own web server if the registry cannot be reached]
    #[arg(long)]
    image: Option<String>,
    /// Keep the namespace ferry-demo, which the next demo removes
    #[arg(long)]
    keep: bool,
    /// Socket of the container runtime, if one was passed to `ferry up`
    #[arg(long)]
    container_runtime_endpoint: Option<String>,
    /// Options for `ferry up` if the demo starts a cluster: -- --port 7443
    #[arg(last = true)]
    up: Vec<OsString>,
}

pub fn run(flags: &Flags) -> anyhow::Result<()> {
    server::must_be_root()?;
    let layout = Layout::of(&flags.data_dir)?;
    let executor = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let demo = Demo { program: std::env::current_exe().context("find this program")?, layout, flags };
    demo.bring_up()?;
    executor.block_on(demo.show())
}

struct Demo<'a> {
    program: PathBuf,
    layout: Layout,
    flags: &'a Flags,
}

impl Demo<'_> {
    fn bring_up(&self) -> anyhow::Result<()> {
        heading("A cluster");
        if let Some(running) = status::running(&self.layout)? {
            println!("one runs already: {}", running.url);
            return Ok(());
        }
        let mut words: Vec<OsString> =
            vec!["up".into(), "--data-dir".into(), self.layout.data_dir.clone().into()];
        words.extend(
            self.flags
                .container_runtime_endpoint
                .iter()
                .flat_map(|endpoint| ["--container-runtime-endpoint".into(), OsString::from(endpoint)]),
        );
        words.extend(self.flags.up.iter().cloned());
        self.ferry(&words)
    }

    async fn show(&self) -> anyhow::Result<()> {
        let kubeconfig = Kubeconfig { path: Some(self.layout.admin_kubeconfig()), ..Kubeconfig::default() };
        let client = ferry_client::connect(&kubeconfig).await.context("reach the API server")?;
        heading("An image");
        let image = self.image().await?;
        let full_name = oci::canonical_name(&image);
        let name =
            oci::Reference::of(&full_name).and_then(|reference| reference.repository.rsplit('/').next());
        let name = name.with_context(|| format!("{image:?} names no image"))?;

        heading("The command, followed from end to end");
        // A demo that was left, by --keep or by Ctrl-C, is not this one.
        self.quietly(&["delete", "namespace", NAMESPACE, "--ignore-not-found", "--wait"])?;
        self.quietly(&["create", "namespace", NAMESPACE])?;
        let in_namespace = format!("--namespace={NAMESPACE}");
        let (image, replicas) = (format!("--image={image}"), format!("--replicas={REPLICAS}"));
        let line = ["kubectl", "run", &in_namespace, &image, &replicas, "--port=80", "--expose"];
        let mut words: Vec<OsString> = vec!["trace".into(), "--data-dir".into()];
        words.push(self.layout.data_dir.clone().into());
        words.extend(["--timeout".into(), PATIENCE.as_secs().to_string().into(), "--".into()]);
        words.extend(line.iter().map(OsString::from));
        self.ferry(&words)?;
        let cluster = Cluster { client: &client, name };
        let pods = cluster.ready(&BTreeSet::new()).await?;

        heading("The Service, by address and by name");
        let facts = facts::fetch(&client).await?;
        let address = cluster.address().await?;
        let target = SocketAddr::new(address, 80);
        println!("http://{target}/");
        let mut answers = BTreeSet::new();
        for _ in 0..CALLS {
            answers.insert(retried(&format!("the Service answers at {target}"), || call(target)).await?);
        }
        answers.iter().for_each(|answer| println!("    {answer}"));
        let dns = SocketAddr::new(facts.ranges.dns()?, 53);
        let host = format!("{name}.{NAMESPACE}.svc.{}", facts.domain);
        let found = ferry_dns::probe::address(dns, &host).await;
        let found =
            found.with_context(|| format!("the cluster's DNS at {} does not know {host}", dns.ip()))?;
        println!("http://{host}/   ({} says: {found})", dns.ip());
        println!("    {}", call(SocketAddr::new(found, 80))?);

        heading("A pod is killed, and another takes its place");
        let victim = pods.iter().next().context("the Deployment has no pods")?.clone();
        self.kubectl(&["delete", "pod", &victim, &in_namespace, "--wait=false", "--grace-period=1"])?;
        let gone = BTreeSet::from([victim.clone()]);
        let after = cluster.ready(&gone).await?;
        for pod in after.difference(&pods) {
            println!("{victim} is gone, {pod} serves in its place");
        }
        self.kubectl(&["get", "pods,services", &in_namespace])?;
        let answer = retried(&format!("the Service answers at {target}"), || call(target)).await?;
        println!("http://{host}/\n    {answer}");
        self.end(&image)
    }

    fn end(&self, image: &str) -> anyhow::Result<()> {
        heading("Next");
        let ferry = invocation::ferry(&self.layout);
        if self.flags.keep {
            println!("the demo's objects stay in the namespace {NAMESPACE}:");
            println!("    {} delete namespace {NAMESPACE}", ferry.kubectl());
        } else {
            self.quietly(&["delete", "namespace", NAMESPACE, "--wait"])?;
            println!("the demo's objects are removed (--keep leaves them); the cluster goes on");
        }
        let kubectl = ferry.kubectl();
        println!("    {kubectl} create deployment web {image} --replicas=2");
        println!("    {kubectl} get pods --watch");
        println!("    {}      what runs, what it uses, what is wrong", ferry.command("status"));
        println!("    {}      why the last write did what it did", ferry.command("trace --last"));
        println!("    {}      ends the cluster; --purge removes its data too", ferry.command("down"));
        Ok(())
    }

    /// The image to run, there for every node.
    async fn image(&self) -> anyhow::Result<String> {
        if let Some(image) = &self.flags.image {
            println!("{image}");
            return Ok(image.clone());
        }
        let endpoint = self.flags.container_runtime_endpoint.as_deref();
        let found = ferry_containerd::find(&self.layout.containerd(), endpoint).await?;
        let found = found.context("the cluster's container runtime does not answer")?;
        let containerd = containerd::Client::new(&found.endpoint)?;
        let loaded = containerd.image(&oci::canonical_name(NGINX)).await?;
        if loaded.is_some_and(|image| image.source == Some(Source::Loaded)) {
            println!("{NGINX}, which was brought in by `ferry image load`");
            return Ok(NGINX.into());
        }
        println!("asking the registry for {NGINX} …");
        let spec = cri::ImageSpec { image: oci::canonical_name(NGINX), ..Default::default() };
        let runtime = cri::Client::new(&found.endpoint)?;
        let why = match tokio::time::timeout(PULL, runtime.pull_image(spec, None, None)).await {
            Ok(Ok(_)) => {
                println!("{NGINX}, from its registry");
                return Ok(NGINX.into());
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("it did not give it within {} s", PULL.as_secs()),
        };
        println!("not to be had: {why}");
        let image = own_image()?;
        containerd
            .import(&image, Source::Loaded)
            .await
            .context("bring Ferry's own image into the runtime")?;
        println!("{OWN_IMAGE}, which Ferry carries ({} KB)", OWN_PROGRAM.len() / 1024);
        Ok(OWN_IMAGE.into())
    }

    /// Runs this program with other words, and shows them.
    fn ferry(&self, words: &[OsString]) -> anyhow::Result<()> {
        let shown: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
        println!("$ ferry {}", shown.join(" "));
        let status = Command::new(&self.program).args(words).status().context("start this program")?;
        if !status.success() {
            bail!("ferry {} failed: {status}", shown.join(" "));
        }
        Ok(())
    }

    fn kubectl(&self, words: &[&str]) -> anyhow::Result<()> {
        println!("$ kubectl {}", words.join(" "));
        let status = self.kubectl_command(words).status().context("start kubectl")?;
        if !status.success() {
            bail!("kubectl {} failed: {status}", words.join(" "));
        }
        Ok(())
    }

    /// What belongs to the demo and not to what it shows.
    fn quietly(&self, words: &[&str]) -> anyhow::Result<()> {
        let output = self.kubectl_command(words).output().context("start kubectl")?;
        if !output.status.success() {
            bail!("kubectl {}: {}", words.join(" "), String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(())
    }

    fn kubectl_command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.arg("kubectl").args(words).env("KUBECONFIG", self.layout.admin_kubeconfig());
        command
    }
}

fn heading(text: &str) {
    println!("\n── {text}");
    // Children write to the same place.
    let _ = std::io::stdout().flush();
}

fn own_image() -> anyhow::Result<oci::Image> {
    if OWN_PROGRAM.is_empty() {
        bail!(
            "this ferry carries no image: there was no static C library where it was built; bring one in with \
             `ferry image load` and name it with --image"
        );
    }
    let files = [oci::File { path: "web", mode: 0o755, data: OWN_PROGRAM }];
    let process = oci::Process { entrypoint: &["/web"], ..oci::Process::default() };
    oci::assemble(&oci::canonical_name(OWN_IMAGE), &files, &[], &process).context("make Ferry's own image")
}

/// What the demo made, seen through the API.
struct Cluster<'a> {
    client: &'a Client,
    name: &'a str,
}

impl Cluster<'_> {
    /// The names of all Ready pods, when they are as many as there should be and none of `gone` is left.
    async fn ready(&self, gone: &BTreeSet<String>) -> anyhow::Result<BTreeSet<String>> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), NAMESPACE);
        let of_demo = ListParams::default().labels(&format!("run={}", self.name));
        let give_up = Instant::now() + PATIENCE;
        loop {
            let found = pods.list(&of_demo).await.context("list the pods")?.items;
            let names = |wanted: fn(&Pod) -> bool| -> BTreeSet<String> {
                let wanted = found.iter().filter(|pod| wanted(pod));
                wanted.filter_map(|pod| pod.metadata.name.clone()).collect()
            };
            let ready = names(is_ready);
            if ready.len() == REPLICAS && names(|_| true).is_disjoint(gone) {
                return Ok(ready);
            }
            if Instant::now() > give_up {
                bail!(
                    "after {} s only {} of {REPLICAS} pods are Ready; `ferry trace pod/NAME --namespace {NAMESPACE}` \
                     tells why",
                    PATIENCE.as_secs(),
                    ready.len()
                );
            }
            tokio::time::sleep(STEP).await;
        }
    }

    async fn address(&self) -> anyhow::Result<IpAddr> {
        let services: Api<Service> = Api::namespaced(self.client.clone(), NAMESPACE);
        let service = services.get(self.name).await.context("look at the Service")?;
        let address = service.spec.and_then(|spec| spec.cluster_ip).context("the Service has no address")?;
        address.parse().with_context(|| format!("understand the Service's address {address:?}"))
    }
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let mut conditions = conditions.filter(|condition| condition.type_ == "Ready");
    pod.metadata.deletion_timestamp.is_none() && conditions.any(|condition| condition.status == "True")
}

/// Rules are in the kernel a moment after pods are Ready.
async fn retried(what: &str, attempt: impl Fn() -> anyhow::Result<String>) -> anyhow::Result<String> {
    let give_up = Instant::now() + PATIENCE;
    loop {
        match attempt() {
            Ok(answer) => return Ok(answer),
            Err(error) if Instant::now() > give_up => return Err(error).context(format!("never: {what}")),
            Err(_) => tokio::time::sleep(STEP).await,
        }
    }
}

/// What a web server says, in one line.
fn call(address: SocketAddr) -> anyhow::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, CALL).context("connect")?;
    stream.set_read_timeout(Some(CALL))?;
    stream.set_write_timeout(Some(CALL))?;
    write!(stream, "GET / HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", address.ip()).context("ask")?;
    let mut page = Vec::new();
    stream.take(1 << 20).read_to_end(&mut page).context("read the answer")?;
    summary(&String::from_utf8_lossy(&page)).context("the answer is no HTTP")
}

/// Status, server, and the page where it is one line.
fn summary(answer: &str) -> Option<String> {
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let mut lines = head.lines();
    let status = lines.next()?.strip_prefix("HTTP/1.")?.split_once(' ')?.1;
    let server = lines.find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("server").then(|| value.trim().to_owned())
    });
    let body = body.trim();
    let shown = if body.lines().count() == 1 { body.to_owned() } else { format!("{} bytes", body.len()) };
    Some(format!("{status} ({}): {shown}", server.as_deref().unwrap_or("no name")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_told_in_one_line() {
        let own = "HTTP/1.1 200 OK\r\nServer: ferry-web\r\nContent-Length: 3\r\n\r\nhi\n";
        assert_eq!(summary(own).unwrap(), "200 OK (ferry-web): hi");
        let page = "HTTP/1.1 200 OK\r\nserver: nginx/1.29\r\n\r\n<html>\n</html>\n";
        assert_eq!(summary(page).unwrap(), "200 OK (nginx/1.29): 14 bytes");
        assert_eq!(summary("SSH-2.0\r\n\r\n"), None);
        assert_eq!(summary(""), None);
    }

    #[test]
    fn the_own_image_holds_one_static_program() {
        if OWN_PROGRAM.is_empty() {
            ferry_skip::missing("a static C library (Debian: libc6-dev)");
            return;
        }
        assert_eq!(&OWN_PROGRAM[..4], b"\x7fELF");
        let image = own_image().unwrap();
        assert_eq!(image.name, "localhost/ferry/web:latest");
    }
}
