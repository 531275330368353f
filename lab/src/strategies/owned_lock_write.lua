#!lua
-- owned_lock_write: writes the stock, unless a later holder has written it already.
--
-- KEYS  1 stock (hash: units, token)
-- ARGV  1 fencing token   2 units
--
-- Replies
--   1  written
--   0  a higher token has written: nothing was changed

local last = tonumber(redis.call('HGET', KEYS[1], 'token') or 0)
if tonumber(ARGV[1]) < last then return 0 end
redis.call('HSET', KEYS[1], 'units', ARGV[2], 'token', ARGV[1])
return 1
