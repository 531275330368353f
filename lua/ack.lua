#!lua flags=allow-oom
-- ack: takes outbox entries that SQL has committed off the stream. Frees memory, so it runs without memory too.
--
-- KEYS  1 campaign   2 outbox
-- ARGV  entry id and its number of events, in turn
--
-- Replies
--   the number of events left in the outbox; an entry that another core has taken off before is not counted again

local events = 0
for at = 1, #ARGV, 2 do
  if redis.call('XACK', KEYS[2], 'relay', ARGV[at]) == 1 then
    redis.call('XDEL', KEYS[2], ARGV[at])
    events = events + ARGV[at + 1]
  end
end
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
return redis.call('HINCRBY', KEYS[1], 'backlog', string.format('%.0f', 0 - events))
