#!lua
-- script_stock_take: tests and takes in one step.
--
-- KEYS  1 stock (string: units; -1 for unlimited)
-- ARGV  1 quantity
--
-- Replies
--   >= 0  the units left after the deduction
--   -1    unlimited: granted, nothing was deducted
--   -2    too few units: nothing was deducted
--   -3    not initialized

local units = redis.call('GET', KEYS[1])
if not units then return -3 end
units = tonumber(units)
if units == -1 then return -1 end
if units < tonumber(ARGV[1]) then return -2 end
return redis.call('DECRBY', KEYS[1], ARGV[1])
