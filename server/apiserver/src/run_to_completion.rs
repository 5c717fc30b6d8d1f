//! A future that completes even when its caller drops it. A write that has reached its verb may be committed at any moment;
//! a client that disconnects or times out must not cancel what follows the commit: the audit event, the metrics. The
//! caller's task polls the future for as long as it waits, so a task of its own is spawned only when it is dropped.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures::future::BoxFuture;
use tokio::runtime::Handle;
use tokio_util::task::TaskTracker;

/// Dropped before its end, it goes on in a task of its own.
pub struct RunToCompletion<T: Send + 'static> {
    work: Option<BoxFuture<'static, T>>,
    tasks: TaskTracker,
}

impl<T: Send + 'static> RunToCompletion<T> {
    /// Whoever stops the server waits for `tasks`.
    pub fn new(work: impl Future<Output = T> + Send + 'static, tasks: &TaskTracker) -> RunToCompletion<T> {
        RunToCompletion { work: Some(Box::pin(work)), tasks: tasks.clone() }
    }
}

impl<T: Send + 'static> Future for RunToCompletion<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let work = self.work.as_mut().expect("nobody polls what has ended");
        let result = ready!(work.as_mut().poll(context));
        self.work = None;
        Poll::Ready(result)
    }
}

impl<T: Send + 'static> Drop for RunToCompletion<T> {
    fn drop(&mut self) {
        // Without a runtime the process is at its end, and the work with it.
        if let Some(work) = self.work.take()
            && let Ok(runtime) = Handle::try_current()
        {
            self.tasks.spawn_on(async move { drop(work.await) }, &runtime);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::oneshot;

    #[tokio::test]
    async fn an_abandoned_future_runs_to_completion() {
        let tasks = TaskTracker::new();
        let (go, wait) = oneshot::channel::<()>();
        let (done, told) = oneshot::channel();
        let work = async move {
            wait.await.expect("told to go on");
            done.send(()).expect("somebody listens");
        };
        let mut waiting = Box::pin(RunToCompletion::new(work, &tasks));
        assert!(futures::poll!(&mut waiting).is_pending());
        drop(waiting);
        go.send(()).expect("it waits");
        told.await.expect("done");
        tasks.close();
        tasks.wait().await;
    }

    #[tokio::test]
    async fn an_awaited_future_runs_without_a_task() {
        let tasks = TaskTracker::new();
        assert_eq!(RunToCompletion::new(async { 7 }, &tasks).await, 7);
        assert_eq!(tasks.len(), 0);
    }
}
