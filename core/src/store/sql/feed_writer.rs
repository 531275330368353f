//! Writes the feed: as its last statements, a transaction records which claims it changed.

use std::io;

use serde::Serialize;

use super::numbers::to_i64;
use super::pool::Transaction;
use super::{SqlError, SqlStore};

/// Maximum number of claims in a row. This limit keeps most rows below 2,000 bytes, above which PostgreSQL
/// compresses a string; compression would cost more than the rest of this module.
const CLAIMS_MAX: usize = 32;

/// Reserves the numbers of the next rows. The single row of this table stays locked until the commit.
const TAKE_NUMBERS: &str = "UPDATE feed_position SET last_number = last_number + $1";

/// Minimum number of skipped numbers after a loss: more than the number of rows that a lagging standby can lack.
const SKIPPED_MIN: u64 = 1 << 32;

/// Adds rows to the feed. The first element of each row is the number of rows after it.
const ADD: &str = "INSERT INTO feed (number, campaign_id, claims) \
    SELECT last_number - CAST(value->>0 AS BIGINT), value->>1, value->>2 FROM feed_position, {rows}";

/// A row of the feed: the number of rows after it, the campaign, and its changed claims.
#[derive(Debug, Serialize)]
pub(super) struct FeedRow<'a>(usize, &'a str, String);

/// Returns the feed rows for `claims`, which are given by campaign, user and digest, and grouped by campaign.
pub(super) fn feed_rows<'a>(claims: &[(&'a str, &str, &str)]) -> Vec<FeedRow<'a>> {
    let of_campaigns = claims.chunk_by(|one, next| one.0 == next.0);
    let parts: Vec<_> = of_campaigns.flat_map(|claims| claims.chunks(CLAIMS_MAX)).collect();
    let row = |(after, part): (usize, &&[(&'a str, &str, &str)])| {
        let keys: Vec<_> = part.iter().map(|(_, user, digest)| format!("{user}.{digest}")).collect();
        FeedRow(after, part[0].0, keys.join(" "))
    };
    (0..parts.len()).rev().zip(&parts).map(row).collect()
}

impl SqlStore {
    /// Appends `rows` to the feed and commits `transaction`. Call it last: until the commit, `transaction`
    /// holds the lock of the feed, which blocks all other transactions that write claims.
    pub(super) async fn commit_with_feed(
        &self,
        mut transaction: Transaction,
        rows: &[FeedRow<'_>],
    ) -> Result<(), SqlError> {
        if !rows.is_empty() {
            sqlx::query(TAKE_NUMBERS).bind(to_i64(rows.len() as u64)).execute(&mut transaction.lease).await?;
            self.with_rows(ADD, rows, rows.len()).execute(&mut transaction.lease).await?;
        }
        Ok(transaction.commit().await?)
    }

    /// Skips numbers of the feed, so that no new row gets the number of a row that the database has lost. A cursor to
    /// a lost row is then rejected. The length of the skip is random: if the database loses the skip too, the next skip
    /// must not end at the same number.
    pub(crate) async fn skip_feed_numbers(&self) -> Result<(), SqlError> {
        let random = getrandom::u32().map_err(io::Error::other).map_err(sqlx::Error::from)?;
        let query = sqlx::query(TAKE_NUMBERS).bind(to_i64(SKIPPED_MIN + u64::from(random)));
        self.pool.run("sql:skip_feed_numbers", query).await?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_claims_of_one_campaign_and_is_bounded() {
        let digest = "aHSIRPhRB6fDKajWWhFLtQ";
        let mut claims = vec![("a", "ann", digest), ("b", "ann", digest), ("b", "bob", digest)];
        assert_eq!(
            serde_json::to_string(&feed_rows(&claims)).unwrap(),
            format!(r#"[[1,"a","ann.{digest}"],[0,"b","ann.{digest} bob.{digest}"]]"#)
        );
        claims.resize(CLAIMS_MAX + 3, ("b", "carl", digest));
        let rows: Vec<_> = feed_rows(&claims).iter().map(|row| (row.0, row.1)).collect();
        assert_eq!(rows, [(2, "a"), (1, "b"), (0, "b")]);
        assert!(feed_rows(&[]).is_empty());
    }
}
