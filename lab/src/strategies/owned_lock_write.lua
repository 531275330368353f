#!lua
-- owned_lock_write: writes the stock, unless a later holder has read or written since.
--
-- KEYS  1 stock (hash: units, token)
-- ARGV  1 fencing token   2 units
--
-- Replies
--   1  written
--   0  a later holder has read or written: nothing was changed

if tonumber(ARGV[1]) < tonumber(redis.call('HGET', KEYS[1], 'token')) then return 0 end
redis.call('HSET', KEYS[1], 'units', ARGV[2], 'token', ARGV[1])
return 1
