#!lua
-- script_half_way: takes the stock first, then fails on the amount.
--
-- KEYS  1 units left (number)   2 total amount paid (number)
-- ARGV  1 quantity   2 amount
--
-- Replies
--   1  granted
--   0  denied
--   an error: the amount is not a number, and the units are lost

local quantity = tonumber(ARGV[1])
if tonumber(redis.call('GET', KEYS[1])) < quantity then return 0 end
redis.call('DECRBY', KEYS[1], quantity)
redis.call('INCRBYFLOAT', KEYS[2], ARGV[2])
return 1
