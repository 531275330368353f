-- user: reads one user's record, and the units taken of the campaign. Writes nothing.
--
-- KEYS  as in prelude.lua
-- ARGV  1-2 as in prelude.lua, 3 user id, 4 the outbox entry after which the search for the user's events continues, '0' to
--       start it
--
-- Replies
--   {'found', version, taken, today, user's record or '', the user's events, next}
--       today: the calendar day in the campaign's time zone. Events: the records of the user's claims in up to
--       SEARCHED_MAX outbox entries, oldest first; searched only if a claim has moved out of the user's record. Next:
--       the entry after which to continue, '' at the end
--   {'not_ready', why}    as in claim.lua

-- Maximum number of outbox entries searched: about 25,000 claims, which take a millisecond.
local SEARCHED_MAX = 100

local user_id = ARGV[3]

-- Returns the records of the user's claims in an outbox entry.
local function events_in(entry)
  local fields, found = {}, ''
  for at = 1, #entry, 2 do fields[entry[at]] = entry[at + 1] end
  local users, claims = fields.users, fields.claims
  if not users or not claims or not string.find(' ' .. users .. ' ', ' ' .. user_id .. ' ', 1, true) then return found end
  local at = 1
  for user in string.gmatch(users, '%S+') do
    if user == user_id then found = found .. string.sub(claims, at, at + CLAIM - 1) end
    at = at + CLAIM
  end
  return found
end

local read = redis.call('HMGET', users_key, STATE, user_id)
local record = read[2] or ''
-- If no claim has moved out, the record is complete, and a valid state is enough to trust it.
local has_moved_out = #record % CLAIM > 0
local campaign, why
if has_moved_out then
  campaign, why = open_checked_campaign()
else
  campaign, why = open_campaign(read[1])
end
if not campaign then return { 'not_ready', why } end
local now = milliseconds()
if now >= campaign.offsets_until then return { 'not_ready', 'days' } end
local events, next = {}, ''
if has_moved_out then
  local entries = redis.call('XRANGE', outbox_key, '(' .. ARGV[4], '+', 'COUNT', SEARCHED_MAX)
  for at, entry in ipairs(entries) do events[at] = events_in(entry[2]) end
  if #entries == SEARCHED_MAX then next = entries[SEARCHED_MAX][1] end
end
return { 'found', campaign.version, campaign.taken, day_at(campaign, now), record, table.concat(events), next }
