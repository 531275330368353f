//! Compares everything that Redis and SQL store for a campaign with the model.

use std::collections::{BTreeMap, BTreeSet};

use claimgate_core::domain::claim_record::ClaimRecord;
use claimgate_core::store::sql::ClaimRow;
use claimgate_shared::Timestamp;
use support::RedisView;
use support::inspect::{key, user_counters};

use super::operations::CAMPAIGN;
use super::reference::{Claim, Id, Model, View};
use super::run::same;
use super::words;

type Fields = BTreeMap<Vec<u8>, Vec<u8>>;

/// Compares the counters, every user's record, every claim and every hold in Redis.
pub async fn redis(model: &Model, redis: &RedisView) -> Result<(), String> {
    let counters = ("taken", redis.counter(CAMPAIGN, "taken").await);
    same(&("taken", model.taken), &counters)?;
    let counters = ("sequence", redis.counter(CAMPAIGN, "sequence").await);
    same(&("sequence", model.sequence), &counters)?;
    let users: Fields = redis.query(&["HGETALL", &key(CAMPAIGN, "users")]).await;
    let moved: Fields = redis.query(&["HGETALL", &key(CAMPAIGN, "claims")]).await;
    let holds: Vec<(Vec<u8>, String)> =
        redis.query(&["ZRANGE", &key(CAMPAIGN, "holds"), "0", "-1", "WITHSCORES"]).await;
    let found = claims(&users, &moved);
    same(&model.claims.len(), &found.len())?;
    for (id, claim) in &model.claims {
        match found.get(&id.1) {
            Some(record) if words::is_same(record, claim) => {}
            other => return Err(format!("{id:?}: expected {claim:?}\nfound {other:?}")),
        }
    }
    same_counters(model, &users)?;
    same_holds(model, &holds)
}

/// Returns all claims by digest: those in their users' records and those that have moved out.
fn claims(users: &Fields, moved: &Fields) -> BTreeMap<[u8; 16], ClaimRecord> {
    let inline = users
        .iter()
        .filter(|(user, _)| user != &b".")
        .flat_map(|(_, record)| record[record.len() % ClaimRecord::BYTES..].chunks(ClaimRecord::BYTES));
    let moved = moved.iter().filter(|(digest, _)| digest != &b".").map(|(_, record)| record.as_slice());
    let records = inline.chain(moved).map(|bytes| ClaimRecord::read(bytes).expect("a record"));
    records.map(|record| (record.digest, record)).collect()
}

/// Compares every user's current day, units on that day and units in total.
fn same_counters(model: &Model, users: &Fields) -> Result<(), String> {
    let owners: BTreeSet<&String> = model.claims.keys().map(|(user, _)| user).collect();
    for owner in &owners {
        let record = users.get(owner.as_bytes()).ok_or_else(|| format!("{owner} has no record"))?;
        same(&(*owner, model.counters_of(owner)), &(*owner, user_counters(record)))?;
    }
    same(&owners.len(), &(users.len() - 1))
}

fn same_holds(model: &Model, found: &[(Vec<u8>, String)]) -> Result<(), String> {
    let member = |(expires_at, (user, digest)): &(i64, Id)| {
        ([user.as_bytes(), b".", digest].concat(), expires_at.to_string())
    };
    let expected: BTreeSet<_> = model.holds.iter().map(member).collect();
    let found: BTreeSet<_> = found.iter().filter(|(member, _)| member != b".").cloned().collect();
    same(&expected, &found)
}

/// Compares every row of SQL once the outbox is relayed.
pub fn sql(model: &Model, rows: &[ClaimRow], taken: u64) -> Result<(), String> {
    same(&("rows", model.claims.len()), &("rows", rows.len()))?;
    same(&("taken in SQL", model.taken), &("taken in SQL", taken))?;
    for row in rows {
        let id = (row.claim.user_id.to_string(), row.claim.id.digest);
        let found = Claim {
            view: View {
                quantity: row.claim.quantity.get(),
                status: words::status(row.claim.status),
                sequence: row.claim.sequence,
                claimed_at: row.claim.claimed_at.as_ms(),
                expires_at: row.claim.expires_at.map(Timestamp::as_ms),
            },
            day: row.day,
            revision: u16::try_from(row.revision).expect("a revision"),
            updated_at: row.updated_at.as_ms(),
        };
        same(&(&id, model.claims.get(&id)), &(&id, Some(&found)))?;
    }
    Ok(())
}
