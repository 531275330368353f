-- ack: removes outbox entries that SQL has committed, and stores the codes of their claims. Both happen in one call. As
-- long as the entry that granted a claim is in the outbox, Redis has no codes for that claim: if SQL loses the row, other
-- codes may be assigned.
-- The script frees memory, so it runs even when Redis is out of memory.
--
-- KEYS  as in prelude.lua; 6 codes (hash)
-- ARGV  1 number of claims with codes, then for each: digest, codes as in give_codes.lua; then the entries grouped by their
--       number of events, for each group: events per entry, number of entries, their ids; at most 1,000 entries
--
-- Replies
--   the number of events left in the outbox; an entry already removed by another core is not counted again

-- Maximum number of arguments of one command, an even number: Lua's unpack is limited.
local ARGUMENTS_MAX = 2000

local codes_end = 1 + 2 * ARGV[1]

-- There is one XDEL per group: the number of removed entries times the events per entry is the number of removed
-- events.
local entries, removed, events, at = 0, 0, 0, codes_end + 1
while at < #ARGV do
  local last = at + 1 + ARGV[at + 1]
  local found = redis.call('XDEL', outbox_key, unpack(ARGV, at + 2, last))
  entries, removed, events = entries + ARGV[at + 1], removed + found, events + ARGV[at] * found
  at = last + 1
end

local state = redis.call('HGET', users_key, STATE)
local layout, _, _ = parse_identity(state)
local counters_at = layout and 2 + string.byte(state)

-- Another core that has acknowledged an entry since has also stored the codes of its claims. If SQL lost and renumbered
-- the claims in between, these codes differ, and may have been shown.
local function store_codes()
  if removed == entries then
    for from = 2, codes_end, ARGUMENTS_MAX do
      redis.call('HSET', KEYS[6], unpack(ARGV, from, math.min(from + ARGUMENTS_MAX - 1, codes_end)))
    end
  else
    for from = 2, codes_end, 2 do redis.call('HSETNX', KEYS[6], ARGV[from], ARGV[from + 1]) end
  end
end

if codes_end > 1 and removed > 0 and layout then
  local _, _, _, _, _, loaded_epoch = struct.unpack(COUNTERS, state, counters_at)
  -- A load that began since then brings the codes from SQL.
  if redis.call('HGET', KEYS[6], SENTINEL) == string.format('%.0f', loaded_epoch) then store_codes() end
end

if not layout then return 0 end
local backlog_at = counters_at + BACKLOG_AT
local backlog = struct.unpack('>I6', state, backlog_at) - events
if events > 0 then
  redis.call('HSET', users_key, STATE, string.sub(state, 1, backlog_at - 1)
    .. struct.pack('>I6', math.max(backlog, 0)) .. string.sub(state, backlog_at + 6))
end
return backlog
