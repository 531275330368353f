-- set_rules: applies a version of a campaign's rules, unless Redis has a newer one. Applies from the next decision on.
--
-- KEYS  as in prelude.lua
-- ARGV  1-2 as in prelude.lua, 3 version, 4 admin state, 5 rules, packed as in prelude.lua; if units were added, 6 the
--       addition's idempotency key, 7 its units
--
-- The campaign's field 'additions' lists the last additions, oldest first, one per line: key, units and version,
-- separated by spaces. SQL has the additions as well; a database that has lost the last additions restores them from
-- here.
--
-- Replies
--   {'changed'}
--   {'newer'}             Redis has a newer version; nothing was changed
--   {'differs'}           Redis has different rules of this version; nothing was changed
--   {'not_ready', why}    as in claim.lua

local ADDITIONS_MAX = 100
-- Length of the rules that are compared: everything before the UTC offsets, which change over time.
local RULES_BYTES = 50

local function remember_addition(key, units, version)
  local additions = redis.call('HGET', campaign_key, 'additions') or ''
  if string.find('\n' .. additions, '\n' .. key .. ' ', 1, true) then return end
  additions = additions .. key .. ' ' .. units .. ' ' .. version .. '\n'
  local _, lines = string.gsub(additions, '\n', '')
  if lines > ADDITIONS_MAX then additions = string.sub(additions, string.find(additions, '\n', 1, true) + 1) end
  redis.call('HSET', campaign_key, 'additions', additions)
end

local campaign, why = open_checked_campaign()
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
