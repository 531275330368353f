-- Which campaigns have changed, for cores that follow them. Whatever changes one's rules, epoch or eviction, or what was
-- returned since, gives it the next number, last in its transaction: the one row that the numbers come from is locked from
-- then on until the commit. So whoever sees a number sees all lower ones, which is not so with those of a sequence.

CREATE TABLE last_change (
    one    BIGINT NOT NULL PRIMARY KEY,
    number BIGINT NOT NULL,
    CONSTRAINT last_change_one CHECK (one = 1)
);
INSERT INTO last_change (one, number) VALUES (1, 0);

-- 0: not changed since there are numbers.
ALTER TABLE campaigns ADD COLUMN change_number BIGINT NOT NULL DEFAULT 0;
CREATE INDEX campaigns_by_change ON campaigns (change_number) WHERE change_number > 0;

-- Those that Redis has to hold, however many there were before them.
CREATE INDEX campaigns_in_redis ON campaigns (id) WHERE evicted_at IS NULL;
