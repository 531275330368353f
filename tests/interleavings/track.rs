//! A protocol at work, which goes on only when, and as far as, the schedule says.

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use claimgate_core::step::{SCHEDULED, Steps};

/// A protocol that takes longer than this waits for something that does not come.
const END_WITHIN: Duration = Duration::from_secs(10);

/// Every step name that any protocol has come to.
pub static REACHED: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());

/// What happened, line by line.
#[derive(Debug, Clone, Default)]
pub struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    pub fn add(&self, line: String) {
        self.0.lock().unwrap().push(line);
    }

    pub fn lines(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

/// Counts a protocol's steps, and says how far it may go.
#[derive(Debug)]
struct Baton {
    who: &'static str,
    log: Log,
    /// Steps come to so far.
    steps: AtomicUsize,
    /// It may not take this step, nor any after it.
    stop_before: AtomicUsize,
    /// The reply to this step is lost; 0 for none.
    lose: usize,
}

impl Steps for Baton {
    fn reached(&self, name: &'static str) {
        let step = self.steps.fetch_add(1, SeqCst) + 1;
        REACHED.lock().unwrap().insert(name);
        let lost = if step == self.lose { "  (its reply is lost)" } else { "" };
        self.log.add(format!("{} {step:>2} {name}{lost}", self.who));
    }

    fn may_go(&self) -> bool {
        self.steps.load(SeqCst) < self.stop_before.load(SeqCst)
    }

    fn loses_reply(&self) -> bool {
        self.steps.load(SeqCst) == self.lose
    }
}

/// A protocol under way.
pub struct Track<'a, T> {
    baton: Arc<Baton>,
    future: Pin<Box<dyn Future<Output = T> + 'a>>,
    done: bool,
}

impl<'a, T: 'a> Track<'a, T> {
    /// Not begun yet. The reply to step `lose` is lost; 0 for none.
    pub fn new(who: &'static str, log: Log, lose: usize, protocol: impl Future<Output = T> + 'a) -> Self {
        let (steps, stop_before) = (AtomicUsize::new(0), AtomicUsize::new(1));
        let baton = Arc::new(Baton { who, log, steps, stop_before, lose });
        let steps: Arc<dyn Steps> = Arc::clone(&baton) as _;
        Self { baton, future: Box::pin(SCHEDULED.scope(steps, protocol)), done: false }
    }

    /// Goes on until it stands before step `stop_before`, or to its end; what came of it then.
    pub async fn run(&mut self, stop_before: usize) -> Result<Option<T>, String> {
        self.baton.stop_before.store(stop_before, SeqCst);
        let until = poll_fn(|context| match self.future.as_mut().poll(context) {
            Poll::Ready(outcome) => Poll::Ready(Some(outcome)),
            Poll::Pending if !self.baton.may_go() => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        });
        let Ok(ended) = tokio::time::timeout(END_WITHIN, until).await else {
            return Err(format!("{} has not ended within {END_WITHIN:?}", self.baton.who));
        };
        self.done = ended.is_some();
        Ok(ended)
    }

    pub async fn run_to_its_end(&mut self) -> Result<T, String> {
        Ok(self.run(usize::MAX).await?.expect("nothing stops it but its end"))
    }

    pub fn is_done(&self) -> bool {
        self.done
    }

    /// Steps come to so far.
    pub fn steps(&self) -> usize {
        self.baton.steps.load(SeqCst)
    }
}
