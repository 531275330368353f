//! All statements over `claims`, in one file, so that `tests/faults/plans.rs` can check the query plan of
//! each statement in both databases. Pages begin after a key, compared as a row value, which both databases
//! look up in an index.

/// Declares the statements, and the list [`ALL`].
macro_rules! statements {
    ($($(#[$about:meta])* $name:ident = $text:expr;)+) => {
        $($(#[$about])* pub(super) const $name: &str = $text;)+

        /// Every statement over `claims` by its name, before a [`Dialect`] renders it.
        pub const ALL: &[(&str, &str)] = &[$((stringify!($name), $name)),+];
    };
}

/// Unpacks groups of claims. Each group is an array of the shared columns, and last an array of its claims.
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

/// A claim as one space-separated text. The driver's cost for each column dominates when many claims are
/// read.
macro_rules! as_text {
    () => {
        "user_id || ' ' || digest || ' ' || quantity || ' ' || status || ' ' || revision || ' ' || sequence \
         || ' ' || day || ' ' || claimed_at || ' ' || COALESCE(CAST(expires_at AS TEXT), '-')"
    };
}

/// A campaign's columns. No statement selects `*`: a later version may add columns while cores of this
/// version run, and PostgreSQL refuses a prepared statement whose result type has changed.
macro_rules! campaign_columns {
    () => {
        "id, name, starts_at, ends_at, time_zone, total, per_user, per_user_per_day, per_claim, hold_seconds, \
         pass_required, pass_until, has_codes, codes_added, codes_assigned, codes_pending_from, admin_state, version, epoch, token, register_id, sequence, events, changed_at, evicted_at, evicted_taken, \
         evicted_sequence, import_digest, archived_at, checked_user_ids"
    };
}
pub(super) use campaign_columns;

/// The difference between the two databases: how the JSON array `$1` becomes rows.
#[derive(Debug, Clone, Copy)]
pub struct Dialect {
    /// Replaces `{rows}`: one row for each element, in the column `value`.
    rows: &'static str,
    /// Replaces `{claims}`: one row for each claim, in the column `value`, with the columns of its group.
    claims: &'static str,
}

impl Dialect {
    /// SQLite. `jsonb` avoids that each element is turned into text and parsed again for each column. Without
    /// `LIMIT`, each use of `value` would extract the element again. Both measures together save a third of
    /// the relay's time.
    pub const SQLITE: Self = Self {
        rows: "(SELECT value FROM jsonb_each($1) LIMIT -1)",
        claims: groups!("jsonb_extract(value, '$[6]')", "jsonb_each($1) LIMIT -1", "jsonb_each"),
    };
    /// PostgreSQL.
    pub const POSTGRES: Self = Self {
        rows: "jsonb_array_elements(CAST($1 AS JSONB))",
        claims: groups!("value->6", "jsonb_array_elements(CAST($1 AS JSONB))", "jsonb_array_elements"),
    };

    /// Returns the statement in this dialect.
    pub fn render(self, statement: &str) -> String {
        statement.replace("{rows}", self.rows).replace("{claims}", self.claims)
    }
}

/// Locks the rows of campaigns, and raises sequence and events to those of a batch of the same epoch. If the
/// batch must directly follow the events in the database (element 4 of `$1`), a row that lacks earlier events
/// is left out.
pub const RAISE_MARKS: &str = "UPDATE campaigns SET \
    sequence = CASE WHEN epoch = CAST(value->>1 AS BIGINT) AND CAST(value->>2 AS BIGINT) > sequence \
        THEN CAST(value->>2 AS BIGINT) ELSE sequence END, \
    events = CASE WHEN epoch = CAST(value->>1 AS BIGINT) AND CAST(value->>3 AS BIGINT) > events \
        THEN CAST(value->>3 AS BIGINT) ELSE events END \
    FROM {rows} WHERE id = value->>0 AND (CAST(value->>4 AS BIGINT) IS NULL OR epoch > CAST(value->>1 AS BIGINT) \
    OR (epoch = CAST(value->>1 AS BIGINT) AND events >= CAST(value->>4 AS BIGINT))) RETURNING id, epoch, per_user, per_user_per_day, \
    has_codes, codes_added, codes_assigned, codes_pending_from";

/// Campaigns with a change number above `$1`. The second condition repeats that of the partial index, so that
/// the planner uses the index.
pub const CHANGED: &str = concat!(
    "SELECT change_number, ",
    campaign_columns!(),
    " FROM campaigns \
    WHERE change_number > $1 AND change_number > 0 ORDER BY change_number LIMIT $2"
);

/// Campaigns that are not evicted, after the id `$1`.
pub const IN_REDIS: &str = concat!(
    "SELECT ",
    campaign_columns!(),
    " FROM campaigns \
    WHERE evicted_at IS NULL AND id > $1 ORDER BY id LIMIT $2"
);

statements! {
    /// Writes claims. The guard's two columns belong to the decision. A new decision sets both columns, where
    /// a null `limit_at_decision` means unlimited; a later state of the same claim sets neither.
    WRITE = "INSERT INTO claims (campaign_id, status, epoch, revision, day, limit_at_decision, \
        user_id, digest, quantity, sequence, claimed_at, expires_at, updated_at, cumulative_taken, first_code) \
        SELECT campaign_id, status, epoch, revision, day, limit_at_decision, \
        value->>0, value->>1, CAST(value->>2 AS BIGINT), CAST(value->>3 AS BIGINT), CAST(value->>4 AS BIGINT), \
        CAST(value->>5 AS BIGINT), CAST(value->>6 AS BIGINT), CAST(value->>7 AS BIGINT), CAST(value->>8 AS BIGINT) \
        FROM {claims} WHERE TRUE \
        ON CONFLICT (campaign_id, user_id, digest) DO UPDATE SET status = excluded.status, epoch = excluded.epoch, \
        quantity = excluded.quantity, revision = excluded.revision, sequence = excluded.sequence, day = excluded.day, \
        claimed_at = excluded.claimed_at, expires_at = excluded.expires_at, updated_at = excluded.updated_at, \
        limit_at_decision = CASE WHEN excluded.cumulative_taken IS NULL THEN claims.limit_at_decision ELSE excluded.limit_at_decision END, \
        cumulative_taken = COALESCE(excluded.cumulative_taken, claims.cumulative_taken), \
        first_code = CASE WHEN excluded.quantity = claims.quantity AND claims.first_code IS NOT NULL \
        THEN claims.first_code ELSE excluded.first_code END \
        WHERE excluded.status <> 'revoked' AND (excluded.epoch > claims.epoch \
        OR (excluded.epoch = claims.epoch AND excluded.revision > claims.revision))";

    /// Per claim: its index, and its first code number: 0 if code numbers must be assigned; -1 if SQL already
    /// has this or a newer state and no code numbers are due. A revoked claim that is decided again with a
    /// different quantity needs other code numbers. No join is used, for the reason given at [`REVISIONS`].
    FIRST_CODES = "SELECT CAST(value->>0 AS BIGINT), COALESCE((SELECT COALESCE( \
        CASE WHEN quantity = CAST(value->>5 AS BIGINT) THEN first_code END, CASE WHEN epoch > CAST(value->>3 AS BIGINT) OR (epoch = CAST(value->>3 AS BIGINT) \
        AND revision >= CAST(value->>4 AS BIGINT)) THEN -1 ELSE 0 END) FROM claims \
        WHERE campaign_id = $2 AND user_id = value->>1 AND digest = value->>2), 0) FROM {rows}";

    /// Assigns code numbers to a granted claim that has none.
    GIVE_NUMBERS = "UPDATE claims SET first_code = $4 WHERE campaign_id = $1 AND user_id = $2 AND digest = $3 \
        AND status = 'granted' AND first_code IS NULL";

    /// A page of a campaign's claims with code numbers from `$2`, in the order of these numbers.
    NUMBERED = "SELECT user_id, digest, first_code, quantity FROM claims \
        WHERE campaign_id = $1 AND first_code >= $2 ORDER BY first_code LIMIT $3";

    /// The same for granted claims only.
    GRANTED_NUMBERED = "SELECT user_id, digest, first_code, quantity FROM claims \
        WHERE campaign_id = $1 AND first_code >= $2 AND status = 'granted' ORDER BY first_code LIMIT $3";

    /// The number of granted claims with code numbers from `$2` and without all of their codes.
    PENDING_CODES = "SELECT COUNT(*) FROM claims WHERE campaign_id = $1 AND first_code >= $2 AND status = 'granted' \
        AND (SELECT COUNT(*) FROM codes WHERE campaign_id = $1 AND number >= first_code AND number < first_code + quantity) < quantity";

    /// The number of claims that have all of their codes, and how many of them are granted and have code numbers below
    /// `$2`.
    WITH_CODES = "SELECT COUNT(*), COUNT(CASE WHEN status = 'granted' AND first_code < $2 THEN 1 END) FROM claims \
        WHERE campaign_id = $1 AND first_code IS NOT NULL \
        AND (SELECT COUNT(*) FROM codes WHERE campaign_id = $1 AND number >= first_code AND number < first_code + quantity) = quantity";

    /// The highest first code number of a claim, up to `$2`; `NULL` if there is none.
    FIRST_CODE_UP_TO = "SELECT MAX(first_code) FROM claims WHERE campaign_id = $1 AND first_code <= $2";

    /// The first code number and the quantity of each given claim. No join is used, for the reason given at
    /// [`REVISIONS`].
    NUMBERS_OF_CLAIMS = "SELECT value->>0, value->>1, (SELECT first_code FROM claims WHERE campaign_id = $2 \
        AND user_id = value->>0 AND digest = value->>1), (SELECT quantity FROM claims \
        WHERE campaign_id = $2 AND user_id = value->>0 AND digest = value->>1) FROM {rows}";

    /// The same for granted claims only.
    NUMBERS_OF_GRANTED = "SELECT value->>0, value->>1, (SELECT first_code FROM claims WHERE campaign_id = $2 \
        AND user_id = value->>0 AND digest = value->>1 AND status = 'granted'), (SELECT quantity FROM claims \
        WHERE campaign_id = $2 AND user_id = value->>0 AND digest = value->>1) FROM {rows}";

    /// One claim.
    ONE = "SELECT user_id, digest, quantity, status, revision, sequence, day, claimed_at, expires_at, updated_at \
        FROM claims WHERE campaign_id = $1 AND user_id = $2 AND digest = $3";

    /// Sets the status of one claim to `$4` at `$5`, and its expiry to `$6`. Returns epoch and new revision.
    TRANSITION = "UPDATE claims SET status = $4, revision = revision + 1, updated_at = $5, expires_at = $6 \
        WHERE campaign_id = $1 AND user_id = $2 AND digest = $3 RETURNING epoch, revision";

    /// A page of a campaign's claims, ordered by sequence number.
    PAGE = "SELECT user_id, digest, quantity, status, revision, sequence, day, claimed_at, expires_at, updated_at \
        FROM claims WHERE campaign_id = $1 AND (sequence, user_id, digest) > ($2, $3, $4) \
        ORDER BY sequence, user_id, digest LIMIT $5";

    /// A page of one user's claims, in the order of [`PAGE`]. The `+ 0` prevents PostgreSQL from using the
    /// index by sequence number, in which it would scan the claims of all users.
    PAGE_OF_USER = "SELECT user_id, digest, quantity, status, revision, sequence, day, claimed_at, expires_at, updated_at \
        FROM claims WHERE campaign_id = $1 AND user_id = $6 AND (sequence + 0, user_id, digest) > ($2, $3, $4) \
        ORDER BY sequence + 0, user_id, digest LIMIT $5";

    /// A page of one user's claims, newest first. If a revoked claim shares its sequence number with another
    /// claim, the revoked claim comes last.
    NEWEST_OF_USER = "SELECT user_id, digest, quantity, status, revision, sequence, day, claimed_at, expires_at, updated_at \
        FROM (SELECT user_id, digest, quantity, status, revision, sequence, day, claimed_at, expires_at, updated_at, \
        sequence * 2 + CASE WHEN status = 'revoked' THEN 0 ELSE 1 END AS place \
        FROM claims WHERE campaign_id = $1 AND user_id = $2) AS own \
        WHERE (place, digest) < ($3, $4) ORDER BY place DESC, digest DESC LIMIT $5";

    /// A page of a campaign's claims, except revoked claims, ordered by user.
    BY_USER = concat!("SELECT ", as_text!(), " FROM claims WHERE campaign_id = $1 AND (user_id, digest) > ($2, $3) \
        AND status <> 'revoked' ORDER BY user_id, digest LIMIT $4");

    /// A page of a campaign's claims, ordered by user, for the feed.
    FEED_OF_CAMPAIGN = concat!("SELECT ", as_text!(), " || ' ' || updated_at FROM claims \
        WHERE campaign_id = $1 AND (user_id, digest) > ($2, $3) ORDER BY user_id, digest LIMIT $4");

    /// The last row of the feed with any claim, and its claims. For a row of a whole campaign, only the last
    /// claim.
    FEED_END = "SELECT number, row_claims FROM (SELECT number, COALESCE(claims, (SELECT user_id || '.' || digest FROM claims \
        WHERE claims.campaign_id = feed.campaign_id ORDER BY user_id DESC, digest DESC LIMIT 1)) AS row_claims FROM feed) AS ends \
        WHERE row_claims IS NOT NULL ORDER BY number DESC LIMIT 1";

    /// The given claims, each with its index in the request, for the feed. No join is used, for the reason
    /// given at [`REVISIONS`].
    FEED_OF_CLAIMS = concat!("SELECT CAST(value->>0 AS BIGINT), (SELECT ", as_text!(), " || ' ' || updated_at FROM claims \
        WHERE campaign_id = value->>1 AND user_id = value->>2 AND digest = value->>3) FROM {rows}");

    /// Sums over a campaign's claims.
    TOTALS = "SELECT COUNT(*), \
        CAST(COALESCE(SUM(CASE WHEN status IN ('granted', 'held') THEN quantity ELSE 0 END), 0) AS BIGINT), \
        COALESCE(MAX(sequence), 0), \
        CAST(COALESCE(SUM(CASE WHEN status = 'revoked' THEN 1 ELSE 0 END), 0) AS BIGINT), \
        CAST(COALESCE(SUM(CASE WHEN status = 'held' THEN 1 ELSE 0 END), 0) AS BIGINT), \
        COALESCE(MAX(CASE WHEN status <> 'revoked' THEN sequence END), 0), \
        CAST(COALESCE(SUM(CASE WHEN status <> 'revoked' THEN revision ELSE 0 END), 0) AS BIGINT) \
        FROM claims WHERE campaign_id = $1";

    /// A campaign with change number `$4` or higher that has not ended at `$1` and has claims of users whose
    /// ids do not begin with `$2` or whose length is not `$3`. No join is used, for the reason given at
    /// [`REVISIONS`]. Without the inner order, PostgreSQL would scan the claims of all campaigns.
    OTHER_USER_IDS = "SELECT id FROM campaigns WHERE admin_state <> 'ended' AND (ends_at IS NULL OR ends_at > $1) \
        AND change_number >= $4 AND (SELECT 1 FROM claims WHERE campaign_id = campaigns.id \
        AND (SUBSTR(user_id, 1, LENGTH($2)) <> $2 OR LENGTH(user_id) <> $3) ORDER BY user_id LIMIT 1) IS NOT NULL ORDER BY id LIMIT 1";

    /// A user of the campaign `$1` whose id does not begin with `$2` or whose length is not `$3`. Without the order,
    /// PostgreSQL would scan the claims of all campaigns.
    OTHER_USER_ID = "SELECT user_id FROM claims WHERE campaign_id = $1 \
        AND (SUBSTR(user_id, 1, LENGTH($2)) <> $2 OR LENGTH(user_id) <> $3) ORDER BY user_id LIMIT 1";

    /// Claims that were made, without those that SQL has refused: their number, users and units, the first
    /// and the last, and the first that took the last unit.
    REPORT_TOTALS = "SELECT COUNT(*), COUNT(DISTINCT user_id), CAST(COALESCE(SUM(quantity), 0) AS BIGINT), \
        MIN(claimed_at), MAX(claimed_at), MIN(CASE WHEN cumulative_taken >= limit_at_decision THEN claimed_at END) \
        FROM claims WHERE campaign_id = $1 AND status <> 'revoked'";

    /// The number and units of a campaign's claims by status.
    REPORT_STATUSES = "SELECT status, COUNT(*), CAST(SUM(quantity) AS BIGINT) FROM claims \
        WHERE campaign_id = $1 GROUP BY status";

    /// The second with the most claims.
    REPORT_PEAK = "SELECT at_s, made FROM (SELECT claimed_at / 1000 AS at_s, COUNT(*) AS made FROM claims \
        WHERE campaign_id = $1 AND status <> 'revoked' GROUP BY claimed_at / 1000) AS seconds \
        ORDER BY made DESC, at_s LIMIT 1";

    /// Claims and refusals from the second `$3` to before `$4`, in steps of `$2` seconds.
    REPORT_STEPS = "SELECT at_s, CAST(SUM(made) AS BIGINT), CAST(SUM(units) AS BIGINT), CAST(SUM(at_edges) AS BIGINT), \
        CAST(SUM(at_core) AS BIGINT) FROM (SELECT claimed_at / 1000 / $2 * $2 AS at_s, 1 AS made, quantity AS units, \
        0 AS at_edges, 0 AS at_core FROM claims WHERE campaign_id = $1 AND status <> 'revoked' \
        AND claimed_at / 1000 >= $3 AND claimed_at / 1000 < $4 UNION ALL SELECT at_s / $2 * $2, 0, 0, \
        CASE WHEN refused_by = 'edge' THEN refused ELSE 0 END, CASE WHEN refused_by = 'core' THEN refused ELSE 0 END \
        FROM refusals WHERE campaign_id = $1 AND at_s >= $3 AND at_s < $4) AS both_kinds GROUP BY at_s ORDER BY at_s";

    /// Returns a row if SQL has refused any of a campaign's claims.
    REFUSED = "SELECT 1 FROM claims WHERE campaign_id = $1 AND status = 'revoked' LIMIT 1";

    /// The revision of each given claim in SQL: 0 if SQL lacks it, and 65536, more than any revision, if it
    /// is revoked. No join is used, because the order in which PostgreSQL joins tables would depend on
    /// statistics.
    REVISIONS = "SELECT value->>0, value->>1, COALESCE((SELECT CASE WHEN status = 'revoked' THEN 65536 ELSE revision END \
        FROM claims WHERE campaign_id = $2 AND user_id = value->>0 AND digest = value->>1), 0) FROM {rows}";

    /// The sequence numbers that no claim of a campaign has, as ranges.
    GAPS = "SELECT before + 1, sequence - 1 FROM (SELECT sequence, \
        LAG(sequence, 1, 0) OVER (ORDER BY sequence) AS before FROM claims WHERE campaign_id = $1) AS neighbours \
        WHERE sequence > before + 1 ORDER BY sequence LIMIT $2";

    /// Units taken by a campaign's claims.
    TAKEN = "SELECT CAST(COALESCE(SUM(quantity), 0) AS BIGINT) FROM claims \
        WHERE campaign_id = $1 AND status IN ('granted', 'held')";

    /// Units taken by one claim.
    STANDING = "SELECT CAST(COALESCE(SUM(quantity), 0) AS BIGINT) FROM claims \
        WHERE campaign_id = $1 AND user_id = $2 AND digest = $3 AND status IN ('granted', 'held')";

    /// Units taken by one user's claims, in total and on day `$4`, without the claim of digest `$3`.
    TAKEN_BY_USER = "SELECT CAST(COALESCE(SUM(quantity), 0) AS BIGINT), \
        CAST(COALESCE(SUM(CASE WHEN day = $4 THEN quantity ELSE 0 END), 0) AS BIGINT) FROM claims \
        WHERE campaign_id = $1 AND user_id = $2 AND digest <> $3 AND status IN ('granted', 'held')";
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    /// Collects all source files of core with their text.
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
    fn all_statements_over_claims_are_in_this_file() {
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

    /// A transaction that writes claims must also write the feed, with the commit function of
    /// `feed_writer.rs`.
    #[test]
    fn every_write_of_claims_is_committed_with_the_feed() {
        let is_write = |(_, text): &&(&str, &str)| !text.starts_with("SELECT ");
        let writes: Vec<_> =
            ALL.iter().filter(is_write).map(|(name, _)| format!("statements::{name}")).collect();
        assert_eq!(writes, ["statements::WRITE", "statements::GIVE_NUMBERS", "statements::TRANSITION"]);
        let mut found = Vec::new();
        sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src/store/sql"), &mut found);
        for (file, text) in found {
            let (code, _) = text.split_once("#[cfg(test)]").unwrap_or((&text, ""));
            let writes_claims = writes.iter().any(|write| code.contains(&format!("({write}")))
                || code.contains("self.insert(");
            assert!(
                !writes_claims || !code.contains("transaction.commit()"),
                "{file} writes claims, so it must commit by `commit_with_feed`"
            );
        }
    }
}
