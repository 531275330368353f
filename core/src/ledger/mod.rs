//! The only way to Redis: connection, scripts, and what their replies mean to the rest of core.

pub mod embedded;
pub mod events;
pub mod keys;
pub mod scripts;

use std::time::Duration;

use claimgate_shared::campaign::Switch;
use claimgate_shared::{ClaimId, ClaimRequest};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, ErrorKind, RedisError, Script, ServerErrorKind, Value};
use tokio::sync::Mutex;
use tokio::time::Instant;

use self::scripts::{Counters, Decided, Malformed, Record};
use crate::campaign::Campaign;
use crate::campaigns::Known;

/// The longest a call waits for Redis; the edge gives core 2 s in all.
const RESPONSE_TIMEOUT: Duration = Duration::from_millis(1000);
const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);
/// After a failed attempt to connect, further ones are refused at once for so long.
const CONNECT_PAUSE: Duration = Duration::from_millis(50);

/// Why Redis gave no decision.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// The campaign's counters cannot be trusted until they are rebuilt.
    #[error("campaign not ready: {0}")]
    NotReady(String),
    /// Redis refused before it wrote anything: it is out of memory.
    #[error("Redis is out of memory")]
    OutOfMemory(#[source] RedisError),
    /// Redis cannot be reached, or its answer was lost: the outcome is unknown.
    #[error("Redis is unavailable: {0}")]
    Unavailable(#[from] RedisError),
    /// An answer that no script of this version gives.
    #[error(transparent)]
    Malformed(#[from] Malformed),
}

impl LedgerError {
    fn of(error: RedisError) -> Self {
        if error.code() == Some("OOM") {
            Self::OutOfMemory(error)
        } else {
            Self::Unavailable(error)
        }
    }
}

/// Core's connection to Redis.
#[derive(Debug)]
pub struct Ledger {
    client: Client,
    link: Mutex<Link>,
    /// The most events the outbox may hold before new claims are put off.
    backlog_max: u64,
}

#[derive(Debug, Default)]
struct Link {
    connection: Option<MultiplexedConnection>,
    failed_at: Option<Instant>,
    /// Counts connections, so that a caller whose connection broke does not drop its successor.
    generation: u64,
}

impl Ledger {
    /// A ledger behind `client`; connects when first asked.
    pub fn new(client: Client, backlog_max: u64) -> Self {
        Self {
            client,
            link: Mutex::default(),
            backlog_max,
        }
    }

    /// Decides `requests`, all of `known`'s campaign, in one call.
    pub async fn claim(&self, known: &Known, requests: &[(ClaimId, u32)]) -> Result<Decided, LedgerError> {
        let campaign = known.campaign();
        let mut call = invocation(&scripts::CLAIM, known, &campaign);
        call.arg(self.backlog_max);
        for (id, quantity) in requests {
            call.arg(id.user.as_str()).arg(&id.digest[..]).arg(*quantity);
        }
        let decided = ready(scripts::decided(self.run(&call).await?, &campaign.zone)?)?;
        known.saw(&decided);
        Ok(decided)
    }

    /// The campaign's counters, and the claim `id` as it stands.
    pub async fn find(
        &self,
        known: &Known,
        id: Option<&ClaimId>,
    ) -> Result<(Counters, Option<Record>), LedgerError> {
        let mut call = invocation(&scripts::FIND, known, &known.campaign());
        if let Some(id) = id {
            call.arg(id.user.as_str()).arg(&id.digest[..]);
        }
        ready(scripts::found(self.run(&call).await?)?)
    }

    /// Lays down the keys of a campaign that has none, unless they are there.
    pub async fn open(&self, known: &Known) -> Result<(), LedgerError> {
        let campaign = known.campaign();
        let mut call = invocation(&scripts::OPEN, known, &campaign);
        rule_fields(&mut call, &campaign);
        ready(scripts::word(self.run(&call).await?, &["opened", "exists"])?).map(drop)
    }

    /// Applies the rules of `campaign`, unless Redis holds newer ones.
    pub async fn change(&self, known: &Known, campaign: &Campaign) -> Result<(), LedgerError> {
        let mut call = invocation(&scripts::CHANGE, known, campaign);
        call.arg(campaign.version);
        rule_fields(&mut call, campaign);
        ready(scripts::word(self.run(&call).await?, &["changed", "newer"])?).map(drop)
    }

    /// Whether Redis answers.
    pub async fn ping(&self) -> Result<(), LedgerError> {
        self.query::<Value>(&redis::cmd("PING")).await.map(drop)
    }

    async fn run(&self, call: &redis::ScriptInvocation<'_>) -> Result<Value, LedgerError> {
        let (mut connection, generation) = self.connection().await?;
        let reply = call.invoke_async(&mut connection).await;
        self.checked(reply, generation).await
    }

    async fn query<T: redis::FromRedisValue>(&self, command: &redis::Cmd) -> Result<T, LedgerError> {
        let (mut connection, generation) = self.connection().await?;
        let reply = command.query_async(&mut connection).await;
        self.checked(reply, generation).await
    }

    /// Gives up a connection whose call went wrong below Redis' own protocol.
    async fn checked<T>(&self, reply: Result<T, RedisError>, generation: u64) -> Result<T, LedgerError> {
        let error = match reply {
            Ok(reply) => return Ok(reply),
            Err(error) => error,
        };
        if !matches!(error.kind(), ErrorKind::Server(_) | ErrorKind::Extension)
            || error.kind() == ErrorKind::Server(ServerErrorKind::ReadOnly)
        {
            let mut link = self.link.lock().await;
            if link.generation == generation {
                link.connection = None;
            }
        }
        Err(LedgerError::of(error))
    }

    async fn connection(&self) -> Result<(MultiplexedConnection, u64), LedgerError> {
        let mut link = self.link.lock().await;
        if let Some(connection) = &link.connection {
            return Ok((connection.clone(), link.generation));
        }
        if link.failed_at.is_some_and(|at| at.elapsed() < CONNECT_PAUSE) {
            return Err(RedisError::from((ErrorKind::Io, "cannot connect")).into());
        }
        match self.connect(RESPONSE_TIMEOUT).await {
            Ok(connection) => {
                link.generation += 1;
                link.failed_at = None;
                link.connection = Some(connection.clone());
                Ok((connection, link.generation))
            }
            Err(error) => {
                link.failed_at = Some(Instant::now());
                Err(error.into())
            }
        }
    }

    async fn connect(&self, response_timeout: Duration) -> Result<MultiplexedConnection, RedisError> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_TIMEOUT))
            .set_response_timeout(Some(response_timeout));
        self.client
            .get_multiplexed_async_connection_with_config(&config)
            .await
    }
}

fn ready<T>(reply: scripts::Ready<T>) -> Result<T, LedgerError> {
    reply.map_err(LedgerError::NotReady)
}

/// A call with what every script takes first: the keys, the layout, the epoch, and the floor of the sequence.
fn invocation<'a>(script: &'a Script, known: &Known, campaign: &Campaign) -> redis::ScriptInvocation<'a> {
    let mut call = script.prepare_invoke();
    for key in known.keys.all() {
        call.key(key);
    }
    call.arg(scripts::LAYOUT).arg(campaign.epoch).arg(known.floor());
    call
}

/// The rules as fields of the campaign's hash; an empty value is "none".
fn rule_fields(call: &mut redis::ScriptInvocation<'_>, campaign: &Campaign) {
    let calendar = campaign.zone.calendar(crate::clock::now());
    let limits = campaign.limits;
    let or_none = |number: Option<std::num::NonZeroU32>| number.map(|n| n.to_string()).unwrap_or_default();
    let switch = match campaign.switch {
        Switch::On => "on",
        Switch::Paused => "paused",
        Switch::Ended => "ended",
    };
    let ends_at = campaign
        .window
        .ends_at()
        .map(|at| at.as_ms().to_string())
        .unwrap_or_default();
    let hold_ms = campaign
        .hold_seconds
        .map(|s| (u64::from(s.get()) * 1000).to_string())
        .unwrap_or_default();
    for (field, value) in [
        ("version", campaign.version.to_string()),
        ("switch", switch.to_owned()),
        ("starts_at", campaign.window.starts_at().as_ms().to_string()),
        ("ends_at", ends_at),
        ("total", or_none(limits.total)),
        ("per_user", or_none(limits.per_user)),
        ("per_user_per_day", or_none(limits.per_user_per_day)),
        ("per_claim", or_none(limits.per_claim)),
        ("hold_ms", hold_ms),
        ("days_until", calendar.until.as_ms().to_string()),
    ] {
        call.arg(field).arg(value);
    }
    call.arg("days").arg(calendar.offsets);
}

/// One claim of a batch, as the ledger takes it.
pub fn entry(request: &ClaimRequest) -> (ClaimId, u32) {
    (request.claim_id(), request.quantity.get())
}
