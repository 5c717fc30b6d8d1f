//! Leader election by a Lease, as client-go does it: the holder renews, others take a Lease that was not renewed for its
//! duration. Clocks of different machines are not compared: a candidate counts from the moment it saw the last renewal.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{Api, PostParams};
use kube::{Client, ResourceExt};

pub struct Election {
    leases: Api<Lease>,
    name: &'static str,
    identity: String,
    duration: Duration,
    /// The revision that was seen last, and when it was first seen.
    seen: Option<(String, Instant)>,
}

impl Election {
    pub fn new(
        client: Client,
        namespace: &str,
        name: &'static str,
        identity: &str,
        duration: Duration,
    ) -> Election {
        let leases = Api::namespaced(client, namespace);
        Election { leases, name, identity: identity.into(), duration, seen: None }
    }

    /// Returns once this candidate leads.
    pub async fn win(&mut self) {
        loop {
            match self.attempt().await {
                Ok(true) => return,
                Ok(false) => {}
                Err(error) => tracing::warn!(%error, "cannot stand for election"),
            }
            tokio::time::sleep(self.duration / 10).await;
        }
    }

    /// Renews for as long as that works; returns when another may lead.
    pub async fn keep(&mut self) {
        let mut renewed = Instant::now();
        while renewed.elapsed() < self.duration * 2 / 3 {
            tokio::time::sleep(self.duration / 10).await;
            let attempt = tokio::time::timeout(self.duration / 5, self.attempt()).await;
            match attempt {
                Ok(Ok(true)) => renewed = Instant::now(),
                Ok(Ok(false)) => return,
                Ok(Err(error)) => tracing::warn!(%error, "cannot renew the lease"),
                Err(_) => tracing::warn!("the lease is not renewed in time"),
            }
        }
    }

    /// Gives the lease back, so that the next leader need not wait for its end.
    pub async fn resign(&self) -> kube::Result<()> {
        let mut lease = self.leases.get(self.name).await?;
        let spec = lease.spec.get_or_insert_default();
        if spec.holder_identity.as_deref() == Some(&self.identity) {
            spec.holder_identity = None;
            self.leases.replace(self.name, &PostParams::default(), &lease).await?;
        }
        Ok(())
    }

    async fn attempt(&mut self) -> kube::Result<bool> {
        let parameters = PostParams::default();
        let written = match self.leases.get_opt(self.name).await? {
            None => {
                let mut lease = Lease { spec: Some(self.spec(None)), ..Lease::default() };
                lease.metadata.name = Some(self.name.into());
                self.leases.create(&parameters, &lease).await
            }
            Some(mut lease) => {
                if !self.may_take(&lease) {
                    return Ok(false);
                }
                lease.spec = Some(self.spec(lease.spec.as_ref()));
                self.leases.replace(self.name, &parameters, &lease).await
            }
        };
        match written {
            Ok(_) => Ok(true),
            // Somebody else was faster.
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn may_take(&mut self, lease: &Lease) -> bool {
        let holder = lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref()).unwrap_or_default();
        if holder.is_empty() || holder == self.identity {
            return true;
        }
        let revision = lease.resource_version().unwrap_or_default();
        match &self.seen {
            Some((seen, since)) if *seen == revision => since.elapsed() > self.duration,
            _ => {
                self.seen = Some((revision, Instant::now()));
                false
            }
        }
    }

    fn spec(&self, before: Option<&LeaseSpec>) -> LeaseSpec {
        let now = MicroTime(Timestamp::now());
        let held = before.filter(|spec| spec.holder_identity.as_deref() == Some(&self.identity));
        let transitions = before.and_then(|spec| spec.lease_transitions).unwrap_or(0);
        LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: Some(self.duration.as_secs().try_into().unwrap_or(i32::MAX)),
            acquire_time: held.and_then(|spec| spec.acquire_time.clone()).or_else(|| Some(now.clone())),
            renew_time: Some(now),
            lease_transitions: Some(transitions + i32::from(before.is_some() && held.is_none())),
            ..LeaseSpec::default()
        }
    }
}
