-- Whether any of a campaign's claims is revoked, without a look at the others: next to none ever is.
CREATE INDEX claims_revoked ON claims (campaign_id) WHERE status = 'revoked';
