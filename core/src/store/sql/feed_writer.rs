//! Writes the feed: which claims a transaction has changed, as the last thing that it does.

use serde::Serialize;

use super::numbers::big;
use super::pool::Transaction;
use super::{SqlError, SqlStore};
use crate::step;

/// The most claims in a row. Most rows stay below the 2,000 bytes from which on PostgreSQL compresses a text, which would take
/// longer than all else here.
const CLAIMS_MAX: usize = 32;

/// Rows are numbered from here on. The one row of this table is locked from now on until the commit.
const TAKE_NUMBERS: &str = "UPDATE feed_position SET last_number = last_number + $1";

/// Adds rows, each with how many come after it.
const ADD: &str = "INSERT INTO feed (number, campaign_id, claims) \
    SELECT last_number - CAST(value->>0 AS BIGINT), value->>1, value->>2 FROM feed_position, {rows}";

/// Changed claims of one campaign, as a row of the feed has them.
#[derive(Debug, Serialize)]
pub(super) struct FeedRow<'a>(usize, &'a str, String);

/// The rows that tell of `claims`: campaign, user and digest of each. Those of one campaign are neighbours.
pub(super) fn feed_rows<'a>(claims: &[(&'a str, &str, &str)]) -> Vec<FeedRow<'a>> {
    let of_campaigns = claims.chunk_by(|one, next| one.0 == next.0);
    let parts: Vec<_> = of_campaigns.flat_map(|claims| claims.chunks(CLAIMS_MAX)).collect();
    let row = |(behind, part): (usize, &&[(&'a str, &str, &str)])| {
        let keys: Vec<_> = part.iter().map(|(_, user, digest)| format!("{user}.{digest}")).collect();
        FeedRow(behind, part[0].0, keys.join(" "))
    };
    (0..parts.len()).rev().zip(&parts).map(row).collect()
}

impl SqlStore {
    /// Adds `rows` to the feed and commits `transaction`, which must have written all that it has to: until the commit, no other
    /// one can tell of its claims.
    ///
    /// # Errors
    /// [`SqlError::Sql`] when the database does not answer: whether it has committed is unknown.
    pub(super) async fn commit_told(
        &self,
        mut transaction: Transaction,
        rows: &[FeedRow<'_>],
    ) -> Result<(), SqlError> {
        if !rows.is_empty() {
            sqlx::query(TAKE_NUMBERS).bind(big(rows.len() as u64)).execute(&mut *transaction).await?;
            self.with_rows(ADD, rows, rows.len()).execute(&mut *transaction).await?;
        }
        step::after(transaction.commit().await)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_of_one_campaign_and_not_too_long() {
        let digest = "aHSIRPhRB6fDKajWWhFLtQ";
        let mut claims = vec![("a", "ann", digest), ("b", "ann", digest), ("b", "bob", digest)];
        assert_eq!(
            serde_json::to_string(&feed_rows(&claims)).unwrap(),
            format!(r#"[[1,"a","ann.{digest}"],[0,"b","ann.{digest} bob.{digest}"]]"#)
        );
        claims.resize(CLAIMS_MAX + 3, ("b", "carl", digest));
        let behind: Vec<_> = feed_rows(&claims).iter().map(|row| (row.0, row.1)).collect();
        assert_eq!(behind, [(2, "a"), (1, "b"), (0, "b")]);
        assert!(feed_rows(&[]).is_empty());
    }
}
