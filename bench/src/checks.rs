//! Checks after every measurement. If one fails, the run has no figures.

use anyhow::ensure;
use support::RedisView;
use support::inspect::{key, numbers};
use support::sql::Sql;

use crate::redis::query;

/// Checks that Redis' counter and the rows in SQL equal `granted`, and that each sequence number from 1 to
/// `granted` occurs once. Every claim must be for one unit, and the outbox empty.
pub async fn exact(campaign: &str, granted: u64, view: &RedisView, sql: &Sql) -> anyhow::Result<()> {
    let taken = counter(view, campaign, "taken").await?;
    ensure!(taken == granted, "{campaign}: callers were granted {granted}, Redis has taken {taken}");
    let number = |query| sql.number(query, campaign);
    let rows = number("SELECT COUNT(*) FROM claims WHERE campaign_id = $1 AND status = 'granted'").await;
    let all = number("SELECT COUNT(*) FROM claims WHERE campaign_id = $1").await;
    ensure!(
        u64::try_from(rows).ok() == Some(granted) && all == rows,
        "{campaign}: callers were granted {granted}, SQL has {rows} granted of {all} rows"
    );
    let different = number(
        "SELECT COUNT(*) FROM (SELECT DISTINCT sequence FROM claims WHERE campaign_id = $1 AND status <> 'revoked') AS s",
    )
    .await;
    let first = number("SELECT COALESCE(MIN(sequence), 1) FROM claims WHERE campaign_id = $1").await;
    let last = number("SELECT COALESCE(MAX(sequence), 0) FROM claims WHERE campaign_id = $1").await;
    ensure!(
        (first, last, different) == (1, rows, rows),
        "{campaign}: {rows} claims have {different} sequences from {first} to {last}"
    );
    Ok(())
}

/// Returns the number of events that SQL does not have yet.
pub async fn backlog(view: &RedisView, campaign: &str) -> anyhow::Result<u64> {
    counter(view, campaign, "backlog").await
}

/// Returns a counter of a campaign's state, or 0 if there is none.
async fn counter(view: &RedisView, campaign: &str, field: &str) -> anyhow::Result<u64> {
    let state: Option<Vec<u8>> = query(view, &["HGET", &key(campaign, "users"), "."]).await?;
    Ok(state.and_then(|state| numbers(&state)?.get(field).copied()).unwrap_or(0))
}
