-- transition: confirms, returns or extends one claim. A confirmation, a return and an expiry take effect once,
-- regardless of the number and order of requests; a repeated extension gains nothing. The campaign's window and admin
-- state do not matter.
--
-- KEYS  as in prelude.lua
-- ARGV  1-2 as in prelude.lua, 3 'confirm', 'return' or 'extend', 4 user id, 5 digest (16 bytes), 6 the caller's name,
--       for the audit (an expiry is not recorded under it); 7 how long after its claim an extended hold may end, in ms;
--       8 maximum of the backlog (events) for an extension; 9 the caller's reason for a return, empty if there is none;
--       10 the call's traceparent, only if it is traced
--
-- Replies
--   {'transitioned', claim's record, events so far}         the claim as it is now; its status shows whether the
--                                                           request succeeded: a hold that is due expires instead
--   {'extended_too_often', claim's record, events so far}   unchanged: the hold was extended the maximum number of
--                                                           times
--   {'outbox_full', claim's record, events so far}          unchanged: an extension, and the backlog is full
--   {'unknown'}                                             there is no such claim
--   {'not_ready', why}                                      as in claim.lua

-- Limits of extensions, which core/src/domain/claim_transition.rs repeats. Smaller gains write nothing, so that callers
-- may extend often. Only extensions raise the revision of a held claim, which starts at 1: no counter is needed.
local EXTENSION_MS_MIN, EXTENSIONS_MAX = 10000, 64

local user_id, digest, caller_name, reason, traceparent = ARGV[4], ARGV[5], ARGV[6], ARGV[9], ARGV[10]
local state, record = unpack(redis.call('HMGET', users_key, STATE, user_id))
local campaign, why = open_campaign(state)
if not campaign then return { 'not_ready', why } end
local work = new_work(campaign, milliseconds())
local tools = claim_tools(work)
local packed, at = tools.find(record, digest)
if work.is_damaged then return { 'not_ready', 'sentinel' } end
if not packed then return { 'unknown' } end
local claim = tools.unpack(packed)
local reply = 'transitioned'

-- Adds the caller to the outbox entry, as the value of `field`.
local function name_caller(field)
  work.extra_fields = { field, caller_name }
  if traceparent then append(work, 'extra_fields', 'traceparent', traceparent) end
end

local function change_to(status)
  if claim.status == HELD then append(work, 'released', hold_member(user_id, digest)) end
  if status == GRANTED then claim.expires_at = 0 else record = tools.return_units(record, claim) end
  claim.status = status
  tools.update(user_id, record, claim, at)
end

-- Moves the hold to its later expiry. The state's `next_due` may stay at the earlier one, since it may be too early.
local function extend()
  local expires_at = math.min(work.now + campaign.hold_ms, claim.claimed_at + tonumber(ARGV[7]))
  if expires_at - claim.expires_at < EXTENSION_MS_MIN then return end
  if claim.revision > EXTENSIONS_MAX then
    reply = 'extended_too_often'
    return
  end
  -- Confirmations and returns are few for each claim and must succeed; extensions could fill the outbox.
  if campaign.backlog >= tonumber(ARGV[8]) then
    reply = 'outbox_full'
    return
  end
  -- Not `by`: an earlier version would record the extension as a return.
  name_caller('extended_by')
  append(work, 'extra_fields', 'extended_from', string.format('%.0f', claim.expires_at))
  claim.expires_at = expires_at
  append(work, 'held', expires_at, hold_member(user_id, digest))
  tools.update(user_id, record, claim, at)
end

if claim.status == HELD and work.now >= claim.expires_at then
  change_to(EXPIRED)
elseif ARGV[3] == 'confirm' and claim.status == HELD then
  name_caller('by')
  change_to(GRANTED)
elseif ARGV[3] == 'return' and (claim.status == HELD or claim.status == GRANTED) then
  name_caller('by')
  if reason ~= '' then append(work, 'extra_fields', 'reason', reason) end
  change_to(RETURNED)
elseif ARGV[3] == 'extend' and claim.status == HELD then
  extend()
end
if not write_all(work) then return { 'not_ready', 'sentinel' } end
return { reply, tools.pack(claim), campaign.events }
