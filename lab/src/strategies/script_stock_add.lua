#!lua
-- script_stock_add: gives back, or adds. A stock that is not there is no stock of 0: what is added to it must not be taken for
-- the whole once it is all there is, so it needs an expiry.
--
-- KEYS  1 stock (string: units; -1 for unlimited)
-- ARGV  1 quantity   2 expiry in ms for a stock that is not there; 0 for none
--
-- Replies
--   >= 0  what is left after the addition
--   -1    unlimited: nothing to add to
--   -3    not initialised, and no expiry given: nothing was changed

local units = redis.call('GET', KEYS[1])
if not units then
  if tonumber(ARGV[2]) <= 0 then return -3 end
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
  return tonumber(ARGV[1])
end
if tonumber(units) == -1 then return -1 end
return redis.call('INCRBY', KEYS[1], ARGV[1])
