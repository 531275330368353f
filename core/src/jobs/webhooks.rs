//! Delivers events to webhooks. Each webhook has a separate task, on one core at a time, so that a receiver
//! that hangs or fails delays only its own events.
//!
//! Events come from the feed, and show each claim in its current state. Events of one claim are delivered in
//! order: if an event fails, it is stored in SQL as pending, and later events of the same claim are queued
//! behind it. Other claims are not affected. An event that still fails after the retry period, by default a
//! day, is parked.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use claimgate_shared::Timestamp;
use futures_util::future::join_all;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::clock;
use crate::domain::webhook::{PARKED_MAX, TRIES_MIN, WaitingEvent, Webhook, WebhookEvent, retry_delay};
use crate::engine::live::cores::CoreRun;
use crate::engine::webhooks::sender::DeliveryOutcome;
use crate::engine::{Engine, EngineError};
use crate::metrics;
use crate::store::sql::{ChangedBy, FeedCursor, FeedItem, FeedPage, Progress, SqlError};

/// The interval at which this core starts tasks for webhooks that have none.
const POLL: Duration = Duration::from_secs(1);
/// The TTL of a lease, which is renewed after half the TTL. Half the TTL is longer than a round, which makes
/// two tries in sequence. Writes by a core that has lost the lease have no effect.
const LEASE: Duration = Duration::from_secs(45);
/// Maximum number of events sent to one receiver concurrently.
const CONCURRENT_MAX: u32 = 16;
/// Maximum backlog of a webhook. At this number core stops reading the feed: the receiver is failing, and
/// pending events would fill up SQL.
const BACKLOG_MAX: u64 = 10_000;
/// The minimum time between two empty reads of the feed. A read is empty if the feed has grown only by claims
/// of other campaigns.
const EMPTY_READ_PAUSE: Duration = Duration::from_millis(100);
/// Pause of a webhook after unreadable data.
const UNREADABLE: Duration = Duration::from_secs(60);
/// The time limit for releasing all leases when core stops.
const RELEASE_MAX: Duration = Duration::from_millis(500);

/// The webhook deliveries of this core.
#[derive(Debug)]
pub struct Webhooks {
    engine: Arc<Engine>,
    /// The holder of the leases. A second core with a copied data directory has a different run.
    run: CoreRun,
    /// Retry period of an event, after which it is parked.
    retry: Duration,
}

/// The outcome of a round of deliveries to a webhook.
#[derive(Debug)]
pub enum Round {
    /// The events of this page were sent. Without items, the feed has no further events.
    Sent(FeedPage),
    /// The feed was not read: too many events are pending.
    BacklogFull,
    /// Deliveries must end: this core does not have the lease, or the webhook was disabled or deleted.
    Ended,
}

impl Webhooks {
    /// Creates the deliveries of the core run `run`. Each event is retried for the period `retry`.
    pub fn new(engine: Arc<Engine>, run: CoreRun, retry: Duration) -> Self {
        Self { engine, run, retry }
    }

    /// Delivers events until `stop` turns true.
    pub async fn run(self, mut stop: tokio::sync::watch::Receiver<bool>) {
        if !self.engine.webhooks.sender.is_on() {
            return;
        }
        // Leases of an earlier run would otherwise last until they expire.
        let ended = self.engine.stores.sql.end_webhook_leases_of_core(self.run.core()).await;
        let _ =
            ended.inspect_err(|error| tracing::debug!(%error, "cannot release the leases of an earlier run"));
        let this = Arc::new(self);
        tokio::select! {
            never = Arc::clone(&this).supervise() => match never {},
            _ = stop.wait_for(|stop| *stop) => {}
        }
        // Otherwise another core would have to wait until the leases expire.
        let _ = timeout(RELEASE_MAX, this.engine.stores.sql.release_webhooks(this.run.id())).await;
    }

    /// Keeps a task running for each enabled webhook.
    async fn supervise(self: Arc<Self>) -> Infallible {
        let (mut tasks, mut at_work) = (JoinSet::new(), HashMap::new());
        loop {
            while let Some(ended) = tasks.try_join_next_with_id() {
                at_work.remove(&ended.map_or_else(|error| error.id(), |(task, ())| task));
            }
            match self.engine.webhooks.list().await {
                Ok(webhooks) => {
                    record_metrics(&webhooks);
                    for webhook in webhooks {
                        let is_at_work = at_work.values().any(|id| *id == webhook.id);
                        if webhook.disabled_because.is_none() && !is_at_work {
                            let work = Arc::clone(&self).work(webhook.id.clone());
                            at_work.insert(tasks.spawn(work).id(), webhook.id);
                        }
                    }
                }
                Err(error) => tracing::debug!(%error, "cannot list the webhooks"),
            }
            sleep(POLL).await;
        }
    }

    /// Delivers events to the webhook `id` until its task ends; [`Self::supervise`] starts the next one.
    async fn work(self: Arc<Self>, id: String) {
        match self.deliver(&id).await {
            Err(error) if error.is_unreadable() => {
                tracing::error!(%error, webhook = id, "deliveries of a webhook have stopped for a minute");
                sleep(UNREADABLE).await;
            }
            // SQL failures are logged elsewhere.
            Err(error) => tracing::debug!(%error, webhook = id, "deliveries of a webhook have stopped"),
            Ok(()) => {}
        }
    }

    /// Delivers events to one webhook, as long as this core holds its lease.
    async fn deliver(&self, id: &str) -> Result<(), EngineError> {
        let mut renewed = None;
        loop {
            match self.round(id, &mut renewed).await? {
                Round::Ended => return Ok(()),
                Round::BacklogFull => sleep(self.until_next(id).await?.max(EMPTY_READ_PAUSE)).await,
                Round::Sent(page) if page.items.is_empty() => {
                    sleep(EMPTY_READ_PAUSE).await;
                    let until_next = self.until_next(id).await?;
                    self.engine.feed.wait_for_more(&page, until_next).await?;
                }
                Round::Sent(_) => {}
            }
        }
    }

    /// Retries the due events of the webhook `id`, and sends the next page of new events. `renewed` is the time at
    /// which this core last acquired or renewed the lease; `None` in the first round.
    ///
    /// # Errors
    /// A store's error. The receiver may have events that SQL has not recorded as delivered; they are sent again.
    pub async fn round(&self, id: &str, renewed: &mut Option<Instant>) -> Result<Round, EngineError> {
        let sql = &self.engine.stores.sql;
        // The lease is not renewed in each round: on an idle webhook, this would be a commit every second.
        let webhook = if renewed.is_some_and(|at| at.elapsed() < LEASE / 2) {
            sql.webhook(id).await?.filter(|webhook| webhook.disabled_because.is_none())
        } else {
            *renewed = Some(Instant::now());
            sql.hold_webhook(id, self.run.id(), LEASE).await?
        };
        let Some(webhook) = webhook else { return Ok(Round::Ended) };
        // Due retries and new events take turns, so neither can starve the other.
        if !self.retry_due(&webhook).await? {
            return Ok(Round::Ended);
        }
        if webhook.waiting >= BACKLOG_MAX {
            return Ok(Round::BacklogFull);
        }
        let page = self.next_page(&webhook).await?;
        let continues = page.items.is_empty() || self.deliver_page(&webhook, &page).await?;
        Ok(if continues { Round::Sent(page) } else { Round::Ended })
    }

    /// Returns the next page of the feed for a webhook. If its cursor is no longer valid, because the
    /// database was restored from a backup, the feed starts from the beginning: it is better to send events
    /// twice than to lose them.
    async fn next_page(&self, webhook: &Webhook) -> Result<FeedPage, EngineError> {
        let after = webhook.cursor.parse::<FeedCursor>().ok();
        let page =
            self.engine.stores.sql.feed(webhook.campaign.as_ref(), after.as_ref(), CONCURRENT_MAX).await?;
        if let Some(page) = page {
            Ok(page)
        } else {
            tracing::warn!(
                webhook = webhook.id,
                "the webhook's feed cursor is no longer valid; resending all claims"
            );
            let page = self.engine.stores.sql.feed(webhook.campaign.as_ref(), None, CONCURRENT_MAX).await?;
            page.ok_or(EngineError::CursorInvalid)
        }
    }

    /// Sends the events of a page to `webhook`, and stores failed events as pending. Returns `false` if
    /// deliveries must end.
    async fn deliver_page(&self, webhook: &Webhook, page: &FeedPage) -> Result<bool, SqlError> {
        let event_of =
            |item: &FeedItem| WebhookEvent::of_claim(&item.row.claim, item.row.revision, item.row.updated_at);
        let events: Vec<_> = page.items.iter().map(event_of).collect();
        let sql = &self.engine.stores.sql;
        let waiting = sql.claims_with_waiting_events(&webhook.id, &events).await?;
        let tried = join_all(events.into_iter().map(async |event| {
            let is_behind = waiting.contains(&event.claim_id);
            let sent = if is_behind { None } else { Some(self.send(webhook, &event).await) };
            (event, sent)
        }));
        let (mut delivered, mut left, mut gone) = (0, Vec::new(), false);
        for (event, sent) in tried.await {
            match sent {
                Some(DeliveryOutcome::Delivered) => delivered += 1,
                Some(DeliveryOutcome::Failed(why, after)) => {
                    left.push(self.waiting_event(event, Some((why, after))));
                }
                Some(DeliveryOutcome::Gone) => {
                    gone = true;
                    left.push(self.waiting_event(event, Some(("status 410".to_owned(), None))));
                }
                None => left.push(self.waiting_event(event, None)),
            }
        }
        let progress = Progress { cursor: &page.next, delivered, waiting: &left };
        let holds = sql.advance_webhook(&webhook.id, self.run.id(), clock::now(), progress).await?;
        if holds && gone {
            self.disable(webhook, "the receiver answered 410 (Gone)").await?;
        }
        Ok(holds && !gone)
    }

    /// Retries due events, but only the first event of each claim. Returns `false` if deliveries must end.
    async fn retry_due(&self, webhook: &Webhook) -> Result<bool, SqlError> {
        let (sql, mut parked) = (&self.engine.stores.sql, webhook.parked);
        let due = sql.due_events(&webhook.id, clock::now(), CONCURRENT_MAX).await?;
        let tried = due.into_iter().map(async |waiting| {
            let sent = self.send(webhook, &waiting.event).await;
            (waiting, sent)
        });
        let tried = join_all(tried).await;
        for (waiting, sent) in tried {
            let (why, after) = match sent {
                DeliveryOutcome::Delivered => {
                    if sql
                        .remove_delivered_event(&webhook.id, self.run.id(), waiting.number, clock::now())
                        .await?
                    {
                        continue;
                    }
                    return Ok(false);
                }
                DeliveryOutcome::Gone => {
                    self.disable(webhook, "the receiver answered 410 (Gone)").await?;
                    return Ok(false);
                }
                DeliveryOutcome::Failed(why, after) => (why, after),
            };
            let postponed = self.postponed(waiting, why, after);
            if !sql.reschedule_event(&webhook.id, self.run.id(), &postponed).await? {
                return Ok(false);
            }
            if postponed.parked {
                parked += 1;
                metrics::webhook_delivery("parked");
                tracing::error!(
                    webhook = webhook.id,
                    event = postponed.event.id,
                    tries = postponed.tries,
                    why = postponed.last_error,
                    "an event was not accepted and is parked"
                );
            }
        }
        if parked >= PARKED_MAX {
            self.disable(webhook, &format!("{parked} events are parked")).await?;
        }
        Ok(parked < PARKED_MAX)
    }

    /// Returns the time until the next pending event is due, at most [`POLL`].
    async fn until_next(&self, id: &str) -> Result<Duration, SqlError> {
        let next = self.engine.stores.sql.next_event_due(id).await?;
        let until = next.map_or(i64::MAX, |at| at.as_ms() - clock::now().as_ms());
        Ok(Duration::from_millis(u64::try_from(until).unwrap_or(0)).min(POLL))
    }

    async fn send(&self, webhook: &Webhook, event: &WebhookEvent) -> DeliveryOutcome {
        let sent = self.engine.webhooks.sender.send(webhook, event, clock::now()).await;
        metrics::webhook_delivery(if sent == DeliveryOutcome::Delivered { "delivered" } else { "failed" });
        if let DeliveryOutcome::Failed(why, _) = &sent {
            tracing::debug!(webhook = webhook.id, event = event.id, why, "an event was not accepted");
        }
        sent
    }

    async fn disable(&self, webhook: &Webhook, why: &str) -> Result<(), SqlError> {
        tracing::error!(
            webhook = webhook.id,
            why,
            "a webhook was disabled; to enable it, run `claimgate webhooks enable {}`",
            webhook.id
        );
        let by = ChangedBy { who: "core", at: clock::now() };
        self.engine.stores.sql.disable_webhook(webhook, self.run.id(), why, by).await
    }

    /// Creates a pending event, which failed at its first try, or is queued behind another event of the same
    /// claim.
    fn waiting_event(&self, event: WebhookEvent, failed: Option<(String, Option<Duration>)>) -> WaitingEvent {
        let now = clock::now();
        let (tries, last_error) = (0, "waiting for an earlier event of the claim".to_owned());
        let waiting =
            WaitingEvent { number: 0, event, parked: false, tries, first_at: now, next_at: now, last_error };
        match failed {
            None => waiting,
            Some((why, after)) => WaitingEvent { parked: false, ..self.postponed(waiting, why, after) },
        }
    }

    fn postponed(&self, waiting: WaitingEvent, why: String, after: Option<Duration>) -> WaitingEvent {
        let now = clock::now();
        let tries = waiting.tries + 1;
        // The retry period starts with the first try, not when the event was queued.
        let first_at = if waiting.tries == 0 { now } else { waiting.first_at };
        let wait =
            retry_delay(tries, self.retry, random_byte()).max(after.unwrap_or_default().min(self.retry / 8));
        let parked = tries >= TRIES_MIN && later(first_at, self.retry) <= now;
        WaitingEvent { parked, tries, first_at, next_at: later(now, wait), last_error: why, ..waiting }
    }
}

fn record_metrics(webhooks: &[Webhook]) {
    let disabled = webhooks.iter().filter(|webhook| webhook.disabled_because.is_some()).count();
    let waiting = webhooks.iter().map(|webhook| webhook.waiting).sum();
    metrics::webhooks(disabled, waiting, webhooks.iter().map(|webhook| webhook.parked).sum());
}

fn later(now: Timestamp, by: Duration) -> Timestamp {
    now.saturating_add_ms(i64::try_from(by.as_millis()).unwrap_or(i64::MAX))
}

fn random_byte() -> u8 {
    let mut byte = [0; 1];
    // If the system's random number generator fails, all events get the same jitter.
    let _ = getrandom::fill(&mut byte);
    byte[0]
}
