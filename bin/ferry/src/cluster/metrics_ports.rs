//! The metrics ports of the parts in one process: upstream's ports on the loopback, or others if a second cluster uses
//! those. The state file records them for `ferry status`.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use ferry_client::{CancellationToken, Client};
use tokio_util::task::TaskTracker;

use super::parts::Parts;
use super::ports::{self, Protocols};
use crate::roles::serving::{self, Shown};

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

pub const CONTROLLERS: u16 = 10257;
pub const SCHEDULER: u16 = 10259;
pub const PROXY: u16 = 10249;
pub const DNS: u16 = 9153;

pub struct MetricsPorts<'a> {
    pub cluster: &'a str,
    pub parts: &'a Parts,
    pub tasks: &'a TaskTracker,
    pub shutdown: &'a CancellationToken,
}

impl MetricsPorts<'_> {
    /// With TLS, for those whom the API server lets read `/metrics`. Returns the port, where there is one.
    pub fn secure(
        &self,
        part: &str,
        wanted: u16,
        shown: Shown,
        client: &Client,
        client_ca: &str,
    ) -> Option<u16> {
        let served = self.choose(part, wanted).and_then(|address| {
            let (listener, pages) = serving::secure(address, shown, client, client_ca.to_owned())?;
            self.tasks.spawn(pages.serve(listener, self.shutdown.clone()));
            Ok(address)
        });
        let port = served.as_ref().ok().map(SocketAddr::port);
        self.publish(part, served.map(|address| format!("https://{address}/metrics")));
        port
    }

    /// Without TLS, for everybody on this host: upstream's proxy and DNS ask nobody either.
    pub fn plain(&self, part: &str, wanted: u16, shown: Shown) {
        let served = self.choose(part, wanted).and_then(|address| {
            let serving = serving::plain(Some(address), wanted, shown, self.shutdown)?;
            self.tasks.spawn(async move { serving.wait().await });
            Ok(format!("http://{address}/metrics"))
        });
        self.publish(part, served);
    }

    fn choose(&self, part: &str, wanted: u16) -> anyhow::Result<SocketAddr> {
        // each part looks from another place on, so that those of one cluster do not find the same
        let seed = format!("{} {part}", self.cluster);
        Ok(SocketAddr::new(LOOPBACK, ports::choose(LOOPBACK, wanted, Protocols::Tcp, &seed)?))
    }

    /// A port that cannot be served does not stop the cluster.
    fn publish(&self, part: &str, served: anyhow::Result<String>) {
        match served {
            Ok(url) => self.parts.update(|now| drop(now.metrics.insert(part.to_owned(), url))),
            Err(error) => tracing::warn!(part, %error, "metrics are not served"),
        }
    }
}
