//! Returns responses without a promise if possible. Most rejections await nothing, and a promise, its two
//! callbacks and a microtask cost more than the decision itself.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use futures_util::task::AtomicWaker;
use wasm_bindgen::JsValue;
use worker::js_sys::futures::future_to_promise;
use worker::worker_sys;

/// Polls `future` once. Returns its output if it is ready, otherwise a promise.
///
/// The promise is registered with `context`, so that it completes even after the client has disconnected. The
/// runtime drops a promise without a consumer, and resources held by the future (such as the right to
/// refresh) would never be released.
///
/// # Errors
/// The error of `future` at its first poll, or the runtime's error from registering the promise.
pub fn respond<F>(context: &worker_sys::Context, future: F) -> Result<JsValue, JsValue>
where
    F: Future<Output = Result<JsValue, JsValue>> + 'static,
{
    let mut polled = Box::pin(future);
    let waker = Arc::new(TaskWaker::default());
    match poll(&mut polled, &waker) {
        Poll::Ready(result) => result,
        Poll::Pending => {
            let promise = future_to_promise(resumed(polled, waker));
            context.wait_until(&promise)?;
            Ok(promise.into())
        }
    }
}

/// Runs `polled` as a task. The first poll was before the task existed, with `waker`. Some futures keep their
/// first waker, so `waker` forwards each wake to the task.
async fn resumed<F: Future>(mut polled: Pin<Box<F>>, waker: Arc<TaskWaker>) -> F::Output {
    poll_fn(|context| {
        waker.0.register(context.waker());
        poll(&mut polled, &waker)
    })
    .await
}

fn poll<F: Future>(future: &mut Pin<Box<F>>, waker: &Arc<TaskWaker>) -> Poll<F::Output> {
    future.as_mut().poll(&mut Context::from_waker(&Waker::from(Arc::clone(waker))))
}

/// Wakes the task that is currently registered.
#[derive(Debug, Default)]
struct TaskWaker(AtomicWaker);

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.0.wake();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// Keeps the first waker that it gets, as the runtime's timer does.
    #[derive(Default)]
    struct FirstWaker(Option<mpsc::Sender<Waker>>, bool);

    impl Future for FirstWaker {
        type Output = &'static str;

        fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
            if let Some(first) = self.0.take() {
                first.send(context.waker().clone()).unwrap();
            }
            if std::mem::replace(&mut self.1, true) { Poll::Ready("woken") } else { Poll::Pending }
        }
    }

    #[derive(Default)]
    struct Flag(std::sync::atomic::AtomicBool);

    impl Wake for Flag {
        fn wake(self: Arc<Self>) {
            self.0.store(true, std::sync::atomic::Ordering::Relaxed);
        }
    }

    #[test]
    fn the_waker_from_the_first_poll_wakes_the_task() {
        let (send, wakers) = mpsc::channel();
        let mut polled = Box::pin(FirstWaker(Some(send), false));
        let waker = Arc::new(TaskWaker::default());
        assert_eq!(poll(&mut polled, &waker), Poll::Pending);
        polled.1 = false;
        let mut task = Box::pin(resumed(polled, waker));
        let flag = Arc::new(Flag::default());
        let flagged = Waker::from(Arc::clone(&flag));
        assert_eq!(task.as_mut().poll(&mut Context::from_waker(&flagged)), Poll::Pending);
        wakers.recv().unwrap().wake();
        assert!(flag.0.load(std::sync::atomic::Ordering::Relaxed));
        assert_eq!(task.as_mut().poll(&mut Context::from_waker(&flagged)), Poll::Ready("woken"));
    }
}
