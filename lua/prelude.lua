#!lua
-- What stands before every script that decides: the layout of the keys, read and written in one place.
-- Core puts it in front of the script's own text, so '#!lua' (which makes Redis refuse the script
-- under memory pressure before it writes anything) is always the first line.
--
-- KEYS  1 campaign (hash)   2 users (hash)   3 claims (hash)   4 holds (zset)   5 outbox (stream)
-- ARGV  1 layout   2 epoch   3 floor of the events   then the script's own
--
-- Numbers are whole, at most 2^53. Bytes are big endian.
--   user's record    day 3, taken today 5, taken ever 5, 1 if some claims moved to `claims`, then the claims
--   claim's record   digest 16, status 1, revision 1, quantity 4, sequence 5, claimed at 6, expires at 6, day 3
--   outbox event     user (length 1), claim's record, updated at 6, total then 5, taken after 5

local LAYOUT = '1'
local HEADER, CLAIM = 14, 42
local INLINE_MAX = 8
local DUE_MAX = 256
local UNLIMITED = 2 ^ 40 - 1
local GRANTED, HELD, RETURNED, EXPIRED = 1, 2, 3, 4

local function milliseconds()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- The campaign as this script may act on it, or nil and why not: anything missing, of another epoch or with fewer
-- events (grants, confirmations, returns, expiries) than the caller knows of means that counters cannot be trusted.
local function open_campaign()
  local f = redis.call('HMGET', KEYS[1], 'layout', 'epoch', 'sequence', 'taken', 'switch', 'starts_at', 'ends_at',
    'total', 'per_user', 'per_user_per_day', 'per_claim', 'hold_ms', 'days', 'days_until', 'version', 'backlog', 'events')
  if not f[1] then return nil, 'missing' end
  if f[1] ~= LAYOUT or ARGV[1] ~= LAYOUT then return nil, 'layout' end
  local epoch = f[2]
  if epoch ~= ARGV[2] then return nil, 'epoch' end
  if f[5] == 'loading' then return nil, 'loading' end
  if tonumber(f[17]) < tonumber(ARGV[3]) then return nil, 'behind' end
  if redis.call('HGET', KEYS[2], '.') ~= epoch or redis.call('HGET', KEYS[3], '.') ~= epoch
    or redis.call('ZSCORE', KEYS[4], '.') ~= '-' .. epoch
    or #redis.call('XRANGE', KEYS[5], '0-' .. epoch, '0-' .. epoch) ~= 1 then
    return nil, 'sentinel'
  end
  return {
    epoch = epoch, sequence = tonumber(f[3]), taken = tonumber(f[4]), switch = f[5],
    starts_at = tonumber(f[6]), ends_at = tonumber(f[7]) or math.huge,
    total = tonumber(f[8]), per_user = tonumber(f[9]) or UNLIMITED,
    per_user_per_day = tonumber(f[10]) or UNLIMITED, per_claim = tonumber(f[11]) or UNLIMITED,
    hold_ms = tonumber(f[12]), days = f[13], days_until = tonumber(f[14]), version = tonumber(f[15]),
    backlog = tonumber(f[16]), events = tonumber(f[17]),
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

local function unpack_user(record)
  if not record then return { day = 0, today = 0, ever = 0, moved = 0, claims = '' } end
  local day, today, ever, moved = struct.unpack('>I3I5I5I1', record)
  return { day = day, today = today, ever = ever, moved = moved, claims = string.sub(record, HEADER + 1) }
end

local function pack_user(user)
  return struct.pack('>I3I5I5I1', user.day, user.today, user.ever, user.moved) .. user.claims
end

local function unpack_claim(record, at)
  local digest, status, revision, quantity, sequence, claimed_at, expires_at, day =
    struct.unpack('>c16I1I1I4I5I6I6I3', record, at or 1)
  return {
    digest = digest, status = status, revision = revision, quantity = quantity, sequence = sequence,
    claimed_at = claimed_at, expires_at = expires_at, day = day,
  }
end

local function pack_claim(claim)
  return struct.pack('>c16I1I1I4I5I6I6I3', claim.digest, claim.status, claim.revision, claim.quantity,
    claim.sequence, claim.claimed_at, claim.expires_at, claim.day)
end

local function pack_event(user_id, claim, updated_at, total, taken)
  return struct.pack('>I1c0', #user_id, user_id) .. pack_claim(claim)
    .. struct.pack('>I6I5I5', updated_at, total, taken)
end

-- Where `digest` begins among a user's inline claims, or nil.
local function find_inline(claims, digest)
  for at = 1, #claims, CLAIM do
    if string.sub(claims, at, at + 15) == digest then return at end
  end
end

-- Reads `fields` of a hash into `into`, at most 2,000 a call.
local function read_fields(key, fields, into)
  for from = 1, #fields, 2000 do
    local upto = math.min(from + 1999, #fields)
    local values = redis.call('HMGET', key, unpack(fields, from, upto))
    for i = from, upto do into[fields[i]] = values[i - from + 1] end
  end
end

-- A batch's working copy of the users and claims it touches: read whole first, written once at the end.
local function new_work(campaign, now)
  return {
    campaign = campaign, now = now, today = day_at(campaign.days, now), users = {}, moved = {}, dirty = {},
    dirty_moved = {}, events = {}, held = {}, freed = {},
  }
end

-- Reads the records of `pairs_` ({user id, digest} each), and of their claims that have moved out.
local function read_records(work, wanted)
  local ids, seen = {}, {}
  for _, pair in ipairs(wanted) do
    if not seen[pair[1]] then
      seen[pair[1]] = true
      ids[#ids + 1] = pair[1]
    end
  end
  local records = {}
  read_fields(KEYS[2], ids, records)
  for _, id in ipairs(ids) do work.users[id] = unpack_user(records[id]) end
  local digests = {}
  for _, pair in ipairs(wanted) do
    local user = work.users[pair[1]]
    if user.moved == 1 and not find_inline(user.claims, pair[2]) then digests[#digests + 1] = pair[2] end
  end
  read_fields(KEYS[3], digests, work.moved)
end

local function find_claim(work, user, digest)
  local at = find_inline(user.claims, digest)
  if at then return unpack_claim(user.claims, at), at end
  local record = work.moved[digest]
  if record then return unpack_claim(record) end
end

local function put_event(work, user_id, claim, total, taken)
  work.events[#work.events + 1] = pack_event(user_id, claim, work.now, total, taken)
  work.dirty[user_id] = true
end

-- Writes a changed claim back where it was found.
local function update_claim(work, user_id, claim, at)
  local user = work.users[user_id]
  claim.revision = claim.revision + 1
  if at then
    user.claims = string.sub(user.claims, 1, at - 1) .. pack_claim(claim) .. string.sub(user.claims, at + CLAIM)
  else
    work.moved[claim.digest] = pack_claim(claim)
    work.dirty_moved[claim.digest] = true
  end
  put_event(work, user_id, claim, 0, 0)
end

-- Adds a new claim to its user's record; the oldest beyond eight moves out to `claims`.
local function add_claim(work, user_id, claim)
  local user = work.users[user_id]
  user.claims = user.claims .. pack_claim(claim)
  if #user.claims > INLINE_MAX * CLAIM then
    local oldest = string.sub(user.claims, 1, CLAIM)
    local digest = string.sub(oldest, 1, 16)
    user.claims = string.sub(user.claims, CLAIM + 1)
    user.moved = 1
    work.moved[digest] = oldest
    work.dirty_moved[digest] = true
  end
end

-- Gives a claim's units back: to the total, to the user, and to the user's day while that day is still the current one.
local function give_back(work, user_id, claim)
  local user = work.users[user_id]
  work.campaign.taken = work.campaign.taken - claim.quantity
  user.ever = user.ever - claim.quantity
  if claim.day == user.day then user.today = user.today - claim.quantity end
end

-- The holds that are due, at most DUE_MAX, as {user id, digest}; the second value tells whether more may be due.
local function due_holds(now)
  local members = redis.call('ZRANGE', KEYS[4], 1, now, 'BYSCORE', 'LIMIT', 0, DUE_MAX)
  local due = {}
  for i, member in ipairs(members) do due[i] = { string.sub(member, 1, -18), string.sub(member, -16) } end
  return due, #due == DUE_MAX
end

local function hold_member(user_id, digest) return user_id .. '.' .. digest end

local function expire_holds(work, due)
  for _, pair in ipairs(due) do
    local claim, at = find_claim(work, work.users[pair[1]], pair[2])
    if claim and claim.status == HELD then
      claim.status = EXPIRED
      give_back(work, pair[1], claim)
      update_claim(work, pair[1], claim, at)
    end
    work.freed[#work.freed + 1] = hold_member(pair[1], pair[2])
  end
end

-- Everything the batch changed, in one go. All that can fail has been done before.
local function write_all(work)
  if #work.events == 0 and #work.freed == 0 then return end
  local campaign, fields = work.campaign, {}
  for id in pairs(work.dirty) do
    fields[#fields + 1] = id
    fields[#fields + 1] = pack_user(work.users[id])
  end
  local moved = {}
  for digest in pairs(work.dirty_moved) do
    moved[#moved + 1] = digest
    moved[#moved + 1] = work.moved[digest]
  end
  if #fields > 0 then redis.call('HSET', KEYS[2], unpack(fields)) end
  if #moved > 0 then redis.call('HSET', KEYS[3], unpack(moved)) end
  if #work.held > 0 then redis.call('ZADD', KEYS[4], unpack(work.held)) end
  if #work.freed > 0 then redis.call('ZREM', KEYS[4], unpack(work.freed)) end
  if #work.events == 0 then return end
  campaign.events = campaign.events + #work.events
  local count = string.format('%.0f', campaign.events)
  redis.call('HSET', KEYS[1], 'taken', string.format('%.0f', campaign.taken), 'events', count,
    'sequence', string.format('%.0f', campaign.sequence),
    'backlog', string.format('%.0f', campaign.backlog + #work.events))
  redis.call('XADD', KEYS[5], '*', 'epoch', campaign.epoch, 'count', count, 'events', table.concat(work.events))
end
