#!lua
-- owned_lock_release: deletes the lock if it is the caller's; check and delete are one step.
--
-- KEYS  1 lock
-- ARGV  1 owner
--
-- Replies
--   1  given up
--   0  not the caller's any more: nothing was changed

if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])
