-- claim: expires the holds that are due, then decides a list of claims of one campaign in order, each all or nothing.
-- An empty list is a sweep, which only expires holds.
--
-- KEYS  as in prelude.lua
-- ARGV  1-2 as in prelude.lua, 3 maximum of the backlog (events), 4 the claims, concatenated:
--       user (length 1), digest 16, quantity 4
--       5 the passes shown with the claims, 4 bytes each: 0 none, otherwise the maximum number of units that the user may
--       take with it, 2^32-1 for no such limit
--       6 the call's traceparent, only if it is traced
--
-- Replies
--   {'not_ready', why}    why: missing | layout | register | loading | suspended | epoch | replication | behind |
--                           sentinel | days
--   a string      now ms 6, version 6, events so far 6, total or none 5, 1 if more holds are due, otherwise 0 (1),
--                 sequence 6 and units taken 6 before the first of these claims, expires at ms of the claims held by
--                 this call or 0 (6), then the answers. One string is faster to parse than a list
--
-- Each answer is one byte, followed by the fields named here with their widths in bytes:
--     1                                    granted or, with an expiry, held: takes the next sequence number
--     2 claim's record                     replay: the claim as it is now
--     3                                    the key was used with a different quantity
--     4 paused   5 ended by an admin   6 starts at 6   7 ends at 6
--     8 per_claim 5                        the quantity exceeds per_claim
--     9 remaining 5, day 3                 per_user_per_day
--    10 remaining 5                        per_user
--    11 remaining 5                        total
--    12                                    more holds are due than one call expires: resend the claim
--    13                                    the backlog is full
--    14 required until ms 6                no pass was shown

local GRANT, REPLAY, KEY_REUSED, PAUSED, ENDED, NOT_STARTED, WINDOW_OVER = '\1', '\2', '\3', '\4', '\5', '\6', '\7'
local PER_CLAIM, DAILY, USER, TOTAL, RETRY, OUTBOX_FULL, PASS = '\8', '\9', '\10', '\11', '\12', '\13', '\14'
local PASS_UNLIMITED = 2 ^ 32 - 1

-- Unpacks the claims, then reads the state together with the records of the users.
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
if now >= campaign.offsets_until then return { 'not_ready', 'days' } end
local work = new_work(campaign, now)
if ARGV[6] then work.extra_fields = { 'traceparent', ARGV[6] } end
local tools

-- Expires the holds that are due, at most DUE_MAX of them.
local has_more_due = false
if now >= campaign.next_due then
  if not holds_match_load(campaign) then return { 'not_ready', 'sentinel' } end
  local due = redis.call('ZRANGE', holds_key, 1, now, 'BYSCORE', 'LIMIT', 0, DUE_MAX)
  -- `next_due` is outdated: that hold was confirmed, returned or extended.
  if #due == 0 then campaign.next_due, work.must_write_state = first_due(), true end
  tools, has_more_due = claim_tools(work), #due == DUE_MAX
  for _, member in ipairs(due) do
    tools.expire(string.sub(member, 1, -DIGEST - 2), string.sub(member, -DIGEST))
  end
end

local total, per_claim = campaign.total, campaign.per_claim
-- UNLIMITED is a finite number, so an unlimited total can still deny. The users' limits must not deny before the total.
local per_user = campaign.per_user == UNLIMITED and math.huge or campaign.per_user
local per_user_per_day = campaign.per_user_per_day == UNLIMITED and math.huge or campaign.per_user_per_day
local first_sequence, first_taken = campaign.sequence, campaign.taken
local sequence, taken, today = first_sequence, first_taken, day_at(campaign, now)
local status, expires_at = GRANTED, 0
if campaign.hold_ms > 0 then status, expires_at = HELD, now + campaign.hold_ms end
local users, event_users, event_claims, records = work.users, work.event_users, work.event_claims, work.records
local events, room = #event_users, tonumber(ARGV[3]) - campaign.backlog

-- The answer to every new claim if the campaign accepts no claims.
local closed = nil
if campaign.admin_state == ADMIN_PAUSED then
  closed = PAUSED
elseif campaign.admin_state == ADMIN_ENDED then
  closed = ENDED
elseif now < campaign.starts_at then
  closed = NOT_STARTED .. struct.pack('>I6', campaign.starts_at)
elseif now >= campaign.ends_at then
  closed = WINDOW_OVER .. struct.pack('>I6', campaign.ends_at)
end

-- The passes are read only while the campaign requires one, so that they cost other campaigns nothing.
local requires_pass, passes, no_pass = now < campaign.pass_until, ARGV[5], nil
if requires_pass then no_pass = PASS .. struct.pack('>I6', campaign.pass_until) end

-- The end of a claim's record, reused for consecutive grants with the same quantity and day.
local shared_quantity, shared_day, shared_part
local answers = {}
for i = 1, count do
  local user_id, digest, quantity = fields[i + 1], digests[i], quantities[i]
  local record = records[user_id] or read[i + 1]
  local day, on_day, ever, claim = today, 0, 0, nil
  if record then
    tools = tools or claim_tools(work)
    claim = tools.find(record, digest)
    if not claim then
      local last_day, units
      last_day, units, ever = tools.counters(record, today + 1)
      -- A clock set back must not set the user's day back, unless the last day is beyond tomorrow. Only a grant
      -- changes the user's day.
      if last_day >= today then day, on_day = last_day, units end
    end
  end
  local denial, user_limit = closed, per_user
  if requires_pass then
    local units = struct.unpack('>I4', passes, 4 * i - 3)
    if units == 0 then
      denial = closed or no_pass
    elseif units < PASS_UNLIMITED then
      user_limit = math.min(per_user, units)
    end
  end
  -- The limits are checked in this order.
  local answer, remaining, suffix
  if claim then
    answer = struct.unpack('>I4', claim, QUANTITY_AT) == quantity and REPLAY .. claim or KEY_REUSED
  elseif denial then
    answer = denial
  elseif quantity > per_claim then
    answer = PER_CLAIM .. struct.pack('>I5', per_claim)
  elseif quantity > per_user_per_day - on_day then
    answer, remaining, suffix = DAILY, per_user_per_day - on_day, struct.pack('>I3', day)
  elseif quantity > user_limit - ever then
    answer, remaining = USER, user_limit - ever
  elseif quantity > total - taken then
    answer, remaining = TOTAL, total - taken
  elseif events >= room then
    answer = OUTBOX_FULL
  else
    answer = GRANT
  end
  if remaining then
    -- The next call expires further holds, which may free the missing units.
    answer = has_more_due and RETRY or answer .. struct.pack('>I5', math.max(remaining, 0)) .. (suffix or '')
  end
  if answer == GRANT then
    sequence, taken, events = sequence + 1, taken + quantity, events + 1
    if shared_quantity ~= quantity or shared_day ~= day then
      shared_quantity, shared_day = quantity, day
      shared_part = struct.pack('>I4I1I2I6I6I3', quantity, status, 1, now, expires_at, day)
    end
    claim = digest .. struct.pack('>I5', sequence) .. shared_part
    record = record and tools.add(user_id, record, claim, day, on_day + quantity, ever + quantity) or claim
    records[user_id] = record
    -- Writes to computed indexes, since `#` searches for the end of a list each time.
    users[2 * events + 1], users[2 * events + 2] = user_id, record
    event_users[events], event_claims[events] = user_id, claim
    if expires_at > 0 then append(work, 'held', expires_at, hold_member(user_id, digest)) end
  end
  answers[i] = answer
end
campaign.sequence, campaign.taken = sequence, taken
if not write_all(work) then return { 'not_ready', 'sentinel' } end
return struct.pack('>I6I6I6I5I1I6I6I6', now, campaign.version, campaign.events, total, has_more_due and 1 or 0,
  first_sequence, first_taken, expires_at) .. table.concat(answers)
