-- give_codes: stores the codes of claims that were relayed to SQL before their codes were added. From then on the codes
-- may be shown to their owners. Giving the same codes again changes nothing.
--
-- KEYS  as in prelude.lua; 6 codes (hash)
-- ARGV  1-2 as in prelude.lua, 3 the number of events that SQL had when the claims were read, then for each claim: digest,
--       codes; at most 1,000 claims
--
-- The codes of a claim: the number of its first code 6, then as text, separated by spaces: user id, codes.
--
-- Replies
--   {'given'}
--   {'busy'}              the outbox may still have entries of these claims; nothing was changed. An entry in the outbox must
--                         not have codes here, for the reason given in ack.lua
--   {'not_ready', why}    as in claim.lua; nothing was changed

-- Length of an outbox entry's head, and where the number of events so far begins in it (write_all in prelude.lua).
local HEAD_BYTES, HEAD_EVENTS_AT = 28, 6

local codes_key = KEYS[6]
local campaign, why = open_campaign(redis.call('HGET', users_key, STATE))
if not campaign then return { 'not_ready', why } end
if redis.call('HGET', codes_key, SENTINEL) ~= string.format('%.0f', campaign.loaded_epoch) then
  return { 'not_ready', 'sentinel' }
end
-- Several cores remove entries, not always the oldest first. The first entry left decides: events are in order.
local first = redis.call('XRANGE', outbox_key, '1', '+', 'COUNT', 1)[1]
if first then
  local head = first[2][2]
  if #head ~= HEAD_BYTES or struct.unpack('>I6', head, HEAD_EVENTS_AT) <= tonumber(ARGV[3]) then return { 'busy' } end
end
-- Never overwrite a code that Redis already has: it may have been shown.
for at = 4, #ARGV, 2 do redis.call('HSETNX', codes_key, ARGV[at], ARGV[at + 1]) end
return { 'given' }
