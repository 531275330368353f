-- read: reads the campaign's counters and, if requested, one claim. Writes nothing.
--
-- KEYS  as in prelude.lua
-- ARGV  1-2 as in prelude.lua; to read a claim, 3 user id, 4 digest (16 bytes)
--
-- Replies
--   {'found', now ms, version, taken, sequence, backlog, events so far, claim's record or false}
--   {'not_ready', why}    as in claim.lua

local campaign, why = open_checked_campaign()
if not campaign then return { 'not_ready', why } end
local now, record = milliseconds(), false
if ARGV[3] then
  record = claim_tools(new_work(campaign, now)).find(redis.call('HGET', users_key, ARGV[3]), ARGV[4]) or false
end
return {
  'found', now, campaign.version, campaign.taken, campaign.sequence, campaign.backlog, campaign.events, record,
}
