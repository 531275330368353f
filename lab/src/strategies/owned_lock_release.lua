#!lua
-- owned_lock_release: deletes the lock if it belongs to the caller; check and delete are one step.
--
-- KEYS  1 lock
-- ARGV  1 owner
--
-- Replies
--   1  released
--   0  no longer the caller's: nothing was changed

if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])
