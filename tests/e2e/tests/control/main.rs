//! The control loops and the scheduler, each a process of its own, through the API and kubectl only: what
//! users do, and what happens when any of them is killed.

mod autoscaling;
mod browser;
mod faults;
mod hollow;
mod jobs;
mod kubectl;
mod owners;
mod policies;
mod processes;
mod service_ranges;
mod serving_kubelet;
mod signing;
mod spans;

use std::time::{Duration, Instant};

/// Asks until there is an answer, within a bound.
pub async fn until<T, F: Future<Output = Option<T>>>(what: &str, mut ask: impl FnMut() -> F) -> T {
    let give_up = Instant::now() + Duration::from_secs(120);
    loop {
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(Instant::now() < give_up, "never: {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
