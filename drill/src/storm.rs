//! The storm: many concurrent users, some of whom send a claim twice or lose its response.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use claimgate_client::{Answer, ClaimCall, Error, retry_until_decided};
use claimgate_shared::{ClaimReply, Quantity, UserId};
use futures_util::StreamExt as _;
use futures_util::future::join;
use futures_util::stream;
use tokio::time::{Instant, interval, sleep_until, timeout};

use crate::scratch::Scratch;
use crate::tally::{Tally, is_rate_limited};
use crate::user::{Behavior, Caller, ClaimOutcome, SimulatedUser, TryOutcome};
use crate::{Console, DrillError, Installation, Plan};

/// Delay after which a connection is cut: about when the first responses arrive.
const CUT_AFTER: Duration = Duration::from_millis(2);

pub(crate) struct Storm<'a> {
    pub(crate) installation: &'a Installation,
    pub(crate) plan: &'a Plan,
    pub(crate) scratch: &'a Scratch,
    pub(crate) console: Console<'a>,
    tally: RefCell<Tally>,
    /// The time until which the edge has asked clients not to retry.
    not_before: Cell<Instant>,
    was_limited: Cell<bool>,
    /// The number of users who have finished.
    finished: Cell<u32>,
}

impl<'a> Storm<'a> {
    pub(crate) fn new(
        installation: &'a Installation,
        plan: &'a Plan,
        scratch: &'a Scratch,
        console: Console<'a>,
    ) -> Self {
        let now = Instant::now();
        Self {
            installation,
            plan,
            scratch,
            console,
            tally: RefCell::new(Tally::new()),
            not_before: Cell::new(now),
            was_limited: Cell::new(false),
            finished: Cell::new(0),
        }
    }

    /// Runs all users; returns the outcome of each claim.
    pub(crate) async fn run(&self) -> Result<Vec<ClaimOutcome>, DrillError> {
        let users = stream::iter(0..self.plan.users).filter_map(async |n| SimulatedUser::nth(self.plan, n));
        let users = users.map(|user| async move { self.run_user(&user).await });
        let all = users.buffer_unordered(self.plan.connections).concat();
        let mut all = std::pin::pin!(all);
        let mut seconds = interval(Duration::from_secs(1));
        let outcomes = loop {
            tokio::select! {
                outcomes = &mut all => break outcomes,
                _ = seconds.tick() => self.check_progress()?,
            }
        };
        self.tally.borrow_mut().end();
        Ok(outcomes)
    }

    /// Consumes the storm and returns its counts.
    pub(crate) fn into_tally(self) -> Tally {
        self.tally.into_inner()
    }

    /// Prints the progress; fails if the storm has to be given up.
    fn check_progress(&self) -> Result<(), DrillError> {
        let (tally, plan) = (self.tally.borrow(), self.plan);
        let finished = format!("{} of {} users have finished", self.finished.get(), plan.users);
        if tally.last_decided.elapsed() > plan.patience {
            let (seconds, why) =
                (plan.patience.as_secs(), tally.last_undecided.as_deref().unwrap_or("no answer"));
            return Err(DrillError::TooSlow(format!(
                "nothing was decided for {seconds} s, {finished}: {why}"
            )));
        }
        if tally.duration() > plan.storm_max {
            let seconds = plan.storm_max.as_secs();
            return Err(DrillError::TooSlow(format!("the storm was not over after {seconds} s: {finished}")));
        }
        (self.console.progress)(&format!("storm: {finished}, {} s", tally.duration().as_secs()));
        Ok(())
    }

    async fn run_user(&self, user: &SimulatedUser) -> Vec<ClaimOutcome> {
        let mut outcomes = Vec::new();
        for _ in 0..user.claims {
            match self.claim(&user.name, user.behavior).await {
                Ok(outcome) => outcomes.push(outcome),
                // There is no key or token, so nothing was sent.
                Err(error) => (self.console.say)(&format!("{}: {error}", user.name)),
            }
        }
        self.finished.set(self.finished.get() + 1);
        outcomes
    }

    /// Claims one unit for the user called `name`.
    async fn claim(&self, name: &UserId, behavior: Behavior) -> Result<ClaimOutcome, DrillError> {
        let Caller { id, token } = self.installation.caller(name, self.scratch.created_at)?;
        let made = ClaimCall::new(self.scratch.id.clone(), id, Quantity::ONE);
        let mut call = made.map_err(DrillError::at("generating a key"))?;
        let mut tries = Vec::new();
        // A longer wait is pointless: by then the storm has been given up.
        let patience = self.plan.storm_max;
        match behavior {
            Behavior::Plain => {}
            Behavior::Duplicate => {
                // Neither copy is known to arrive first, so both are sent as retries.
                let mut twin = ClaimCall::retry(call.request().clone());
                call = twin.clone();
                let (one, other) =
                    join(self.decide(&token, &mut call, patience), self.decide(&token, &mut twin, patience))
                        .await;
                return Ok(ClaimOutcome {
                    call,
                    token,
                    tries: vec![TryOutcome::of(one), TryOutcome::of(other)],
                    concurrent: true,
                });
            }
            Behavior::IgnoreAnswer => tries.push(TryOutcome::of(self.try_once(&token, &mut call).await)),
            Behavior::Cut => tries.extend(self.cut(&token, &mut call).await),
        }
        tries.push(TryOutcome::of(self.decide(&token, &mut call, patience).await));
        Ok(ClaimOutcome { call, token, tries, concurrent: false })
    }

    /// Retries a claim until its outcome is known, for `patience` at most.
    pub(crate) async fn decide(
        &self,
        token: &str,
        call: &mut ClaimCall,
        patience: Duration,
    ) -> Result<Answer<ClaimReply>, Error> {
        retry_until_decided(patience, async || self.try_once(token, call).await).await
    }

    async fn try_once(&self, token: &str, call: &mut ClaimCall) -> Result<Answer<ClaimReply>, Error> {
        self.wait_for_rate_limit().await;
        let sent = Instant::now();
        let answer = self.installation.target.claim_once(token, call).await;
        self.tally.borrow_mut().count(sent, &answer);
        if let Err(error) = &answer
            && is_rate_limited(error)
        {
            self.slow_down(error.retry_after().unwrap_or_default());
        }
        answer
    }

    /// Sends a claim and cuts the connection; returns the result if it arrived before the cut.
    async fn cut(&self, token: &str, call: &mut ClaimCall) -> Option<TryOutcome> {
        self.wait_for_rate_limit().await;
        let sent = Instant::now();
        let answer = timeout(CUT_AFTER, self.installation.target.claim_once(token, call)).await;
        let mut tally = self.tally.borrow_mut();
        if let Ok(answer) = answer {
            tally.count(sent, &answer);
            Some(TryOutcome::of(answer))
        } else {
            tally.count_cut();
            None
        }
    }

    /// Waits for as long as the edge has requested.
    async fn wait_for_rate_limit(&self) {
        while Instant::now() < self.not_before.get() {
            sleep_until(self.not_before.get()).await;
        }
    }

    /// Delays every user, not only this one, because the edge also limits by address.
    fn slow_down(&self, wait: Duration) {
        let until = Instant::now() + wait;
        self.not_before.set(self.not_before.get().max(until));
        if !self.was_limited.replace(true) {
            (self.console.progress)("");
            (self.console.say)(
                "the edge limits how often an address or user may claim, so the storm continues at that rate. \
                 For a faster one, raise the edge's RATE_PER_ADDRESS and RATE_PER_USER, or drill core",
            );
        }
    }
}
