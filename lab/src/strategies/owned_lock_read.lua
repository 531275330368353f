#!lua
-- owned_lock_read: what is left, for a holder who is going to write. From here on no holder before this one can write: a
-- late write would be lost under what this one makes of the units it reads.
--
-- KEYS  1 stock (hash: units, token)
-- ARGV  1 fencing token
--
-- Replies
--   n    units left
--   -1   a later holder has read already: nothing was changed
--   nil  there is no such stock

if redis.call('EXISTS', KEYS[1]) == 0 then return nil end
if tonumber(ARGV[1]) < tonumber(redis.call('HGET', KEYS[1], 'token')) then return -1 end
redis.call('HSET', KEYS[1], 'token', ARGV[1])
return tonumber(redis.call('HGET', KEYS[1], 'units'))
