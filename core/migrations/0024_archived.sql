-- Archived campaigns, which lists leave out. An older core neither reads nor writes this column and the table: it lists
-- archived campaigns, and a campaign that it opens again stays marked. A mark counts only while the campaign is ended.
--
-- Never change once written: all of archive_audit.

-- When an admin archived the campaign. NULL if it is not archived.
ALTER TABLE campaigns ADD COLUMN archived_at BIGINT;

-- Who has archived which campaign. Not in audit, whose entries are campaigns' versions: archiving changes no rules.
CREATE TABLE archive_audit (
    -- Numbered with the entries of audit.
    number      BIGINT NOT NULL PRIMARY KEY,
    campaign_id TEXT   NOT NULL,
    at          BIGINT NOT NULL,
    who         TEXT   NOT NULL,
    what        TEXT   NOT NULL,
    before      TEXT   NOT NULL,
    after       TEXT   NOT NULL
);
CREATE INDEX archive_audit_by_campaign ON archive_audit (campaign_id, number);
