#!lua flags=allow-oom
-- keep_layout: records the layout of the keys in this Redis, if none is recorded or the caller converts the recorded
-- one. Cores of the earlier layout stop once they read the new one. The script runs even when Redis is out of memory,
-- since a core calls it while it serves.
--
-- KEYS  1 layout
-- ARGV  1 the caller's layout   2 the earlier layout that the caller converts
--
-- Replies
--   the layout in force; if it is not the caller's, the caller may not serve

local recorded = redis.call('GET', KEYS[1])
if recorded and recorded ~= ARGV[2] then return recorded end
redis.call('SET', KEYS[1], ARGV[1])
return ARGV[1]
