-- read: reads one claim as it stands, and the campaign's counters. Writes nothing.
--
-- KEYS  as in prelude.lua
-- ARGV  1-5 as in prelude.lua, and for a claim 6 user id, 7 digest (16 bytes)
--
-- Replies
--   {'found', now ms, version, taken, sequence, backlog, events so far, claim's record or false}
--   {'not_ready', why}    as in claim.lua

local campaign, why = open_campaign()
if not campaign then return { 'not_ready', why } end
local record = false
if ARGV[6] then
  local user = redis.call('HGET', users_key, ARGV[6])
  local at = user and find_inline(user, ARGV[7])
  record = at and string.sub(user, at, at + CLAIM - 1)
  if user and not at and string.byte(user, HEADER) == 1 then
    local moved = redis.call('HGET', claims_key, ARGV[7])
    record = moved and string.sub(moved, 1, CLAIM)
  end
end
return {
  'found', milliseconds(), campaign.version, campaign.taken, campaign.sequence, campaign.backlog, campaign.events,
  record or false,
}
