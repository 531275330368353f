-- The audit of all campaigns in one order. An entry gets its number from the first reader that meets it, so numbers come in
-- the order of commits, whichever core of whichever version wrote the entry: whoever has read up to one misses none later.

-- NULL: not met yet.
ALTER TABLE audit ADD COLUMN number BIGINT;
CREATE UNIQUE INDEX audit_by_number ON audit (number);
CREATE INDEX audit_by_campaign ON audit (campaign_id, number);
CREATE INDEX audit_without_number ON audit (at) WHERE number IS NULL;
