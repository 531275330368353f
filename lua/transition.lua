-- transition: confirms or returns one claim. Each has its effect once, however often and in whatever order it is asked.
-- Works whatever the campaign's window or state.
--
-- KEYS  as in prelude.lua
-- ARGV  1-5 as in prelude.lua, 6 'confirm' or 'return', 7 user id, 8 digest (16 bytes)
--
-- Replies
--   {'transitioned', claim's record, events so far}    the claim as it stands now; its status tells whether that is what
--                                                      was requested: a hold that is due expires instead
--   {'unknown'}                                        no such claim
--   {'not_ready', why}                                 as in claim.lua

local campaign, why = open_campaign()
if not campaign then return { 'not_ready', why } end
local work = new_work(campaign, milliseconds())
local user_id, digest = ARGV[7], ARGV[8]
local record = read_records(work, { user_id }, { digest })[1]
local packed, at = find_claim(work, record, digest)
if not packed then return { 'unknown' } end
local claim = unpack_claim(packed)

local function change_to(status)
  if claim.status == HELD then append(work.freed, hold_member(user_id, digest)) end
  if status == GRANTED then claim.expires_at = 0 else record = give_back(work, record, claim) end
  claim.status = status
  update_claim(work, user_id, record, claim, at)
end

if claim.status == HELD and work.now >= claim.expires_at then
  change_to(EXPIRED)
elseif ARGV[6] == 'confirm' and claim.status == HELD then
  change_to(GRANTED)
elseif ARGV[6] == 'return' and (claim.status == HELD or claim.status == GRANTED) then
  change_to(RETURNED)
end
write_all(work)
return { 'transitioned', pack_claim(claim), campaign.events }
