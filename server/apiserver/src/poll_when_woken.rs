//! A future that is polled only after its own waker was called. `select` polls all its futures whenever one of them wakes;
//! this wrapper avoids most polls of a future that is rarely ready, such as a timer beside a busy stream.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use futures::future::BoxFuture;
use futures::task::AtomicWaker;

pub struct PollWhenWoken<T> {
    future: BoxFuture<'static, T>,
    bell: Arc<WakeFlag>,
    /// The bell, as the future holds it.
    waker: Waker,
}

struct WakeFlag {
    rang: AtomicBool,
    waiting: AtomicWaker,
}

impl<T> PollWhenWoken<T> {
    pub fn new(future: impl Future<Output = T> + Send + 'static) -> PollWhenWoken<T> {
        // Rung once: the future has not been asked at all yet.
        let bell = Arc::new(WakeFlag { rang: AtomicBool::new(true), waiting: AtomicWaker::new() });
        PollWhenWoken { future: Box::pin(future), waker: bell.clone().into(), bell }
    }
}

impl<T> Future for PollWhenWoken<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let this = &mut *self;
        // Registered before the bell is looked at, so that no ring falls in between.
        this.bell.waiting.register(context.waker());
        if !this.bell.rang.swap(false, Ordering::AcqRel) {
            return Poll::Pending;
        }
        this.future.as_mut().poll(&mut Context::from_waker(&this.waker))
    }
}

impl Wake for WakeFlag {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.rang.store(true, Ordering::Release);
        self.waiting.wake();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn it_is_asked_only_when_it_was_woken() {
        let asked = Arc::new(AtomicUsize::new(0));
        let (done, mut wait) = oneshot::channel();
        let count = asked.clone();
        let mut dormant = PollWhenWoken::new(std::future::poll_fn(move |context| {
            count.fetch_add(1, Ordering::SeqCst);
            Pin::new(&mut wait).poll(context)
        }));
        for _ in 0..100 {
            assert!(futures::poll!(&mut dormant).is_pending());
        }
        assert_eq!(asked.load(Ordering::SeqCst), 1);
        // Someone else waits for it by now, and is the one that is woken.
        let waiting = tokio::spawn(dormant);
        tokio::task::yield_now().await;
        done.send(7).unwrap();
        assert_eq!(waiting.await.unwrap(), Ok(7));
        assert_eq!(asked.load(Ordering::SeqCst), 2);
    }
}
