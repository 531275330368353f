-- open: lays down the keys of a campaign that has none, each with its sentinel, and the drain's consumer group.
--
-- KEYS  as in prelude.lua
-- ARGV  1 layout   2 epoch   3 sequence to go on from   then field and value of the campaign's hash, in turn
--
-- Replies
--   {'opened'}
--   {'exists'}    one of the keys is there: nothing was changed

local fields = { 'layout', ARGV[1], 'epoch', ARGV[2], 'sequence', ARGV[3], 'taken', '0', 'backlog', '0' }
if redis.call('EXISTS', unpack(KEYS)) > 0 then return { 'exists' } end
for at = 4, #ARGV do fields[#fields + 1] = ARGV[at] end

local sentinel = '0-' .. ARGV[2]
redis.call('HSET', KEYS[1], unpack(fields))
redis.call('HSET', KEYS[2], '.', ARGV[2])
redis.call('HSET', KEYS[3], '.', ARGV[2])
redis.call('ZADD', KEYS[4], '-' .. ARGV[2], '.')
redis.call('XADD', KEYS[5], sentinel, 'epoch', ARGV[2])
redis.call('XGROUP', 'CREATE', KEYS[5], 'drain', sentinel)
return { 'opened' }
