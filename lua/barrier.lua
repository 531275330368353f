#!lua flags=allow-oom
-- barrier: a write that replicas have to confirm. A replica that has this write also has all earlier writes. The script
-- runs even when Redis is out of memory, so that the relay, which frees memory, can still work.
--
-- KEYS  1 the version of the last replica set that confirmed a barrier, in a slot of this server
-- ARGV  1 the version of the replica set that the caller waits for
--
-- Replies
--   the version in force; if it is higher than the caller's, the caller waits for an outdated set of replicas

local known = tonumber(redis.call('GET', KEYS[1]) or 0)
if known > tonumber(ARGV[1]) then return known end
redis.call('SET', KEYS[1], ARGV[1])
return tonumber(ARGV[1])
