-- claim: gives back the holds that are due, then decides a list of claims of one campaign, in their order, each all
-- or nothing. An empty list is a sweep: it only gives back.
--
-- KEYS  as in prelude.lua
-- ARGV  1-3 as in prelude.lua, 4 bound of the backlog (events), 5 the claims, one behind the other:
--       user (length 1), digest 16, quantity 4
--
-- Replies
--   {'not_ready', why}    why: missing | layout | epoch | loading | behind | sentinel | days
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
--    12                                    more holds are due first: ask again
--    13                                    the backlog is full

local function code(number) return string.char(number) end
local GRANT, REPLAY, KEY_REUSED, PAUSED, ENDED, NOT_STARTED, OVER, PER_CLAIM, DAILY, USER, TOTAL, AGAIN, FULL =
  code(1), code(2), code(3), code(4), code(5), code(6), code(7), code(8), code(9), code(10), code(11), code(12), code(13)

-- The limits, in the order in which they refuse. A further one is a further entry.
local LIMITS = {
  { DAILY, function(campaign, today) return campaign.per_user_per_day - today end },
  { USER, function(campaign, _, ever) return campaign.per_user - ever end },
  { TOTAL, function(campaign) return (campaign.total or UNLIMITED) - campaign.taken end },
}

local function closed(campaign, now)
  if campaign.switch == 'paused' then return PAUSED end
  if campaign.switch == 'ended' then return ENDED end
  if now < campaign.starts_at then return NOT_STARTED .. struct.pack('>I6', campaign.starts_at) end
  if now >= campaign.ends_at then return OVER .. struct.pack('>I6', campaign.ends_at) end
end

local function refusal(work, day, today, ever, quantity)
  local campaign = work.campaign
  if quantity > campaign.per_claim then return PER_CLAIM .. struct.pack('>I5', campaign.per_claim) end
  for i = 1, #LIMITS do
    local limit = LIMITS[i]
    local left = limit[2](campaign, today, ever)
    if quantity > left then
      if work.more_due then return AGAIN end
      local answer = limit[1] .. struct.pack('>I5', math.max(left, 0))
      return limit[1] == DAILY and answer .. struct.pack('>I3', day) or answer
    end
  end
  if campaign.backlog + work.event_count >= work.backlog_max then return FULL end
end

-- A user's record with one claim more; the oldest beyond eight moves out to `claims`.
local function add_claim(work, record, claim)
  record = record .. claim
  if #record <= HEADER + INLINE_MAX * CLAIM then return record end
  local oldest = string.sub(record, HEADER + 1, HEADER + CLAIM)
  local digest = string.sub(oldest, 1, DIGEST)
  work.moved[digest] = oldest
  work.touched_moved[#work.touched_moved + 1] = digest
  return string.sub(record, 1, HEADER - 1) .. code(1) .. string.sub(record, HEADER + CLAIM + 1)
end

-- What neighbouring claims share, packed anew only when quantity or day is another: what stands in a claim's record
-- before and after its sequence, and the counters of a user who had nothing.
local function shared_parts(work, quantity, day)
  if work.quantity ~= quantity or work.day ~= day then
    work.quantity, work.day = quantity, day
    work.before = struct.pack('>I1I1I4', work.campaign.hold_ms and HELD or GRANTED, 1, quantity)
    work.after = struct.pack('>I6I6I3', work.now, work.expires_at, day)
    work.counters = struct.pack('>I3I5I5I1', day, quantity, quantity, 0)
  end
  return work.before, work.after, work.counters
end

local function grant(work, user_id, digest, quantity, day, today, ever, moved)
  local campaign, record = work.campaign, work.records[user_id]
  campaign.sequence = campaign.sequence + 1
  campaign.taken = campaign.taken + quantity
  local before, after, counters = shared_parts(work, quantity, day)
  local claim = digest .. before .. struct.pack('>I5', campaign.sequence) .. after
  if record then
    record = with_counters(record, day, today + quantity, ever + quantity, moved)
    work.records[user_id] = add_claim(work, record, claim)
  else
    work.records[user_id] = counters .. claim
  end
  put_event(work, user_id, claim)
  if campaign.hold_ms then
    work.held[#work.held + 1] = work.expires_at
    work.held[#work.held + 1] = hold_member(user_id, digest)
  end
  return GRANT
end

-- The claim as it stands, if there is one of this digest.
local function replay(work, user_id, digest, quantity)
  local claim = find_claim(work, user_id, digest)
  if not claim then return nil end
  if struct.unpack('>I4', claim, 19) ~= quantity then return KEY_REUSED end
  return REPLAY .. claim
end

local function decide(work, user_id, digest, quantity)
  local answer = replay(work, user_id, digest, quantity) or work.closed
  if answer then return answer end
  local day, today, ever, moved = unpack_user(work.records[user_id])
  -- Never a day before the user's last, whatever the clock does. The record turns to it with a grant alone.
  if day < work.today then day, today = work.today, 0 end
  return refusal(work, day, today, ever, quantity)
    or grant(work, user_id, digest, quantity, day, today, ever, moved)
end

local campaign, why = open_campaign()
if not campaign then return { 'not_ready', why } end
local now = milliseconds()
if now >= campaign.days_until then return { 'not_ready', 'days' } end

local work = new_work(campaign, now)
work.closed, work.backlog_max = closed(campaign, now), tonumber(ARGV[4])
work.expires_at = campaign.hold_ms and now + campaign.hold_ms or 0

-- The due holds come first in these lists, then the claims.
local user_ids, digests = due_holds(now)
local quantities, due = {}, #user_ids
work.more_due = due == DUE_MAX
local packed, at, count = ARGV[5], 1, due
while at <= #packed do
  count = count + 1
  user_ids[count], digests[count], quantities[count], at = struct.unpack('>I1c0c16I4', packed, at)
end
read_records(work, user_ids, digests)

for i = 1, due do expire_hold(work, user_ids[i], digests[i]) end
local sequence, taken, answers = campaign.sequence, campaign.taken, {}
for i = due + 1, count do answers[i - due] = decide(work, user_ids[i], digests[i], quantities[i]) end
write_all(work)
return {
  'decided', now, campaign.version, campaign.events, campaign.total or -1, work.more_due and 1 or 0,
  sequence, taken, work.expires_at, table.concat(answers),
}
