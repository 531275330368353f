#!lua
-- The prelude of the scripts that read or change a campaign: the only code that reads and writes the layout of the
-- keys. Core prepends it to the script's own text, so '#!lua' is always the first line. With that line Redis refuses to
-- run the script when out of memory, before it writes anything.
--
-- KEYS  1 campaign (hash)   2 users (hash)   3 claims (hash)   4 holds (zset)   5 outbox (stream)
-- ARGV  1 identity   2 minimum event count   then the script's own arguments
--
-- Numbers are integers up to 2^53, big endian. The number after a field's name is its width in bytes.
--   state            identity, admin state 1, sequence 6, taken 6, events 6, backlog 6, loaded epoch 5, next hold due ms 6,
--                    then the rules. The state is the field '.' of the users, so one command reads it with a user's
--                    record and one command writes both: Redis cannot lose only one of them
--   identity         length of the rest 1, epoch 5, then as text, separated by spaces: layout, register id,
--                    replication id
--   rules            starts at ms 6, ends at ms 6, total 5, per user 5, per user and day 5, per claim 5, hold ms 6,
--                    pass required until ms 6, version 6, UTC offsets valid until ms 6, then the UTC offsets, each:
--                    from second 5, seconds ahead 4
--   user's record    the claims, oldest first; if some have moved to `claims`, a header with counters of all claims comes
--                    first: day 3, taken on that day 5, taken ever 5
--   claim's record   digest 16, sequence 5, quantity 4, status 1, revision 2, claimed at 6, expires at 6, day 3
--   outbox entry     head: epoch 5, events so far 6, written at ms 6, total or none 5, taken 6;
--                    users: space-separated; claims: as many claims' records in the same order; by: the name of the
--                    caller who confirmed or returned the claim; reason: why the caller returned it, if given;
--                    extended_by and extended_from, instead of by: the name of the caller who extended the hold, and
--                    the former expiry in ms, as text; traceparent: the trace context of the call, if it is traced
-- A limit or time that is not set has all bits set; a hold of 0 ms means that claims are not held. A pass required
-- until 0 is never required, until the largest time always.
--
-- Records stay packed, and only the fields that are needed are unpacked: most users in a batch are new. Redis' part is
-- most of a claim's total cost. Creating a function costs time in each call of a script, even if it is never called,
-- so functions that few calls need are created on demand. With claim.lua this text forms a library, which Redis loads once.
-- During loading the functions of Lua and Redis are not available, so code outside of functions must not call any.

local campaign_key, users_key, claims_key, holds_key, outbox_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local STATE, SENTINEL = '.', '.'
local LAYOUT = '7'
local HEADER, CLAIM, DIGEST = 13, 43, 16
local COUNTERS, COUNTERS_BYTES, BACKLOG_AT = '>I1I6I6I6I6I5I6', 36, 19
-- Position of the quantity in a claim's record, counted from 1.
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

-- Returns layout, register id and epoch of a state or an identity; nothing if `bytes` is neither.
local function parse_identity(bytes)
  if not bytes or #bytes < 7 then return end
  local layout, register_id = string.match(string.sub(bytes, 7, 1 + string.byte(bytes)), '^(%S+) (%S+) %S*$')
  if layout then return layout, register_id, (struct.unpack('>I5', bytes, 2)) end
end

-- Returns the campaign of a state, or nil and the reason if the counters cannot be trusted. Reasons: a key is missing;
-- layout, register, epoch or replication id differ; or there are fewer events than the minimum event count. Events are
-- grants, confirmations, extensions, returns and expiries.
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
    per_user_per_day, per_claim, hold_ms, pass_until, version, offsets_until, offsets_at =
    struct.unpack('>I1I6I6I6I6I5I6I6I6I5I5I5I5I6I6I6I6', state, #identity + 1)
  if admin_state == ADMIN_SUSPENDED then return nil, 'suspended' end
  if events < tonumber(ARGV[2]) then return nil, 'behind' end
  if redis.call('EXISTS', campaign_key, claims_key, holds_key, outbox_key) < 4 then return nil, 'sentinel' end
  return {
    state = state, offsets_at = offsets_at, admin_state = admin_state, sequence = sequence, taken = taken, events = events,
    backlog = backlog, loaded_epoch = loaded_epoch, next_due = next_due, starts_at = starts_at, ends_at = ends_at,
    total = total, per_user = per_user, per_user_per_day = per_user_per_day, per_claim = per_claim, hold_ms = hold_ms,
    pass_until = pass_until, version = version, offsets_until = offsets_until,
  }
end

-- Packs a state with the campaign's counters, and with `rules` or the campaign's current rules.
local function pack_state(campaign, rules)
  return ARGV[1] .. struct.pack(COUNTERS, campaign.admin_state, campaign.sequence, campaign.taken, campaign.events,
    campaign.backlog, campaign.loaded_epoch, campaign.next_due)
    .. (rules or string.sub(campaign.state, #ARGV[1] + COUNTERS_BYTES + 1))
end

-- Returns whether a key belongs to the same load as the state. Scripts check this before the first write.
local function claims_match_load(campaign)
  return redis.call('HGET', claims_key, SENTINEL) == string.format('%.0f', campaign.loaded_epoch)
end
local function holds_match_load(campaign)
  return redis.call('ZSCORE', holds_key, SENTINEL) == string.format('-%.0f', campaign.loaded_epoch)
end

-- Like open_campaign, but also checks that every key belongs to the same load.
local function open_checked_campaign()
  local campaign, why = open_campaign(redis.call('HGET', users_key, STATE))
  if not campaign then return nil, why end
  local sentinel = string.format('0-%.0f', campaign.loaded_epoch)
  if redis.call('HGET', campaign_key, 'phase') == 'open' and claims_match_load(campaign) and holds_match_load(campaign)
    and #redis.call('XRANGE', outbox_key, sentinel, sentinel) == 1 then
    return campaign
  end
  return nil, 'sentinel'
end

-- Returns the calendar day at `now` in the campaign's time zone, in days since 1970. The last offset that has started
-- applies.
local function day_at(campaign, now)
  local seconds, state = math.floor(now / 1000), campaign.state
  local offset = 0
  for at = campaign.offsets_at, #state, 9 do
    local from, ahead = struct.unpack('>I5i4', state, at)
    if from > seconds then break end
    offset = ahead
  end
  return math.floor((seconds + offset) / 86400)
end

-- Returns a table for the data that a script has read, and for the writes that write_all makes at the end. `users`,
-- `claims`, `held` and `released` are arguments of the writing commands. `users` has a slot for the state at its start;
-- the other three exist once they have elements. `records` has the users' current records. `extra_fields`: further
-- fields of the outbox entry, if any. `is_damaged`: a key belongs to another load. `must_write_state`: write the state
-- even if no other data has changed.
local function new_work(campaign, now)
  return {
    campaign = campaign, now = now, records = {}, users = { STATE, false }, event_users = {}, event_claims = {},
  }
end

local function hold_member(user_id, digest) return user_id .. '.' .. digest end

-- Appends two elements to one of the lists in `work`.
local function append(work, name, first, second)
  local list = work[name] or {}
  work[name] = list
  local length = #list
  list[length + 1], list[length + 2] = first, second
end

-- Returns functions that read and change existing claims. `moved` caches the records of claims that have moved out.
local function claim_tools(work)
  local tools, records, moved = {}, work.records, {}

  -- Returns the record of a claim that has moved out, or nil.
  local function find_moved(digest)
    if moved[digest] == nil then
      work.is_damaged = work.is_damaged or not claims_match_load(work.campaign)
      local packed = redis.call('HGET', claims_key, digest)
      moved[digest] = packed and string.sub(packed, 1, CLAIM)
    end
    return moved[digest] or nil
  end

  -- Returns the packed claim with this digest, and its position in the user's record; nil if there is no such claim.
  function tools.find(record, digest)
    if not record then return nil end
    local header = #record % CLAIM
    for at = header + 1, #record, CLAIM do
      if string.sub(record, at, at + DIGEST - 1) == digest then return string.sub(record, at, at + CLAIM - 1), at end
    end
    if header > 0 then return find_moved(digest) end
  end

  -- Returns the last day up to `latest` on which a user has claimed, the units taken on that day, and the units taken
  -- ever. A later day comes from a wrong clock or an import. It is ignored, since it would otherwise stay the user's
  -- current day until it arrives. Imported claims may follow claims of a later day.
  function tools.counters(record, latest)
    local header, counted = #record % CLAIM, nil
    local last_day, on_day, ever = 0, 0, 0
    if header > 0 then
      last_day, on_day, counted = struct.unpack('>I3I5I5', record)
      if last_day <= latest then return last_day, on_day, counted end
      last_day, on_day = 0, 0
    end
    for at = header + QUANTITY_AT, #record, CLAIM do
      local quantity, status, day = struct.unpack('>I4I1xxxxxxxxxxxxxxI3', record, at)
      if day > last_day and day <= latest then last_day, on_day = day, 0 end
      if status == GRANTED or status == HELD then
        ever = ever + quantity
        if day == last_day then on_day = on_day + quantity end
      end
    end
    if not counted then return last_day, on_day, ever end
    -- The days of claims that have moved out are unknown. Today's claims may be among them, but
    -- hardly any claims of `latest`, so `latest` becomes the user's day.
    return latest, last_day == latest and on_day or 0, counted
  end

  function tools.unpack(packed)
    local digest, sequence, quantity, status, revision, claimed_at, expires_at, day =
      struct.unpack('>c16I5I4I1I2I6I6I3', packed)
    return {
      digest = digest, status = status, revision = revision, quantity = quantity, sequence = sequence,
      claimed_at = claimed_at, expires_at = expires_at, day = day,
    }
  end

  function tools.pack(claim)
    return struct.pack('>c16I5I4I1I2I6I6I3', claim.digest, claim.sequence, claim.quantity, claim.status, claim.revision,
      claim.claimed_at, claim.expires_at, claim.day)
  end

  -- Adds a claim to `claims`. The user's id is appended, so that a scan of `claims` finds each claim's owner.
  local function move_out(user_id, digest, packed)
    moved[digest] = packed
    append(work, 'claims', digest, packed .. user_id)
  end

  -- Returns a user's record with a claim added; `day`, `on_day` and `ever` are the new counters. If the record is full,
  -- the oldest claim moves out to `claims`. A record with a header is always full.
  function tools.add(user_id, record, claim, day, on_day, ever)
    if #record < INLINE_MAX * CLAIM then return record .. claim end
    local at = #record % CLAIM + 1
    local oldest = string.sub(record, at, at + CLAIM - 1)
    move_out(user_id, string.sub(oldest, 1, DIGEST), oldest)
    return struct.pack('>I3I5I5', day, on_day, ever) .. string.sub(record, at + CLAIM) .. claim
  end

  -- Replaces a changed claim in its place, and adds an event for SQL.
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

  -- Returns a claim's units to the total. If the record has a header, the units also return to the user's counter and,
  -- if the claim counts on the header's day, to the day's counter. Returns the user's record.
  function tools.return_units(record, claim)
    work.campaign.taken = work.campaign.taken - claim.quantity
    if #record % CLAIM == 0 then return record end
    local day, on_day, ever = struct.unpack('>I3I5I5', record)
    if claim.day == day then on_day = on_day - claim.quantity end
    return struct.pack('>I3I5I5', day, on_day, ever - claim.quantity) .. string.sub(record, HEADER + 1)
  end

  -- Expires a hold that is due.
  function tools.expire(user_id, digest)
    local record = records[user_id] or redis.call('HGET', users_key, user_id)
    local packed, at = tools.find(record, digest)
    local claim = packed and tools.unpack(packed)
    if claim and claim.status == HELD then
      claim.status = EXPIRED
      tools.update(user_id, tools.return_units(record, claim), claim, at)
    end
    append(work, 'released', hold_member(user_id, digest))
  end

  return tools
end

-- Returns the time when the next hold is due.
local function first_due()
  local first = redis.call('ZRANGE', holds_key, 1, '+inf', 'BYSCORE', 'LIMIT', 0, 1, 'WITHSCORES')
  return tonumber(first[2]) or NEVER
end

-- Writes all changes of the script. Returns false and writes nothing if a key that the script relies on or would write
-- to belongs to another load. All other steps that can fail come earlier. If a list contains a field twice, the last
-- value wins.
local function write_all(work)
  local campaign, events, claims, held, released = work.campaign, #work.event_users, work.claims, work.held, work.released
  if work.is_damaged or claims and not claims_match_load(campaign)
    or (held or released) and not holds_match_load(campaign) then
    return false
  end
  if events == 0 and not released and not work.must_write_state then return true end
  if events > 0 then
    campaign.events, campaign.backlog = campaign.events + events, campaign.backlog + events
    local head = string.sub(ARGV[1], 2, 6)
      .. struct.pack('>I6I6I5I6', campaign.events, work.now, campaign.total, campaign.taken)
    redis.call('XADD', outbox_key, '*', 'head', head, 'users', table.concat(work.event_users, ' '), 'claims',
      table.concat(work.event_claims), unpack(work.extra_fields or {}))
  end
  if claims then redis.call('HSET', claims_key, unpack(claims)) end
  if held then
    redis.call('ZADD', holds_key, unpack(held))
    campaign.next_due = math.min(campaign.next_due, work.now + campaign.hold_ms)
  end
  if released then
    redis.call('ZREM', holds_key, unpack(released))
    campaign.next_due = first_due()
  end
  work.users[2] = pack_state(campaign)
  redis.call('HSET', users_key, unpack(work.users))
  return true
end
