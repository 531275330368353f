#!lua
-- owned_lock_acquire: a lock with an owner and an expiry, and a token higher than all before.
--
-- KEYS  1 lock (string: the owner; expires with the lease)   2 the last token given (never expires)
-- ARGV  1 owner   2 length of the lease in ms
--
-- Replies
--   n  acquired; the fencing token
--   0  another owner's

if not redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return 0 end
return redis.call('INCR', KEYS[2])
