#!lua
-- script_queue_undo: returns a winner's units.
--
-- KEYS  1 stock (string: units)   2 winners (hash: user → units)
-- ARGV  1 user
--
-- Replies
--   > 0  the returned units
--   0    not a winner: nothing was changed

local units = redis.call('HGET', KEYS[2], ARGV[1])
if not units then return 0 end
redis.call('HDEL', KEYS[2], ARGV[1])
redis.call('INCRBY', KEYS[1], units)
return tonumber(units)
