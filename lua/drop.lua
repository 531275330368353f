#!lua flags=allow-oom
-- drop: removes a suspended campaign's keys except the dead letters, after SQL has recorded the eviction. The script
-- frees memory, so it runs even when Redis is out of memory.
--
-- KEYS  as in prelude.lua; 6 codes; 7 the outbox of layout 6
-- ARGV  1 fencing token of the suspension
--
-- Replies
--   1 if no key is left; 0 if the keys were not suspended under this token, and so are unchanged

local campaign_key = KEYS[1]
local token, phase = unpack(redis.call('HMGET', campaign_key, 'token', 'phase'))
if token == ARGV[1] and phase == 'suspended' then redis.call('UNLINK', unpack(KEYS)) end
return redis.call('EXISTS', unpack(KEYS)) == 0 and 1 or 0
