-- transition: confirms or returns one claim. Each transition takes effect once, regardless of the number and order of
-- requests. The campaign's window and admin state do not matter.
--
-- KEYS  as in prelude.lua
-- ARGV  1-2 as in prelude.lua, 3 'confirm' or 'return', 4 user id, 5 digest (16 bytes), 6 the caller's name, for the audit
--       (an expiry is not recorded under it); 7 the call's traceparent, only if it is traced
--
-- Replies
--   {'transitioned', claim's record, events so far}    the claim as it is now; its status shows whether the request
--                                                      succeeded: a hold that is due expires instead
--   {'unknown'}                                        there is no such claim
--   {'not_ready', why}                                 as in claim.lua

local user_id, digest = ARGV[4], ARGV[5]
local caller = ARGV[7] and { 'by', ARGV[6], 'traceparent', ARGV[7] } or { 'by', ARGV[6] }
local state, record = unpack(redis.call('HMGET', users_key, STATE, user_id))
local campaign, why = open_campaign(state)
if not campaign then return { 'not_ready', why } end
local work = new_work(campaign, milliseconds())
local tools = claim_tools(work)
local packed, at = tools.find(record, digest)
if work.is_damaged then return { 'not_ready', 'sentinel' } end
if not packed then return { 'unknown' } end
local claim = tools.unpack(packed)

local function change_to(status, extra_fields)
  work.extra_fields = extra_fields
  if claim.status == HELD then append(work, 'released', hold_member(user_id, digest)) end
  if status == GRANTED then claim.expires_at = 0 else record = tools.return_units(record, claim) end
  claim.status = status
  tools.update(user_id, record, claim, at)
end

if claim.status == HELD and work.now >= claim.expires_at then
  change_to(EXPIRED)
elseif ARGV[3] == 'confirm' and claim.status == HELD then
  change_to(GRANTED, caller)
elseif ARGV[3] == 'return' and (claim.status == HELD or claim.status == GRANTED) then
  change_to(RETURNED, caller)
end
if not write_all(work) then return { 'not_ready', 'sentinel' } end
return { 'transitioned', tools.pack(claim), campaign.events }
