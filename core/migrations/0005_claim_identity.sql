-- A claim's id is its campaign, its user and its digest. It was written three times for each claim: in the row, in the index
-- of the ids, and but for the digest in the index by user. Now these three are the key, and an index by user at that.
--
-- Never change once written: claims.campaign_id, user_id, digest, quantity; and of one epoch sequence, day, claimed_at,
-- limit_at_decision, cumulative_taken.

CREATE TABLE claims_by_identity (
    -- No REFERENCES: whoever writes claims holds the campaign's row, and a look for it at every claim costs a third of
    -- the relay's time.
    campaign_id TEXT   NOT NULL,
    user_id     TEXT   NOT NULL,
    -- What tells a user's claims apart. The claim's id is campaign_id || '.' || user_id || '.' || digest.
    digest      TEXT   NOT NULL,
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
    limit_at_decision BIGINT,
    cumulative_taken  BIGINT,
    CONSTRAINT claims_identity PRIMARY KEY (campaign_id, user_id, digest),
    CONSTRAINT claims_quantity CHECK (quantity > 0),
    CONSTRAINT claims_status CHECK (status IN ('granted', 'held', 'returned', 'expired', 'revoked')),
    CONSTRAINT claims_total CHECK (cumulative_taken <= limit_at_decision)
);

INSERT INTO claims_by_identity
SELECT campaign_id, user_id, SUBSTR(id, LENGTH(campaign_id) + LENGTH(user_id) + 3), quantity, status, epoch, revision,
    sequence, day, claimed_at, expires_at, updated_at, limit_at_decision, cumulative_taken
FROM claims ORDER BY campaign_id, sequence;

DROP TABLE claims;
ALTER TABLE claims_by_identity RENAME TO claims;

-- As before: at most one claim that is not revoked has a place; lists, exports and the look for gaps go by it.
CREATE UNIQUE INDEX claims_by_place
    ON claims (campaign_id, sequence, (CASE WHEN status = 'revoked' THEN user_id || '.' || digest ELSE '' END));
