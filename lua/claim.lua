-- claim: gives back the holds that are due, then decides a list of claims of one campaign, in their order, each all
-- or nothing. An empty list is a sweep: it only gives back.
--
-- KEYS  as in prelude.lua
-- ARGV  1-5 as in prelude.lua, 6 bound of the backlog (events), 7 the claims, one behind the other:
--       user (length 1), digest 16, quantity 4
--
-- Replies
--   {'not_ready', why}    why: missing | layout | register | loading | suspended | epoch | replication | behind |
--                           sentinel | days
--   {'decided', now ms, version, events so far, total or -1, 1 if more holds are due else 0,
--    sequence and units taken before the first of these claims, expires at ms of the claims held here or 0, answers}
--
-- The answers, one behind the other, are a byte each and what is named here:
--     1                                    granted or, with an expiry, held: the next sequence
--     2 claim's record                     replay: the claim as it stands
--     3                                    the key had another quantity
--     4 paused   5 ended by hand   6 starts at 6   7 ends at 6
--     8 per_claim 5                        more than one claim may take
--     9 remaining 5, day 3                 per_user_per_day
--    10 remaining 5                        per_user
--    11 remaining 5                        total
--    12                                    more holds are due than one call gives back: send the claim again
--    13                                    the backlog is full

local function code(number) return string.char(number) end
local GRANT, REPLAY, KEY_REUSED, PAUSED, ENDED, NOT_STARTED, OVER, PER_CLAIM, DAILY, USER, TOTAL, AGAIN, FULL =
  code(1), code(2), code(3), code(4), code(5), code(6), code(7), code(8), code(9), code(10), code(11), code(12), code(13)

-- The limits in the order in which they refuse: what is answered, and the campaign's field. What is taken of each stands
-- at the same place in `used`. A further limit is a further entry.
local LIMITS = { { DAILY, 'per_user_per_day' }, { USER, 'per_user' }, { TOTAL, 'total' } }
local TODAY, EVER, ALL = 1, 2, 3

local function closed(campaign, now)
  if campaign.admin_state == 'paused' then return PAUSED end
  if campaign.admin_state == 'ended' then return ENDED end
  if now < campaign.starts_at then return NOT_STARTED .. struct.pack('>I6', campaign.starts_at) end
  if now >= campaign.ends_at then return OVER .. struct.pack('>I6', campaign.ends_at) end
end

local campaign, why = open_campaign()
if not campaign then return { 'not_ready', why } end
local now = milliseconds()
if now >= campaign.days_until then return { 'not_ready', 'days' } end

-- The due holds come first in these lists, then the claims.
local user_ids, digests = due_holds(now)
local quantities, due = {}, #user_ids
local packed, at, count = ARGV[7], 1, due
while at <= #packed do
  count = count + 1
  user_ids[count], digests[count], quantities[count], at = struct.unpack('>I1c0c16I4', packed, at)
end
local work = new_work(campaign, now)
local read = read_records(work, user_ids, digests)
local records = work.records
for i = 1, due do
  local user_id = user_ids[i]
  expire_hold(work, user_id, records[user_id] or read[i], digests[i])
end

local sequence, taken, room = campaign.sequence, campaign.taken, tonumber(ARGV[6]) - campaign.backlog
local closed_now, more_due, today = closed(campaign, now), due == DUE_MAX, day_at(campaign.days, now)
local status, expires_at = GRANTED, 0
if campaign.hold_ms then status, expires_at = HELD, now + campaign.hold_ms end
local limits, used = {}, {}
for i, limit in ipairs(LIMITS) do limits[i] = campaign[limit[2]] or UNLIMITED end
local users, event_users, event_claims = work.users, work.event_users, work.event_claims
local events, shared_quantity, shared_day, shared_part, first_counters = #event_users, nil, nil, nil, nil

-- Why a claim is refused, if it is.
local function refusal(day, quantity)
  if quantity > campaign.per_claim then return PER_CLAIM .. struct.pack('>I5', campaign.per_claim) end
  for i = 1, #limits do
    if quantity > limits[i] - used[i] then
      if more_due then return AGAIN end
      local answer = LIMITS[i][1] .. struct.pack('>I5', math.max(limits[i] - used[i], 0))
      return LIMITS[i][1] == DAILY and answer .. struct.pack('>I3', day) or answer
    end
  end
  if events >= room then return FULL end
end

-- Packs what neighbouring claims share, when quantity or day is another: the end of their records, and the counters of
-- a user who had nothing.
local function share(quantity, day)
  if shared_quantity == quantity and shared_day == day then return end
  shared_quantity, shared_day = quantity, day
  shared_part = struct.pack('>I4I1I1I6I6I3', quantity, status, 1, now, expires_at, day)
  first_counters = struct.pack('>I3I5I5I1', day, quantity, quantity, 0)
end

-- A user's record with one claim more; the oldest of more than eight moves out to `claims`.
local function with_claim(user_id, record, claim)
  record = record .. claim
  if #record <= HEADER + INLINE_MAX * CLAIM then return record end
  local oldest = string.sub(record, HEADER + 1, HEADER + CLAIM)
  move_out(work, user_id, string.sub(oldest, 1, DIGEST), oldest)
  return string.sub(record, 1, HEADER - 1) .. code(1) .. string.sub(record, HEADER + CLAIM + 1)
end

-- The lists are filled by a counted place: `#` looks for their end each time.
local function grant(user_id, record, digest, quantity, day)
  sequence, used[ALL] = sequence + 1, used[ALL] + quantity
  share(quantity, day)
  local claim = digest .. struct.pack('>I5', sequence) .. shared_part
  if record then
    local moved = string.byte(record, HEADER)
    record = with_claim(user_id, with_counters(record, day, used[TODAY] + quantity, used[EVER] + quantity, moved), claim)
  else
    record = first_counters .. claim
  end
  records[user_id] = record
  events = events + 1
  users[2 * events - 1], users[2 * events] = user_id, record
  event_users[events], event_claims[events] = user_id, claim
  if expires_at > 0 then append(work.held, expires_at, hold_member(user_id, digest)) end
  return GRANT
end

local function decide(user_id, record, digest, quantity)
  local day = today
  used[TODAY], used[EVER] = 0, 0
  if record then
    local claim = find_claim(work, record, digest)
    if claim then return struct.unpack('>I4', claim, 22) == quantity and REPLAY .. claim or KEY_REUSED end
    local last_day, on_it, ever = unpack_user(record)
    used[EVER] = ever
    -- Never a day before the user's last, whatever the clock does. The record turns to it with a grant alone.
    if last_day >= today then day, used[TODAY] = last_day, on_it end
  end
  return closed_now or refusal(day, quantity) or grant(user_id, record, digest, quantity, day)
end

used[ALL] = taken
local answers = {}
for i = due + 1, count do
  local user_id = user_ids[i]
  answers[i - due] = decide(user_id, records[user_id] or read[i], digests[i], quantities[i])
end
local first_sequence, first_taken = campaign.sequence, taken
campaign.sequence, campaign.taken = sequence, used[ALL]
write_all(work)
return {
  'decided', now, campaign.version, campaign.events, campaign.total or -1, more_due and 1 or 0,
  first_sequence, first_taken, expires_at, table.concat(answers),
}
