//! Answers without a promise where none is needed: most refusals wait for nothing, and a promise, its two functions and
//! a microtask for each would cost more than to decide it.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use futures_util::task::AtomicWaker;
use wasm_bindgen::JsValue;
use worker::js_sys::futures::future_to_promise;
use worker::worker_sys;

/// What comes of `future`: at once if it waits for nothing, else a promise of it. That one is kept to its end also when
/// the client leaves: a runtime forgets what nobody waits for, and nothing that it holds would be given back.
pub fn eagerly<F>(context: &worker_sys::Context, future: F) -> Result<JsValue, JsValue>
where
    F: Future<Output = Result<JsValue, JsValue>> + 'static,
{
    let mut tried = Box::pin(future);
    let relay = Arc::new(Relay::default());
    match poll(&mut tried, &relay) {
        Poll::Ready(result) => result,
        Poll::Pending => {
            let promise = future_to_promise(relayed(tried, relay));
            context.wait_until(&promise)?;
            Ok(promise.into())
        }
    }
}

/// `tried`, which has been polled before there was a task to wake: some futures keep the waker that they saw first.
async fn relayed<F: Future>(mut tried: Pin<Box<F>>, relay: Arc<Relay>) -> F::Output {
    poll_fn(|context| {
        relay.0.register(context.waker());
        poll(&mut tried, &relay)
    })
    .await
}

fn poll<F: Future>(future: &mut Pin<Box<F>>, relay: &Arc<Relay>) -> Poll<F::Output> {
    future.as_mut().poll(&mut Context::from_waker(&Waker::from(Arc::clone(relay))))
}

/// Wakes whoever waits by then.
#[derive(Debug, Default)]
struct Relay(AtomicWaker);

impl Wake for Relay {
    fn wake(self: Arc<Self>) {
        self.0.wake();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// Keeps the first waker that it sees, as a runtime's timer does.
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
    fn a_waker_kept_from_the_first_poll_wakes_the_task() {
        let (send, wakers) = mpsc::channel();
        let mut tried = Box::pin(FirstWaker(Some(send), false));
        let relay = Arc::new(Relay::default());
        assert_eq!(poll(&mut tried, &relay), Poll::Pending);
        tried.1 = false;
        let mut task = Box::pin(relayed(tried, relay));
        let flag = Arc::new(Flag::default());
        let waker = Waker::from(Arc::clone(&flag));
        assert_eq!(task.as_mut().poll(&mut Context::from_waker(&waker)), Poll::Pending);
        wakers.recv().unwrap().wake();
        assert!(flag.0.load(std::sync::atomic::Ordering::Relaxed));
        assert_eq!(task.as_mut().poll(&mut Context::from_waker(&waker)), Poll::Ready("woken"));
    }
}
