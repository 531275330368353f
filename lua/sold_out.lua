-- sold_out: whether nothing is left, and for how long that is certain unless something is given back or changed. Writes
-- nothing.
--
-- KEYS  as in prelude.lua
-- ARGV  1-2 as in prelude.lua
--
-- Replies
--   {'sold_out', version, sequence, most, ms}    most: what a user without claims could ask for, were there enough;
--                                                ms: until a hold falls due or the window ends, 1,000 at most
--   {'open'}                                     something is left, or another rule refuses first
--   {'not_ready', why}                           as in claim.lua

local campaign, why = open_whole_campaign()
if not campaign then return { 'not_ready', why } end
local now = milliseconds()
local ends = math.min(campaign.ends_at, campaign.next_due, now + 1000)
if campaign.admin_state ~= ADMIN_ON or now < campaign.starts_at or now >= ends or campaign.taken < campaign.total then
  return { 'open' }
end
local most = math.min(campaign.per_claim, campaign.per_user, campaign.per_user_per_day)
return { 'sold_out', campaign.version, campaign.sequence, most, ends - now }
