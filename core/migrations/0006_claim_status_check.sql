-- For `status IN ('granted', …)` in a CHECK SQLite fills a temporary table with the five words, again for each row: an eighth
-- of the relay's time. Compared one by one they cost nothing. SQLite changes no constraint of a table that is there.
--
-- Never change once written: as in 0005.

CREATE TABLE claims_checked (
    campaign_id TEXT   NOT NULL,
    user_id     TEXT   NOT NULL,
    digest      TEXT   NOT NULL,
    quantity    BIGINT NOT NULL,
    status      TEXT   NOT NULL,
    epoch       BIGINT NOT NULL,
    revision    BIGINT NOT NULL,
    sequence    BIGINT NOT NULL,
    day         BIGINT NOT NULL,
    claimed_at  BIGINT NOT NULL,
    expires_at  BIGINT,
    updated_at  BIGINT NOT NULL,
    limit_at_decision BIGINT,
    cumulative_taken  BIGINT,
    CONSTRAINT claims_key PRIMARY KEY (campaign_id, user_id, digest),
    CONSTRAINT claims_quantity CHECK (quantity > 0),
    CONSTRAINT claims_status CHECK (status = 'granted' OR status = 'held' OR status = 'returned' OR status = 'expired'
        OR status = 'revoked'),
    CONSTRAINT claims_total CHECK (cumulative_taken <= limit_at_decision)
);

INSERT INTO claims_checked SELECT * FROM claims ORDER BY campaign_id, sequence;

DROP TABLE claims;
ALTER TABLE claims_checked RENAME TO claims;

CREATE UNIQUE INDEX claims_by_place
    ON claims (campaign_id, sequence, (CASE WHEN status = 'revoked' THEN user_id || '.' || digest ELSE '' END));
