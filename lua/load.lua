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
  local last_token, state, loading_epoch = unpack(redis.call('HMGET', campaign_key, 'token', 'admin_state', 'epoch'))
  if last_token ~= token then return true end
  if step == 'begin' then return state ~= 'suspended' end
  return state ~= 'loading' or loading_epoch ~= epoch
end

local steps = {
  begin = function()
    local sentinel = '0-' .. epoch
    redis.call('UNLINK', unpack(KEYS))
    redis.call('HSET', campaign_key, 'layout', ARGV[1], 'epoch', epoch, 'token', token, 'register_id', ARGV[5],
      'replication_id', ARGV[6], 'admin_state', 'loading')
    redis.call('HSET', users_key, '.', epoch)
    redis.call('HSET', claims_key, '.', epoch)
    redis.call('ZADD', holds_key, '-' .. epoch, '.')
    redis.call('XADD', outbox_key, sentinel, 'epoch', epoch)
    redis.call('XGROUP', 'CREATE', outbox_key, 'relay', sentinel)
  end,
  users = function() redis.call('HSET', users_key, unpack(ARGV, 5)) end,
  claims = function() redis.call('HSET', claims_key, unpack(ARGV, 5)) end,
  holds = function() redis.call('ZADD', holds_key, unpack(ARGV, 5)) end,
  open = function()
    redis.call('HSET', campaign_key, 'sequence', ARGV[5], 'events', ARGV[6], 'events_loaded', ARGV[6], 'taken', ARGV[7],
      'revisions_loaded', ARGV[8], 'backlog', '0', unpack(ARGV, 9))
  end,
}

if late() then return { 'late' } end
steps[step]()
return { 'done' }
