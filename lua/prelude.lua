#!lua
-- The prelude of every script that decides: the layout of the keys, read and written in one place.
-- Core puts it in front of the script's own text, so '#!lua' (which makes Redis refuse the script
-- under memory pressure before it writes anything) is always the first line.
--
-- KEYS  1 campaign (hash)   2 users (hash)   3 claims (hash)   4 holds (zset)   5 outbox (stream)
-- ARGV  1 identity   2 minimum event count   then the script's own
--
-- Numbers are whole, at most 2^53. Bytes are big endian.
--   state            identity, admin state 1, sequence 6, taken 6, events 6, backlog 6, loaded epoch 5, next hold due ms 6,
--                    then the rules. It stands at '.' among the users, so that one command reads it with a user's record,
--                    and one writes both: what vouches for the counters is lost together with what was counted
--   identity         the length 1 of what follows: epoch 5, then as text, separated by spaces: layout, register id,
--                    replication id
--   rules            starts at ms 6, ends at ms 6, total 5, per user 5, per user and day 5, per claim 5, hold ms 6,
--                    days until ms 6, version 6, then the UTC offsets: from second 5, seconds ahead 4, in turn
--   user's record    the claims, oldest first; once some have moved to `claims`, behind a header that counts all of them:
--                    day 3, taken on it 5, taken ever 5
--   claim's record   digest 16, sequence 5, quantity 4, status 1, revision 1, claimed at 6, expires at 6, day 3
--   outbox entry     head: epoch 5, events so far 6, written at ms 6, total or none 5, taken 6;
--                    its users, space-separated, and as many claims' records in the same order; by: the name of the
--                    caller who has confirmed or returned the claim; traceparent: the context of the call, if it is traced
-- All bits of a limit or a time are set where there is none; a hold of 0 ms is none.
--
-- Records stay packed, and are taken apart only where something in them is asked for: a batch is mostly users never
-- seen before, and what a claim costs here is what claimgate costs. A function that is made costs every call of a script,
-- whether it is called or not: what few calls need is made by a function of its own. With claim.lua this is a library, which
-- Redis loads once; while it loads, neither Lua's functions nor Redis' are there, so that outside of functions none is called.

local campaign_key, users_key, claims_key, holds_key, outbox_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local STATE, SENTINEL = '.', '.'
local LAYOUT = '6'
local HEADER, CLAIM, DIGEST = 13, 42, 16
local COUNTERS, COUNTERS_BYTES, BACKLOG_AT = '>I1I6I6I6I6I5I6', 36, 19
-- The byte of a claim's record that its quantity begins with, from 1.
local QUANTITY_AT = 22
local INLINE_MAX = 8
local DUE_MAX = 256
local UNLIMITED, NEVER = 2 ^ 40 - 1, 2 ^ 48 - 1
local ADMIN_ON, ADMIN_PAUSED, ADMIN_ENDED, ADMIN_SUSPENDED = 1, 2, 3, 4
local GRANTED, HELD, RETURNED, EXPIRED = 1, 2, 3, 4

local function milliseconds()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- Layout, register id and epoch of a state or of an identity; nothing when it is neither.
local function parse_identity(bytes)
  if not bytes or #bytes < 7 then return end
  local layout, register_id = string.match(string.sub(bytes, 7, 1 + string.byte(bytes)), '^(%S+) (%S+) %S*$')
  if layout then return layout, register_id, (struct.unpack('>I5', bytes, 2)) end
end

-- The campaign of that state if this script may act on it, else nil and why not: anything missing, of another layout,
-- register, epoch or replication id, or with fewer events (grants, confirmations, returns, expiries) than the minimum
-- event count, means that the counters cannot be trusted.
local function open_campaign(state)
  local identity = ARGV[1]
  if not state or string.sub(state, 1, #identity) ~= identity then
    local known_layout, known_register_id, phase =
      unpack(redis.call('HMGET', campaign_key, 'layout', 'register_id', 'phase'))
    local layout, register_id, epoch = parse_identity(state)
    local wanted_layout, wanted_register_id, wanted_epoch = parse_identity(identity)
    if not (layout or known_layout) then return nil, 'missing' end
    if (known_layout or layout) ~= LAYOUT or wanted_layout ~= LAYOUT then return nil, 'layout' end
    if (register_id or known_register_id) ~= wanted_register_id then return nil, 'register' end
    if phase == 'loading' or phase == 'suspended' then return nil, phase end
    if not epoch then return nil, 'missing' end
    return nil, epoch == wanted_epoch and 'replication' or 'epoch'
  end
  local admin_state, sequence, taken, events, backlog, loaded_epoch, next_due, starts_at, ends_at, total, per_user,
    per_user_per_day, per_claim, hold_ms, days_until, version, days_at =
    struct.unpack('>I1I6I6I6I6I5I6I6I6I5I5I5I5I6I6I6', state, #identity + 1)
  if admin_state == ADMIN_SUSPENDED then return nil, 'suspended' end
  if events < tonumber(ARGV[2]) then return nil, 'behind' end
  if redis.call('EXISTS', campaign_key, claims_key, holds_key, outbox_key) < 4 then return nil, 'sentinel' end
  return {
    state = state, days_at = days_at, admin_state = admin_state, sequence = sequence, taken = taken, events = events,
    backlog = backlog, loaded_epoch = loaded_epoch, next_due = next_due, starts_at = starts_at, ends_at = ends_at,
    total = total, per_user = per_user, per_user_per_day = per_user_per_day, per_claim = per_claim, hold_ms = hold_ms,
    days_until = days_until, version = version,
  }
end

-- A state with these counters before the same rules, or before others.
local function pack_state(campaign, rules)
  return ARGV[1] .. struct.pack(COUNTERS, campaign.admin_state, campaign.sequence, campaign.taken, campaign.events,
    campaign.backlog, campaign.loaded_epoch, campaign.next_due)
    .. (rules or string.sub(campaign.state, #ARGV[1] + COUNTERS_BYTES + 1))
end

-- Whether what is in these keys is of the same load as the state. A script that counts on it asks, before it writes
-- anything.
local function claims_are_whole(campaign)
  return redis.call('HGET', claims_key, SENTINEL) == string.format('%.0f', campaign.loaded_epoch)
end
local function holds_are_whole(campaign)
  return redis.call('ZSCORE', holds_key, SENTINEL) == string.format('-%.0f', campaign.loaded_epoch)
end

-- The campaign as above, with every key of the same load.
local function open_whole_campaign()
  local campaign, why = open_campaign(redis.call('HGET', users_key, STATE))
  if not campaign then return nil, why end
  local sentinel = string.format('0-%.0f', campaign.loaded_epoch)
  if redis.call('HGET', campaign_key, 'phase') == 'open' and claims_are_whole(campaign) and holds_are_whole(campaign)
    and #redis.call('XRANGE', outbox_key, sentinel, sentinel) == 1 then
    return campaign
  end
  return nil, 'sentinel'
end

-- The calendar day at `now` in the campaign's time zone, as days since 1970: the last offset that has begun counts.
local function day_at(campaign, now)
  local seconds, days = math.floor(now / 1000), campaign.state
  local offset = 0
  for at = campaign.days_at, #days, 9 do
    local from, ahead = struct.unpack('>I5i4', days, at)
    if from > seconds then break end
    offset = ahead
  end
  return math.floor((seconds + offset) / 86400)
end

-- What a script has read, and what it writes all at once at its end: the arguments of the commands that write it, `users`
-- with room for the state at its beginning. `claims`, `held` and `freed` are there once something is in them. `records` has
-- users' records as they stand by now. `more`: further fields of the outbox entry, if any. `is_damaged`: a key is not whole.
-- `is_stale`: the state is to be written whatever else is.
local function new_work(campaign, now)
  return {
    campaign = campaign, now = now, records = {}, users = { STATE, false }, event_users = {}, event_claims = {},
  }
end

local function hold_member(user_id, digest) return user_id .. '.' .. digest end

-- Adds two elements to one of the work's lists.
local function append(work, name, first, second)
  local list = work[name] or {}
  work[name] = list
  local length = #list
  list[length + 1], list[length + 2] = first, second
end

-- What reads and changes claims that are there. `moved` has the records of those that have moved out.
local function claim_tools(work)
  local tools, records, moved = {}, work.records, {}

  -- The record of a claim that has moved out, or nil.
  local function find_moved(digest)
    if moved[digest] == nil then
      work.is_damaged = work.is_damaged or not claims_are_whole(work.campaign)
      local packed = redis.call('HGET', claims_key, digest)
      moved[digest] = packed and string.sub(packed, 1, CLAIM)
    end
    return moved[digest] or nil
  end

  -- The claim of that digest, packed, and where it stands in its user's record; nil for none.
  function tools.find(record, digest)
    if not record then return nil end
    local header = #record % CLAIM
    for at = header + 1, #record, CLAIM do
      if string.sub(record, at, at + DIGEST - 1) == digest then return string.sub(record, at, at + CLAIM - 1), at end
    end
    if header > 0 then return find_moved(digest) end
  end

  -- The last day that a user has claimed on, units taken on it and ever. Imported claims stand behind others of a later day.
  function tools.counters(record)
    if #record % CLAIM > 0 then return struct.unpack('>I3I5I5', record) end
    local last_day, on_it, ever = 0, 0, 0
    for at = QUANTITY_AT, #record, CLAIM do
      local quantity, status, day = struct.unpack('>I4I1xxxxxxxxxxxxxI3', record, at)
      if day > last_day then last_day, on_it = day, 0 end
      if status == GRANTED or status == HELD then
        ever = ever + quantity
        if day == last_day then on_it = on_it + quantity end
      end
    end
    return last_day, on_it, ever
  end

  function tools.unpack(packed)
    local digest, sequence, quantity, status, revision, claimed_at, expires_at, day =
      struct.unpack('>c16I5I4I1I1I6I6I3', packed)
    return {
      digest = digest, status = status, revision = revision, quantity = quantity, sequence = sequence,
      claimed_at = claimed_at, expires_at = expires_at, day = day,
    }
  end

  function tools.pack(claim)
    return struct.pack('>c16I5I4I1I1I6I6I3', claim.digest, claim.sequence, claim.quantity, claim.status, claim.revision,
      claim.claimed_at, claim.expires_at, claim.day)
  end

  -- Records a claim that no longer fits into its user's record. The user's id is appended to it, so that a scan of these
  -- claims alone can tell whose they are.
  local function move_out(user_id, digest, packed)
    moved[digest] = packed
    append(work, 'claims', digest, packed .. user_id)
  end

  -- A user's record with one claim more, after which the counters are these; the oldest of more than eight moves out to
  -- `claims`. A record with a header has eight already.
  function tools.add(user_id, record, claim, day, on_it, ever)
    if #record < INLINE_MAX * CLAIM then return record .. claim end
    local at = #record % CLAIM + 1
    local oldest = string.sub(record, at, at + CLAIM - 1)
    move_out(user_id, string.sub(oldest, 1, DIGEST), oldest)
    return struct.pack('>I3I5I5', day, on_it, ever) .. string.sub(record, at + CLAIM) .. claim
  end

  -- Writes a changed claim back where it was found, and tells SQL.
  function tools.update(user_id, record, claim, at)
    claim.revision = claim.revision + 1
    local packed = tools.pack(claim)
    if at then
      record = string.sub(record, 1, at - 1) .. packed .. string.sub(record, at + CLAIM)
    else
      move_out(user_id, claim.digest, packed)
    end
    records[user_id] = record
    append(work, 'users', user_id, record)
    append(work, 'event_users', user_id)
    append(work, 'event_claims', packed)
  end

  -- Gives a claim's units back: to the total and, where a header counts them, to the user, and to the user's day while
  -- that day is still the current one. Returns the user's record.
  function tools.give_back(record, claim)
    work.campaign.taken = work.campaign.taken - claim.quantity
    if #record % CLAIM == 0 then return record end
    local day, on_it, ever = tools.counters(record)
    if claim.day == day then on_it = on_it - claim.quantity end
    return struct.pack('>I3I5I5', day, on_it, ever - claim.quantity) .. string.sub(record, HEADER + 1)
  end

  -- Expires a hold that is due.
  function tools.expire(user_id, digest)
    local record = records[user_id] or redis.call('HGET', users_key, user_id)
    local packed, at = tools.find(record, digest)
    local claim = packed and tools.unpack(packed)
    if claim and claim.status == HELD then
      claim.status = EXPIRED
      tools.update(user_id, tools.give_back(record, claim), claim, at)
    end
    append(work, 'freed', hold_member(user_id, digest))
  end

  return tools
end

-- When the first hold of all falls due.
local function first_due()
  local first = redis.call('ZRANGE', holds_key, 1, '+inf', 'BYSCORE', 'LIMIT', 0, 1, 'WITHSCORES')
  return tonumber(first[2]) or NEVER
end

-- Writes everything that the script has changed; false, and nothing is written, when a key that it counts on, or would write
-- to, is not whole. All else that can fail has been done before. What a list names twice is there as it stands last.
local function write_all(work)
  local campaign, events, claims, held, freed = work.campaign, #work.event_users, work.claims, work.held, work.freed
  if work.is_damaged or claims and not claims_are_whole(campaign)
    or (held or freed) and not holds_are_whole(campaign) then
    return false
  end
  if events == 0 and not freed and not work.is_stale then return true end
  if events > 0 then
    campaign.events, campaign.backlog = campaign.events + events, campaign.backlog + events
    local head = string.sub(ARGV[1], 2, 6)
      .. struct.pack('>I6I6I5I6', campaign.events, work.now, campaign.total, campaign.taken)
    redis.call('XADD', outbox_key, '*', 'head', head, 'users', table.concat(work.event_users, ' '), 'claims',
      table.concat(work.event_claims), unpack(work.more or {}))
  end
  if claims then redis.call('HSET', claims_key, unpack(claims)) end
  if held then
    redis.call('ZADD', holds_key, unpack(held))
    campaign.next_due = math.min(campaign.next_due, work.now + campaign.hold_ms)
  end
  if freed then
    redis.call('ZREM', holds_key, unpack(freed))
    campaign.next_due = first_due()
  end
  work.users[2] = pack_state(campaign)
  redis.call('HSET', users_key, unpack(work.users))
  return true
end
