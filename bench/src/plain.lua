-- plain: baselines (a) and (e). One claim of one unit by the simplest script: three limits, three counters.
-- No outbox, no replay; the reply is only yes or no.
--
-- KEYS  1 units by user and day (hash)   2 units by user (hash)   3 the campaign (hash)
-- ARGV  1 user   2 per user and day   3 per user   4 total
--
-- Replies
--   1 granted   0 denied

local today = tonumber(redis.call('HGET', KEYS[1], ARGV[1]) or 0)
local ever = tonumber(redis.call('HGET', KEYS[2], ARGV[1]) or 0)
local taken = tonumber(redis.call('HGET', KEYS[3], 'taken') or 0)
if today >= tonumber(ARGV[2]) or ever >= tonumber(ARGV[3]) or taken >= tonumber(ARGV[4]) then return 0 end
redis.call('HINCRBY', KEYS[1], ARGV[1], 1)
redis.call('HINCRBY', KEYS[2], ARGV[1], 1)
redis.call('HINCRBY', KEYS[3], 'taken', 1)
return 1
