-- suspend: stops every decision on a campaign until it has been loaded again, and fences off every loader whose token is
-- lower. Where there is no campaign it leaves a stub for an hour, which the load replaces. It frees nothing itself, but an
-- eviction, which frees memory, begins with it, so it runs without memory too.
--
-- KEYS  as in prelude.lua
-- ARGV  1 layout   2 register id   3 fencing token, drawn from the campaign's row in SQL
--
-- Replies
--   {'suspended', epoch, sequence, events, taken, revisions}
--                  epoch 0: nothing was there. revisions: the sum over all claims' revisions, -1 when the users or the
--                  claims are not all there; the four counters are 0 then, or as far as they go
--   {'late'}       a higher token was here before: nothing was changed
--   {'not_ready', why}    why: register | layout (the keys belong to another register or version: nothing was changed)

local STUB_MS = 3600000
local layout, register_id, token, epoch, sequence, events, taken, events_loaded, revisions_loaded = unpack(redis.call(
  'HMGET', campaign_key, 'layout', 'register_id', 'token', 'epoch', 'sequence', 'events', 'taken', 'events_loaded',
  'revisions_loaded'))
epoch = epoch or '0'
if layout and layout ~= ARGV[1] then return { 'not_ready', 'layout' } end
if register_id and register_id ~= ARGV[2] then return { 'not_ready', 'register' } end
if token and tonumber(token) > tonumber(ARGV[3]) then return { 'late' } end

sequence, events, taken = tonumber(sequence) or 0, tonumber(events) or 0, tonumber(taken) or 0
events_loaded, revisions_loaded = tonumber(events_loaded), tonumber(revisions_loaded)
local revisions = -1
if events_loaded and revisions_loaded and redis.call('HGET', users_key, '.') == epoch
  and redis.call('HGET', claims_key, '.') == epoch then
  -- Every event raises one claim's revision by one.
  revisions = revisions_loaded + events - events_loaded
end
redis.call('HSET', campaign_key, 'layout', ARGV[1], 'register_id', ARGV[2], 'token', ARGV[3], 'epoch', epoch,
  'admin_state', 'suspended')
-- A stub holds nothing: one left by a core that was late or died expires by itself.
if not layout then redis.call('PEXPIRE', campaign_key, STUB_MS) end
return { 'suspended', tonumber(epoch) or 0, sequence, events, taken, revisions }
