#!lua
-- script_queue_grab: once per user, tests the stock, records the winner, deducts, queues for SQL.
--
-- KEYS  1 stock (string: units)   2 winners (hash: user → units)   3 queue (list: "user units", oldest first)
-- ARGV  1 user   2 quantity
--
-- Replies
--   >= 0  granted; the units left
--   -1    this user already has units
--   -2    fewer units are left
--   -3    there is no stock
--   -4    the stock is not a non-negative integer
--   -5    winners or queue have the wrong type

local units = redis.call('GET', KEYS[1])
if not units then return -3 end
if not string.match(units, '^%d+$') then return -4 end
-- All checks come before the first write, because Redis does not roll back.
local winners, queue = redis.call('TYPE', KEYS[2]).ok, redis.call('TYPE', KEYS[3]).ok
if (winners ~= 'hash' and winners ~= 'none') or (queue ~= 'list' and queue ~= 'none') then return -5 end
if redis.call('HEXISTS', KEYS[2], ARGV[1]) == 1 then return -1 end
if tonumber(units) < tonumber(ARGV[2]) then return -2 end
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
redis.call('RPUSH', KEYS[3], ARGV[1] .. ' ' .. ARGV[2])
return redis.call('DECRBY', KEYS[1], ARGV[2])
