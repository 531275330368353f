-- suspend: stops all decisions on a campaign until it is loaded again, and fences off every loader with a lower token.
-- If Redis does not have the campaign, it leaves a stub for an hour, which a load replaces. An eviction, which frees
-- memory, starts with this script, so it runs even when Redis is out of memory.
--
-- Keys of layout 6 are suspended as well. Their state and records keep that layout until a load replaces them; only
-- this layout's cores can do so, since the campaign's hash names layout 7 from then on.
--
-- KEYS  as in prelude.lua
-- ARGV  1 layout   2 register id   3 fencing token, issued from the campaign's row in SQL
--
-- Replies
--   {'suspended', epoch, sequence, events, taken, revisions, backlog, token, admin state, rules, additions, layout}
--                  epoch: 0 if Redis did not have the campaign. revisions: the sum of all claims' revisions, -1 if
--                  users or claims are missing; the other counters may then be 0 or too low. backlog: number of events
--                  never removed from the outbox. token: the previous token, '0' if there was none. admin state and
--                  rules: the values in force until now, 0 and '' if missing; rules of layout 6 are converted.
--                  additions: in the format of set_rules.lua. layout: of the records in the keys
--   {'late', token}    the campaign has this higher token; nothing was changed
--   {'not_ready', why}    why: register | layout (the keys belong to another database, or have a layout that cannot be
--                         converted; nothing was changed)

local STUB_MS = 3600000
-- The layout that a load converts.
local CONVERTED = '6'

-- Converts rules of layout 6: they have no pass rule, and the end of the UTC offsets before the version.
local function converted(rules)
  return string.sub(rules, 1, 38) .. string.rep('\0', 6) .. string.sub(rules, 45, 50) .. string.sub(rules, 39, 44)
    .. string.sub(rules, 51)
end

local layout, register_id, token, epoch, events_loaded, revisions_loaded, admin_state, additions =
  unpack(redis.call('HMGET', campaign_key, 'layout', 'register_id', 'token', 'epoch', 'events_loaded',
    'revisions_loaded', 'admin_state', 'additions'))
local state = redis.call('HGET', users_key, STATE)
local state_layout, state_register_id, state_epoch = parse_identity(state)
local is_there = layout or state_layout
layout, register_id = layout or state_layout, state_register_id or register_id
if layout and layout ~= ARGV[1] and layout ~= CONVERTED then return { 'not_ready', 'layout' } end
if register_id and register_id ~= ARGV[2] then return { 'not_ready', 'register' } end
if token and tonumber(token) > tonumber(ARGV[3]) then return { 'late', token } end

local sequence, taken, events, revisions, backlog, rules = 0, 0, 0, -1, 0, ''
if state_epoch then
  local at, campaign = 2 + string.byte(state), {}
  campaign.admin_state, sequence, taken, events, backlog, campaign.loaded_epoch =
    struct.unpack(COUNTERS, state, at)
  epoch = string.format('%.0f', state_epoch)
  if events_loaded and revisions_loaded and claims_match_load(campaign) then
    -- Every event raises one claim's revision by one.
    revisions = revisions_loaded + events - events_loaded
  end
  rules = string.sub(state, at + COUNTERS_BYTES)
  if state_layout == CONVERTED then rules = converted(rules) end
  -- The suspension overwrites the admin state, so keep a copy: the load needs the admin state if SQL has lost it.
  if campaign.admin_state ~= ADMIN_SUSPENDED then
    admin_state = campaign.admin_state
    redis.call('HSET', campaign_key, 'admin_state', admin_state)
  end
  state = string.sub(state, 1, at - 1) .. string.char(ADMIN_SUSPENDED) .. string.sub(state, at + 1)
  redis.call('HSET', users_key, STATE, state)
end
epoch = epoch or '0'
redis.call('HSET', campaign_key, 'layout', ARGV[1], 'register_id', ARGV[2], 'token', ARGV[3], 'epoch', epoch,
  'phase', 'suspended')
-- A stub contains no data. If the core that created it does not load the campaign, the stub expires.
if not is_there then redis.call('PEXPIRE', campaign_key, STUB_MS) end
return {
  'suspended', tonumber(epoch), sequence, events, taken, revisions, backlog, token or '0', tonumber(admin_state or 0), rules,
  additions or '', tonumber(state_layout or layout or ARGV[1]),
}
