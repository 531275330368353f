-- read_codes: reads the codes of claims. Writes nothing.
--
-- KEYS  as in prelude.lua; 6 codes (hash)
-- ARGV  1-2 as in prelude.lua, then the digests of the claims, at most 1,000
--
-- Replies
--   {'found', {codes or false, ...}}    in the order of the digests, each packed as in give_codes.lua
--   {'not_ready', why}                  as in claim.lua

local codes_key = KEYS[6]
local campaign, why = open_campaign(redis.call('HGET', users_key, STATE))
if not campaign then return { 'not_ready', why } end
local found = redis.call('HMGET', codes_key, SENTINEL, unpack(ARGV, 3))
if table.remove(found, 1) ~= string.format('%.0f', campaign.loaded_epoch) then return { 'not_ready', 'sentinel' } end
return { 'found', found }
