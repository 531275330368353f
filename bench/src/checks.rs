//! What must hold after every measurement, or there are no figures.

use anyhow::ensure;
use support::RedisView;
use support::inspect::key;
use support::sql::Sql;

use crate::redis::ask;

/// Whether `granted`, as callers counted it, is what Redis has taken and what SQL has rows for, and whether their
/// sequences are 1 to `granted`, each once. Every claim is of one unit, and the outbox is empty.
pub async fn exact(campaign: &str, granted: u64, view: &RedisView, sql: &Sql) -> anyhow::Result<()> {
    let taken: u64 = ask(view, &["HGET", &key(campaign, "campaign"), "taken"]).await?;
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
    let text: Option<String> = ask(view, &["HGET", &key(campaign, "campaign"), "backlog"]).await?;
    Ok(text.and_then(|text| text.parse().ok()).unwrap_or(0))
}
