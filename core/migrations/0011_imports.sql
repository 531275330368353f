-- Past claims are imported in many transactions. Until the last one the campaign's row names the file, by the SHA-256 of its
-- bytes, and the campaign is evicted: no core loads claims that are not all there, and no other file comes in between.

ALTER TABLE campaigns ADD COLUMN import_digest TEXT;
