#!lua flags=allow-oom
-- park: moves an outbox entry that no core has written out of the way, where people can look at it.
-- Frees the drain, so it runs without memory too.
--
-- KEYS  1 outbox   2 dead-letter stream
-- ARGV  entry id
--
-- Replies
--   1 when moved, 0 when it was gone

local entry = redis.call('XRANGE', KEYS[1], ARGV[1], ARGV[1])[1]
if not entry then return 0 end
redis.call('XADD', KEYS[2], '*', 'id', ARGV[1], unpack(entry[2]))
redis.call('XACK', KEYS[1], 'drain', ARGV[1])
redis.call('XDEL', KEYS[1], ARGV[1])
return 1
