#!lua
-- script_stock_add: returns or adds units. A missing stock is not a stock of 0: units added to it must not pass for the
-- whole stock, so they need an expiry.
--
-- KEYS  1 stock (string: units; -1 for unlimited)
-- ARGV  1 quantity   2 expiry in ms for a missing stock; 0 for none
--
-- Replies
--   >= 0  the units left after the addition
--   -1    unlimited: nothing was added
--   -3    not initialized, and no expiry given: nothing was changed

local units = redis.call('GET', KEYS[1])
if not units then
  if tonumber(ARGV[2]) <= 0 then return -3 end
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
  return tonumber(ARGV[1])
end
if tonumber(units) == -1 then return -1 end
return redis.call('INCRBY', KEYS[1], ARGV[1])
