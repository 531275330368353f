-- The feed: which claims were written, in the order of commits. A transaction that writes claims adds its rows here last: the one
-- row that the numbers come from is locked from then on until the commit. So a reader that sees a number sees all lower ones,
-- which is not so with those of a sequence.
--
-- Never change once written: all of feed; feed_position.feed_id, but after a restore.

CREATE TABLE feed (
    number      BIGINT NOT NULL PRIMARY KEY,
    campaign_id TEXT   NOT NULL,
    -- user.digest of each, separated by spaces. NULL: all claims that the campaign has.
    claims      TEXT
);
CREATE INDEX feed_by_campaign ON feed (campaign_id, number);

-- Claims of before the feed, and those that a core of before it still writes: what a campaign has is read when it is told.
INSERT INTO feed (number, campaign_id)
SELECT ROW_NUMBER() OVER (ORDER BY id), id FROM campaigns;

CREATE TABLE feed_position (
    one         BIGINT NOT NULL PRIMARY KEY,
    -- Tells this feed's cursors from another's: digits and letters, drawn here.
    feed_id     TEXT   NOT NULL,
    last_number BIGINT NOT NULL,
    CONSTRAINT feed_position_one CHECK (one = 1)
);
-- A whole number in SQLite, a fraction in PostgreSQL: of both the digits are random.
INSERT INTO feed_position (one, feed_id, last_number)
SELECT 1, REPLACE(REPLACE(REPLACE(CAST(RANDOM() AS TEXT), '0.', ''), '.', ''), '-', ''), COUNT(*) FROM feed;
