-- Webhooks: who is told of changed claims, and how far. One core delivers for each, under a lease: `holder` until `held_until`.
-- Only the holder moves `cursor`, the place in the feed behind which all was delivered, or is among `webhook_events`.
--
-- Never change once written: webhooks.id, url, campaign_id, created_at; all of webhook_audit.

CREATE TABLE webhooks (
    id               TEXT   NOT NULL PRIMARY KEY,
    url              TEXT   NOT NULL,
    -- NULL: of all campaigns.
    campaign_id      TEXT,
    secret           TEXT   NOT NULL,
    -- Signs beside the new one until then.
    old_secret       TEXT,
    old_secret_until BIGINT,
    enabled          BIGINT NOT NULL,
    -- Why it is not enabled.
    disabled_because TEXT,
    cursor           TEXT   NOT NULL,
    created_at       BIGINT NOT NULL,
    delivered        BIGINT NOT NULL,
    delivered_at     BIGINT,
    holder           TEXT   NOT NULL,
    held_until       BIGINT NOT NULL
);

-- Events that a receiver has not taken yet: tried again, or parked after a day. Those of one claim are told in their order.
CREATE TABLE webhook_events (
    webhook_id TEXT   NOT NULL REFERENCES webhooks (id) ON DELETE CASCADE,
    number     BIGINT NOT NULL,
    event_id   TEXT   NOT NULL,
    -- campaign.user.digest; empty for a test.
    claim_id   TEXT   NOT NULL,
    body       TEXT   NOT NULL,
    parked     BIGINT NOT NULL,
    tries      BIGINT NOT NULL,
    first_at   BIGINT NOT NULL,
    next_at    BIGINT NOT NULL,
    last_error TEXT   NOT NULL,
    PRIMARY KEY (webhook_id, number)
);

-- Who made, removed and changed which webhook; numbered with the entries of `audit` and `claim_audit`.
CREATE TABLE webhook_audit (
    number      BIGINT NOT NULL PRIMARY KEY,
    webhook_id  TEXT   NOT NULL,
    campaign_id TEXT,
    at          BIGINT NOT NULL,
    who         TEXT   NOT NULL,
    what        TEXT   NOT NULL,
    before      TEXT,
    after       TEXT   NOT NULL
);
