-- The scheme of the edge's user ids: recorded at the first claim by an edge, changed by an admin once all campaigns are over.
-- An older core neither reads nor writes these tables.
--
-- Never change once written: all of user_ids_audit.

CREATE TABLE user_ids (
    one    BIGINT NOT NULL PRIMARY KEY,
    -- FORM:FINGERPRINT
    scheme TEXT   NOT NULL,
    -- When it was recorded, by the clock of the core that did.
    since  BIGINT NOT NULL,
    CONSTRAINT user_ids_one CHECK (one = 1)
);

-- Numbered with the entries of `audit`. It has no campaign: the column is always NULL, as the reads of the audit expect it.
CREATE TABLE user_ids_audit (
    number      BIGINT NOT NULL PRIMARY KEY,
    campaign_id TEXT,
    at          BIGINT NOT NULL,
    who         TEXT   NOT NULL,
    what        TEXT   NOT NULL,
    before      TEXT,
    after       TEXT   NOT NULL
);
