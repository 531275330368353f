-- load: lays a campaign down from SQL, in three steps, under an epoch that was raised in SQL for it.
-- Until the last step every other script answers that the campaign is loading.
--
-- KEYS  as in prelude.lua
-- ARGV  1 layout   2 epoch   3 loader's fencing token   4 step, then by step:
--       'begin'  server's lineage            drops what is there, writes every key's sentinel and the consumer group
--       'users'  user id, record, ...        at most 1,000 pairs
--       'claims' digest, record, ...         claims beyond their user's record, at most 1,000 pairs
--       'holds'  expires at ms, member, ...  at most 1,000 pairs
--       'open'   sequence and events to go on from, units taken, then field and value of the campaign's hash, in turn
--
-- Replies
--   {'done'}
--   {'late'}    a newer epoch or a newer loader is at work: nothing was changed

local epoch, token, step = ARGV[2], ARGV[3], ARGV[4]

local function late()
  local f = redis.call('HMGET', KEYS[1], 'epoch', 'loader', 'switch')
  if not f[1] then return step ~= 'begin' end
  local there, loader = tonumber(f[1]), tonumber(f[2] or 0)
  if step == 'begin' then
    return there > tonumber(epoch) or (there == tonumber(epoch) and (f[3] ~= 'loading' or loader > tonumber(token)))
  end
  return f[1] ~= epoch or f[2] ~= token or f[3] ~= 'loading'
end

local steps = {
  begin = function()
    local sentinel = '0-' .. epoch
    redis.call('UNLINK', unpack(KEYS))
    redis.call('HSET', KEYS[1], 'layout', ARGV[1], 'epoch', epoch, 'loader', token, 'lineage', ARGV[5],
      'switch', 'loading')
    redis.call('HSET', KEYS[2], '.', epoch)
    redis.call('HSET', KEYS[3], '.', epoch)
    redis.call('ZADD', KEYS[4], '-' .. epoch, '.')
    redis.call('XADD', KEYS[5], sentinel, 'epoch', epoch)
    redis.call('XGROUP', 'CREATE', KEYS[5], 'drain', sentinel)
  end,
  users = function() redis.call('HSET', KEYS[2], unpack(ARGV, 5)) end,
  claims = function() redis.call('HSET', KEYS[3], unpack(ARGV, 5)) end,
  holds = function() redis.call('ZADD', KEYS[4], unpack(ARGV, 5)) end,
  open = function()
    redis.call('HSET', KEYS[1], 'sequence', ARGV[5], 'events', ARGV[6], 'taken', ARGV[7], 'backlog', '0',
      unpack(ARGV, 8))
  end,
}

if late() then return { 'late' } end
steps[step]()
return { 'done' }
