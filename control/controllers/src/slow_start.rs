//! Doing a thing many times, carefully: 1, 2, 4, 8 … at once, as long as all goes well.
//!
//! What fails once usually fails always (a quota, a bad template); so a thousand requests are
//! not sent to learn it.

use futures::StreamExt;
use futures::stream;

/// Of a batch, these are under way together: they keep the server busy, and more would only hold memory.
const UNDER_WAY: usize = 64;

/// Acts up to `count` times; stops after the first batch with a failure. Returns how many
/// succeeded and the first error.
pub async fn slow_start<E, Fut>(count: usize, act: impl Fn(usize) -> Fut) -> (usize, Option<E>)
where
    Fut: Future<Output = Result<(), E>>,
{
    let (mut done, mut tried, mut batch) = (0, 0, 1);
    while tried < count {
        let size = batch.min(count - tried);
        let results = together(size, |position| act(tried + position)).await;
        tried += size;
        done += results.iter().filter(|result| result.is_ok()).count();
        if let Some(error) = results.into_iter().find_map(Result::err) {
            return (done, Some(error));
        }
        batch *= 2;
    }
    (done, None)
}

/// Acts `count` times, some at a time; what came out is in order. What is done at a position is made when its turn comes.
pub async fn together<Fut: Future>(count: usize, act: impl Fn(usize) -> Fut) -> Vec<Fut::Output> {
    stream::iter(0..count).map(act).buffered(UNDER_WAY).collect().await
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    async fn check(count: usize, fails_at: usize, expected: (usize, Option<usize>), tried: usize) {
        let calls = RefCell::new(0);
        let outcome = slow_start(count, |index| {
            *calls.borrow_mut() += 1;
            async move { if index == fails_at { Err(index) } else { Ok(()) } }
        })
        .await;
        assert_eq!((outcome, *calls.borrow()), (expected, tried));
    }

    #[tokio::test]
    async fn of_many_some_are_under_way() {
        let (now, most) = (RefCell::new(0), RefCell::new(0));
        let one = |index: usize| {
            *now.borrow_mut() += 1;
            let busiest = (*most.borrow()).max(*now.borrow());
            *most.borrow_mut() = busiest;
            let now = &now;
            async move {
                tokio::task::yield_now().await;
                *now.borrow_mut() -= 1;
                index
            }
        };
        assert!(together(500, one).await.into_iter().eq(0..500));
        assert_eq!(*most.borrow(), UNDER_WAY);
    }

    #[tokio::test]
    async fn batches_double_and_stop_at_the_first_failure() {
        check(0, 99, (0, None), 0).await;
        check(10, 99, (10, None), 10).await;
        check(500, 0, (0, Some(0)), 1).await;
        check(500, 4, (6, Some(4)), 7).await;
        check(5, 4, (4, Some(4)), 5).await;
    }
}
