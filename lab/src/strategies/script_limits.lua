#!lua
-- script_limits: three limits, all or nothing.
--
-- KEYS  1 units by user today (hash)   2 units by user (hash)   3 the campaign (hash: total, taken)
-- ARGV  1 user   2 quantity   3 limit per user and day   4 limit per user
--
-- Replies
--   0  granted
--   1  denied by the limit per user and day
--   2  denied by the limit per user
--   3  denied by the total

local quantity = tonumber(ARGV[2])
local today = tonumber(redis.call('HGET', KEYS[1], ARGV[1]) or 0)
local ever = tonumber(redis.call('HGET', KEYS[2], ARGV[1]) or 0)
local campaign = redis.call('HMGET', KEYS[3], 'total', 'taken')
if today + quantity > tonumber(ARGV[3]) then return 1 end
if ever + quantity > tonumber(ARGV[4]) then return 2 end
if tonumber(campaign[2]) + quantity > tonumber(campaign[1]) then return 3 end
redis.call('HINCRBY', KEYS[1], ARGV[1], quantity)
redis.call('HINCRBY', KEYS[2], ARGV[1], quantity)
redis.call('HINCRBY', KEYS[3], 'taken', quantity)
return 0
