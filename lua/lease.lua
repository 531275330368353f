#!lua flags=allow-oom
-- lease: a lease on a name. A lease saves duplicate work; correctness never depends on it, since writes carry its
-- token.
--
-- KEYS  1 lease (hash: owner, depth, token; expires after its TTL)   2 the last token issued (never expires)
-- ARGV  1 'acquire', 'renew' or 'release'   2 owner   3 TTL in ms (not for release)
--
-- Replies
--   {'held', token, depth}    acquired with a new highest token, or acquired again by the same owner
--   {'taken', ms}             held by another owner, for at most this long unless renewed
--   {'renewed'}
--   {'released', depth}       released; at depth 0 the lease is free
--   {'lost'}                  the owner no longer has the lease; nothing was changed

local lease_key, token_key = unpack(KEYS)
local owner = redis.call('HGET', lease_key, 'owner')
local mine = owner == ARGV[2]

if ARGV[1] == 'acquire' then
  if owner and not mine then return { 'taken', redis.call('PTTL', lease_key) } end
  if not mine then
    redis.call('HSET', lease_key, 'owner', ARGV[2], 'depth', 0, 'token', redis.call('INCR', token_key))
  end
  local depth = redis.call('HINCRBY', lease_key, 'depth', 1)
  redis.call('PEXPIRE', lease_key, ARGV[3])
  return { 'held', tonumber(redis.call('HGET', lease_key, 'token')), depth }
end

if not mine then return { 'lost' } end
if ARGV[1] == 'renew' then
  redis.call('PEXPIRE', lease_key, ARGV[3])
  return { 'renewed' }
end
local depth = redis.call('HINCRBY', lease_key, 'depth', -1)
if depth == 0 then redis.call('DEL', lease_key) end
return { 'released', depth }
