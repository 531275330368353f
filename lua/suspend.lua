-- suspend: stops every decision on a campaign until it has been loaded again, and fences off every loader whose token is
-- lower. Where there is no campaign it leaves a stub for an hour, which the load replaces. It frees nothing itself, but an
-- eviction, which frees memory, begins with it, so it runs without memory too.
--
-- KEYS  as in prelude.lua
-- ARGV  1 layout   2 register id   3 fencing token, drawn from the campaign's row in SQL
--
-- Replies
--   {'suspended', epoch, sequence, events, taken, revisions, backlog, token, admin state, rules, additions}
--                  epoch 0: nothing was there. revisions: the sum over all claims' revisions, -1 when the users or the
--                  claims are not all there; the other counters are 0 then, or as far as they go. backlog: events that were
--                  never taken off the outbox. token: the previous one, '0' for none. admin state and rules: as they were
--                  in force, 0 and '' when they are not there. additions: as set_rules.lua keeps them
--   {'late', token}    a higher token, this one, was here before: nothing was changed
--   {'not_ready', why}    why: register | layout (the keys belong to another register or version: nothing was changed)

local STUB_MS = 3600000
local layout, register_id, token, epoch, events_loaded, revisions_loaded, admin_state, additions =
  unpack(redis.call('HMGET', campaign_key, 'layout', 'register_id', 'token', 'epoch', 'events_loaded',
    'revisions_loaded', 'admin_state', 'additions'))
local state = redis.call('HGET', users_key, STATE)
local state_layout, state_register_id, state_epoch = parse_identity(state)
local is_there = layout or state_layout
layout, register_id = layout or state_layout, state_register_id or register_id
if layout and layout ~= ARGV[1] then return { 'not_ready', 'layout' } end
if register_id and register_id ~= ARGV[2] then return { 'not_ready', 'register' } end
if token and tonumber(token) > tonumber(ARGV[3]) then return { 'late', token } end

local sequence, taken, events, revisions, backlog, rules = 0, 0, 0, -1, 0, ''
if state_epoch then
  local at, campaign = 2 + string.byte(state), {}
  campaign.admin_state, sequence, taken, events, backlog, campaign.loaded_epoch =
    struct.unpack(COUNTERS, state, at)
  epoch = string.format('%.0f', state_epoch)
  if events_loaded and revisions_loaded and claims_are_whole(campaign) then
    -- Every event raises one claim's revision by one.
    revisions = revisions_loaded + events - events_loaded
  end
  rules = string.sub(state, at + COUNTERS_BYTES)
  -- The suspension takes the place of the admin state: the load may need it, where SQL has lost it.
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
-- A stub holds nothing: one left by a core that was late or died expires by itself.
if not is_there then redis.call('PEXPIRE', campaign_key, STUB_MS) end
return {
  'suspended', tonumber(epoch), sequence, events, taken, revisions, backlog, token or '0', tonumber(admin_state or 0), rules,
  additions or '',
}
