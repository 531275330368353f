//! Every statement over `claims`, in one place, so that none of them escapes the test that asks both databases for their
//! plans (`tests/faults/plans.rs`). Pages begin behind a key, as row values: both databases find the place by an index.

/// Declares the statements, and [`ALL`] of them.
macro_rules! statements {
    ($($(#[$about:meta])* $name:ident = $text:expr;)+) => {
        $($(#[$about])* pub(super) const $name: &str = $text;)+

        /// Every statement over `claims` by its name, before a [`Dialect`] renders it.
        pub const ALL: &[(&str, &str)] = &[$((stringify!($name), $name)),+];
    };
}

/// Groups of claims, each an array: what its claims have in common, and last an array of these.
macro_rules! groups {
    ($claims:literal, $from:literal, $each:literal) => {
        concat!(
            "(SELECT CAST(value->>0 AS BIGINT) AS epoch, CAST(value->>1 AS BIGINT) AS revision, \
             CAST(value->>2 AS BIGINT) AS day, CAST(value->>3 AS BIGINT) AS limit_at_decision, \
             value->>4 AS campaign_id, value->>5 AS status, ",
            $claims,
            " AS claims FROM ",
            $from,
            ") AS claim_group, ",
            $each,
            "(claim_group.claims)"
        )
    };
}

/// A claim as one text, space-separated: the driver takes most of the time of reading many, and takes it for each column.
macro_rules! as_text {
    () => {
        "user_id || ' ' || digest || ' ' || quantity || ' ' || status || ' ' || revision || ' ' || sequence \
         || ' ' || day || ' ' || claimed_at || ' ' || COALESCE(CAST(expires_at AS TEXT), '-')"
    };
}

/// A campaign's columns. Never all of a table, here and elsewhere: a later version adds columns while this one's cores run, and
/// what PostgreSQL has prepared for them would be refused from then on, for its result had changed.
macro_rules! campaign_columns {
    () => {
        "id, name, starts_at, ends_at, time_zone, total, per_user, per_user_per_day, per_claim, hold_seconds, \
         admin_state, version, epoch, token, register_id, sequence, events, changed_at, evicted_at, evicted_taken, \
         evicted_sequence, import_digest"
    };
}
pub(super) use campaign_columns;

/// What the two databases say differently: how `$1`, a JSON array, becomes rows.
#[derive(Debug, Clone, Copy)]
pub struct Dialect {
    /// Stands for `{rows}`: an element each, as `value`.
    rows: &'static str,
    /// Stands for `{claims}`: claims, each as `value`, beside what [`WRITE`] says of a group of them.
    claims: &'static str,
}

impl Dialect {
    /// SQLite. Binary, so that no element is turned into text and read again for each of its columns; with a limit, for else
    /// each use of `value` would take it from the array again. Both together save a third of the relay's time.
    pub const SQLITE: Self = Self {
        rows: "(SELECT value FROM jsonb_each($1) LIMIT -1)",
        claims: groups!("jsonb_extract(value, '$[6]')", "jsonb_each($1) LIMIT -1", "jsonb_each"),
    };
    /// PostgreSQL.
    pub const POSTGRES: Self = Self {
        rows: "jsonb_array_elements(CAST($1 AS JSONB))",
        claims: groups!("value->6", "jsonb_array_elements(CAST($1 AS JSONB))", "jsonb_array_elements"),
    };

    /// A statement as this database is given it.
    pub fn render(self, statement: &str) -> String {
        statement.replace("{rows}", self.rows).replace("{claims}", self.claims)
    }
}

/// Campaigns of which claims are written: each row is locked, and sequence and events are raised to those of a batch of the
/// same epoch. A row is left out that lacks events before the batch's, where the batch is to follow them (`$1`, place 4).
pub const RAISE_MARKS: &str = "UPDATE campaigns SET \
    sequence = CASE WHEN epoch = CAST(value->>1 AS BIGINT) AND CAST(value->>2 AS BIGINT) > sequence \
        THEN CAST(value->>2 AS BIGINT) ELSE sequence END, \
    events = CASE WHEN epoch = CAST(value->>1 AS BIGINT) AND CAST(value->>3 AS BIGINT) > events \
        THEN CAST(value->>3 AS BIGINT) ELSE events END \
    FROM {rows} WHERE id = value->>0 AND (CAST(value->>4 AS BIGINT) IS NULL OR epoch > CAST(value->>1 AS BIGINT) \
    OR (epoch = CAST(value->>1 AS BIGINT) AND events >= CAST(value->>4 AS BIGINT))) RETURNING id, epoch, per_user, per_user_per_day";

/// Campaigns that have changed after number `$1`. The second condition is the index's own.
pub const CHANGED: &str = concat!(
    "SELECT change_number, ",
    campaign_columns!(),
    " FROM campaigns \
    WHERE change_number > $1 AND change_number > 0 ORDER BY change_number LIMIT $2"
);

/// Campaigns that are not evicted, behind the id `$1`.
pub const IN_REDIS: &str = concat!(
    "SELECT ",
    campaign_columns!(),
    " FROM campaigns \
    WHERE evicted_at IS NULL AND id > $1 ORDER BY id LIMIT $2"
);

statements! {
    /// Writes claims. The guard's two columns belong to the decision: a later state of the same claim has neither, a
    /// new decision brings both, and a `limit_at_decision` of none then means that there was none.
    WRITE = "INSERT INTO claims (campaign_id, status, epoch, revision, day, limit_at_decision, \
        user_id, digest, quantity, sequence, claimed_at, expires_at, updated_at, cumulative_taken) \
        SELECT campaign_id, status, epoch, revision, day, limit_at_decision, \
        value->>0, value->>1, CAST(value->>2 AS BIGINT), CAST(value->>3 AS BIGINT), CAST(value->>4 AS BIGINT), \
        CAST(value->>5 AS BIGINT), CAST(value->>6 AS BIGINT), CAST(value->>7 AS BIGINT) \
        FROM {claims} WHERE TRUE \
        ON CONFLICT (campaign_id, user_id, digest) DO UPDATE SET status = excluded.status, epoch = excluded.epoch, \
        quantity = excluded.quantity, revision = excluded.revision, sequence = excluded.sequence, day = excluded.day, \
        claimed_at = excluded.claimed_at, expires_at = excluded.expires_at, updated_at = excluded.updated_at, \
        limit_at_decision = CASE WHEN excluded.cumulative_taken IS NULL THEN claims.limit_at_decision ELSE excluded.limit_at_decision END, \
        cumulative_taken = COALESCE(excluded.cumulative_taken, claims.cumulative_taken) \
        WHERE excluded.status <> 'revoked' AND (excluded.epoch > claims.epoch \
        OR (excluded.epoch = claims.epoch AND excluded.revision > claims.revision))";

    /// One claim.
    ONE = "SELECT user_id, digest, quantity, status, revision, sequence, day, claimed_at, expires_at, updated_at \
        FROM claims WHERE campaign_id = $1 AND user_id = $2 AND digest = $3";

    /// One claim confirmed, returned or expired: `$4` at `$5`. What is granted expires no more. Its
    /// epoch and its revision then.
    TRANSITION = "UPDATE claims SET status = $4, revision = revision + 1, updated_at = $5, \
        expires_at = CASE WHEN $4 = 'granted' THEN NULL ELSE expires_at END \
        WHERE campaign_id = $1 AND user_id = $2 AND digest = $3 RETURNING epoch, revision";

    /// A page of a campaign's claims in the order of their sequence.
    PAGE = "SELECT user_id, digest, quantity, status, revision, sequence, day, claimed_at, expires_at, updated_at \
        FROM claims WHERE campaign_id = $1 AND (sequence, user_id, digest) > ($2, $3, $4) \
        ORDER BY sequence, user_id, digest LIMIT $5";

    /// A page of one user's claims, in the order of [`PAGE`]. The sum keeps PostgreSQL from the index by sequence, in which it
    /// would look through the claims of all users.
    PAGE_OF_USER = "SELECT user_id, digest, quantity, status, revision, sequence, day, claimed_at, expires_at, updated_at \
        FROM claims WHERE campaign_id = $1 AND user_id = $6 AND (sequence + 0, user_id, digest) > ($2, $3, $4) \
        ORDER BY sequence + 0, user_id, digest LIMIT $5";

    /// A page of one user's claims, newest first. Of a revoked claim and the one that got its sequence again the latter comes
    /// first.
    NEWEST_OF_USER = "SELECT user_id, digest, quantity, status, revision, sequence, day, claimed_at, expires_at, updated_at \
        FROM (SELECT user_id, digest, quantity, status, revision, sequence, day, claimed_at, expires_at, updated_at, \
        sequence * 2 + CASE WHEN status = 'revoked' THEN 0 ELSE 1 END AS place \
        FROM claims WHERE campaign_id = $1 AND user_id = $2) AS own \
        WHERE (place, digest) < ($3, $4) ORDER BY place DESC, digest DESC LIMIT $5";

    /// A page of a campaign's claims but the revoked, user by user.
    BY_USER = concat!("SELECT ", as_text!(), " FROM claims WHERE campaign_id = $1 AND (user_id, digest) > ($2, $3) \
        AND status <> 'revoked' ORDER BY user_id, digest LIMIT $4");

    /// A page of a campaign's claims, user by user, for the feed.
    FEED_OF_CAMPAIGN = concat!("SELECT ", as_text!(), " || ' ' || updated_at FROM claims \
        WHERE campaign_id = $1 AND (user_id, digest) > ($2, $3) ORDER BY user_id, digest LIMIT $4");

    /// The last row of the feed that tells of any claim, and what it tells of: of a whole campaign its last claim.
    FEED_END = "SELECT number, told FROM (SELECT number, COALESCE(claims, (SELECT user_id || '.' || digest FROM claims \
        WHERE claims.campaign_id = feed.campaign_id ORDER BY user_id DESC, digest DESC LIMIT 1)) AS told FROM feed) AS ends \
        WHERE told IS NOT NULL ORDER BY number DESC LIMIT 1";

    /// These claims, each behind the place that it is asked for with, for the feed. Not a join, as in [`REVISIONS`].
    FEED_OF_CLAIMS = concat!("SELECT CAST(value->>0 AS BIGINT), (SELECT ", as_text!(), " || ' ' || updated_at FROM claims \
        WHERE campaign_id = value->>1 AND user_id = value->>2 AND digest = value->>3) FROM {rows}");

    /// A campaign's claims, summed up.
    TOTALS = "SELECT COUNT(*), \
        CAST(COALESCE(SUM(CASE WHEN status IN ('granted', 'held') THEN quantity ELSE 0 END), 0) AS BIGINT), \
        COALESCE(MAX(sequence), 0), \
        CAST(COALESCE(SUM(CASE WHEN status = 'revoked' THEN 1 ELSE 0 END), 0) AS BIGINT), \
        CAST(COALESCE(SUM(CASE WHEN status = 'held' THEN 1 ELSE 0 END), 0) AS BIGINT), \
        COALESCE(MAX(CASE WHEN status <> 'revoked' THEN sequence END), 0), \
        CAST(COALESCE(SUM(CASE WHEN status <> 'revoked' THEN revision ELSE 0 END), 0) AS BIGINT) \
        FROM claims WHERE campaign_id = $1";

    /// Whether SQL has refused any of a campaign's claims.
    REFUSED = "SELECT 1 FROM claims WHERE campaign_id = $1 AND status = 'revoked' LIMIT 1";

    /// How far SQL has followed each of these claims: 0 where it lacks one, and further than any can go where it holds it as
    /// revoked. Not a join: which side PostgreSQL begins with would depend on its statistics.
    REVISIONS = "SELECT value->>0, value->>1, COALESCE((SELECT CASE WHEN status = 'revoked' THEN 256 ELSE revision END \
        FROM claims WHERE campaign_id = $2 AND user_id = value->>0 AND digest = value->>1), 0) FROM {rows}";

    /// The sequences that no claim of a campaign has, as ranges.
    GAPS = "SELECT before + 1, sequence - 1 FROM (SELECT sequence, \
        LAG(sequence, 1, 0) OVER (ORDER BY sequence) AS before FROM claims WHERE campaign_id = $1) AS neighbours \
        WHERE sequence > before + 1 ORDER BY sequence LIMIT $2";

    /// What a campaign's claims have taken.
    TAKEN = "SELECT CAST(COALESCE(SUM(quantity), 0) AS BIGINT) FROM claims \
        WHERE campaign_id = $1 AND status IN ('granted', 'held')";

    /// What one claim has taken.
    STANDING = "SELECT CAST(COALESCE(SUM(quantity), 0) AS BIGINT) FROM claims \
        WHERE campaign_id = $1 AND user_id = $2 AND digest = $3 AND status IN ('granted', 'held')";

    /// What one user's claims but the one of digest `$3` have taken, in all and on day `$4`.
    TAKEN_BY_USER = "SELECT CAST(COALESCE(SUM(quantity), 0) AS BIGINT), \
        CAST(COALESCE(SUM(CASE WHEN day = $4 THEN quantity ELSE 0 END), 0) AS BIGINT) FROM claims \
        WHERE campaign_id = $1 AND user_id = $2 AND digest <> $3 AND status IN ('granted', 'held')";
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    /// All of core's sources, by file.
    fn sources(directory: &Path, found: &mut Vec<(String, String)>) {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                sources(&path, found);
            } else if path.extension().is_some_and(|end| end == "rs") {
                found.push((path.display().to_string(), fs::read_to_string(&path).unwrap()));
            }
        }
    }

    #[test]
    fn no_statement_over_claims_stands_anywhere_else() {
        let mut found = Vec::new();
        sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut found);
        for (file, text) in found.iter().filter(|(file, _)| !file.ends_with("statements.rs")) {
            let words: Vec<_> = text.split_whitespace().collect();
            let used = words.windows(2).find(|two| {
                ["FROM", "INTO", "UPDATE", "JOIN", "TABLE"].contains(&two[0].trim_start_matches(['"', '(']))
                    && two[1].trim_end_matches(|end: char| !end.is_alphanumeric()) == "claims"
            });
            assert_eq!(used, None, "{file} has a statement over claims");
        }
        assert!(ALL.iter().all(|(_, text)| text.contains(" claims ")), "a statement over something else");
    }

    /// What writes claims tells the feed, in the same transaction: `feed_writer.rs` has the way to commit it.
    #[test]
    fn claims_are_written_nowhere_but_where_the_feed_is_told() {
        let is_write = |(_, text): &&(&str, &str)| !text.starts_with("SELECT ");
        let writes: Vec<_> =
            ALL.iter().filter(is_write).map(|(name, _)| format!("statements::{name}")).collect();
        assert_eq!(writes, ["statements::WRITE", "statements::TRANSITION"]);
        let mut found = Vec::new();
        sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src/store/sql"), &mut found);
        for (file, text) in found {
            let (code, _) = text.split_once("#[cfg(test)]").unwrap_or((&text, ""));
            let writes_claims = writes.iter().any(|write| code.contains(&format!("({write}")))
                || code.contains("self.insert(");
            assert!(
                !writes_claims || !code.contains("transaction.commit()"),
                "{file} writes claims: commit by `commit_told`"
            );
        }
    }
}
