-- Indexes that the statements over claims can use, on both databases (tests/faults/plans.rs asks each of them).

-- As before, at most one claim that is not revoked has a place; a revoked claim's place may have been given again. Not
-- partial, so that it also serves lists, exports and the look for gaps, which go through all claims in order.
DROP INDEX claims_sequence;
CREATE UNIQUE INDEX claims_by_place
    ON claims (campaign_id, sequence, (CASE WHEN status = 'revoked' THEN id ELSE '' END));

-- A campaign loaded user by user, and what one user has taken. The drain writes in this order, so it costs little.
CREATE INDEX claims_by_user ON claims (campaign_id, user_id, sequence);
