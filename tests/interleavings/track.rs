//! A protocol at work, which goes on only when, and as far as, the schedule says.

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
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

/// A place among a protocol's steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Place {
    /// The n-th step, counted from 1.
    Step(usize),
    /// The n-th step of this name.
    Named(&'static str, usize),
}

/// Behind every step.
pub const END: Place = Place::Step(usize::MAX);

/// Counts a protocol's steps, and says how far it may go.
#[derive(Debug)]
struct Baton {
    who: &'static str,
    log: Log,
    /// The steps come to so far.
    steps: Mutex<Vec<&'static str>>,
    /// It may not take this step.
    stop_before: Mutex<Place>,
    /// It has come to that step, and waits.
    held_up: AtomicBool,
    /// The reply to this step is lost.
    lose: Option<Place>,
}

impl Baton {
    /// Whether the last step come to is at `place`.
    fn is_at(&self, place: Place) -> bool {
        let steps = self.steps.lock().unwrap();
        match place {
            Place::Step(number) => steps.len() == number,
            Place::Named(name, occurrence) => {
                steps.last() == Some(&name)
                    && steps.iter().filter(|step| **step == name).count() == occurrence
            }
        }
    }
}

impl Steps for Baton {
    fn reached(&self, name: &'static str) {
        let step = {
            let mut steps = self.steps.lock().unwrap();
            steps.push(name);
            steps.len()
        };
        REACHED.lock().unwrap().insert(name);
        let lost = if self.loses_reply() { "  (its reply is lost)" } else { "" };
        self.log.add(format!("{} {step:>2} {name}{lost}", self.who));
        let stop_before = *self.stop_before.lock().unwrap();
        self.held_up.store(self.is_at(stop_before), SeqCst);
    }

    fn may_go(&self) -> bool {
        !self.held_up.load(SeqCst)
    }

    fn loses_reply(&self) -> bool {
        self.lose.is_some_and(|place| self.is_at(place))
    }
}

/// A protocol in progress.
pub struct Track<'a, T> {
    baton: Arc<Baton>,
    future: Pin<Box<dyn Future<Output = T> + 'a>>,
    done: bool,
}

impl<'a, T: 'a> Track<'a, T> {
    /// Not begun yet. The reply to the step at `lose` is lost.
    pub fn new(
        who: &'static str,
        log: Log,
        lose: Option<Place>,
        protocol: impl Future<Output = T> + 'a,
    ) -> Self {
        let (steps, stop_before, held_up) = (Mutex::default(), Mutex::new(END), AtomicBool::new(false));
        let baton = Arc::new(Baton { who, log, steps, stop_before, held_up, lose });
        let steps: Arc<dyn Steps> = Arc::clone(&baton) as _;
        Self { baton, future: Box::pin(SCHEDULED.scope(steps, protocol)), done: false }
    }

    /// Goes on until it stands before the step at `stop_before`, or to its end; what came of it then.
    pub async fn run(&mut self, stop_before: Place) -> Result<Option<T>, String> {
        *self.baton.stop_before.lock().unwrap() = stop_before;
        self.baton.held_up.store(false, SeqCst);
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
        Ok(self.run(END).await?.expect("nothing stops it but its end"))
    }

    /// Whether it stands at `place`, or has ended where it would have come next.
    pub fn met(&self, place: Place) -> bool {
        if self.done { place == Place::Step(self.steps().len() + 1) } else { self.baton.is_at(place) }
    }

    pub fn is_done(&self) -> bool {
        self.done
    }

    /// The steps come to so far.
    pub fn steps(&self) -> Vec<&'static str> {
        self.baton.steps.lock().unwrap().clone()
    }
}
