-- Who has extended the hold of which claim. Not in claim_audit, whose constraint allows only confirmations and returns: a
-- replaced table would lose entries of an older core that runs meanwhile. An older core neither reads nor writes this table.
--
-- Never change once written: all of extension_audit.

CREATE TABLE extension_audit (
    -- Numbered with the entries of audit.
    number      BIGINT NOT NULL PRIMARY KEY,
    -- The claim's revision after the extension: an outbox entry that is written again adds nothing.
    campaign_id TEXT   NOT NULL,
    user_id     TEXT   NOT NULL,
    digest      TEXT   NOT NULL,
    epoch       BIGINT NOT NULL,
    revision    BIGINT NOT NULL,
    at          BIGINT NOT NULL,
    who         TEXT   NOT NULL,
    what        TEXT   NOT NULL,
    -- The claim's status and expiry, as JSON.
    before      TEXT   NOT NULL,
    after       TEXT   NOT NULL,
    CONSTRAINT extension_audit_once UNIQUE (campaign_id, user_id, digest, epoch, revision)
);
CREATE INDEX extension_audit_by_campaign ON extension_audit (campaign_id, number);
