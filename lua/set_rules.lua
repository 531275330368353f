-- set_rules: applies a version of a campaign's rules, unless a newer one is there. Counts from the next decision on.
--
-- KEYS  as in prelude.lua
-- ARGV  1-5 as in prelude.lua, 6 version, then field and value of the campaign's hash, in turn
--
-- Replies
--   {'changed'}
--   {'newer'}             Redis holds a newer version: nothing was changed
--   {'not_ready', why}    as in claim.lua

local campaign, why = open_campaign()
if not campaign then return { 'not_ready', why } end
if campaign.version > tonumber(ARGV[6]) then return { 'newer' } end
redis.call('HSET', campaign_key, unpack(ARGV, 7))
return { 'changed' }
