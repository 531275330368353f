-- transition: confirms or returns one claim. Each has its effect once, however often and in whatever order it is asked.
-- Works whatever the campaign's window or state.
--
-- KEYS  as in prelude.lua
-- ARGV  1-2 as in prelude.lua, 3 'confirm' or 'return', 4 user id, 5 digest (16 bytes), 6 the caller's name,
--       for the audit: an expiry is no caller's, so it names none; 7 the traceparent of the call, only when it is traced
--
-- Replies
--   {'transitioned', claim's record, events so far}    the claim as it stands now; its status tells whether that is what
--                                                      was requested: a hold that is due expires instead
--   {'unknown'}                                        no such claim
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

local function change_to(status, more)
  work.more = more
  if claim.status == HELD then append(work, 'freed', hold_member(user_id, digest)) end
  if status == GRANTED then claim.expires_at = 0 else record = tools.give_back(record, claim) end
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
