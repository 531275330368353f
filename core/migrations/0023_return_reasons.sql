-- Why a caller returned a claim. NULL if the caller gave no reason, and for entries that an older core wrote: it neither
-- reads nor writes this column.
--
-- Never change once written: claim_audit.reason.

ALTER TABLE claim_audit ADD COLUMN reason TEXT;
