-- load: loads a campaign from SQL, in steps, under an epoch that was raised in SQL for it, after suspend.lua has stopped it
-- under the same token. Until the last step every other script answers that the campaign is loading.
--
-- KEYS  as in prelude.lua
-- ARGV  1 layout   2 epoch   3 fencing token   4 step, then by step:
--       'begin'  register id, the server's replication id    replaces what was suspended: every key's sentinel, and the
--                                                            consumer group
--       'users'  user id, record, ...        at most 1,000 pairs
--       'claims' digest, record, ...         claims beyond their user's record, at most 1,000 pairs
--       'holds'  expires at ms, member, ...  at most 1,000 pairs
--       'open'   sequence and events to continue after, units taken, the sum of the claims' revisions, then field and value
--                of the campaign's hash, in turn
--
-- Replies
--   {'done'}
--   {'late'}    what this token suspended is not there any more: another loader was here, or the keys were lost. Nothing
--               was changed

local epoch, token, step = ARGV[2], ARGV[3], ARGV[4]

local function late()
  local f = redis.call('HMGET', KEYS[1], 'token', 'admin_state', 'epoch')
  if f[1] ~= token then return true end
  if step == 'begin' then return f[2] ~= 'suspended' end
  return f[2] ~= 'loading' or f[3] ~= epoch
end

local steps = {
  begin = function()
    local sentinel = '0-' .. epoch
    redis.call('UNLINK', unpack(KEYS))
    redis.call('HSET', KEYS[1], 'layout', ARGV[1], 'epoch', epoch, 'token', token, 'register_id', ARGV[5],
      'replication_id', ARGV[6], 'admin_state', 'loading')
    redis.call('HSET', KEYS[2], '.', epoch)
    redis.call('HSET', KEYS[3], '.', epoch)
    redis.call('ZADD', KEYS[4], '-' .. epoch, '.')
    redis.call('XADD', KEYS[5], sentinel, 'epoch', epoch)
    redis.call('XGROUP', 'CREATE', KEYS[5], 'relay', sentinel)
  end,
  users = function() redis.call('HSET', KEYS[2], unpack(ARGV, 5)) end,
  claims = function() redis.call('HSET', KEYS[3], unpack(ARGV, 5)) end,
  holds = function() redis.call('ZADD', KEYS[4], unpack(ARGV, 5)) end,
  open = function()
    redis.call('HSET', KEYS[1], 'sequence', ARGV[5], 'events', ARGV[6], 'events_loaded', ARGV[6], 'taken', ARGV[7],
      'revisions_loaded', ARGV[8], 'backlog', '0', unpack(ARGV, 9))
  end,
}

if late() then return { 'late' } end
steps[step]()
return { 'done' }
