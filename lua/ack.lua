-- ack: takes outbox entries that SQL has committed off the stream. Frees memory, so it runs without memory too.
--
-- KEYS  as in prelude.lua
-- ARGV  for each number of events that some of the entries have: that number, how many entries have it, and their ids;
--       1,000 entries at most
--
-- Replies
--   the number of events left in the outbox; an entry that another core has taken off before is not counted again

-- Of entries that have as many events, how many were still there tells how many events were: one command for all of them.
local events, at = 0, 1
while at < #ARGV do
  local last = at + 1 + ARGV[at + 1]
  events = events + ARGV[at] * redis.call('XDEL', outbox_key, unpack(ARGV, at + 2, last))
  at = last + 1
end
local state = redis.call('HGET', users_key, STATE)
if not parse_identity(state) then return 0 end
local backlog_at = 2 + string.byte(state) + BACKLOG_AT
local backlog = struct.unpack('>I6', state, backlog_at) - events
if events > 0 then
  redis.call('HSET', users_key, STATE, string.sub(state, 1, backlog_at - 1)
    .. struct.pack('>I6', math.max(backlog, 0)) .. string.sub(state, backlog_at + 6))
end
return backlog
