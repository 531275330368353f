-- sold_out: checks whether a campaign is sold out, and how long that is certain unless units are returned or rules
-- change. Writes nothing.
--
-- KEYS  as in prelude.lua
-- ARGV  1-2 as in prelude.lua
--
-- Replies
--   {'sold_out', version, sequence, most, ms, requires_pass}
--       most: the quantity that the other limits allow a user without claims; ms: time until a hold is due, or the
--       window or the pass rule ends, at most 1,000; requires_pass: 1 if a claim without a pass is denied for that,
--       otherwise 0
--   {'open'}              units are left, or another rule denies first
--   {'not_ready', why}    as in claim.lua

local campaign, why = open_checked_campaign()
if not campaign then return { 'not_ready', why } end
local now = milliseconds()
local ends = math.min(campaign.ends_at, campaign.next_due, now + 1000)
if campaign.admin_state ~= ADMIN_ON or now < campaign.starts_at or now >= ends or campaign.taken < campaign.total then
  return { 'open' }
end
local requires_pass = now < campaign.pass_until
if requires_pass then ends = math.min(ends, campaign.pass_until) end
local most = math.min(campaign.per_claim, campaign.per_user, campaign.per_user_per_day)
return { 'sold_out', campaign.version, campaign.sequence, most, ends - now, requires_pass and 1 or 0 }
