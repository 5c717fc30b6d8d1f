//! The objects that every cluster has, written through the API like everything else.

use std::sync::Arc;

use futures::TryFutureExt;

use super::{StartError, config_error, server_identity};
use crate::api::Api;
use crate::bootstrap::Bootstrap;
use crate::config::Config;
use crate::flow_control::{self, Fairness};
use crate::founding::{self, FirstObject};
use crate::server_addresses::ServerAddresses;
use crate::{aggregation, policy};

pub(super) struct Defaults<'a> {
    pub config: &'a Config,
    pub api: &'a Api,
    pub client: &'a kube::Client,
    pub bootstrap: &'a Bootstrap,
}

impl Defaults<'_> {
    /// Writes all of it at once where there is none of it, and says whether it did.
    pub async fn found(&self, addresses: &ServerAddresses) -> Result<bool, StartError> {
        if !founding::is_due(self.api) {
            return Ok(false);
        }
        let mut objects = self.bootstrap.objects();
        objects.extend(addresses.first_objects());
        objects.extend(aggregation::first_objects(self.api));
        if self.uses_rbac() {
            objects.extend(policy::objects().map_err(config_error)?);
        }
        let mut first: Vec<_> = objects.into_iter().map(FirstObject::of_server).collect();
        if self.fairness().is_some() {
            first.extend(Fairness::first_objects().map_err(config_error)?);
        }
        founding::found(self.api, &server_identity(), first)
            .await
            .map_err(|status| StartError::Found(Box::new(status)))
    }

    /// Says that this server is there, too, and returns when what was written is in force.
    pub async fn in_force(&self, addresses: &ServerAddresses) -> Result<(), StartError> {
        let flow_control = async {
            if let Some(fairness) = self.fairness() {
                fairness.objects_in_force().await;
            }
        };
        tokio::join!(flow_control, addresses.publish(self.client)).1?;
        Ok(())
    }

    /// The store syncs once for what it is told at once, so all goes out together that needs nothing else to be there.
    pub async fn write(&self, addresses: &ServerAddresses) -> Result<(), StartError> {
        let (bootstrap, client) = (self.bootstrap, self.client);
        tokio::try_join!(bootstrap.without_namespace(client).err_into(), self.flow_control())?;
        let policy = async {
            match self.uses_rbac() {
                true => policy::bootstrap(client).await.map_err(StartError::from),
                false => Ok(()),
            }
        };
        let within = bootstrap.in_namespaces(client).err_into();
        tokio::try_join!(within, policy, addresses.publish(client).err_into())?;
        Ok(())
    }

    fn uses_rbac(&self) -> bool {
        self.config.authorization_modes.iter().any(|mode| mode == "RBAC")
    }

    fn fairness(&self) -> Option<&Arc<Fairness>> {
        self.api.flow_control.fairness().filter(|_| serves_flow_control(self.api))
    }

    async fn flow_control(&self) -> Result<(), StartError> {
        match self.fairness() {
            Some(fairness) => Ok(fairness.write_objects(self.client).await?),
            None => Ok(()),
        }
    }
}

/// Whether the kinds of flow control are served.
pub(super) fn serves_flow_control(api: &Api) -> bool {
    let is_served = |plural| api.served().kind(flow_control::GROUP, "v1", plural).is_some();
    is_served("flowschemas") && is_served("prioritylevelconfigurations")
}
