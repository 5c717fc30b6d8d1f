//! CSI drivers among the plugins that register, and what the API is told of them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ferry_client::CancellationToken;
use futures::FutureExt;
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::CSINode;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use parking_lot::Mutex;
use tokio_util::task::TaskTracker;

use super::drivers::Drivers;
use super::node_info::{Installed, node_patch, with_driver};
use crate::node::csi_node;
use crate::plugins::{Handler, Plugin};

/// The type they say they are of.
pub const TYPE: &str = "CSIPlugin";

/// A write is tried this often: others write the node too, and a node that is new may not be there yet.
const ATTEMPTS: u32 = 9;
const FIRST_RETRY: Duration = Duration::from_millis(20);

/// The drivers of a node as the API is to show them.
pub struct NodeDrivers {
    client: Option<kube::Client>,
    node_name: String,
    installed: Mutex<BTreeMap<String, Installed>>,
    /// One writes at a time, and always what is wanted by then.
    writing: tokio::sync::Mutex<()>,
}

impl NodeDrivers {
    pub fn new(client: Option<kube::Client>, node_name: &str) -> Self {
        Self { client, node_name: node_name.into(), installed: Mutex::default(), writing: Default::default() }
    }

    async fn install(&self, driver: Installed) -> Result<(), String> {
        let name = driver.name.clone();
        self.installed.lock().insert(name.clone(), driver);
        let written = self.write(&name).await;
        if written.is_err() {
            self.installed.lock().remove(&name);
        }
        written
    }

    /// Shows what a driver says by now, unless it is gone.
    pub async fn refresh(&self, driver: Installed) -> Result<(), String> {
        let name = driver.name.clone();
        match self.installed.lock().get_mut(&name) {
            Some(shown) if *shown != driver => *shown = driver,
            _ => return Ok(()),
        }
        self.write(&name).await
    }

    async fn uninstall(&self, name: &str) {
        if let Err(problem) = self.write(name).await {
            tracing::warn!(driver = name, problem, "cannot remove an unregistered driver from the API");
        }
    }

    /// Shows all drivers again: the node was made anew.
    pub async fn write_all(&self) -> Result<(), String> {
        let names: Vec<String> = self.installed.lock().keys().cloned().collect();
        for name in names {
            self.write(&name).await?;
        }
        Ok(())
    }

    async fn write(&self, name: &str) -> Result<(), String> {
        let _alone = self.writing.lock().await;
        let client = self.client.clone().ok_or("error getting kube client")?;
        let mut span = ferry_trace::span("kubelet.csi_node");
        span.object("csinodes", "", &self.node_name).set("driver", name);
        let mut pause = FIRST_RETRY;
        for _ in 1..ATTEMPTS {
            let driver = self.installed.lock().get(name).cloned();
            match span.in_scope(self.try_write(&client, name, driver.as_ref())).await {
                Ok(()) => return Ok(()),
                Err(problem) => tracing::debug!(driver = name, problem, "driver not shown yet"),
            }
            tokio::time::sleep(pause).await;
            pause *= 2;
        }
        let driver = self.installed.lock().get(name).cloned();
        span.in_scope(self.try_write(&client, name, driver.as_ref())).await.inspect_err(|problem| {
            span.fail_unquoted(problem);
        })
    }

    async fn try_write(
        &self,
        client: &kube::Client,
        name: &str,
        driver: Option<&Installed>,
    ) -> Result<(), String> {
        let of_node = |problem: &dyn std::fmt::Display| {
            format!("error updating Node object with CSI driver node info: {problem}")
        };
        let nodes: Api<Node> = Api::all(client.clone());
        let node = nodes.get(&self.node_name).await.map_err(|error| of_node(&error))?;
        if let Some(patch) = node_patch(&node, name, driver).map_err(|problem| of_node(&problem))? {
            let patched = nodes.patch(&self.node_name, &PatchParams::default(), &Patch::Merge(patch)).await;
            patched.map_err(|error| of_node(&error))?;
        }
        let of_csi_node =
            |error: kube::Error| format!("error updating CSINode object with CSI driver node info: {error}");
        let api: Api<CSINode> = Api::all(client.clone());
        let found = api.get_opt(&self.node_name).await.map_err(of_csi_node)?;
        let next = csi_node::with_own_driver(found.as_ref(), &node);
        let next = with_driver(next, name, driver.map(Installed::driver));
        match found {
            Some(found) if found == next => {}
            Some(_) => {
                drop(api.replace(&self.node_name, &PostParams::default(), &next).await.map_err(of_csi_node)?)
            }
            None => drop(api.create(&PostParams::default(), &next).await.map_err(of_csi_node)?),
        }
        Ok(())
    }
}

/// Takes up CSI drivers.
pub struct Registration {
    drivers: Arc<Drivers>,
    node: Arc<NodeDrivers>,
    /// What tells the API of drivers that are gone.
    work: TaskTracker,
}

impl Registration {
    pub fn new(drivers: Arc<Drivers>, node: Arc<NodeDrivers>, work: TaskTracker) -> Self {
        Self { drivers, node, work }
    }

    async fn take_up(&self, plugin: &Plugin) -> Result<(), String> {
        let driver = self.drivers.add(&plugin.name, &plugin.endpoint, &plugin.versions)?;
        let shown = async {
            let info = driver.info().await.map_err(|error| error.to_string())?;
            self.node.install(Installed::new(&plugin.name, info)?).await
        };
        match shown.await {
            Ok(()) => {
                self.drivers.tell();
                Ok(())
            }
            Err(problem) => {
                self.drivers.remove(&plugin.name, &plugin.endpoint);
                Err(problem)
            }
        }
    }
}

impl Handler for Registration {
    fn validate(&self, plugin: &Plugin) -> Result<(), String> {
        let Plugin { name, endpoint, versions } = plugin;
        if name.is_empty() {
            return Err("driver name is empty".into());
        }
        self.drivers.check("ValidatePlugin", name, versions).map_err(|problem| {
            format!("validation failed for CSI Driver {name} at endpoint {endpoint}: {problem}")
        })
    }

    fn register<'a>(
        &'a self,
        plugin: &'a Plugin,
        _: &'a CancellationToken,
    ) -> BoxFuture<'a, Result<(), String>> {
        self.take_up(plugin).boxed()
    }

    fn deregister(&self, name: &str, endpoint: &str) {
        if !self.drivers.remove(name, endpoint) {
            return;
        }
        self.node.installed.lock().remove(name);
        let (node, name) = (self.node.clone(), name.to_owned());
        self.work.spawn(async move { node.uninstall(&name).await });
    }
}
