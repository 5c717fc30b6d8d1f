//! Drivers of devices among the plugins that register.

use std::sync::Arc;

use ferry_client::CancellationToken;
use futures::FutureExt;
use futures::future::BoxFuture;

use super::Devices;
use crate::plugins::{Handler, Plugin};

/// The type they say they are of.
pub const TYPE: &str = "DRAPlugin";

/// Takes up drivers for these devices.
pub struct Registration(pub Arc<Devices>);

impl Handler for Registration {
    fn validate(&self, plugin: &Plugin) -> Result<(), String> {
        if plugin.name.is_empty() { Err("DRA driver name is empty".into()) } else { Ok(()) }
    }

    fn register<'a>(
        &'a self,
        plugin: &'a Plugin,
        stop: &'a CancellationToken,
    ) -> BoxFuture<'a, Result<(), String>> {
        let registered = self.0.register(&plugin.name, &plugin.endpoint, &plugin.versions, stop);
        std::future::ready(registered).boxed()
    }

    fn deregister(&self, name: &str, endpoint: &str) {
        self.0.drivers.deregister(name, endpoint);
    }
}
