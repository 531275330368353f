-- claim: gives back the holds that are due, then decides a list of claims of one campaign, in their order, each all
-- or nothing. An empty list is a sweep: it only gives back.
--
-- KEYS  as in prelude.lua
-- ARGV  1-3 as in prelude.lua, 4 bound of the backlog (events), then three a claim:
--       user id, digest (16 bytes), quantity
--
-- Replies
--   {'not_ready', why}    why: missing | layout | epoch | loading | behind | sentinel | days
--   {'decided', now ms, version, events so far, total or -1, 1 if more holds are due else 0, {one a claim}}
--     {1, sequence, expires at ms or 0, taken}                                  granted or, with expires at, held
--     {2, status, sequence, claimed at ms, expires at ms or 0, taken}           replay: the claim as it stands
--     {3}                                                                       the key had another quantity
--     {4} paused   {5} ended by hand   {6, starts at ms}   {7, ends at ms}
--     {8, per_claim}                                                            more than one claim may take
--     {9, remaining, day}                                                       per_user_per_day
--     {10, remaining}                                                           per_user
--     {11, remaining}                                                           total
--     {12}                                                                      more holds are due first: ask again
--     {13}                                                                      the backlog is full

local REPLAY, KEY_REUSED, PAUSED, ENDED, NOT_STARTED, OVER, PER_CLAIM, DAILY, USER, TOTAL, AGAIN, FULL =
  2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13

-- The limits, in the order in which they refuse. A further one is a further entry.
local LIMITS = {
  { DAILY, function(campaign, _, today) return campaign.per_user_per_day - today end },
  { USER, function(campaign, user) return campaign.per_user - user.ever end },
  { TOTAL, function(campaign) return (campaign.total or UNLIMITED) - campaign.taken end },
}

local function closed(campaign, now)
  if campaign.switch == 'paused' then return { PAUSED } end
  if campaign.switch == 'ended' then return { ENDED } end
  if now < campaign.starts_at then return { NOT_STARTED, campaign.starts_at } end
  if now >= campaign.ends_at then return { OVER, campaign.ends_at } end
end

-- The day a user's next claim counts on, and what is taken of it: never a day before the user's last, whatever the
-- clock does. The user's record turns to it with a grant alone; a refusal changes nothing.
local function day_of(work, user)
  if user.day < work.today then return work.today, 0 end
  return user.day, user.today
end

local function refusal(work, user, quantity)
  local campaign = work.campaign
  if quantity > campaign.per_claim then return { PER_CLAIM, campaign.per_claim } end
  local day, today = day_of(work, user)
  for _, limit in ipairs(LIMITS) do
    local left = limit[2](campaign, user, today)
    if quantity > left then
      if work.more_due then return { AGAIN } end
      return { limit[1], math.max(left, 0), day }
    end
  end
  if campaign.backlog + #work.events >= work.backlog_max then return { FULL } end
end

local function grant(work, user_id, digest, quantity)
  local campaign, user = work.campaign, work.users[user_id]
  local expires_at = campaign.hold_ms and work.now + campaign.hold_ms or 0
  campaign.sequence = campaign.sequence + 1
  campaign.taken = campaign.taken + quantity
  local day, today = day_of(work, user)
  user.day, user.today, user.ever = day, today + quantity, user.ever + quantity
  local claim = {
    digest = digest, status = campaign.hold_ms and HELD or GRANTED, revision = 1, quantity = quantity,
    sequence = campaign.sequence, claimed_at = work.now, expires_at = expires_at, day = user.day,
  }
  add_claim(work, user_id, claim)
  put_event(work, user_id, claim, campaign.total or 0, campaign.taken)
  if campaign.hold_ms then
    work.held[#work.held + 1] = expires_at
    work.held[#work.held + 1] = hold_member(user_id, digest)
  end
  return { 1, campaign.sequence, expires_at, campaign.taken }
end

local function decide(work, user_id, digest, quantity)
  local user = work.users[user_id]
  local claim = find_claim(work, user, digest)
  if claim and claim.quantity ~= quantity then return { KEY_REUSED } end
  if claim then
    return { REPLAY, claim.status, claim.sequence, claim.claimed_at, claim.expires_at, work.campaign.taken }
  end
  return work.closed or refusal(work, user, quantity) or grant(work, user_id, digest, quantity)
end

local campaign, why = open_campaign()
if not campaign then return { 'not_ready', why } end
local now = milliseconds()
if now >= campaign.days_until then return { 'not_ready', 'days' } end

local work = new_work(campaign, now)
local due, more_due = due_holds(now)
work.more_due, work.closed, work.backlog_max = more_due, closed(campaign, now), tonumber(ARGV[4])
local wanted = {}
for _, pair in ipairs(due) do wanted[#wanted + 1] = pair end
for at = 5, #ARGV, 3 do wanted[#wanted + 1] = { ARGV[at], ARGV[at + 1] } end
read_records(work, wanted)

expire_holds(work, due)
local results = {}
for at = 5, #ARGV, 3 do
  results[#results + 1] = decide(work, ARGV[at], ARGV[at + 1], tonumber(ARGV[at + 2]))
end
write_all(work)
return { 'decided', now, campaign.version, campaign.events, campaign.total or -1, more_due and 1 or 0, results }
