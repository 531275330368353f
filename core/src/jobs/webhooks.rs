//! Delivers events to webhooks: a task for each, on one core at a time, so that a receiver that hangs or fails holds up none
//! but itself.
//!
//! Events come from the feed, each claim as it stands. Those of one claim are told in their order: one that was not taken waits
//! in SQL, and those behind it of the same claim with it; other claims' go on. After a day it is parked.

use std::collections::{HashMap, HashSet};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use claimgate_shared::Timestamp;
use futures_util::future::join_all;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::clock;
use crate::domain::webhook::{PARKED_MAX, TRIES_MIN, WaitingEvent, Webhook, WebhookEvent, pause};
use crate::engine::webhook_sender::Sent;
use crate::engine::{Engine, EngineError};
use crate::metrics;
use crate::store::sql::{By, FeedCursor, FeedPage, Progress, SqlError};

/// How often webhooks are looked for that no task of this core is at work on.
const LOOK: Duration = Duration::from_secs(1);
/// Half of it is longer than a try, and a round makes two, one after the other; it is renewed when half of it is over. Whatever is
/// written by who has lost it changes nothing.
const LEASE: Duration = Duration::from_secs(45);
/// Events of one receiver that are sent at once.
const AT_ONCE: u32 = 16;
/// With so many events waiting, the feed is not read on: the receiver takes none.
const UNTAKEN_MAX: u32 = 256;
/// The least between two looks that find nothing: the feed may go on for other campaigns alone.
const BETWEEN_LOOKS: Duration = Duration::from_millis(100);
/// How long a webhook is left alone of which something cannot be read.
const UNREADABLE: Duration = Duration::from_secs(60);
/// The most that is left of a lease when core stops to give it back.
const RELEASE_MAX: Duration = Duration::from_millis(500);

/// The deliveries of this core.
#[derive(Debug)]
pub struct Webhooks {
    engine: Arc<Engine>,
    /// This core, among those that hold leases.
    holder: String,
    /// How long an event is tried before it is parked.
    retry: Duration,
}

impl Webhooks {
    /// Deliveries by the core `holder`, which tries each event for `retry`.
    pub fn new(engine: Arc<Engine>, holder: String, retry: Duration) -> Self {
        Self { engine, holder, retry }
    }

    /// Delivers until `stop` turns true.
    pub async fn run(self, mut stop: tokio::sync::watch::Receiver<bool>) {
        if !self.engine.webhook_sender.is_on() {
            return;
        }
        let this = Arc::new(self);
        tokio::select! {
            never = Arc::clone(&this).supervise() => match never {},
            _ = stop.wait_for(|stop| *stop) => {}
        }
        // Otherwise another core waits for the leases' end.
        let _ = timeout(RELEASE_MAX, this.engine.sync.sql.release_webhooks(&this.holder)).await;
    }

    /// Keeps a task at work on each webhook that is enabled.
    async fn supervise(self: Arc<Self>) -> Infallible {
        let (mut tasks, mut at_work) = (JoinSet::new(), HashMap::new());
        loop {
            while let Some(ended) = tasks.try_join_next_with_id() {
                at_work.remove(&ended.map_or_else(|error| error.id(), |(task, ())| task));
            }
            match self.engine.webhooks().await {
                Ok(webhooks) => {
                    tell(&webhooks);
                    for webhook in webhooks {
                        let is_at_work = at_work.values().any(|id| *id == webhook.id);
                        if webhook.disabled_because.is_none() && !is_at_work {
                            let work = Arc::clone(&self).work(webhook.id.clone());
                            at_work.insert(tasks.spawn(work).id(), webhook.id);
                        }
                    }
                }
                Err(error) => tracing::debug!(%error, "webhooks are not looked for"),
            }
            sleep(LOOK).await;
        }
    }

    /// Delivers for the webhook `id`, until another look at it is due.
    async fn work(self: Arc<Self>, id: String) {
        match self.deliver(&id).await {
            Err(error @ EngineError::Sql(SqlError::Unreadable(_))) => {
                tracing::error!(%error, webhook = id, "its deliveries stand still");
                sleep(UNREADABLE).await;
            }
            // That SQL is away is told elsewhere.
            Err(error) => tracing::debug!(%error, webhook = id, "its deliveries stand still"),
            Ok(()) => {}
        }
    }

    /// Delivers for one webhook, as long as this core has its lease.
    async fn deliver(&self, id: &str) -> Result<(), EngineError> {
        let sql = &self.engine.sync.sql;
        let mut held_until = clock::now();
        loop {
            let now = clock::now();
            // Not in each round: at rest a write is a commit each second.
            let webhook = if later(now, LEASE / 2) < held_until {
                sql.webhook(id).await?.filter(|webhook| webhook.disabled_because.is_none())
            } else {
                held_until = later(now, LEASE);
                sql.hold_webhook(id, &self.holder, now, held_until).await?
            };
            let Some(webhook) = webhook else { return Ok(()) };
            let waiting = sql.waiting_events(id, 0, UNTAKEN_MAX, false).await?;
            if !self.retry_due(&webhook, &waiting).await? {
                return Ok(());
            }
            if waiting.len() >= UNTAKEN_MAX as usize {
                sleep(until_next(&waiting, clock::now()).max(BETWEEN_LOOKS)).await;
                continue;
            }
            let page = self.next_page(&webhook).await?;
            if page.items.is_empty() {
                sleep(BETWEEN_LOOKS).await;
                self.engine.feed_goes_on(&page, until_next(&waiting, clock::now())).await?;
            } else if !self.deliver_page(&webhook, &waiting, page).await? {
                return Ok(());
            }
        }
    }

    /// The next part of the feed for a webhook. One whose place is gone, since the database was restored from a copy, begins
    /// again: it is told twice rather than not at all.
    async fn next_page(&self, webhook: &Webhook) -> Result<FeedPage, EngineError> {
        let after = webhook.cursor.parse::<FeedCursor>().ok();
        let page = self.engine.sync.sql.feed(webhook.campaign.as_ref(), after.as_ref(), AT_ONCE).await?;
        if let Some(page) = page {
            Ok(page)
        } else {
            tracing::warn!(
                webhook = webhook.id,
                "its place in the feed is gone: it is told of all claims again"
            );
            let page = self.engine.sync.sql.feed(webhook.campaign.as_ref(), None, AT_ONCE).await?;
            page.ok_or(EngineError::CursorInvalid)
        }
    }

    /// Tells `webhook` of a page, each claim once; what it does not take waits. `false` when the deliveries end.
    async fn deliver_page(
        &self,
        webhook: &Webhook,
        waiting: &[WaitingEvent],
        page: FeedPage,
    ) -> Result<bool, SqlError> {
        let behind: HashSet<_> = waiting.iter().map(|waiting| waiting.event.claim_id.as_str()).collect();
        let events = page
            .items
            .iter()
            .map(|item| WebhookEvent::of_claim(&item.row.claim, item.row.revision, item.row.updated_at));
        let tried = join_all(events.map(|event| async {
            // Behind others of its claim.
            let sent = if behind.contains(event.claim_id.as_str()) {
                None
            } else {
                Some(self.send(webhook, &event).await)
            };
            (event, sent)
        }));
        let (mut delivered, mut left, mut gone) = (0, Vec::new(), false);
        for (event, sent) in tried.await {
            match sent {
                Some(Sent::Delivered) => delivered += 1,
                Some(Sent::Failed(why, after)) => left.push(self.waits(event, Some((why, after)))),
                Some(Sent::Gone) => {
                    gone = true;
                    left.push(self.waits(event, Some(("status 410".to_owned(), None))));
                }
                None => left.push(self.waits(event, None)),
            }
        }
        let progress = Progress { cursor: &page.next, delivered, waiting: &left };
        let holds =
            self.engine.sync.sql.advance_webhook(&webhook.id, &self.holder, clock::now(), progress).await?;
        if holds && gone {
            self.disable(webhook, "the receiver has answered 410").await?;
        }
        Ok(holds && !gone)
    }

    /// Tries again what is due of `waiting`, of each claim the first. `false` when the deliveries end.
    async fn retry_due(&self, webhook: &Webhook, waiting: &[WaitingEvent]) -> Result<bool, SqlError> {
        let now = clock::now();
        let due = first_of_each(waiting).filter(|waiting| waiting.next_at <= now).take(AT_ONCE as usize);
        let tried =
            join_all(due.map(async |waiting| (waiting, self.send(webhook, &waiting.event).await))).await;
        let (sql, mut parked) = (&self.engine.sync.sql, webhook.parked);
        for (waiting, sent) in tried {
            let (why, after) = match sent {
                Sent::Delivered => {
                    if sql.took_waiting(&webhook.id, &self.holder, waiting.number, clock::now()).await? {
                        continue;
                    }
                    return Ok(false);
                }
                Sent::Gone => {
                    self.disable(webhook, "the receiver has answered 410").await?;
                    return Ok(false);
                }
                Sent::Failed(why, after) => (why, after),
            };
            let put_off = self.put_off(waiting.clone(), why, after);
            if !sql.put_off_waiting(&webhook.id, &self.holder, &put_off).await? {
                return Ok(false);
            }
            if put_off.parked {
                parked += 1;
                metrics::webhook_delivery("parked");
                tracing::error!(
                    webhook = webhook.id,
                    event = put_off.event.id,
                    tries = put_off.tries,
                    why = put_off.last_error,
                    "an event was not taken and is parked"
                );
            }
        }
        if parked >= PARKED_MAX {
            self.disable(webhook, &format!("{parked} events are parked")).await?;
        }
        Ok(parked < PARKED_MAX)
    }

    async fn send(&self, webhook: &Webhook, event: &WebhookEvent) -> Sent {
        let sent = self.engine.webhook_sender.send(webhook, event, clock::now()).await;
        metrics::webhook_delivery(if sent == Sent::Delivered { "delivered" } else { "failed" });
        if let Sent::Failed(why, _) = &sent {
            tracing::debug!(webhook = webhook.id, event = event.id, why, "an event was not taken");
        }
        sent
    }

    async fn disable(&self, webhook: &Webhook, why: &str) -> Result<(), SqlError> {
        tracing::error!(
            webhook = webhook.id,
            why,
            "a webhook is disabled: `claimgate webhooks enable {}`",
            webhook.id
        );
        let by = By { who: "core", at: clock::now() };
        self.engine.sync.sql.disable_webhook(webhook, &self.holder, why, by).await
    }

    /// A new event that waits: after a first try that failed so, or behind others of its claim.
    fn waits(&self, event: WebhookEvent, failed: Option<(String, Option<Duration>)>) -> WaitingEvent {
        let now = clock::now();
        let (tries, last_error) = (0, "behind an earlier event of the claim".to_owned());
        let waiting =
            WaitingEvent { number: 0, event, parked: false, tries, first_at: now, next_at: now, last_error };
        match failed {
            None => waiting,
            Some((why, after)) => WaitingEvent { parked: false, ..self.put_off(waiting, why, after) },
        }
    }

    fn put_off(&self, waiting: WaitingEvent, why: String, after: Option<Duration>) -> WaitingEvent {
        let now = clock::now();
        let tries = waiting.tries + 1;
        // An event that waited behind another one was not tried meanwhile.
        let first_at = if waiting.tries == 0 { now } else { waiting.first_at };
        let wait = pause(tries, self.retry, draw()).max(after.unwrap_or_default().min(self.retry / 8));
        let parked = tries >= TRIES_MIN && later(first_at, self.retry) <= now;
        WaitingEvent { parked, tries, first_at, next_at: later(now, wait), last_error: why, ..waiting }
    }
}

fn tell(webhooks: &[Webhook]) {
    let disabled = webhooks.iter().filter(|webhook| webhook.disabled_because.is_some()).count();
    let waiting = webhooks.iter().map(|webhook| webhook.waiting).sum();
    metrics::webhooks(disabled, waiting, webhooks.iter().map(|webhook| webhook.parked).sum());
}

/// The first waiting event of each claim: it alone is tried.
fn first_of_each(waiting: &[WaitingEvent]) -> impl Iterator<Item = &WaitingEvent> {
    let mut claims = HashSet::new();
    waiting.iter().filter(move |waiting| claims.insert(waiting.event.claim_id.as_str()))
}

/// How long it is until one of those that wait is due, or a look is.
fn until_next(waiting: &[WaitingEvent], now: Timestamp) -> Duration {
    let next = first_of_each(waiting).map(|waiting| waiting.next_at.as_ms() - now.as_ms()).min();
    next.map_or(LOOK, |ms| Duration::from_millis(u64::try_from(ms).unwrap_or(0))).min(LOOK)
}

fn later(now: Timestamp, by: Duration) -> Timestamp {
    now.saturating_add_ms(i64::try_from(by.as_millis()).unwrap_or(i64::MAX))
}

fn draw() -> u8 {
    let mut byte = [0; 1];
    // Without randomness all wait equally long.
    let _ = getrandom::fill(&mut byte);
    byte[0]
}
