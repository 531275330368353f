#!lua flags=allow-oom
-- drop: removes a suspended campaign's keys, after its eviction is recorded in SQL; the dead letters stay. Frees memory,
-- so it runs without memory too.
--
-- KEYS  as in prelude.lua
-- ARGV  1 fencing token under which it was suspended
--
-- Replies
--   1 when nothing is left; 0 when what is there is not what this token suspended: nothing was changed

local campaign_key = KEYS[1]
local token, phase = unpack(redis.call('HMGET', campaign_key, 'token', 'phase'))
if token == ARGV[1] and phase == 'suspended' then redis.call('UNLINK', unpack(KEYS)) end
return redis.call('EXISTS', unpack(KEYS)) == 0 and 1 or 0
