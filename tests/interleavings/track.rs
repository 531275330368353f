//! A running protocol that the schedule starts and stops.

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::task::Poll;

use claimgate_core::step::{SCHEDULED, Steps};
use support::SOON;

/// All step points that any protocol has reached.
pub static REACHED: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());

/// All events, line by line.
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

/// A position among a protocol's steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum StepPosition {
    /// The n-th step, counted from 1.
    Step(usize),
    /// The n-th step of this name.
    Named(&'static str, usize),
}

/// After every step.
pub const END: StepPosition = StepPosition::Step(usize::MAX);

/// Counts a protocol's steps and decides how far it may run.
#[derive(Debug)]
struct StepGate {
    who: &'static str,
    log: Log,
    /// The steps reached so far.
    steps: Mutex<Vec<&'static str>>,
    /// The step before which the protocol must stop.
    stop_before: Mutex<StepPosition>,
    /// Whether the protocol has reached that step and waits.
    stopped: AtomicBool,
    /// The step whose reply is lost.
    lose: Option<StepPosition>,
}

impl StepGate {
    /// Returns whether the latest step is at `position`.
    fn is_at(&self, position: StepPosition) -> bool {
        let steps = self.steps.lock().unwrap();
        match position {
            StepPosition::Step(number) => steps.len() == number,
            StepPosition::Named(name, occurrence) => {
                steps.last() == Some(&name)
                    && steps.iter().filter(|step| **step == name).count() == occurrence
            }
        }
    }
}

impl Steps for StepGate {
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
        self.stopped.store(self.is_at(stop_before), SeqCst);
    }

    fn may_continue(&self) -> bool {
        !self.stopped.load(SeqCst)
    }

    fn loses_reply(&self) -> bool {
        self.lose.is_some_and(|position| self.is_at(position))
    }
}

/// A protocol in progress.
pub struct RunningProtocol<'a, T> {
    gate: Arc<StepGate>,
    future: Pin<Box<dyn Future<Output = T> + 'a>>,
    done: bool,
}

impl<'a, T: 'a> RunningProtocol<'a, T> {
    /// Creates a protocol that has not started. The reply to the step at `lose` is lost.
    pub fn new(
        who: &'static str,
        log: Log,
        lose: Option<StepPosition>,
        protocol: impl Future<Output = T> + 'a,
    ) -> Self {
        let (steps, stop_before, stopped) = (Mutex::default(), Mutex::new(END), AtomicBool::new(false));
        let gate = Arc::new(StepGate { who, log, steps, stop_before, stopped, lose });
        let steps: Arc<dyn Steps> = Arc::clone(&gate) as _;
        Self { gate, future: Box::pin(SCHEDULED.scope(steps, protocol)), done: false }
    }

    /// Runs until the step at `stop_before` or the end; returns the result if it ended.
    pub async fn run(&mut self, stop_before: StepPosition) -> Result<Option<T>, String> {
        *self.gate.stop_before.lock().unwrap() = stop_before;
        self.gate.stopped.store(false, SeqCst);
        let until = poll_fn(|context| match self.future.as_mut().poll(context) {
            Poll::Ready(outcome) => Poll::Ready(Some(outcome)),
            Poll::Pending if !self.gate.may_continue() => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        });
        let Ok(ended) = tokio::time::timeout(SOON, until).await else {
            return Err(format!("{} has not ended within {SOON:?}", self.gate.who));
        };
        self.done = ended.is_some();
        Ok(ended)
    }

    pub async fn run_to_its_end(&mut self) -> Result<T, String> {
        Ok(self.run(END).await?.expect("the protocol's end"))
    }

    /// Returns whether it is stopped at `position`, or has ended where that step would be.
    pub fn met(&self, position: StepPosition) -> bool {
        if self.done {
            position == StepPosition::Step(self.steps().len() + 1)
        } else {
            self.gate.is_at(position)
        }
    }

    pub fn is_done(&self) -> bool {
        self.done
    }

    /// Returns the steps reached so far.
    pub fn steps(&self) -> Vec<&'static str> {
        self.gate.steps.lock().unwrap().clone()
    }
}
