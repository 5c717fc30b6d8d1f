//! Calls that block, on threads that may: files, mounts and cgroups. A host path may be on a disk or a server that does
//! not answer, and the threads of the runtime serve all pods.

use tokio_util::task::TaskTracker;

/// Acts on a thread of its own; counted among `work` until it is done, for a caller that goes away does not end it.
pub(crate) async fn blocking<T: Send + 'static>(
    work: &TaskTracker,
    act: impl FnOnce() -> T + Send + 'static,
) -> T {
    match work.spawn_blocking(act).await {
        Ok(value) => value,
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        // cancelled: the process is ending, and so is whoever waits here
        Err(_) => std::future::pending().await,
    }
}
