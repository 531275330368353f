//! The judge: brings both cores to rest, and compares what callers were told with what Redis and SQL hold.

use std::collections::{BTreeMap, BTreeSet};

use support::inspect::{key, user_counters};
use support::sql::SqlClaim;
use support::times::now_ms;

use super::initial_state::InitialState;
use super::node::Node;
use super::play::{NAMES, Play};

/// Rounds in which a core reads the campaigns from SQL, maintains this one and relays, both in turn.
const ROUNDS_MAX: usize = 12;
/// Claims by new users until nothing is left; no campaign here has more.
const FILL_MAX: usize = 20;

const ROW: &str = "SELECT version, epoch, total, ends_at, evicted_taken, evicted_sequence, \
    CAST(CASE WHEN evicted_at IS NULL THEN 0 ELSE 1 END AS BIGINT), \
    CAST(CASE admin_state WHEN 'on' THEN 0 WHEN 'paused' THEN 1 ELSE 2 END AS BIGINT) FROM campaigns WHERE id = $1";

/// The campaign's row in SQL.
#[derive(Debug)]
struct Row {
    version: u64,
    epoch: u64,
    total: u64,
    evicted: Option<(u64, u64)>,
    is_paused: bool,
    is_over: bool,
}

type Judged<T = ()> = Result<T, String>;

fn check(holds: bool, wrong: impl FnOnce() -> String) -> Judged {
    if holds { Ok(()) } else { Err(wrong()) }
}

/// Everything that must hold after any schedule.
pub async fn judge(play: &Play<'_>, nodes: &[Node; 2], initial: InitialState) -> Judged {
    // A core that knows more than SQL does has it written again first.
    if play.forgets {
        for node in nodes {
            play.expire_leases().await;
            node.refresh().await;
            node.maintain(&play.campaign_id()).await;
        }
    } else {
        what_cores_know_is_what_sql_says(play, nodes).await?;
    }
    if initial == InitialState::Behind {
        // Nothing but an operator's repair is promised to bring rows back that SQL has lost.
        rest(play, nodes).await?;
        play.log.add(format!("    repair at A: {}", play.repair(&nodes[0]).await));
    }
    rest(play, nodes).await?;
    unknown_outcomes_become_known(play, nodes).await?;
    rest(play, nodes).await?;
    let Some(row) = row(play).await else {
        check(!play.told.get().created, || "a campaign that was said to be created is gone".to_owned())?;
        return check(play.keys_there().await == 0, || "Redis has keys that SQL knows nothing of".to_owned());
    };
    let said = play.told.get().version;
    check(row.version >= said, || {
        format!("version {said} was said to be in force, SQL has {}", row.version)
    })?;
    let row = units_are_added_once(play, nodes, row).await?;
    new_callers_hear_what_the_rules_say(play, nodes, &row).await?;
    rest(play, nodes).await?;
    let rows = play.world.sql.claims(&play.id).await;
    all_told_is_there(play, &rows)?;
    limits_are_kept(play, &rows)?;
    both_stores_agree(play, &rows).await?;
    both_cores_agree(play, nodes).await?;
    let wrong = play.told.get().wrong;
    check(wrong.is_empty(), || wrong.join("; "))
}

async fn row(play: &Play<'_>) -> Option<Row> {
    let numbers = play.world.sql.numbers(ROW, &play.id).await?;
    let number = |at: usize| numbers[at].map(|number| u64::try_from(number).expect("none is negative"));
    Some(Row {
        version: number(0)?,
        epoch: number(1)?,
        total: number(2)?,
        evicted: if number(6) == Some(1) { number(4).zip(number(5)) } else { None },
        is_paused: number(7) == Some(1),
        is_over: number(7) == Some(2) || numbers[3].is_some_and(|ends_at| ends_at < now_ms()),
    })
}

/// A core that has just read SQL says of the campaign what SQL says.
async fn what_cores_know_is_what_sql_says(play: &Play<'_>, nodes: &[Node; 2]) -> Judged {
    for (node, name) in nodes.iter().zip(NAMES) {
        node.refresh().await;
        let Some(row) = row(play).await else { return Ok(()) };
        let (known, is) = (node.has_evicted(&play.campaign_id()), row.evicted.is_some());
        check(known == is, || {
            format!("{name} has just read SQL and says evicted: {known}, SQL says evicted: {is}")
        })?;
    }
    Ok(())
}

/// What cores do by themselves, until nothing is left to do.
async fn rest(play: &Play<'_>, nodes: &[Node; 2]) -> Judged {
    let mut why = String::new();
    for round in 0..ROUNDS_MAX {
        match at_rest(play, nodes).await {
            Ok(()) => return Ok(()),
            Err(not_yet) => why = not_yet,
        }
        let (node, name) = (&nodes[round % 2], NAMES[round % 2]);
        play.expire_leases().await;
        let refreshed = node.refresh().await;
        let maintained = node.maintain(&play.campaign_id()).await;
        let relayed = node.relay().await;
        play.log.add(format!(
            "    at rest, {name}: refresh {refreshed}, maintain {maintained}, relay {relayed}, since {why}"
        ));
    }
    Err(format!("not at rest after {ROUNDS_MAX} rounds: {why}"))
}

async fn at_rest(play: &Play<'_>, nodes: &[Node; 2]) -> Judged {
    let keys = play.keys_there().await;
    let Some(row) = row(play).await else {
        return check(keys == 0, || "no campaign in SQL, but keys in Redis".to_owned());
    };
    let known = nodes.each_ref().map(|node| node.has_evicted(&play.campaign_id()));
    check(known == [row.evicted.is_some(); 2], || {
        format!("A and B say evicted: {known:?}, SQL says evicted: {:?}", row.evicted)
    })?;
    if row.evicted.is_some() {
        return check(keys == 0, || format!("evicted, but {keys} keys are still in Redis"));
    }
    check(keys == 5, || format!("{keys} of 5 keys are in Redis"))?;
    let phase = play.phase().await;
    check(phase == "open", || format!("Redis says {phase}"))?;
    let state = play.world.redis.state(&play.id).await.ok_or("there is no state in Redis")?;
    for (name, in_sql) in [("epoch", row.epoch), ("version", row.version)] {
        check(state[name] == in_sql, || format!("Redis has {name} {}, SQL {in_sql}", state[name]))?;
    }
    let loaded_epoch = state["loaded_epoch"];
    // It may have gone on as it was, on a promoted server or after a suspension that came to nothing.
    check(loaded_epoch <= row.epoch, || format!("loaded in epoch {loaded_epoch}, SQL has {}", row.epoch))?;
    check(state["admin_state"] <= 3, || "suspended".to_owned())?;
    let entries = play.world.redis.outbox_entries(&play.id).await;
    check((entries, state["backlog"]) == (1, 0), || {
        format!("{entries} entries in the outbox with the sentinel, backlog {}", state["backlog"])
    })?;
    let held: u64 = play.world.redis.query(&["ZCARD", &key(&play.id, "holds")]).await;
    check(!row.is_over || held > 1, || "over and without holds, but not evicted".to_owned())?;
    for (node, name) in nodes.iter().zip(NAMES) {
        let view = play.view(node).await.body;
        check(view["ready"] == true, || format!("{name} is not ready"))?;
    }
    Ok(())
}

/// Callers without an outcome ask again with the same key, at either core.
async fn unknown_outcomes_become_known(play: &Play<'_>, nodes: &[Node; 2]) -> Judged {
    for user in play.told.get().unknown {
        let replies = [play.claim(&nodes[0], &user).await, play.claim(&nodes[1], &user).await];
        check(replies.iter().all(|reply| reply.status != 503), || {
            format!("at rest, {user} hears {} and {}", replies[0].brief(), replies[1].brief())
        })?;
    }
    Ok(())
}

/// An addition that was answered with success is not made again when it is sent again.
async fn units_are_added_once(play: &Play<'_>, nodes: &[Node; 2], row: Row) -> Judged<Row> {
    if !play.told.get().added {
        return Ok(row);
    }
    let reply = play.add(&nodes[1]).await;
    let now = self::row(play).await.ok_or("the campaign is gone")?;
    check(now.total == row.total || reply.code() == "campaign_ended", || {
        format!("the total was {}, and after the same addition {}: {}", row.total, now.total, reply.brief())
    })?;
    Ok(now)
}

/// New callers, at both cores in turn, win until nothing is left, or hear what the rules say, at both alike.
async fn new_callers_hear_what_the_rules_say(play: &Play<'_>, nodes: &[Node; 2], row: &Row) -> Judged {
    let standing = || async {
        let claims = play.world.sql.claims(&play.id).await;
        claims.iter().filter(|claim| claim.stands()).map(|claim| claim.quantity).sum::<u64>()
    };
    let mut left = row.total.saturating_sub(standing().await);
    let (mut heard, mut refusals) = (0, 0);
    while refusals < 2 && heard < FILL_MAX {
        let at = heard % 2;
        nodes[at].forget(&play.campaign_id());
        let reply = play.claim(&nodes[at], &play.new_user()).await;
        let expected = match row {
            Row { is_paused: true, .. } => (403, "paused"),
            Row { is_over: true, .. } => (403, "ended"),
            _ if left > 0 => (201, ""),
            _ => (409, "sold_out"),
        };
        check((reply.status, reply.code()) == expected, || {
            format!("at rest, with {left} left, a new caller at {} hears {}", NAMES[at], reply.brief())
        })?;
        left -= u64::from(reply.status == 201);
        refusals += usize::from(reply.status != 201);
        heard += 1;
    }
    Ok(())
}

/// Each acknowledged claim is in SQL as its caller knows it, and nothing else stands there.
fn all_told_is_there(play: &Play<'_>, rows: &[SqlClaim]) -> Judged {
    let told = play.told.get();
    let by_id: BTreeMap<&str, &SqlClaim> = rows.iter().map(|row| (row.id.as_str(), row)).collect();
    for (user, claim) in &told.claims {
        let row = by_id.get(claim.id.as_str());
        let revoked = row.is_some_and(|row| row.status == "revoked");
        // Of two histories, SQL alone has the other one, and whose claims it has revoked.
        let is_forgotten = play.forgets && row.is_none();
        if told.lost.contains(&claim.id) || told.forked && (revoked || is_forgotten) {
            continue;
        }
        let Some(row) = row.filter(|row| row.sequence == claim.sequence && row.quantity == 1) else {
            let sequence = claim.sequence;
            return Err(format!("{user} was told sequence {sequence}, SQL has {row:?}"));
        };
        let transitions = told.transitions.get(&claim.id).copied().unwrap_or_default();
        let may_be: &[&str] = match (transitions.returned, transitions.return_asked, transitions.confirmed) {
            (true, ..) => &["returned"],
            (false, true, true) => &["granted", "returned"],
            (false, true, false) => &["granted", "held", "returned"],
            (false, false, true) => &["granted"],
            (false, false, false) => &["granted", "held"],
        };
        check(may_be.contains(&row.status.as_str()), || {
            format!("{user} was told that the claim is {may_be:?}, SQL has {row:?}")
        })?;
    }
    let acknowledged: BTreeSet<&str> = told.claims.values().map(|claim| claim.id.as_str()).collect();
    for row in rows.iter().filter(|row| row.stands()) {
        check(acknowledged.contains(row.id.as_str()), || format!("SQL holds {row:?}, which no caller has"))?;
    }
    Ok(())
}

fn limits_are_kept(play: &Play<'_>, rows: &[SqlClaim]) -> Judged {
    let standing: Vec<&SqlClaim> = rows.iter().filter(|row| row.stands()).collect();
    let (units, most) = (standing.iter().map(|row| row.quantity).sum::<u64>(), play.told.get());
    let most = most.total_max + most.units_asked;
    check(units <= most, || format!("{units} units of {most} are given"))?;
    let mut sequences = BTreeMap::new();
    for row in rows.iter().filter(|row| row.status != "revoked") {
        let other = sequences.insert(row.sequence, row);
        check(other.is_none(), || format!("one sequence twice: {row:?} and {other:?}"))?;
    }
    Ok(())
}

/// Redis' counters, in total and user by user, are what SQL's rows sum up to; or what was left of them, once evicted.
async fn both_stores_agree(play: &Play<'_>, rows: &[SqlClaim]) -> Judged {
    let row = row(play).await.ok_or("the campaign is gone")?;
    let standing: Vec<&SqlClaim> = rows.iter().filter(|row| row.stands()).collect();
    let units: u64 = standing.iter().map(|row| row.quantity).sum();
    if let Some((taken, sequence)) = row.evicted {
        let last = rows.iter().map(|row| row.sequence).max().unwrap_or(0);
        return check(taken == units && sequence >= last, || {
            format!("evicted with {taken} taken and sequence {sequence}, SQL holds {units} and {last}")
        });
    }
    let taken = play.world.redis.counter(&play.id, "taken").await;
    check(taken == units, || format!("Redis counts {taken} taken, SQL holds {units}"))?;
    let records: BTreeMap<String, Vec<u8>> =
        play.world.redis.query(&["HGETALL", &key(&play.id, "users")]).await;
    let mut of_users: BTreeMap<&str, u64> = BTreeMap::new();
    for row in &standing {
        *of_users.entry(&row.user_id).or_default() += row.quantity;
    }
    for (user, record) in records.iter().filter(|(user, _)| *user != ".") {
        let ((_, _, ever), in_sql) = (user_counters(record), of_users.remove(user.as_str()).unwrap_or(0));
        check(ever == in_sql, || format!("Redis counts {ever} for {user}, SQL holds {in_sql}"))?;
    }
    check(of_users.is_empty(), || format!("Redis has no record of {of_users:?}"))?;
    let holds: u64 = play.world.redis.query(&["ZCARD", &key(&play.id, "holds")]).await;
    let held = rows.iter().filter(|row| row.status == "held").count() as u64;
    check(holds == held + 1, || format!("Redis has {holds} holds with the sentinel, SQL {held}"))
}

/// Both cores show admins the same, and are ready.
async fn both_cores_agree(play: &Play<'_>, nodes: &[Node; 2]) -> Judged {
    let [mut a, mut b] = [play.view(&nodes[0]).await.body, play.view(&nodes[1]).await.body];
    for view in [&mut a, &mut b] {
        check(view["ready"] == true, || format!("not ready: {view}"))?;
        view["server_time"].take();
    }
    check(a == b, || format!("A shows {a}\nB shows {b}"))
}
