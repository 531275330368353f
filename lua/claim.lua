-- claim: gives back the holds that are due, then decides a list of claims of one campaign, in their order, each all
-- or nothing. An empty list is a sweep: it only gives back.
--
-- KEYS  as in prelude.lua
-- ARGV  1-2 as in prelude.lua, 3 bound of the backlog (events), 4 the claims, one behind the other:
--       user (length 1), digest 16, quantity 4
--       5 the traceparent of the call, only when it is traced
--
-- Replies
--   {'not_ready', why}    why: missing | layout | register | loading | suspended | epoch | replication | behind |
--                           sentinel | days
--   a string      one reply to read is read sooner than ten: now ms 6, version 6, events so far 6, total or none 5, 1 if
--                 more holds are due else 0 (1), sequence 6 and units taken 6 before the first of these claims, expires at
--                 ms of the claims held here or 0 (6), then the answers
--
-- The answers, one behind the other, are a byte each and what is named here:
--     1                                    granted or, with an expiry, held: the next sequence
--     2 claim's record                     replay: the claim as it stands
--     3                                    the key had another quantity
--     4 paused   5 ended by an admin   6 starts at 6   7 ends at 6
--     8 per_claim 5                        more than one claim may take
--     9 remaining 5, day 3                 per_user_per_day
--    10 remaining 5                        per_user
--    11 remaining 5                        total
--    12                                    more holds are due than one call gives back: send the claim again
--    13                                    the backlog is full

local GRANT, REPLAY, KEY_REUSED, PAUSED, ENDED, NOT_STARTED, OVER = '\1', '\2', '\3', '\4', '\5', '\6', '\7'
local PER_CLAIM, DAILY, USER, TOTAL, AGAIN, FULL = '\8', '\9', '\10', '\11', '\12', '\13'

-- The claims, and what is known of their users; the state comes with these.
local packed, at, count = ARGV[4], 1, 0
local fields, digests, quantities = { STATE }, {}, {}
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
if ARGV[5] then work.more = { 'traceparent', ARGV[5] } end
local tools

-- The holds that are due, at most DUE_MAX of them; more may be due then.
local more_due = false
if now >= campaign.next_due then
  if not holds_are_whole(campaign) then return { 'not_ready', 'sentinel' } end
  local due = redis.call('ZRANGE', holds_key, 1, now, 'BYSCORE', 'LIMIT', 0, DUE_MAX)
  -- What was the first to fall due has been confirmed or returned.
  if #due == 0 then campaign.next_due, work.is_stale = first_due(), true end
  tools, more_due = claim_tools(work), #due == DUE_MAX
  for _, member in ipairs(due) do
    tools.expire(string.sub(member, 1, -DIGEST - 2), string.sub(member, -DIGEST))
  end
end

local total, per_claim = campaign.total, campaign.per_claim
local per_user, per_user_per_day = campaign.per_user, campaign.per_user_per_day
local first_sequence, first_taken = campaign.sequence, campaign.taken
local sequence, taken, today = first_sequence, first_taken, day_at(campaign, now)
local status, expires_at = GRANTED, 0
if campaign.hold_ms > 0 then status, expires_at = HELD, now + campaign.hold_ms end
local users, event_users, event_claims, records = work.users, work.event_users, work.event_claims, work.records
local events, room = #event_users, tonumber(ARGV[3]) - campaign.backlog

-- Why every claim is refused, if it is.
local closed = nil
if campaign.admin_state == ADMIN_PAUSED then
  closed = PAUSED
elseif campaign.admin_state == ADMIN_ENDED then
  closed = ENDED
elseif now < campaign.starts_at then
  closed = NOT_STARTED .. struct.pack('>I6', campaign.starts_at)
elseif now >= campaign.ends_at then
  closed = OVER .. struct.pack('>I6', campaign.ends_at)
end

-- What neighbouring claims of one quantity and day share: the end of their records.
local shared_quantity, shared_day, shared_part
local answers = {}
for i = 1, count do
  local user_id, digest, quantity = fields[i + 1], digests[i], quantities[i]
  local record = records[user_id] or read[i + 1]
  local day, on_it, ever, claim = today, 0, 0, nil
  if record then
    tools = tools or claim_tools(work)
    claim = tools.find(record, digest)
    if not claim then
      local last_day, units
      last_day, units, ever = tools.counters(record)
      -- Never a day before the user's last, whatever the clock does. Only a grant turns to another one.
      if last_day >= today then day, on_it = last_day, units end
    end
  end
  -- The limits refuse in this order.
  local answer, left, behind
  if claim then
    answer = struct.unpack('>I4', claim, QUANTITY_AT) == quantity and REPLAY .. claim or KEY_REUSED
  elseif closed then
    answer = closed
  elseif quantity > per_claim then
    answer = PER_CLAIM .. struct.pack('>I5', per_claim)
  elseif quantity > per_user_per_day - on_it then
    answer, left, behind = DAILY, per_user_per_day - on_it, struct.pack('>I3', day)
  elseif quantity > per_user - ever then
    answer, left = USER, per_user - ever
  elseif quantity > total - taken then
    answer, left = TOTAL, total - taken
  elseif events >= room then
    answer = FULL
  else
    answer = GRANT
  end
  if left then
    -- What is due comes back with the next call.
    answer = more_due and AGAIN or answer .. struct.pack('>I5', math.max(left, 0)) .. (behind or '')
  end
  if answer == GRANT then
    sequence, taken, events = sequence + 1, taken + quantity, events + 1
    if shared_quantity ~= quantity or shared_day ~= day then
      shared_quantity, shared_day = quantity, day
      shared_part = struct.pack('>I4I1I1I6I6I3', quantity, status, 1, now, expires_at, day)
    end
    claim = digest .. struct.pack('>I5', sequence) .. shared_part
    record = record and tools.add(user_id, record, claim, day, on_it + quantity, ever + quantity) or claim
    records[user_id] = record
    -- Filled by a counted place: `#` looks for a list's end each time.
    users[2 * events + 1], users[2 * events + 2] = user_id, record
    event_users[events], event_claims[events] = user_id, claim
    if expires_at > 0 then append(work, 'held', expires_at, hold_member(user_id, digest)) end
  end
  answers[i] = answer
end
campaign.sequence, campaign.taken = sequence, taken
if not write_all(work) then return { 'not_ready', 'sentinel' } end
return struct.pack('>I6I6I6I5I1I6I6I6', now, campaign.version, campaign.events, total, more_due and 1 or 0,
  first_sequence, first_taken, expires_at) .. table.concat(answers)
