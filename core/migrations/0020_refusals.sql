-- Refused claims, for the report on a campaign's demand. An older core neither reads nor writes these tables.
--
-- Never change once written: all of refusal_reports; of refusals everything but refused.

CREATE TABLE refusals (
    -- Empty for ids that name no campaign. No REFERENCES, for the reason given at claims.
    campaign_id TEXT   NOT NULL,
    -- Seconds since 1970, by the clock of the edge or core that refused.
    at_s        BIGINT NOT NULL,
    -- The problem's code.
    reason      TEXT   NOT NULL,
    refused_by  TEXT   NOT NULL,
    refused     BIGINT NOT NULL,
    CONSTRAINT refusals_key PRIMARY KEY (campaign_id, at_s, reason, refused_by),
    CONSTRAINT refusals_by CHECK (refused_by = 'edge' OR refused_by = 'core')
);
CREATE INDEX refusals_by_time ON refusals (at_s);

-- The reports whose counts are in refusals, for an hour: a report that is sent again counts once.
CREATE TABLE refusal_reports (
    reporter    TEXT   NOT NULL,
    number      BIGINT NOT NULL,
    -- By the database's clock.
    received_at BIGINT NOT NULL,
    CONSTRAINT refusal_reports_key PRIMARY KEY (reporter, number)
);
CREATE INDEX refusal_reports_by_time ON refusal_reports (received_at);

-- Claims that edges refused and this core recorded since its start, by reason, as JSON. An older core writes none.
ALTER TABLE cores ADD COLUMN edge_refusals TEXT NOT NULL DEFAULT '{}';
