-- Who has confirmed and returned which claim, beside `audit`, whose entries are campaigns' versions. Both draw their numbers
-- from one row, which is locked from then on until the commit: whoever sees a number sees all lower ones. Entries of `audit`
-- that a core of before this writes get theirs, as before, from the first reader that meets them.
--
-- Never change once written: all of claim_audit.

CREATE TABLE last_audit (
    one    BIGINT NOT NULL PRIMARY KEY,
    number BIGINT NOT NULL,
    CONSTRAINT last_audit_one CHECK (one = 1)
);
INSERT INTO last_audit (one, number) SELECT 1, COALESCE(MAX(number), 0) FROM audit;

CREATE TABLE claim_audit (
    number      BIGINT NOT NULL PRIMARY KEY,
    -- Which revision of which claim it made: an outbox entry that is written again adds nothing.
    campaign_id TEXT   NOT NULL,
    user_id     TEXT   NOT NULL,
    digest      TEXT   NOT NULL,
    epoch       BIGINT NOT NULL,
    revision    BIGINT NOT NULL,
    at          BIGINT NOT NULL,
    who         TEXT   NOT NULL,
    what        TEXT   NOT NULL,
    -- The claim's status.
    before      TEXT   NOT NULL,
    after       TEXT   NOT NULL,
    CONSTRAINT claim_audit_once UNIQUE (campaign_id, user_id, digest, epoch, revision),
    CONSTRAINT claim_audit_what CHECK (what IN ('confirm', 'return'))
);
CREATE INDEX claim_audit_by_campaign ON claim_audit (campaign_id, number);
