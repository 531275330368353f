#!lua flags=allow-oom
-- dead_letter: moves a malformed outbox entry to the dead-letter stream, where an operator can inspect it.
-- The entry would block the relay, which frees memory, so the script runs even when Redis is out of memory.
--
-- KEYS  1 outbox   2 dead-letter stream
-- ARGV  entry id
--
-- Replies
--   1 if moved, 0 if the entry was already removed

local outbox_key, dead_letters_key = unpack(KEYS)
local entry = redis.call('XRANGE', outbox_key, ARGV[1], ARGV[1])[1]
if entry then redis.call('XADD', dead_letters_key, '*', 'id', ARGV[1], unpack(entry[2])) end
redis.call('XDEL', outbox_key, ARGV[1])
return entry and 1 or 0
