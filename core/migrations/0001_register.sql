-- The register. One text for SQLite and PostgreSQL. Times are milliseconds since 1970, days are days since 1970.
--
-- Never change once written: campaigns.id, campaigns.time_zone; claims.id, campaign_id, user_id, quantity,
-- sequence, day, claimed_at, total_then, taken_after (of one epoch).

CREATE TABLE campaigns (
    id               TEXT   NOT NULL PRIMARY KEY,
    name             TEXT   NOT NULL,
    starts_at        BIGINT NOT NULL,
    ends_at          BIGINT,
    time_zone        TEXT   NOT NULL,
    total            BIGINT,
    per_user         BIGINT,
    per_user_per_day BIGINT,
    per_claim        BIGINT,
    hold_seconds     BIGINT,
    switch           TEXT   NOT NULL,
    version          BIGINT NOT NULL,
    -- How far the campaign is known to have come in Redis: its last sequence, and how many events it has had. A Redis
    -- with fewer has lost some.
    sequence         BIGINT NOT NULL,
    events           BIGINT NOT NULL,
    -- Raised by every rebuild, in its transaction: entries of an older epoch are stored as revoked.
    epoch            BIGINT NOT NULL,
    created_at       BIGINT NOT NULL,
    changed_at       BIGINT NOT NULL,
    -- Once over and drained a campaign leaves Redis: when, and with how much taken and which last sequence.
    archived_at      BIGINT,
    archived_taken   BIGINT,
    archived_sequence BIGINT,
    CONSTRAINT campaigns_window CHECK (ends_at > starts_at),
    CONSTRAINT campaigns_switch CHECK (switch IN ('on', 'paused', 'ended'))
);

CREATE TABLE claims (
    id          TEXT   NOT NULL PRIMARY KEY,
    -- No REFERENCES: whoever writes claims holds the campaign's row, and a look for it at every claim costs a third of
    -- the drain's time.
    campaign_id TEXT   NOT NULL,
    user_id     TEXT   NOT NULL,
    quantity    BIGINT NOT NULL,
    status      TEXT   NOT NULL,
    -- A newer (epoch, revision) replaces an older one, never the reverse.
    epoch       BIGINT NOT NULL,
    revision    BIGINT NOT NULL,
    sequence    BIGINT NOT NULL,
    day         BIGINT NOT NULL,
    claimed_at  BIGINT NOT NULL,
    expires_at  BIGINT,
    updated_at  BIGINT NOT NULL,
    -- The campaign's total when this claim was decided, and what was taken after it: the database's own guard.
    total_then  BIGINT,
    taken_after BIGINT,
    CONSTRAINT claims_quantity CHECK (quantity > 0),
    CONSTRAINT claims_status CHECK (status IN ('granted', 'held', 'returned', 'expired', 'revoked')),
    CONSTRAINT claims_total CHECK (taken_after <= total_then)
);

-- A revoked claim's place may have been given again after the rebuild that revoked it.
CREATE UNIQUE INDEX claims_sequence ON claims (campaign_id, sequence) WHERE status <> 'revoked';

CREATE TABLE audit (
    campaign_id TEXT   NOT NULL REFERENCES campaigns (id),
    version     BIGINT NOT NULL,
    at          BIGINT NOT NULL,
    who         TEXT   NOT NULL,
    what        TEXT   NOT NULL,
    before      TEXT,
    after       TEXT   NOT NULL,
    PRIMARY KEY (campaign_id, version)
);
