//! Lets both cores finish their work, and compares the callers' answers with Redis and SQL.

use std::collections::{BTreeMap, BTreeSet};

use support::inspect::{key, user_counters};
use support::sql::SqlClaim;
use support::times::now_ms;

use super::initial_state::{FORKED_USER, InitialState};
use super::node::TestCore;
use super::play::{NAMES, ScheduleRun};

/// Maximum number of rounds in which the cores alternately read the campaigns from SQL, maintain this one and
/// relay.
const ROUNDS_MAX: usize = 12;
/// Maximum number of claims by new users to use up a campaign; no campaign here has more units.
const FILL_MAX: usize = 20;

const ROW: &str = "SELECT version, epoch, total, ends_at, evicted_taken, evicted_sequence, \
    CAST(CASE WHEN evicted_at IS NULL THEN 0 ELSE 1 END AS BIGINT), \
    CAST(CASE admin_state WHEN 'on' THEN 0 WHEN 'paused' THEN 1 ELSE 2 END AS BIGINT), \
    CAST(CASE WHEN pass_required IS NULL THEN 0 ELSE 1 END AS BIGINT) FROM campaigns WHERE id = $1";

/// The campaign's row in SQL.
#[derive(Debug)]
struct Row {
    version: u64,
    epoch: u64,
    total: u64,
    evicted: Option<(u64, u64)>,
    is_paused: bool,
    is_over: bool,
    requires_pass: bool,
}

type Judged<T = ()> = Result<T, String>;

fn check(holds: bool, wrong: impl FnOnce() -> String) -> Judged {
    if holds { Ok(()) } else { Err(wrong()) }
}

/// Checks every guarantee after a schedule.
pub async fn judge(play: &ScheduleRun<'_>, nodes: &[TestCore; 2], initial: InitialState) -> Judged {
    // A core with newer data than SQL first restores that data.
    if play.forgets {
        for node in nodes {
            play.expire_leases().await;
            node.refresh().await;
            node.maintain(&play.campaign_id()).await;
        }
    } else {
        cores_agree_with_sql(play, nodes).await?;
    }
    if initial == InitialState::Behind {
        // Only an operator's repair restores rows that SQL has lost.
        settle(play, nodes).await?;
        play.log.add(format!("    repair at A: {}", play.repair(&nodes[0]).await));
    }
    settle(play, nodes).await?;
    unknown_outcomes_become_known(play, nodes).await?;
    settle(play, nodes).await?;
    let Some(row) = row(play).await else {
        check(!play.answers.get().created, || "a campaign reported as created is gone".to_owned())?;
        return check(play.keys_in_redis().await == 0, || {
            "Redis has keys of a campaign that SQL does not have".to_owned()
        });
    };
    let said = play.answers.get().version;
    check(row.version >= said, || format!("version {said} was reported in force, SQL has {}", row.version))?;
    let row = units_are_added_once(play, nodes, row).await?;
    new_callers_are_answered_by_the_rules(play, nodes, &row).await?;
    settle(play, nodes).await?;
    let rows = play.world.sql.claims(&play.id).await;
    acknowledged_claims_are_in_sql(play, &rows)?;
    limits_are_kept(play, &rows)?;
    both_stores_agree(play, &rows).await?;
    each_granted_claim_has_its_own_code(play, nodes, &rows).await?;
    events_are_delivered(play, nodes, &rows).await?;
    both_cores_agree(play, nodes).await?;
    let wrong = play.answers.get().wrong;
    check(wrong.is_empty(), || wrong.join("; "))
}

async fn row(play: &ScheduleRun<'_>) -> Option<Row> {
    let numbers = play.world.sql.numbers(ROW, &play.id).await?;
    let number = |at: usize| numbers[at].map(|number| u64::try_from(number).expect("none is negative"));
    Some(Row {
        version: number(0)?,
        epoch: number(1)?,
        total: number(2)?,
        evicted: if number(6) == Some(1) { number(4).zip(number(5)) } else { None },
        is_paused: number(7) == Some(1),
        is_over: number(7) == Some(2) || numbers[3].is_some_and(|ends_at| ends_at < now_ms()),
        requires_pass: number(8) == Some(1),
    })
}

/// Checks that a core that has just read SQL agrees with it about the campaign.
async fn cores_agree_with_sql(play: &ScheduleRun<'_>, nodes: &[TestCore; 2]) -> Judged {
    for (node, name) in nodes.iter().zip(NAMES) {
        node.refresh().await;
        let Some(row) = row(play).await else { return Ok(()) };
        let (known, is) = (node.has_evicted(&play.campaign_id()), row.evicted.is_some());
        check(known == is, || {
            format!("{name} has just read SQL and reports evicted: {known}, SQL has evicted: {is}")
        })?;
    }
    Ok(())
}

/// Runs the cores' background work until nothing is left to do.
async fn settle(play: &ScheduleRun<'_>, nodes: &[TestCore; 2]) -> Judged {
    let mut why = String::new();
    for round in 0..ROUNDS_MAX {
        match is_settled(play, nodes).await {
            Ok(()) => return Ok(()),
            Err(not_yet) => why = not_yet,
        }
        let (node, name) = (&nodes[round % 2], NAMES[round % 2]);
        play.expire_leases().await;
        let refreshed = node.refresh().await;
        let maintained = node.maintain(&play.campaign_id()).await;
        let relayed = node.relay().await;
        play.log.add(format!(
            "    settling {name}: refresh {refreshed}, maintain {maintained}, relay {relayed}, because {why}"
        ));
    }
    Err(format!("not settled after {ROUNDS_MAX} rounds: {why}"))
}

async fn is_settled(play: &ScheduleRun<'_>, nodes: &[TestCore; 2]) -> Judged {
    let keys = play.keys_in_redis().await;
    let Some(row) = row(play).await else {
        return check(keys == 0, || "no campaign in SQL, but keys in Redis".to_owned());
    };
    let known = nodes.each_ref().map(|node| node.has_evicted(&play.campaign_id()));
    check(known == [row.evicted.is_some(); 2], || {
        format!("A and B report evicted: {known:?}, SQL has evicted: {:?}", row.evicted)
    })?;
    if row.evicted.is_some() {
        return check(keys == 0, || format!("evicted, but {keys} keys are still in Redis"));
    }
    let all = play.keys().len() as u64;
    check(keys == all, || format!("{keys} of {all} keys are in Redis"))?;
    let phase = play.phase().await;
    check(phase == "open", || format!("the phase in Redis is {phase}"))?;
    let state = play.world.redis.state(&play.id).await.ok_or("there is no state in Redis")?;
    for (name, in_sql) in [("epoch", row.epoch), ("version", row.version)] {
        check(state[name] == in_sql, || format!("Redis has {name} {}, SQL {in_sql}", state[name]))?;
    }
    let loaded_epoch = state["loaded_epoch"];
    // The epochs may differ after a promoted server was adopted, or after a suspension was lifted.
    check(loaded_epoch <= row.epoch, || format!("loaded in epoch {loaded_epoch}, SQL has {}", row.epoch))?;
    check(state["admin_state"] <= 3, || "suspended".to_owned())?;
    let entries = play.world.redis.outbox_entries(&play.id).await;
    check((entries, state["backlog"]) == (1, 0), || {
        format!("{entries} entries in the outbox including the epoch marker, backlog {}", state["backlog"])
    })?;
    let held: u64 = play.world.redis.query(&["ZCARD", &key(&play.id, "holds")]).await;
    check(!row.is_over || held > 1, || "ended and without holds, but not evicted".to_owned())?;
    for (node, name) in nodes.iter().zip(NAMES) {
        let view = play.view(node).await.body;
        check(view["ready"] == true, || format!("{name} is not ready"))?;
    }
    Ok(())
}

/// Callers without an outcome retry with the same key, at each core.
async fn unknown_outcomes_become_known(play: &ScheduleRun<'_>, nodes: &[TestCore; 2]) -> Judged {
    for user in play.answers.get().unknown {
        let [a, b] = nodes;
        let replies = [
            play.until_in_time(async || play.claim(a, &user).await).await,
            play.until_in_time(async || play.claim(b, &user).await).await,
        ];
        check(replies.iter().all(|reply| reply.status != 503), || {
            format!("once settled, {user} gets {} and {}", replies[0].brief(), replies[1].brief())
        })?;
    }
    Ok(())
}

/// Checks that resending a successful addition does not add its units twice.
async fn units_are_added_once(play: &ScheduleRun<'_>, nodes: &[TestCore; 2], row: Row) -> Judged<Row> {
    if !play.answers.get().added {
        return Ok(row);
    }
    let reply = play.add(&nodes[1]).await;
    let now = self::row(play).await.ok_or("the campaign is gone")?;
    check(now.total == row.total || reply.code() == "campaign_ended", || {
        format!("the total was {}, but {} after the same addition: {}", row.total, now.total, reply.brief())
    })?;
    Ok(now)
}

/// Checks that new callers, at both cores alternately, are granted claims until no units are left, or that both
/// cores deny them by the same rule.
async fn new_callers_are_answered_by_the_rules(
    play: &ScheduleRun<'_>,
    nodes: &[TestCore; 2],
    row: &Row,
) -> Judged {
    let active = || async {
        let claims = play.world.sql.claims(&play.id).await;
        claims.iter().filter(|claim| claim.is_active()).map(|claim| claim.quantity).sum::<u64>()
    };
    let mut left = row.total.saturating_sub(active().await);
    let (mut heard, mut refusals) = (0, 0);
    while refusals < 2 && heard < FILL_MAX {
        let at = heard % 2;
        nodes[at].forget(&play.campaign_id());
        let user = play.new_user();
        let reply = play.until_in_time(async || play.claim(&nodes[at], &user).await).await;
        let expected = match row {
            Row { is_paused: true, .. } => (403, "paused"),
            Row { is_over: true, .. } => (403, "ended"),
            _ if left > 0 => (201, ""),
            _ => (409, "sold_out"),
        };
        // 200 if a repeated call finds the claim of the first.
        let status = if reply.status == 200 { 201 } else { reply.status };
        check((status, reply.code()) == expected, || {
            format!(
                "after settling with {left} units left, a new caller at {} gets {}",
                NAMES[at],
                reply.brief()
            )
        })?;
        left -= u64::from(status == 201);
        refusals += usize::from(status != 201);
        heard += 1;
    }
    if left > 0 && !row.requires_pass {
        return Ok(());
    }
    for (node, name) in nodes.iter().zip(NAMES) {
        let user = play.new_user();
        let reply = play.until_in_time(async || play.visit_without_pass(node, &user).await).await;
        let expected = match row {
            Row { is_paused: true, .. } => (403, "paused"),
            Row { is_over: true, .. } => (403, "ended"),
            Row { requires_pass: true, .. } => (403, "pass_required"),
            _ => (409, "sold_out"),
        };
        check((reply.status, reply.code()) == expected, || {
            format!("after settling, a visitor without a pass at {name} gets {}", reply.brief())
        })?;
    }
    Ok(())
}

/// Checks that SQL has each acknowledged claim as it was reported to its caller, and counts no other claim.
fn acknowledged_claims_are_in_sql(play: &ScheduleRun<'_>, rows: &[SqlClaim]) -> Judged {
    let answers = play.answers.get();
    let by_id: BTreeMap<&str, &SqlClaim> = rows.iter().map(|row| (row.id.as_str(), row)).collect();
    for (user, claim) in &answers.claims {
        let row = by_id.get(claim.id.as_str());
        let revoked = row.is_some_and(|row| row.status == "revoked");
        // If there are two histories, only SQL has the other history, and may have revoked or lost claims of
        // that history.
        let is_forgotten = play.forgets && row.is_none();
        if answers.lost.contains(&claim.id) || answers.forked && (revoked || is_forgotten) {
            continue;
        }
        let Some(row) = row.filter(|row| row.sequence == claim.sequence && row.quantity == 1) else {
            let sequence = claim.sequence;
            return Err(format!("{user} got sequence {sequence}, SQL has {row:?}"));
        };
        let transitions = answers.transitions.get(&claim.id).copied().unwrap_or_default();
        let may_be: &[&str] = match (transitions.returned, transitions.return_asked, transitions.confirmed) {
            (true, ..) => &["returned"],
            (false, true, true) => &["granted", "returned"],
            (false, true, false) => &["granted", "held", "returned"],
            (false, false, true) => &["granted"],
            (false, false, false) => &["granted", "held"],
        };
        check(may_be.contains(&row.status.as_str()), || {
            format!("the claim of {user} must be {may_be:?}, SQL has {row:?}")
        })?;
        let until = transitions.extended_until;
        check(row.status != "held" || until <= row.expires_at, || {
            format!("the claim of {user} was held until {until:?}, SQL has {row:?}")
        })?;
    }
    let acknowledged: BTreeSet<&str> = answers.claims.values().map(|claim| claim.id.as_str()).collect();
    for row in rows.iter().filter(|row| row.is_active()) {
        check(acknowledged.contains(row.id.as_str()), || {
            format!("SQL has {row:?}, which no caller received")
        })?;
    }
    Ok(())
}

fn limits_are_kept(play: &ScheduleRun<'_>, rows: &[SqlClaim]) -> Judged {
    let active: Vec<&SqlClaim> = rows.iter().filter(|row| row.is_active()).collect();
    let (units, most) = (active.iter().map(|row| row.quantity).sum::<u64>(), play.answers.get());
    let most = most.total_max + most.units_asked;
    check(units <= most, || format!("{units} units are granted, at most {most} exist"))?;
    let mut sequences = BTreeMap::new();
    for row in rows.iter().filter(|row| row.status != "revoked") {
        let other = sequences.insert(row.sequence, row);
        check(other.is_none(), || format!("a sequence number occurs twice: {row:?} and {other:?}"))?;
    }
    Ok(())
}

/// Checks that each granted claim gets a code once there are enough, that no two claims have the same, and
/// that both cores show it.
async fn each_granted_claim_has_its_own_code(
    play: &ScheduleRun<'_>,
    nodes: &[TestCore; 2],
    rows: &[SqlClaim],
) -> Judged {
    if !play.codes {
        return Ok(());
    }
    play.settled(&nodes[0], async || play.add_codes(&nodes[0], 200..240).await).await;
    let given = nodes[0].engine.claims.give_pending_codes().await;
    check(given.is_ok(), || format!("codes cannot be given: {given:?}"))?;
    let mut owners: BTreeMap<String, &str> = BTreeMap::new();
    for row in rows.iter().filter(|row| row.status == "granted") {
        let [at_a, at_b] = [play.codes_of(&nodes[0], &row.id).await, play.codes_of(&nodes[1], &row.id).await];
        let Some([code]) = at_a.as_deref() else {
            return Err(format!("{} has the codes {at_a:?}", row.id));
        };
        check(at_a == at_b, || format!("A shows {at_a:?} for {}, B {at_b:?}", row.id))?;
        if let Some(other) = owners.insert(code.clone(), &row.id) {
            return Err(format!("{} and {other} have the same code {code}", row.id));
        }
    }
    let numbered = "SELECT COUNT(*) FROM claims WHERE campaign_id = $1 AND status = 'revoked' AND first_code IS NOT NULL";
    let numbered = play.world.sql.number(numbered, &play.id).await;
    check(numbered == 0, || format!("{numbered} revoked claims have codes"))?;
    // A code that was seen is void once its claim is returned.
    for (id, codes) in play.answers.get().codes {
        let taken = codes.iter().find_map(|code| owners.get(code)).filter(|owner| **owner != id);
        let is_lost = play.answers.get().lost.contains(&id);
        check(taken.is_none() || is_lost, || format!("{taken:?} has a code that {id} was shown"))?;
    }
    Ok(())
}

/// Checks that Redis' counters, in total and per user, match SQL's rows. For an evicted campaign the stored
/// result must match.
async fn both_stores_agree(play: &ScheduleRun<'_>, rows: &[SqlClaim]) -> Judged {
    let row = row(play).await.ok_or("the campaign is gone")?;
    let active: Vec<&SqlClaim> = rows.iter().filter(|row| row.is_active()).collect();
    let units: u64 = active.iter().map(|row| row.quantity).sum();
    if let Some((taken, sequence)) = row.evicted {
        let last = rows.iter().map(|row| row.sequence).max().unwrap_or(0);
        return check(taken == units && sequence >= last, || {
            format!("evicted with {taken} taken and sequence {sequence}, SQL has {units} and {last}")
        });
    }
    let taken = play.world.redis.counter(&play.id, "taken").await;
    check(taken == units, || format!("Redis counts {taken} taken, SQL has {units}"))?;
    let records: BTreeMap<String, Vec<u8>> =
        play.world.redis.query(&["HGETALL", &key(&play.id, "users")]).await;
    let mut of_users: BTreeMap<&str, u64> = BTreeMap::new();
    for row in &active {
        *of_users.entry(&row.user_id).or_default() += row.quantity;
    }
    for (user, record) in records.iter().filter(|(user, _)| *user != ".") {
        let ((_, _, ever), in_sql) = (user_counters(record), of_users.remove(user.as_str()).unwrap_or(0));
        check(ever == in_sql, || format!("Redis counts {ever} for {user}, SQL has {in_sql}"))?;
    }
    check(of_users.is_empty(), || format!("Redis has no record of {of_users:?}"))?;
    let holds: u64 = play.world.redis.query(&["ZCARD", &key(&play.id, "holds")]).await;
    let due = play.world.redis.due_holds(&play.id).await;
    let due: Vec<Option<i64>> = due.into_iter().map(|(_, expires_at)| Some(expires_at)).collect();
    let held = rows.iter().filter(|row| row.status == "held");
    let mut held: Vec<Option<i64>> = held.map(|row| row.expires_at).collect();
    held.sort_unstable();
    check(due == held && holds == held.len() as u64 + 1, || {
        format!("Redis has {holds} holds including the epoch marker, due {due:?}; SQL has {held:?}")
    })
}

/// Delivers all events, at both cores alternately. Checks that the receiver got each claim in the state that SQL has.
async fn events_are_delivered(play: &ScheduleRun<'_>, nodes: &[TestCore; 2], rows: &[SqlClaim]) -> Judged {
    let Some(id) = play.webhook.get() else { return Ok(()) };
    let pending = "SELECT COUNT(*) FROM webhook_events WHERE webhook_id = $1";
    let mut left = String::new();
    for round in 0..ROUNDS_MAX {
        play.expire_leases().await;
        // If the machine stalls, a delivery fails, and core retries it only after seconds.
        play.world.sql.run("UPDATE webhook_events SET next_at = 0".to_owned()).await;
        let delivered = nodes[round % 2].deliver(id).await;
        let pending = play.world.sql.number(pending, id).await;
        if delivered == Ok(0) && pending == 0 {
            return events_match(play, rows).await;
        }
        left = format!("{delivered:?} delivered by {}, {pending} pending", NAMES[round % 2]);
        play.log.add(format!("    {left}"));
    }
    Err(format!("events are left after {ROUNDS_MAX} rounds: {left}"))
}

async fn events_match(play: &ScheduleRun<'_>, rows: &[SqlClaim]) -> Judged {
    let receiver = play.world.receiver().await;
    for row in rows.iter().filter(|row| row.user_id != FORKED_USER) {
        let states = receiver.states_of(&row.id);
        check(states.contains(&(row.status.clone(), row.revision)), || {
            format!("SQL has {row:?}, the receiver got only {states:?}")
        })?;
    }
    Ok(())
}

/// Checks that both cores are ready and show admins the same campaign.
async fn both_cores_agree(play: &ScheduleRun<'_>, nodes: &[TestCore; 2]) -> Judged {
    let [mut a, mut b] = [play.view(&nodes[0]).await.body, play.view(&nodes[1]).await.body];
    for view in [&mut a, &mut b] {
        check(view["ready"] == true, || format!("not ready: {view}"))?;
        view["server_time"].take();
    }
    check(a == b, || format!("A shows {a}\nB shows {b}"))
}
