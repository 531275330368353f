-- The scheme of user ids by HMAC that all claims of a campaign had when its epoch was last raised by a load into Redis.
-- NULL if no such scheme was pinned then, or if a claim had another id. An older core neither reads nor writes this
-- column. Once the first core of this version runs, each live campaign is loaded once more before its next claim under
-- such ids.
ALTER TABLE campaigns ADD COLUMN checked_user_ids TEXT;
