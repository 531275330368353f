//! What must hold after every measurement, or there are no figures.

use anyhow::ensure;
use support::RedisView;
use support::inspect::{key, numbers};
use support::sql::Sql;

use crate::redis::ask;

/// Whether `granted`, as callers counted it, is what Redis has taken and what SQL has rows for, and whether their
/// sequences are 1 to `granted`, each once. Every claim is of one unit, and the outbox is empty.
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

/// Events of a campaign that wait for SQL.
pub async fn backlog(view: &RedisView, campaign: &str) -> anyhow::Result<u64> {
    counter(view, campaign, "backlog").await
}

/// A number of a campaign's state; 0 without one.
async fn counter(view: &RedisView, campaign: &str, field: &str) -> anyhow::Result<u64> {
    let state: Option<Vec<u8>> = ask(view, &["HGET", &key(campaign, "users"), "."]).await?;
    Ok(state.and_then(|state| numbers(&state)?.get(field).copied()).unwrap_or(0))
}
