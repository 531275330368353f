#!lua
-- owned_lock_read: returns the units left to a holder that will write. From now on earlier holders cannot write: the
-- value that this holder computes from its read would overwrite a late write.
--
-- KEYS  1 stock (hash: units, token)
-- ARGV  1 fencing token
--
-- Replies
--   n    units left
--   -1   a later holder has already read: nothing was changed
--   nil  the stock does not exist

if redis.call('EXISTS', KEYS[1]) == 0 then return nil end
if tonumber(ARGV[1]) < tonumber(redis.call('HGET', KEYS[1], 'token')) then return -1 end
redis.call('HSET', KEYS[1], 'token', ARGV[1])
return tonumber(redis.call('HGET', KEYS[1], 'units'))
