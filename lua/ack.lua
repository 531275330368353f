#!lua flags=allow-oom
-- ack: takes outbox entries that SQL has committed off the stream. Frees memory, so it runs without memory too.
--
-- KEYS  1 campaign   2 outbox
-- ARGV  entry id and its number of events, in turn
--
-- Replies
--   the number of entries taken off; one that another core took off before is not counted again

local entries, events = 0, 0
for at = 1, #ARGV, 2 do
  if redis.call('XACK', KEYS[2], 'drain', ARGV[at]) == 1 then
    redis.call('XDEL', KEYS[2], ARGV[at])
    entries, events = entries + 1, events + ARGV[at + 1]
  end
end
if events > 0 and redis.call('EXISTS', KEYS[1]) == 1 then
  redis.call('HINCRBY', KEYS[1], 'backlog', string.format('%.0f', -events))
end
return entries
