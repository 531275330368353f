-- Who may write a campaign into Redis: everyone draws a higher token from its row first, which suspends the campaign there
-- and makes every older loader late. And whose campaign it is: drawn at creation, kept in its keys in Redis too, so that
-- another register's campaign of the same name is never taken for it.
--
-- Never change once written: register_id.

ALTER TABLE campaigns ADD COLUMN token BIGINT NOT NULL DEFAULT 0;
ALTER TABLE campaigns ADD COLUMN register_id TEXT NOT NULL DEFAULT '';
-- Whether the keys of a campaign that has left Redis are gone: 0 after a crash between the two.
ALTER TABLE campaigns ADD COLUMN keys_dropped BIGINT NOT NULL DEFAULT 1;

CREATE INDEX campaigns_keys_to_drop ON campaigns (id) WHERE keys_dropped = 0;

-- Which Redis serves this database, one row: the Redis' own id, and when a core last served with it, by the database's clock.
CREATE TABLE serving (
    one       BIGINT NOT NULL PRIMARY KEY,
    store_id  TEXT   NOT NULL,
    served_at BIGINT NOT NULL,
    CONSTRAINT serving_one CHECK (one = 1)
);
