//! The storm: many users at once, some of whom send a claim twice or lose its answer.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use claimgate_client::{Answer, ClaimCall, Error, until_decided};
use claimgate_shared::{ClaimReply, Quantity, UserId};
use futures_util::StreamExt as _;
use futures_util::future::join;
use futures_util::stream;
use tokio::time::{Instant, interval, sleep_until, timeout};

use crate::scratch::Scratch;
use crate::tally::{Tally, is_rate_limited};
use crate::visit::{Manner, Outcome, Told, Visit};
use crate::{DrillError, Installation, Plan, Voice};

/// When a connection is cut: about when the first answers come.
const CUT_AFTER: Duration = Duration::from_millis(2);

/// The storm.
pub(crate) struct Storm<'a> {
    pub(crate) installation: &'a Installation,
    pub(crate) plan: &'a Plan,
    pub(crate) scratch: &'a Scratch,
    pub(crate) voice: Voice<'a>,
    tally: RefCell<Tally>,
    /// No try before this: the edge has said so.
    not_before: Cell<Instant>,
    limited: Cell<bool>,
    /// Users who are through.
    through: Cell<u32>,
}

impl<'a> Storm<'a> {
    /// A storm on `scratch`.
    pub(crate) fn new(
        installation: &'a Installation,
        plan: &'a Plan,
        scratch: &'a Scratch,
        voice: Voice<'a>,
    ) -> Self {
        let now = Instant::now();
        Self {
            installation,
            plan,
            scratch,
            voice,
            tally: RefCell::new(Tally::new()),
            not_before: Cell::new(now),
            limited: Cell::new(false),
            through: Cell::new(0),
        }
    }

    /// Lets all users come; what became of each claim.
    pub(crate) async fn run(&self) -> Result<Vec<Outcome>, DrillError> {
        let visits = stream::iter(0..self.plan.users).filter_map(async |n| Visit::nth(self.plan, n));
        let visits = visits.map(|visit| async move { self.visit(&visit).await });
        let all = visits.buffer_unordered(self.plan.connections).concat();
        let mut all = std::pin::pin!(all);
        let mut seconds = interval(Duration::from_secs(1));
        let outcomes = loop {
            tokio::select! {
                outcomes = &mut all => break outcomes,
                _ = seconds.tick() => self.goes_on()?,
            }
        };
        self.tally.borrow_mut().end();
        Ok(outcomes)
    }

    /// What was counted.
    pub(crate) fn into_tally(self) -> Tally {
        self.tally.into_inner()
    }

    /// Tells how far it has come, unless it has to be given up.
    fn goes_on(&self) -> Result<(), DrillError> {
        let (tally, plan) = (self.tally.borrow(), self.plan);
        let through = format!("{} of {} users are through", self.through.get(), plan.users);
        if tally.last_decided.elapsed() > plan.patience {
            let (seconds, why) =
                (plan.patience.as_secs(), tally.last_undecided.as_deref().unwrap_or("no answer"));
            return Err(DrillError::TooSlow(format!(
                "nothing was decided for {seconds} s, {through}: {why}"
            )));
        }
        if tally.lasted() > plan.storm_max {
            let seconds = plan.storm_max.as_secs();
            return Err(DrillError::TooSlow(format!("the storm was not over after {seconds} s: {through}")));
        }
        (self.voice.progress)(&format!("storm: {through}, {} s", tally.lasted().as_secs()));
        Ok(())
    }

    async fn visit(&self, visit: &Visit) -> Vec<Outcome> {
        let mut outcomes = Vec::new();
        for _ in 0..visit.claims {
            match self.claim(&visit.user, visit.manner).await {
                Ok(outcome) => outcomes.push(outcome),
                // No key, no token: nothing was sent.
                Err(error) => (self.voice.say)(&format!("{}: {error}", visit.user)),
            }
        }
        self.through.set(self.through.get() + 1);
        outcomes
    }

    /// One claim of one unit.
    async fn claim(&self, user: &UserId, manner: Manner) -> Result<Outcome, DrillError> {
        let token = &self.installation.token(user, self.scratch.made_at)?;
        let made = ClaimCall::new(self.scratch.id.clone(), user.clone(), Quantity::ONE);
        let mut call = made.map_err(DrillError::at("making a key"))?;
        let mut told = Vec::new();
        // Who waits in vain for longer than that waits in a storm that is given up.
        let patience = self.plan.storm_max;
        match manner {
            Manner::Plain => {}
            Manner::Twice => {
                // Neither is for certain the first.
                let mut twin = ClaimCall::again(call.request().clone());
                call = twin.clone();
                let (one, other) =
                    join(self.decide(token, &mut call, patience), self.decide(token, &mut twin, patience))
                        .await;
                return Ok(Outcome { call, told: vec![Told::of(one), Told::of(other)], together: true });
            }
            Manner::Unheard => told.push(Told::of(self.try_once(token, &mut call).await)),
            Manner::Cut => told.extend(self.cut(token, &mut call).await),
        }
        told.push(Told::of(self.decide(token, &mut call, patience).await));
        Ok(Outcome { call, told, together: false })
    }

    /// Asks for a claim until its outcome is known, for `patience` at most.
    pub(crate) async fn decide(
        &self,
        token: &str,
        call: &mut ClaimCall,
        patience: Duration,
    ) -> Result<Answer<ClaimReply>, Error> {
        until_decided(patience, async || self.try_once(token, call).await).await
    }

    async fn try_once(&self, token: &str, call: &mut ClaimCall) -> Result<Answer<ClaimReply>, Error> {
        self.allowed().await;
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

    /// Sends a claim and cuts the connection; what was told if that came first.
    async fn cut(&self, token: &str, call: &mut ClaimCall) -> Option<Told> {
        self.allowed().await;
        let sent = Instant::now();
        let answer = timeout(CUT_AFTER, self.installation.target.claim_once(token, call)).await;
        let mut tally = self.tally.borrow_mut();
        if let Ok(answer) = answer {
            tally.count(sent, &answer);
            Some(Told::of(answer))
        } else {
            tally.count_cut();
            None
        }
    }

    /// Waits as long as the edge has asked for.
    async fn allowed(&self) {
        while Instant::now() < self.not_before.get() {
            sleep_until(self.not_before.get()).await;
        }
    }

    /// Holds every user back, not this one alone: the edge counts by address.
    fn slow_down(&self, wait: Duration) {
        let until = Instant::now() + wait;
        self.not_before.set(self.not_before.get().max(until));
        if !self.limited.replace(true) {
            (self.voice.progress)("");
            (self.voice.say)(
                "the edge limits how often one address or user may claim: the storm goes on as fast as it lets us. \
                 Raise its limits RATE_PER_ADDRESS and RATE_PER_USER, or drill core, for a faster one",
            );
        }
    }
}
