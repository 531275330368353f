-- claim: gives back the holds that are due, then decides a list of claims of one campaign, in their order, each all
-- or nothing. An empty list is a sweep: it only gives back.
--
-- KEYS  as in prelude.lua
-- ARGV  1-2 as in prelude.lua, 3 bound of the backlog (events), 4 the claims, one behind the other:
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

-- The claims, and what is known of their users; the state comes with these.
local packed, at, count = ARGV[4], 1, 0
local fields, digests, quantities = { '.' }, {}, {}
while at <= #packed do
  count = count + 1
  fields[count + 1], digests[count], quantities[count], at = struct.unpack('>I1c0c16I4', packed, at)
end
local read = redis.call('HMGET', users_key, unpack(fields))

local campaign, why = open_campaign(read[1])
if not campaign then return { 'not_ready', why } end
local now = milliseconds()
if now >= campaign.days_until then return { 'not_ready', 'days' } end
local work = new_work(campaign, now)
local records = work.records

-- Gives back the holds that are due; whether more may be.
local function expire_due_holds()
  if not holds_are_whole(campaign) then
    work.is_damaged = true
    return false
  end
  local user_ids, due_digests = due_holds(now)
  -- A hold that was confirmed or returned was the first to fall due.
  if #user_ids == 0 then campaign.next_due, work.is_stale = first_due(), true end
  for i, user_id in ipairs(user_ids) do
    local record = records[user_id] or redis.call('HGET', users_key, user_id)
    expire_hold(work, user_id, record, due_digests[i])
  end
  return #user_ids == DUE_MAX
end

local more_due = now >= campaign.next_due and expire_due_holds()
local total, per_claim = campaign.total, campaign.per_claim
local per_user, per_user_per_day = campaign.per_user, campaign.per_user_per_day
local first_sequence, first_taken = campaign.sequence, campaign.taken
local sequence, taken, today = first_sequence, first_taken, day_at(campaign, now)
local status, expires_at = GRANTED, 0
if campaign.hold_ms > 0 then status, expires_at = HELD, now + campaign.hold_ms end
local users, event_users, event_claims = work.users, work.event_users, work.event_claims
local events, room = #event_users, tonumber(ARGV[3]) - campaign.backlog
local shared_quantity, shared_day, shared_part, first_counters

-- Why every claim is refused, if it is.
local function closed()
  if campaign.admin_state == PAUSED_BY_HAND then return PAUSED end
  if campaign.admin_state == ENDED_BY_HAND then return ENDED end
  if now < campaign.starts_at then return NOT_STARTED .. struct.pack('>I6', campaign.starts_at) end
  if now >= campaign.ends_at then return OVER .. struct.pack('>I6', campaign.ends_at) end
end

-- Why a claim of a user who has so much of `day` and of all days is refused, if it is. The limits refuse in this order.
local function refusal(quantity, day, on_it, ever)
  local answer, left, behind
  if quantity > per_claim then
    return PER_CLAIM .. struct.pack('>I5', per_claim)
  elseif quantity > per_user_per_day - on_it then
    answer, left, behind = DAILY, per_user_per_day - on_it, struct.pack('>I3', day)
  elseif quantity > per_user - ever then
    answer, left = USER, per_user - ever
  elseif quantity > total - taken then
    answer, left = TOTAL, total - taken
  elseif events >= room then
    return FULL
  else
    return nil
  end
  if more_due then return AGAIN end
  answer = answer .. struct.pack('>I5', math.max(left, 0))
  return behind and answer .. behind or answer
end

-- Packs what neighbouring claims share, when quantity or day is another: the end of their records, and the counters of
-- a user who had nothing.
local function share(quantity, day)
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

local closed_now = closed()
-- The lists are filled by a counted place: `#` looks for their end each time.
local answers = {}
for i = 1, count do
  local user_id, digest, quantity = fields[i + 1], digests[i], quantities[i]
  local record = records[user_id] or read[i + 1]
  local day, on_it, ever, claim = today, 0, 0, nil
  if record then
    claim = find_claim(work, record, digest)
    local last_day, units
    last_day, units, ever = unpack_user(record)
    -- Never a day before the user's last, whatever the clock does. The record turns to it with a grant alone.
    if last_day >= today then day, on_it = last_day, units end
  end
  local answer
  if claim then
    answer = struct.unpack('>I4', claim, 22) == quantity and REPLAY .. claim or KEY_REUSED
  else
    answer = closed_now or refusal(quantity, day, on_it, ever)
  end
  if not answer then
    answer = GRANT
    sequence, taken, events = sequence + 1, taken + quantity, events + 1
    if shared_quantity ~= quantity or shared_day ~= day then share(quantity, day) end
    claim = digest .. struct.pack('>I5', sequence) .. shared_part
    if record then
      local moved = string.byte(record, HEADER)
      record = with_claim(user_id, with_counters(record, day, on_it + quantity, ever + quantity, moved), claim)
    else
      record = first_counters .. claim
    end
    records[user_id] = record
    users[2 * events + 1], users[2 * events + 2] = user_id, record
    event_users[events], event_claims[events] = user_id, claim
    if expires_at > 0 then append(work.held, expires_at, hold_member(user_id, digest)) end
  end
  answers[i] = answer
end
campaign.sequence, campaign.taken = sequence, taken
if not write_all(work) then return { 'not_ready', 'sentinel' } end
return {
  'decided', now, campaign.version, campaign.events, total < UNLIMITED and total or -1, more_due and 1 or 0,
  first_sequence, first_taken, expires_at, table.concat(answers),
}
