//! Clients that each have a connection to an API server in a process of its own, and what the server's CPU was for each
//! of their requests.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use ferry_client::Client;
use futures::future::try_join_all;
use serde::Serialize;
use serde_json::Value;

use super::part::Server;
use super::requests::{Seen, post};

pub struct Load {
    pub server: Server,
    pub clients: Vec<Client>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Measured {
    pub operation: &'static str,
    pub count: usize,
    pub per_second: f64,
    pub cpu_micros: f64,
    pub memory_bytes: u64,
}

impl Load {
    pub async fn start(directory: &Path, clients: usize) -> anyhow::Result<Load> {
        let server = Server::start(directory).await?;
        Ok(Load { clients: server.clients(clients.max(1)).await?, server })
    }

    /// Each client takes the next number until there are no more.
    pub async fn phase(
        &self,
        operation: &'static str,
        count: usize,
        each: impl AsyncFn(&Client, usize) -> anyhow::Result<()>,
    ) -> anyhow::Result<Measured> {
        let next = AtomicUsize::new(0);
        let work = async |client: &Client| -> anyhow::Result<()> {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= count {
                    return Ok(());
                }
                each(client, number).await.with_context(|| operation)?;
            }
        };
        self.measured(operation, count, try_join_all(self.clients.iter().map(work))).await
    }

    /// One event to one watch; the writes that make them are counted with them. `object` makes what is written to `path`.
    pub async fn events(
        &self,
        path: &str,
        watches: usize,
        object: impl Fn(usize) -> Value,
    ) -> anyhow::Result<Measured> {
        const EVENTS: usize = 200;
        const PAUSE: Duration = Duration::from_millis(5);
        const CONNECTIONS: usize = 8;
        let clients = self.server.clients(CONNECTIONS).await?;
        let begun = (0..watches).map(|number| Seen::watch(&clients[number % CONNECTIONS], path, "", "ADDED"));
        let mut begun = try_join_all(begun).await?;
        let writing = async {
            for number in 0..EVENTS {
                post(&self.clients[0], path, object(number)).await?;
                tokio::time::sleep(PAUSE).await;
            }
            Ok(())
        };
        let reading = try_join_all(begun.iter_mut().map(|seen| seen.wait_for(EVENTS)));
        let both = async { tokio::try_join!(writing, reading) };
        self.measured("event to a watch", EVENTS * watches, both).await
    }

    async fn measured<T>(
        &self,
        operation: &'static str,
        count: usize,
        work: impl Future<Output = anyhow::Result<T>>,
    ) -> anyhow::Result<Measured> {
        let (before, begin) = (self.server.part.usage()?, Instant::now());
        work.await?;
        let (after, seconds) = (self.server.part.usage()?, begin.elapsed().as_secs_f64());
        Ok(Measured {
            operation,
            count,
            per_second: count as f64 / seconds,
            cpu_micros: (after.cpu_seconds - before.cpu_seconds) * 1e6 / count as f64,
            memory_bytes: after.resident_bytes,
        })
    }
}
