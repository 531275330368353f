-- close: stops every decision on a campaign until it has been loaded anew.
--
-- KEYS  as in prelude.lua
-- ARGV  none, or 1 the server's lineage: a campaign that was loaded under it stays open
--
-- Replies
--   {'closed', epoch}
--   {'kept'}       loaded under this very lineage
--   {'missing'}    there is no campaign to close: nothing can be decided on it either

if redis.call('EXISTS', KEYS[1]) == 0 then return { 'missing' } end
if ARGV[1] and redis.call('HGET', KEYS[1], 'lineage') == ARGV[1] then return { 'kept' } end
redis.call('HSET', KEYS[1], 'switch', 'loading')
return { 'closed', tonumber(redis.call('HGET', KEYS[1], 'epoch') or 0) or 0 }
