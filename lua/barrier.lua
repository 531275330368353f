#!lua flags=allow-oom
-- barrier: a write that replicas have to confirm: a replica that has it has all that was written before. It runs without
-- memory too, so that a full Redis can still be relayed, which frees memory.
--
-- KEYS  1 the version of the replica set that was waited for last, in a slot of this server
-- ARGV  1 the version of the replica set that the caller waits for
--
-- Replies
--   the version in force. A higher one than the caller's: it waits for replicas that do not count any more

local known = tonumber(redis.call('GET', KEYS[1]) or 0)
if known > tonumber(ARGV[1]) then return known end
redis.call('SET', KEYS[1], ARGV[1])
return tonumber(ARGV[1])
