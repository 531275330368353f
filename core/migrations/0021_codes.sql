-- Codes: in a campaign with codes, each unit of a granted claim has a code. An older core neither reads nor writes these
-- columns and the table; it cannot serve a Redis of this layout.
--
-- Never change once written: campaigns.has_codes; claims.first_code; all of codes, unless the database has lost
-- transactions.

ALTER TABLE campaigns ADD COLUMN has_codes BIGINT NOT NULL DEFAULT 0;
-- Number of codes in the table.
ALTER TABLE campaigns ADD COLUMN codes_added BIGINT NOT NULL DEFAULT 0;
-- The highest number that a claim has. Numbers may run ahead of the codes.
ALTER TABLE campaigns ADD COLUMN codes_assigned BIGINT NOT NULL DEFAULT 0;
-- Claims with numbers from here on may still lack codes, or Redis may lack their codes. NULL if there are none.
ALTER TABLE campaigns ADD COLUMN codes_pending_from BIGINT;
CREATE INDEX campaigns_with_pending_codes ON campaigns (id) WHERE codes_pending_from IS NOT NULL;

-- A claim's numbers are first_code, first_code + 1, ..., one for each unit.
ALTER TABLE claims ADD COLUMN first_code BIGINT;
CREATE UNIQUE INDEX claims_by_first_code ON claims (campaign_id, first_code) WHERE first_code IS NOT NULL;

CREATE TABLE codes (
    -- No REFERENCES, for the reason given at claims.
    campaign_id TEXT   NOT NULL,
    number      BIGINT NOT NULL,
    code        TEXT   NOT NULL,
    CONSTRAINT codes_key PRIMARY KEY (campaign_id, number)
);
CREATE UNIQUE INDEX codes_by_code ON codes (campaign_id, code);

-- Who has read codes of many claims.
CREATE TABLE code_audit (
    number      BIGINT NOT NULL PRIMARY KEY,
    -- NULL for the claims of all campaigns.
    campaign_id TEXT,
    at          BIGINT NOT NULL,
    who         TEXT   NOT NULL,
    what        TEXT   NOT NULL,
    before      TEXT,
    after       TEXT   NOT NULL
);
CREATE INDEX code_audit_by_campaign ON code_audit (campaign_id, number);
