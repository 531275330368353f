-- The words that the rest of claimgate uses for these columns.

ALTER TABLE campaigns RENAME COLUMN switch TO admin_state;
ALTER TABLE campaigns RENAME COLUMN archived_at TO evicted_at;
ALTER TABLE campaigns RENAME COLUMN archived_taken TO evicted_taken;
ALTER TABLE campaigns RENAME COLUMN archived_sequence TO evicted_sequence;
ALTER TABLE claims RENAME COLUMN total_then TO limit_at_decision;
ALTER TABLE claims RENAME COLUMN taken_after TO cumulative_taken;
