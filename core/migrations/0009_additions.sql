-- Units that were added to a campaign's total, or taken off it: once for each idempotency key.
--
-- Never change once written: all of it.

CREATE TABLE additions (
    campaign_id     TEXT   NOT NULL REFERENCES campaigns (id),
    idempotency_key TEXT   NOT NULL,
    units           BIGINT NOT NULL,
    -- The version of the campaign that it made; the audit table has who and when.
    version         BIGINT NOT NULL,
    PRIMARY KEY (campaign_id, idempotency_key)
);
