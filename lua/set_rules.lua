-- set_rules: applies a version of a campaign's rules, unless a newer one is there. Counts from the next decision on.
--
-- KEYS  as in prelude.lua
-- ARGV  1-2 as in prelude.lua, 3 version, 4 admin state, 5 rules, packed as in prelude.lua
--
-- Replies
--   {'changed'}
--   {'newer'}             Redis holds a newer version: nothing was changed
--   {'not_ready', why}    as in claim.lua

local campaign, why = open_whole_campaign()
if not campaign then return { 'not_ready', why } end
if campaign.version > tonumber(ARGV[3]) then return { 'newer' } end
campaign.admin_state = tonumber(ARGV[4])
redis.call('HSET', users_key, STATE, pack_state(campaign, ARGV[5]))
return { 'changed' }
