//! The only way to Redis: scripts, and what their replies mean to the rest of core.

pub mod embedded;
pub mod events;
pub mod keys;
mod link;
pub mod loading;
pub mod record;
pub mod scripts;
pub mod survey;

use std::iter;
use std::time::Duration;

use claimgate_shared::campaign::Switch;
use claimgate_shared::{ClaimId, Timestamp, UserId};
use redis::{Client, ErrorKind, RedisError, Script, ScriptInvocation, Value};

use self::keys::Keys;
use self::link::{Link, Session};
use self::record::{Record, taken_ever};
use self::scripts::{Counters, Decided, Lease, Malformed, Nothing};
use crate::archive::{Archive, ArchiveError};
use crate::campaign::{Campaign, Reached};
use crate::campaigns::Known;
use crate::step;

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
    /// A new connection can only be trusted after a look into SQL, and SQL does not answer.
    #[error(transparent)]
    Register(#[from] ArchiveError),
    /// An answer that no script of this version gives.
    #[error(transparent)]
    Malformed(#[from] Malformed),
}

impl LedgerError {
    fn of(error: RedisError) -> Self {
        if error.code() == Some("OOM") { Self::OutOfMemory(error) } else { Self::Unavailable(error) }
    }
}

/// A claim of a user with a UUID for an id, as the script takes it.
const CLAIM_BYTES: usize = 57;

/// What a caller wants done with a claim that stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settlement {
    /// A held claim becomes granted.
    Confirm,
    /// The units go back.
    Return,
}

/// A field of a hash, and its value.
type HashEntry = (Vec<u8>, Vec<u8>);

/// Where a scan of all of a campaign's claims is: first those in their users' records, then those that have moved out.
#[derive(Debug, Clone, Copy)]
pub enum ClaimScan {
    /// At this cursor of the users.
    Users(u64),
    /// At this cursor of the claims that have moved out.
    Moved(u64),
}

impl ClaimScan {
    /// Where it begins.
    pub const START: Self = Self::Users(0);
}

/// Held claims, by Redis' own index.
#[derive(Debug, Clone, Copy)]
pub struct HoldState {
    /// All of them.
    pub held: u64,
    /// Those that should have been given back.
    pub stranded: u64,
}

/// Whose a campaign's keys are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeysOwner {
    /// The register's id of the campaign.
    pub register_id: String,
    /// The fencing token of whoever suspended or loaded the campaign last.
    pub token: String,
    /// Whether no claim is decided until it has been loaded again.
    pub suspended: bool,
}

/// Core's way to Redis.
#[derive(Debug)]
pub struct Ledger {
    link: Link,
    /// Where it is read, after every new connection, how far a campaign had come.
    archive: Archive,
    /// The most events the outbox may hold before new claims are put off.
    backlog_max: u64,
}

impl Ledger {
    /// A ledger behind `client`; connects when first asked.
    pub fn new(client: Client, archive: Archive, backlog_max: u64) -> Self {
        Self { link: Link::new(client), archive, backlog_max }
    }

    /// Gives back the holds that are due. The script does so before each claim; this is for campaigns at rest.
    pub async fn sweep(&self, known: &Known) -> Result<(), LedgerError> {
        while self.claim(known, iter::empty()).await?.more_due {}
        Ok(())
    }

    /// Gives back holds that are due, then decides these claims and quantities, all of `known`'s campaign, in one call.
    pub async fn claim(
        &self,
        known: &Known,
        wanted: impl Iterator<Item = (&ClaimId, u32)> + Clone,
    ) -> Result<Decided, LedgerError> {
        let mut claims = Vec::with_capacity(wanted.size_hint().0 * CLAIM_BYTES);
        for (id, quantity) in wanted.clone() {
            scripts::put_claim(&mut claims, id, quantity);
        }
        let reply = self
            .call(known, "redis:claim", &scripts::CLAIM, |call| {
                call.arg(self.backlog_max).arg(&claims[..]);
            })
            .await?;
        let quantities = wanted.map(|(_, quantity)| quantity);
        let decided = ready(known, scripts::decided(reply, &known.campaign().zone, quantities)?)?;
        known.saw(decided.reached());
        known.decided();
        if let Some(left) = decided.hold_due_in() {
            known.hold_due_in(left);
        }
        Ok(decided)
    }

    /// Confirms or returns the claim `id`; `None` when there is none.
    pub async fn settle(
        &self,
        known: &Known,
        id: &ClaimId,
        settlement: Settlement,
    ) -> Result<Option<Record>, LedgerError> {
        let verb = match settlement {
            Settlement::Confirm => "confirm",
            Settlement::Return => "return",
        };
        let reply = self
            .call(known, "redis:settle", &scripts::SETTLE, |call| {
                call.arg(verb).arg(id.user.as_str()).arg(&id.digest[..]);
            })
            .await?;
        let settled = ready(known, scripts::settled(reply)?)?;
        Ok(settled.map(|(record, events)| {
            known.saw(Reached { sequence: record.sequence, events });
            record
        }))
    }

    /// The campaign's counters, and the claim `id` as it stands.
    pub async fn find(
        &self,
        known: &Known,
        id: Option<&ClaimId>,
    ) -> Result<(Counters, Option<Record>), LedgerError> {
        let reply = self
            .call(known, "redis:find", &scripts::FIND, |call| {
                if let Some(id) = id {
                    call.arg(id.user.as_str()).arg(&id.digest[..]);
                }
            })
            .await?;
        ready(known, scripts::found(reply)?)
    }

    /// Applies the rules of `campaign`, unless Redis holds newer ones.
    pub async fn change(&self, known: &Known, campaign: &Campaign) -> Result<(), LedgerError> {
        let reply = self
            .call(known, "redis:change", &scripts::CHANGE, |call| {
                call.arg(campaign.version);
                rule_fields(call, campaign);
            })
            .await?;
        ready(known, scripts::word(reply, &["changed", "newer"])?).map(drop)
    }

    /// Acquires, prolongs or gives up a lease; `verb` as in `lock.lua`.
    pub(crate) async fn lease(
        &self,
        keys: &[String; 2],
        verb: &str,
        owner: &str,
        length: Duration,
    ) -> Result<Lease, LedgerError> {
        let mut call = scripts::LOCK.prepare_invoke();
        for key in keys {
            call.key(key);
        }
        call.arg(verb).arg(owner).arg(u64::try_from(length.as_millis()).unwrap_or(u64::MAX));
        let name = match verb {
            "acquire" => "redis:lock.acquire",
            "release" => "redis:lock.release",
            _ => "redis:lock.renew",
        };
        Ok(scripts::lease(self.run(name, &call).await?)?)
    }

    /// The most events the outbox may hold before new claims are put off.
    pub fn backlog_max(&self) -> u64 {
        self.backlog_max
    }

    /// That nothing is left of the campaign, and for how long that is certain; `None` when there is, or when another rule
    /// refuses first.
    pub async fn nothing_left(&self, known: &Known) -> Result<Option<Nothing>, LedgerError> {
        let reply = self.call(known, "redis:sold_out", &scripts::SOLD_OUT, |_| {}).await?;
        ready(known, scripts::nothing(reply)?)
    }

    /// Units taken, summed over all users' records.
    pub async fn taken_by_users(&self, keys: &Keys) -> Result<u64, LedgerError> {
        let mut sum = 0;
        self.each_user(keys, |_, record| sum += taken_ever(record)).await?;
        Ok(sum)
    }

    /// Up to some thousands of a campaign's claims and whose they are, and where to go on; some come twice. Complete for a
    /// campaign that is suspended.
    pub async fn claims_page(
        &self,
        keys: &Keys,
        at: ClaimScan,
    ) -> Result<(Vec<(UserId, Record)>, Option<ClaimScan>), LedgerError> {
        let (key, cursor) = match at {
            ClaimScan::Users(cursor) => (&keys.users, cursor),
            ClaimScan::Moved(cursor) => (&keys.claims, cursor),
        };
        let mut scan = redis::cmd("HSCAN");
        scan.arg(key).arg(cursor).arg("COUNT").arg(1000);
        let (next, page): (u64, Vec<HashEntry>) = self.query("redis:claims_page", &scan).await?;
        let page = page.iter().filter(|(field, _)| field != b".");
        let claims = match at {
            ClaimScan::Users(_) => page.flat_map(|(user, record)| record::claims_of(user, record)).collect(),
            ClaimScan::Moved(_) => page.filter_map(|(_, moved)| record::moved_claim(moved)).collect(),
        };
        let next = match (at, next) {
            (ClaimScan::Users(_), 0) => Some(ClaimScan::Moved(0)),
            (ClaimScan::Users(_), next) => Some(ClaimScan::Users(next)),
            (ClaimScan::Moved(_), 0) => None,
            (ClaimScan::Moved(_), next) => Some(ClaimScan::Moved(next)),
        };
        Ok((claims, next))
    }

    /// Shows every user's name and record, a thousand at a time; some twice. A user who comes meanwhile may be left out.
    pub async fn each_user(&self, keys: &Keys, mut see: impl FnMut(&[u8], &[u8])) -> Result<(), LedgerError> {
        let mut cursor = 0_u64;
        loop {
            let mut scan = redis::cmd("HSCAN");
            scan.arg(&keys.users).arg(cursor).arg("COUNT").arg(1000);
            let (next, page): (u64, Vec<HashEntry>) = self.query("redis:each_user", &scan).await?;
            for (user, record) in page.iter().filter(|(user, _)| user != b".") {
                see(user, record);
            }
            if next == 0 {
                return Ok(());
            }
            cursor = next;
        }
    }

    /// How many claims are held, and how many of them were due before `due_before`.
    pub async fn hold_state(&self, keys: &Keys, due_before: Timestamp) -> Result<HoldState, LedgerError> {
        let all = redis::cmd("ZCOUNT").arg(&keys.holds).arg(1).arg("+inf").to_owned();
        let held = self.query("redis:hold_state.held", &all).await?;
        let due = redis::cmd("ZCOUNT").arg(&keys.holds).arg(1).arg(due_before.as_ms()).to_owned();
        let stranded = self.query("redis:hold_state.due", &due).await?;
        Ok(HoldState { held, stranded })
    }

    /// Whether any of these keys is there, whoever's they are.
    pub async fn holds_any(&self, keys: &Keys) -> Result<bool, LedgerError> {
        Ok(self.query::<u64>("redis:holds_any", redis::cmd("EXISTS").arg(&keys.all())).await? > 0)
    }

    /// Whose a campaign's keys are, whoever asks; `None` when there are none.
    pub async fn owner(&self, keys: &Keys) -> Result<Option<KeysOwner>, LedgerError> {
        let fields =
            redis::cmd("HMGET").arg(&keys.campaign).arg(&["register_id", "token", "switch"]).to_owned();
        let [register_id, token, switch]: [Option<String>; 3] = self.query("redis:owner", &fields).await?;
        Ok(register_id.zip(token).zip(switch).map(|((register_id, token), switch)| KeysOwner {
            register_id,
            token,
            suspended: switch == "suspended",
        }))
    }

    /// The server's own id, by which it is told from every other Redis; one that has none gets one.
    pub async fn store_id(&self) -> Result<String, LedgerError> {
        let id: Option<String> = self.query("redis:store_id", redis::cmd("GET").arg(keys::STORE)).await?;
        if let Some(id) = id {
            return Ok(id);
        }
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).map_err(std::io::Error::other).map_err(RedisError::from)?;
        self.keep_store_id(&format!("{:032x}", u128::from_be_bytes(bytes))).await?;
        // Another core may have been quicker.
        self.query("redis:store_id", redis::cmd("GET").arg(keys::STORE)).await
    }

    /// Gives the server the id `id`, unless it has one.
    pub async fn keep_store_id(&self, id: &str) -> Result<(), LedgerError> {
        self.query::<Value>("redis:keep_store_id", redis::cmd("SET").arg(keys::STORE).arg(id).arg("NX"))
            .await
            .map(drop)
    }

    /// Whether Redis answers.
    pub async fn ping(&self) -> Result<(), LedgerError> {
        self.query::<Value>("redis:ping", &redis::cmd("PING")).await.map(drop)
    }

    /// Calls a script on a campaign. When another core has loaded the campaign since this one last looked into SQL, it
    /// looks there and calls again.
    async fn call(
        &self,
        known: &Known,
        name: &'static str,
        script: &Script,
        arguments: impl Fn(&mut ScriptInvocation<'_>),
    ) -> Result<Value, LedgerError> {
        let reply = self.call_resent(known, name, script, &arguments).await?;
        if !scripts::is_of_another_epoch(&reply) {
            return Ok(reply);
        }
        let campaign = known.campaign();
        match self.archive.campaign(&campaign.id).await {
            Ok(Some(now)) if now.epoch > campaign.epoch => {
                known.learn(now);
                self.call_resent(known, name, script, &arguments).await
            }
            _ => Ok(reply),
        }
    }

    /// Calls a script on a campaign. The scripts do the same thing once however often they are called, so a call
    /// whose connection broke is made again, on a new one.
    async fn call_resent(
        &self,
        known: &Known,
        name: &'static str,
        script: &Script,
        arguments: &impl Fn(&mut ScriptInvocation<'_>),
    ) -> Result<Value, LedgerError> {
        let first = self.try_call(known, name, script, arguments).await;
        if let Err(LedgerError::Unavailable(_)) = first {
            // It may have been done all the same.
            known.has_events();
        }
        match first {
            // Scripts may be lost again between their being loaded and called: nothing was done then. What cannot be
            // parsed was cut short.
            Err(LedgerError::Unavailable(error))
                if error.is_connection_dropped()
                    || error.kind() == ErrorKind::Parse
                    || error.code() == Some("NOSCRIPT") =>
            {
                self.try_call(known, name, script, arguments).await
            }
            first => first,
        }
    }

    async fn try_call(
        &self,
        known: &Known,
        name: &'static str,
        script: &Script,
        arguments: &impl Fn(&mut ScriptInvocation<'_>),
    ) -> Result<Value, LedgerError> {
        let mut session = self.link.session().await?;
        if known.checked() != session.generation {
            self.meet(known, &mut session).await?;
        }
        let mut call = invocation(script, known, &known.campaign(), &session);
        arguments(&mut call);
        self.run_on(&mut session, name, &call).await
    }

    /// Behind a new connection may be a Redis that has lost claims, or has old rules: only SQL can tell how far the
    /// campaign had come, and its rules are put into force before anything is decided by others.
    async fn meet(&self, known: &Known, session: &mut Session) -> Result<(), LedgerError> {
        if let Some(campaign) = self.archive.campaign(&known.campaign().id).await? {
            known.learn(campaign);
        }
        let campaign = known.campaign();
        let mut change = invocation(&scripts::CHANGE, known, &campaign, session);
        change.arg(campaign.version);
        rule_fields(&mut change, &campaign);
        let reply = match self.run_on(session, "redis:change", &change).await {
            // Without memory nothing is granted either; the drain still has to find its campaigns.
            Err(LedgerError::OutOfMemory(_)) => return Ok(()),
            reply => reply?,
        };
        // Not ready: whatever is called next says so too.
        if ready(known, scripts::word(reply, &["changed", "newer"])?).is_ok() {
            known.applied(campaign.version);
        }
        known.set_checked(session.generation);
        Ok(())
    }

    async fn run(&self, name: &'static str, call: &ScriptInvocation<'_>) -> Result<Value, LedgerError> {
        self.run_on(&mut self.link.session().await?, name, call).await
    }

    async fn run_on(
        &self,
        session: &mut Session,
        name: &'static str,
        call: &ScriptInvocation<'_>,
    ) -> Result<Value, LedgerError> {
        step::before(name).await;
        let reply = step::after(call.invoke_async(&mut session.connection).await);
        self.noted(reply, session.generation).await
    }

    async fn query<T: redis::FromRedisValue>(
        &self,
        name: &'static str,
        command: &redis::Cmd,
    ) -> Result<T, LedgerError> {
        let mut session = self.link.session().await?;
        step::before(name).await;
        let reply = step::after(command.query_async(&mut session.connection).await);
        self.noted(reply, session.generation).await
    }

    async fn noted<T>(&self, reply: Result<T, RedisError>, generation: u64) -> Result<T, LedgerError> {
        if let Err(error) = &reply {
            self.link.note(error, generation).await;
        }
        reply.map_err(LedgerError::of)
    }
}

/// A campaign that is not ready is for the recovery to look at.
fn ready<T>(known: &Known, reply: scripts::Ready<T>) -> Result<T, LedgerError> {
    reply.map_err(|why| {
        known.distrust();
        LedgerError::NotReady(why)
    })
}

/// A call with what every script that decides takes first: the keys, the layout, the epoch, the floor of the events, whose
/// keys they are, and which history of replication the server has. A server that was promoted since the campaign was
/// loaded has another one: what its predecessor still granted may be in SQL by now.
fn invocation<'a>(
    script: &'a Script,
    known: &Known,
    campaign: &Campaign,
    session: &Session,
) -> ScriptInvocation<'a> {
    let mut call = call_on(script, &known.keys);
    call.arg(scripts::LAYOUT).arg(campaign.epoch).arg(known.reached().events);
    call.arg(campaign.register_id.as_str()).arg(&*session.lineage);
    call
}

/// A call on a campaign's keys, without arguments yet.
fn call_on<'a>(script: &'a Script, keys: &Keys) -> ScriptInvocation<'a> {
    let mut call = script.prepare_invoke();
    for key in keys.all() {
        call.key(key);
    }
    call
}

/// The rules as fields of the campaign's hash; an empty value is "none".
fn rule_fields(call: &mut ScriptInvocation<'_>, campaign: &Campaign) {
    let calendar = campaign.zone.calendar(crate::clock::now());
    let limits = campaign.limits;
    let or_none = |number: Option<std::num::NonZeroU32>| number.map(|n| n.to_string()).unwrap_or_default();
    let switch = match campaign.switch {
        Switch::On => "on",
        Switch::Paused => "paused",
        Switch::Ended => "ended",
    };
    let ends_at = campaign.window.ends_at().map(|at| at.as_ms().to_string()).unwrap_or_default();
    let hold_ms = campaign.hold_seconds.map(|s| (u64::from(s.get()) * 1000).to_string()).unwrap_or_default();
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
