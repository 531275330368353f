#!lua
-- owned_lock_acquire: acquires a lock with an owner and an expiry, and issues an increasing fencing token.
--
-- KEYS  1 lock (string: the owner; expires with the lease)   2 the last token (never expires)
-- ARGV  1 owner   2 TTL of the lease in ms
--
-- Replies
--   n  acquired; the fencing token
--   0  held by another owner

if not redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return 0 end
return redis.call('INCR', KEYS[2])
