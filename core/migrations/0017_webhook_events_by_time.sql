-- Events that are due, and whether an earlier event of the same claim waits: both without reading all that wait.

CREATE INDEX webhook_events_by_time ON webhook_events (webhook_id, parked, next_at);
CREATE INDEX webhook_events_by_claim ON webhook_events (webhook_id, claim_id, number);
