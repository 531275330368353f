-- load: loads a campaign from SQL in steps, under an epoch raised in SQL for this load, after suspend.lua has suspended
-- it under the same token. Until the last step all other scripts reply that the campaign is loading.
--
-- KEYS  as in prelude.lua; 6 codes (hash); 7 the outbox of layout 6, which 'begin' removes
-- ARGV  1 identity   2 epoch   3 fencing token   4 step, then by step:
--       'begin'  'codes' or ''               replaces all suspended keys, of this layout or layout 6, by epoch markers
--                                            and an empty consumer group; with 'codes', also by a marker in the codes
--                                            key
--       'users'  user id, record, ...        at most 1,000 pairs
--       'claims' digest, record, ...         claims that are not in their user's record, at most 1,000 pairs
--       'holds'  expires at ms, member, ...  at most 1,000 pairs
--       'codes'  digest, codes, ...          at most 1,000 pairs, as in give_codes.lua
--       'adopt'  instead of all others: admin state, rules. For keys of this layout that are complete and whose claims are
--                all in SQL: reopens them unchanged under the new epoch, with an empty outbox
--       'open'   sequence and events to continue after, units taken, the sum of the claims' revisions, admin state, rules,
--                packed as in prelude.lua
--
-- Replies
--   {'done'}
--   {'late'}    the keys that this token suspended are missing: a newer loader took over, or the keys were lost; or keys of
--               another layout would be adopted. Nothing was changed

local epoch, token, step = ARGV[2], ARGV[3], ARGV[4]

local function late()
  local last_token, phase, loading_epoch = unpack(redis.call('HMGET', campaign_key, 'token', 'phase', 'epoch'))
  if last_token ~= token then return true end
  if step == 'adopt' and parse_identity(redis.call('HGET', users_key, STATE)) ~= LAYOUT then return true end
  if step == 'begin' or step == 'adopt' then return phase ~= 'suspended' end
  -- If users were lost since 'begin', the load must not continue: opening the campaign would make the loss permanent.
  return phase ~= 'loading' or loading_epoch ~= epoch or redis.call('HGET', users_key, STATE) ~= epoch
end

local function empty_outbox(loaded_epoch)
  local sentinel = '0-' .. loaded_epoch
  redis.call('XADD', outbox_key, sentinel, 'epoch', loaded_epoch)
  redis.call('XGROUP', 'CREATE', outbox_key, 'relay', sentinel)
end

local steps = {
  begin = function()
    local layout, register_id = parse_identity(ARGV[1])
    local additions = redis.call('HGET', campaign_key, 'additions')
    redis.call('UNLINK', unpack(KEYS))
    redis.call('HSET', campaign_key, 'layout', layout, 'epoch', epoch, 'token', token, 'register_id', register_id,
      'phase', 'loading')
    if additions then redis.call('HSET', campaign_key, 'additions', additions) end
    redis.call('HSET', users_key, STATE, epoch)
    redis.call('HSET', claims_key, SENTINEL, epoch)
    redis.call('ZADD', holds_key, '-' .. epoch, SENTINEL)
    if ARGV[5] == 'codes' then redis.call('HSET', KEYS[6], SENTINEL, epoch) end
    empty_outbox(epoch)
  end,
  adopt = function()
    local campaign = { backlog = 0, admin_state = tonumber(ARGV[5]) }
    local state, _ = redis.call('HGET', users_key, STATE)
    _, campaign.sequence, campaign.taken, campaign.events, _, campaign.loaded_epoch, campaign.next_due =
      struct.unpack(COUNTERS, state, 2 + string.byte(state))
    redis.call('UNLINK', outbox_key)
    empty_outbox(string.format('%.0f', campaign.loaded_epoch))
    redis.call('HSET', users_key, STATE, pack_state(campaign, ARGV[6]))
    redis.call('HSET', campaign_key, 'phase', 'open', 'epoch', epoch)
  end,
  users = function() redis.call('HSET', users_key, unpack(ARGV, 5)) end,
  claims = function() redis.call('HSET', claims_key, unpack(ARGV, 5)) end,
  holds = function() redis.call('ZADD', holds_key, unpack(ARGV, 5)) end,
  codes = function() redis.call('HSET', KEYS[6], unpack(ARGV, 5)) end,
  open = function()
    local campaign = {
      sequence = tonumber(ARGV[5]), events = tonumber(ARGV[6]), taken = tonumber(ARGV[7]), backlog = 0,
      loaded_epoch = tonumber(epoch), next_due = first_due(), admin_state = tonumber(ARGV[9]),
    }
    redis.call('HSET', users_key, STATE, pack_state(campaign, ARGV[10]))
    redis.call('HSET', campaign_key, 'phase', 'open', 'events_loaded', ARGV[6], 'revisions_loaded', ARGV[8])
  end,
}

if late() then return { 'late' } end
steps[step]()
return { 'done' }
