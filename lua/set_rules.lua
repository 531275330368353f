-- set_rules: applies a version of a campaign's rules, unless a newer one is there. Counts from the next decision on.
--
-- KEYS  as in prelude.lua
-- ARGV  1-2 as in prelude.lua, 3 version, 4 admin state, 5 rules, packed as in prelude.lua; where units were added, 6 the
--       addition's idempotency key, 7 its units
--
-- The campaign's 'additions' are the last of these, oldest first, a line each: key, units and version, separated by spaces.
-- SQL knows them too; a database that has lost the last ones gets them from here.
--
-- Replies
--   {'changed'}
--   {'newer'}             Redis holds a newer version: nothing was changed
--   {'differs'}           Redis holds this version with other rules: nothing was changed
--   {'not_ready', why}    as in claim.lua

local ADDITIONS_MAX = 100
-- Bytes of the rules before the end of the UTC offsets, which moves with the time.
local RULES_BYTES = 38

local function remember_addition(key, units, version)
  local additions = redis.call('HGET', campaign_key, 'additions') or ''
  if string.find('\n' .. additions, '\n' .. key .. ' ', 1, true) then return end
  additions = additions .. key .. ' ' .. units .. ' ' .. version .. '\n'
  local _, lines = string.gsub(additions, '\n', '')
  if lines > ADDITIONS_MAX then additions = string.sub(additions, string.find(additions, '\n', 1, true) + 1) end
  redis.call('HSET', campaign_key, 'additions', additions)
end

local campaign, why = open_whole_campaign()
if not campaign then return { 'not_ready', why } end
local version, admin_state = tonumber(ARGV[3]), tonumber(ARGV[4])
if campaign.version > version then return { 'newer' } end
local rules_at = #ARGV[1] + COUNTERS_BYTES + 1
local same = campaign.admin_state == admin_state
  and string.sub(campaign.state, rules_at, rules_at + RULES_BYTES - 1) == string.sub(ARGV[5], 1, RULES_BYTES)
if campaign.version == version and not same then return { 'differs' } end
campaign.admin_state = admin_state
if ARGV[6] then remember_addition(ARGV[6], ARGV[7], ARGV[3]) end
redis.call('HSET', users_key, STATE, pack_state(campaign, ARGV[5]))
return { 'changed' }
