-- ack: takes outbox entries that SQL has committed off the stream. Frees memory, so it runs without memory too.
--
-- KEYS  as in prelude.lua
-- ARGV  entry id and its number of events, in turn; 1,000 entries at most
--
-- Replies
--   the number of events left in the outbox; an entry that another core has taken off before is not counted again

local events = 0
for at = 1, #ARGV, 2 do events = events + ARGV[at + 1] * redis.call('XDEL', outbox_key, ARGV[at]) end
local state = redis.call('HGET', users_key, STATE)
if not parse_identity(state) then return 0 end
local at = 2 + string.byte(state) + BACKLOG_AT
local backlog = struct.unpack('>I6', state, at) - events
if events > 0 then
  redis.call('HSET', users_key, STATE, string.sub(state, 1, at - 1) .. struct.pack('>I6', math.max(backlog, 0))
    .. string.sub(state, at + 6))
end
return backlog
