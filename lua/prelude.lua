#!lua
-- The prelude of every script that decides: the layout of the keys, read and written in one place.
-- Core puts it in front of the script's own text, so '#!lua' (which makes Redis refuse the script
-- under memory pressure before it writes anything) is always the first line.
--
-- KEYS  1 campaign (hash)   2 users (hash)   3 claims (hash)   4 holds (zset)   5 outbox (stream)
-- ARGV  1 layout   2 epoch   3 minimum event count   4 register id   5 the server's replication id   then the script's own
--
-- Numbers are whole, at most 2^53. Bytes are big endian.
--   user's record    day 3, taken today 5, taken ever 5, 1 if some claims moved to `claims`, then the claims
--   claim's record   digest 16, sequence 5, quantity 4, status 1, revision 1, claimed at 6, expires at 6, day 3
--   outbox entry     its users, space-separated, and as many claims' records in the same order
--
-- Records stay packed, and are taken apart only where something in them is asked for: a batch is mostly users never
-- seen before, and what a claim costs here is what claimgate costs.

local campaign_key, users_key, claims_key, holds_key, outbox_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local LAYOUT = '4'
local HEADER, CLAIM, DIGEST = 14, 42, 16
local INLINE_MAX = 8
local DUE_MAX = 256
local FIELDS_MAX = 2000
local UNLIMITED = 2 ^ 40 - 1
local GRANTED, HELD, RETURNED, EXPIRED = 1, 2, 3, 4

local function milliseconds()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- The campaign if this script may act on it, else nil and why not: anything missing, of another register, epoch or
-- replication id, or with fewer events (grants, confirmations, returns, expiries) than the minimum event count, means that
-- the counters cannot be trusted.
local function open_campaign()
  local layout, epoch, sequence, taken, admin_state, starts_at, ends_at, total, per_user, per_user_per_day, per_claim,
    hold_ms, days, days_until, version, backlog, events, register_id, replication_id = unpack(redis.call('HMGET',
    campaign_key, 'layout', 'epoch', 'sequence', 'taken', 'admin_state', 'starts_at', 'ends_at', 'total', 'per_user',
    'per_user_per_day', 'per_claim', 'hold_ms', 'days', 'days_until', 'version', 'backlog', 'events', 'register_id',
    'replication_id'))
  if not layout then return nil, 'missing' end
  if layout ~= LAYOUT or ARGV[1] ~= LAYOUT then return nil, 'layout' end
  if register_id ~= ARGV[4] then return nil, 'register' end
  if admin_state == 'loading' or admin_state == 'suspended' then return nil, admin_state end
  if epoch ~= ARGV[2] then return nil, 'epoch' end
  if replication_id ~= ARGV[5] then return nil, 'replication' end
  if tonumber(events) < tonumber(ARGV[3]) then return nil, 'behind' end
  if redis.call('HGET', users_key, '.') ~= epoch or redis.call('HGET', claims_key, '.') ~= epoch
    or redis.call('ZSCORE', holds_key, '.') ~= '-' .. epoch
    or #redis.call('XRANGE', outbox_key, '0-' .. epoch, '0-' .. epoch) ~= 1 then
    return nil, 'sentinel'
  end
  return {
    epoch = epoch, sequence = tonumber(sequence), taken = tonumber(taken), admin_state = admin_state,
    starts_at = tonumber(starts_at), ends_at = tonumber(ends_at) or math.huge,
    total = tonumber(total), per_user = tonumber(per_user) or UNLIMITED,
    per_user_per_day = tonumber(per_user_per_day) or UNLIMITED, per_claim = tonumber(per_claim) or UNLIMITED,
    hold_ms = tonumber(hold_ms), days = days, days_until = tonumber(days_until), version = tonumber(version),
    backlog = tonumber(backlog), events = tonumber(events),
  }
end

-- The calendar day at `now` in the campaign's time zone, as days since 1970: the last offset that has begun counts.
local function day_at(days, now)
  local seconds = math.floor(now / 1000)
  local offset = 0
  for at = 1, #days, 9 do
    local from, ahead = struct.unpack('>I5i4', days, at)
    if from > seconds then break end
    offset = ahead
  end
  return math.floor((seconds + offset) / 86400)
end

-- Of a user's record, or none: the day last claimed on, units taken on it, units ever taken, 1 if claims have moved out.
local function unpack_user(record)
  if not record then return 0, 0, 0, 0 end
  return struct.unpack('>I3I5I5I1', record)
end

-- A user's record with other counters before the same claims.
local function with_counters(record, day, today, ever, moved)
  return struct.pack('>I3I5I5I1', day, today, ever, moved) .. string.sub(record, HEADER + 1)
end

local function unpack_claim(record, at)
  local digest, sequence, quantity, status, revision, claimed_at, expires_at, day =
    struct.unpack('>c16I5I4I1I1I6I6I3', record, at or 1)
  return {
    digest = digest, status = status, revision = revision, quantity = quantity, sequence = sequence,
    claimed_at = claimed_at, expires_at = expires_at, day = day,
  }
end

local function pack_claim(claim)
  return struct.pack('>c16I5I4I1I1I6I6I3', claim.digest, claim.sequence, claim.quantity, claim.status, claim.revision,
    claim.claimed_at, claim.expires_at, claim.day)
end

-- Where `digest` begins among the claims in a user's record, or nil.
local function find_inline(record, digest)
  for at = HEADER + 1, #record, CLAIM do
    if string.sub(record, at, at + DIGEST - 1) == digest then return at end
  end
end

-- The values of these fields of a hash, false for none.
local function read_fields(key, fields)
  local values = {}
  for from = 1, #fields, FIELDS_MAX do
    local portion = redis.call('HMGET', key, unpack(fields, from, math.min(from + FIELDS_MAX - 1, #fields)))
    for i = 1, #portion do values[from + i - 1] = portion[i] end
  end
  return values
end

-- What a script has read, and what it writes all at once at its end. `records` has users' records as they stand
-- by now, `moved` those of claims that have moved out; the lists are arguments of the commands that write them.
local function new_work(campaign, now)
  return {
    campaign = campaign, now = now, records = {}, moved = {}, users = {}, claims = {}, held = {}, freed = {},
    event_users = {}, event_claims = {},
  }
end

-- Reads these users' records, in their order, and those of these claims that have moved out; the lists go side by side.
local function read_records(work, user_ids, digests)
  local records, apart = read_fields(users_key, user_ids), {}
  for i = 1, #user_ids do
    local record = records[i]
    if record and string.byte(record, HEADER) == 1 and not find_inline(record, digests[i]) then
      apart[#apart + 1] = digests[i]
    end
  end
  for i, moved in ipairs(read_fields(claims_key, apart)) do
    work.moved[apart[i]] = moved and string.sub(moved, 1, CLAIM)
  end
  return records
end

-- The claim of that digest, packed, and where it stands in its user's record; nil for none.
local function find_claim(work, record, digest)
  if not record then return nil end
  local at = find_inline(record, digest)
  if at then return string.sub(record, at, at + CLAIM - 1), at end
  return work.moved[digest] or nil
end

local function append(list, first, second)
  local length = #list
  list[length + 1], list[length + 2] = first, second
end

-- Records a claim that no longer fits into its user's record. The user's id is appended to it, so that a scan of these
-- claims alone can tell whose they are.
local function move_out(work, user_id, digest, packed)
  work.moved[digest] = packed
  append(work.claims, digest, packed .. user_id)
end

-- Writes a changed claim back where it was found, and tells SQL.
local function update_claim(work, user_id, record, claim, at)
  claim.revision = claim.revision + 1
  local packed = pack_claim(claim)
  if at then
    record = string.sub(record, 1, at - 1) .. packed .. string.sub(record, at + CLAIM)
  else
    move_out(work, user_id, claim.digest, packed)
  end
  work.records[user_id] = record
  append(work.users, user_id, record)
  append(work.event_users, user_id)
  append(work.event_claims, packed)
end

-- Gives a claim's units back: to the total, to the user, and to the user's day while that day is still the current one.
-- Returns the user's record.
local function give_back(work, record, claim)
  local day, today, ever, moved = unpack_user(record)
  work.campaign.taken = work.campaign.taken - claim.quantity
  if claim.day == day then today = today - claim.quantity end
  return with_counters(record, day, today, ever - claim.quantity, moved)
end

-- The holds that are due, at most DUE_MAX: their users and their digests. More may be due when there are that many.
local function due_holds(now)
  local user_ids, digests = {}, {}
  for i, member in ipairs(redis.call('ZRANGE', holds_key, 1, now, 'BYSCORE', 'LIMIT', 0, DUE_MAX)) do
    user_ids[i], digests[i] = string.sub(member, 1, -DIGEST - 2), string.sub(member, -DIGEST)
  end
  return user_ids, digests
end

local function hold_member(user_id, digest) return user_id .. '.' .. digest end

local function expire_hold(work, user_id, record, digest)
  local packed, at = find_claim(work, record, digest)
  local claim = packed and unpack_claim(packed)
  if claim and claim.status == HELD then
    claim.status = EXPIRED
    update_claim(work, user_id, give_back(work, record, claim), claim, at)
  end
  append(work.freed, hold_member(user_id, digest))
end

-- Calls a command that takes a list, in portions.
local function write(command, key, list)
  for from = 1, #list, FIELDS_MAX do
    redis.call(command, key, unpack(list, from, math.min(from + FIELDS_MAX - 1, #list)))
  end
end

-- Everything the script has changed. All that can fail has been done before. What a list names twice is there as it
-- stands last.
local function write_all(work)
  write('HSET', users_key, work.users)
  write('HSET', claims_key, work.claims)
  write('ZADD', holds_key, work.held)
  write('ZREM', holds_key, work.freed)
  local campaign, events = work.campaign, #work.event_users
  if events == 0 then return end
  campaign.events = campaign.events + events
  local count, taken = string.format('%.0f', campaign.events), string.format('%.0f', campaign.taken)
  redis.call('HSET', campaign_key, 'taken', taken, 'events', count, 'sequence', string.format('%.0f', campaign.sequence),
    'backlog', string.format('%.0f', campaign.backlog + events))
  redis.call('XADD', outbox_key, '*', 'epoch', campaign.epoch, 'count', count, 'at', string.format('%.0f', work.now),
    'total', string.format('%.0f', campaign.total or 0), 'taken', taken,
    'users', table.concat(work.event_users, ' '), 'claims', table.concat(work.event_claims))
end
