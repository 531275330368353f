# The defects, read by run.sh: defect NAME FILE OLD NEW [TEST FILTER].
# shellcheck shell=bash disable=SC2016

# Invariants 6 and 7: what is taken off the outbox is in SQL.
defect ack_before_commit core/src/jobs/outbox_relay.rs \
    '            let turn = match self.commit_in_order(' \
    '            let mut early = self.parts.redis.session_of(handle.keys.slot, from).await?;
            self.parts.redis.acknowledge(&mut early, &handle.keys, &batch.entries).await?;
            let turn = match self.commit_in_order('
defect recovery_skips_the_outbox core/src/engine/recovery.rs \
    'let relayed = self.relay_suspended(handle, suspended.epoch).await?;' 'let relayed = 0;'
defect backlog_not_lowered lua/ack.lua \
    "struct.unpack('>I6', state, backlog_at) - events" "struct.unpack('>I6', state, backlog_at)"
defect entries_of_others_counted lua/ack.lua \
    "events = events + ARGV[at] * redis.call('XDEL', outbox_key, unpack(ARGV, at + 2, last))" \
    "events = events + ARGV[at] * ARGV[at + 1]
  redis.call('XDEL', outbox_key, unpack(ARGV, at + 2, last))" \
    faults outbox::an_entry_that_another_core
defect older_row_wins core/src/store/sql/statements.rs \
    'excluded.revision > claims.revision' 'excluded.revision < claims.revision'

# A database that has lost its last transactions: what was answered stays in force, and nothing is given twice.
defect version_of_a_stale_row core/src/engine/campaigns.rs \
    'if self.recovery.sql_has_forgotten(&handle).await? {
            handle.suspect_sql();' \
    'if false {
            handle.suspect_sql();' \
    faults forgotten::a_pause_is_in_force_after_sql_lost_two_changes
defect newer_rules_taken_for_success core/src/engine/campaigns.rs \
    'if reply != RulesReply::Applied {
            return' \
    'if false {
            return' \
    model rules_are_not_said
defect repair_that_does_not_look core/src/engine/reconcile.rs \
    '"backlog", "lost_events", "rules"]' '"backlog", "lost_events"]' \
    faults forgotten::a_repair_restores_rules
defect quantity_left_out_of_the_upsert core/src/store/sql/statements.rs \
    'quantity = excluded.quantity, ' '' \
    faults forgotten::a_revoked_key
defect evicted_handle_trusted core/src/engine/claims.rs \
    'if handle.campaign().evicted.is_some() {
            handle = Box::pin(' \
    'if false {
            handle = Box::pin(' \
    faults forgotten::a_key_acknowledged_after_a_reopening
defect keys_of_additions_not_restored core/src/store/sql/restore.rs \
    'in additions {' 'in &additions[..0] {' \
    faults forgotten::an_addition_whose_key
defect entries_written_in_any_order core/src/jobs/group_commit.rs \
    'EntryOrder::Following' 'EntryOrder::Any' \
    interleavings a_unit_that_changed_hands

# The feed tells of each commit, in order.
defect feed_numbers_taken_first core/src/store/sql/outbox_writer.rs \
    '        let locked = self.lock_campaigns(&mut transaction, batches, order).await?;
        let (mut rows' \
    '        sqlx::query("UPDATE feed_position SET last_number = last_number").execute(&mut *transaction).await?;
        let locked = self.lock_campaigns(&mut transaction, batches, order).await?;
        let (mut rows' \
    faults feed::a_commit_that_is_held_up
defect feed_lacks_salvaged_claims core/src/store/sql/outbox_writer.rs \
    '        self.commit_told(transaction, &told).await?;
        Ok(revoked.len()' \
    '        self.commit_told(transaction, &told[..0]).await?;
        Ok(revoked.len()' \
    faults registers::rows_that_sql_has_lost_are_not_given_again_by_a_repair
defect feed_lacks_transitions core/src/store/sql/transition.rs \
    'self.commit_told(transaction, &told)' 'self.commit_told(transaction, &told[..0])' \
    faults evicted
defect feed_cursor_of_a_copy core/src/store/sql/feed.rs \
    'let at = claims.iter().position(|one| one == claim)?;' \
    'let at = claims.iter().position(|one| one == claim).unwrap_or(0);' \
    e2e changes

# Invariant 3: one claim a key.
defect no_replay_check lua/claim.lua \
    '    claim = tools.find(record, digest)' '    claim = nil'
defect key_of_another_quantity lua/claim.lua \
    "struct.unpack('>I4', claim, QUANTITY_AT) == quantity and REPLAY .. claim" 'REPLAY .. claim'
defect moved_claims_forgotten lua/prelude.lua \
    'return moved[digest] or nil' 'return nil'

# Invariant 4: a refusal changes nothing.
defect denial_counts lua/claim.lua \
    '  if left then
' \
    '  if left then
    taken = taken + quantity
'
defect denial_turns_the_day lua/claim.lua \
    '  if left then
' \
    "  if left then
    if record then
      record = struct.pack('>I3I5I5', day, on_it, ever) .. string.sub(record, #record % CLAIM + 1)
      redis.call('HSET', users_key, user_id, record)
    end
"

# Invariant 1: limits, days, windows.
defect part_of_a_claim lua/claim.lua \
    "  elseif quantity > per_user_per_day - on_it then
    answer, left, behind = DAILY, per_user_per_day - on_it, struct.pack('>I3', day)
  elseif quantity > per_user - ever then
    answer, left = USER, per_user - ever
  elseif quantity > total - taken then" \
    "  elseif per_user_per_day - on_it <= 0 then
    answer, left, behind = DAILY, per_user_per_day - on_it, struct.pack('>I3', day)
  elseif per_user - ever <= 0 then
    answer, left = USER, per_user - ever
  elseif total - taken <= 0 then"
defect total_before_user lua/claim.lua \
    '  elseif quantity > per_user_per_day - on_it then' \
    '  elseif quantity > total - taken then
    answer, left = TOTAL, total - taken
  elseif quantity > per_user_per_day - on_it then'
defect units_not_added lua/claim.lua \
    'sequence + 1, taken + quantity, events + 1' 'sequence + 1, taken + 1, events + 1'
defect day_one_zone_off lua/prelude.lua \
    '    if from > seconds then break end
    offset = ahead' \
    '    offset = ahead
    if from > seconds then break end'
defect day_of_utc lua/prelude.lua '(seconds + offset) / 86400' 'seconds / 86400'
defect day_goes_back lua/claim.lua 'if last_day >= today then' 'if last_day == today then'
defect window_ends_late lua/claim.lua 'if now >= campaign.ends_at' 'if now > campaign.ends_at'
defect pause_after_window lua/claim.lua \
    'if campaign.admin_state == ADMIN_PAUSED then' \
    "if now < campaign.starts_at then
  closed = NOT_STARTED .. struct.pack('>I6', campaign.starts_at)
elseif campaign.admin_state == ADMIN_PAUSED then"

# Invariant 9: back once, and to where it was taken.
defect give_back_forgets_the_day lua/prelude.lua \
    '    if claim.day == day then on_it = on_it - claim.quantity end' ''
defect give_back_to_any_day lua/prelude.lua 'if claim.day == day then' 'if true then'
defect returned_units_count lua/prelude.lua 'if status == GRANTED or status == HELD then' 'if true then'
defect other_days_count lua/prelude.lua 'last_day, on_it = day, 0 end' 'last_day = day end'
defect returned_twice lua/transition.lua \
    "(claim.status == HELD or claim.status == GRANTED)" '(claim.status ~= EXPIRED)'
defect confirmed_hold_stays_due lua/transition.lua 'if claim.status == HELD then append' 'if false then append'
defect hold_lasts_longer lua/transition.lua 'work.now >= claim.expires_at' 'work.now > claim.expires_at'
defect refused_while_holds_are_due lua/claim.lua 'more_due and AGAIN or answer' 'answer' model due_holds
# Holds are looked at only once the state's next due time has come: it may be too early, never too late.
defect first_hold_sets_no_due_time lua/prelude.lua \
    'campaign.next_due = math.min(campaign.next_due,' 'campaign.next_due = math.max(campaign.next_due,'
defect holds_left_never_fall_due lua/prelude.lua 'campaign.next_due = first_due()' 'campaign.next_due = NEVER'
defect loaded_holds_never_fall_due lua/load.lua 'next_due = first_due()' 'next_due = NEVER'
defect holds_not_loaded core/src/store/redis/loader.rs \
    'claim.status == ClaimStatus::Held)' 'claim.status == ClaimStatus::Revoked)'

# Invariant 8: a Redis that has lost something decides nothing.
defect minimum_events_not_checked lua/prelude.lua \
    "if events < tonumber(ARGV[2]) then return nil, 'behind' end" ''
defect missing_key_not_noticed lua/prelude.lua \
    "if redis.call('EXISTS', campaign_key, claims_key, holds_key, outbox_key) < 4 then return nil, 'sentinel' end" ''
# Of the identity only the epoch: a promoted replica has that, too.
defect identity_not_compared lua/prelude.lua \
    'if not state or string.sub(state, 1, #identity) ~= identity then' \
    'if not state or string.sub(state, 2, 6) ~= string.sub(identity, 2, 6) then' \
    faults failover_that_forgets_a_user
# What a suspended campaign still grants is in no outbox that is relayed, and gone with the load.
defect suspended_campaign_decides lua/suspend.lua \
    'string.char(ADMIN_SUSPENDED)' 'string.sub(state, at, at)' interleavings every_placement
defect sequence_given_again core/src/engine/recovery.rs 'campaign.high_water_mark.sequence.max(totals.sequence)' 'totals.sequence'

# Under memory pressure nothing is written.
defect claims_past_the_limit core/src/store/redis/scripts.rs \
    "redis.register_function('{name}', function(keys, arguments)" \
    "local function add(name, callback) redis.register_function{{function_name=name, callback=callback, \
             flags={{'allow-oom'}}}} end add('{name}', function(keys, arguments)" \
    faults redis::memory_limit
# The relay, which frees memory, needs none.
defect reading_needs_memory core/src/store/redis/scripts.rs 'const READS: &str = "no-writes";' 'const READS: &str = "allow-stale";'
defect relay_needs_memory core/src/store/redis/scripts.rs \
    'with_flags("allow-oom", include_str!("../../../../lua/ack.lua"))' \
    'with_flags("allow-stale", include_str!("../../../../lua/ack.lua"))'
# Neither does an eviction.
defect eviction_needs_memory core/src/store/redis/scripts.rs \
    'with_flags("allow-oom", include_str!("../../../../lua/suspend.lua"))' \
    'with_flags("allow-stale", include_str!("../../../../lua/suspend.lua"))' faults without_memory

# Redis killed in the middle of a write, twice.
defect half_written_transactions_stay core/src/store/redis/managed.rs 'aof-load-truncated no' 'aof-load-truncated yes' \
    faults torn::half

# Two cores: who suspends a campaign makes every older loader late, wherever that stands.
defect loader_not_fenced lua/load.lua '  if last_token ~= token then return true end
' '' faults lock::an_old_token
defect users_lost_while_loading lua/load.lua \
    " or redis.call('HGET', users_key, STATE) ~= epoch" '' faults lock::an_old_token
defect older_token_suspends lua/suspend.lua \
    "if token and tonumber(token) > tonumber(ARGV[3]) then return { 'late', token } end" '' faults lock::an_old_token
defect evicted_suspended_again core/src/store/sql/campaigns.rs \
    'WHERE id = $1 AND evicted_at IS NULL RETURNING' 'WHERE id = $1 RETURNING' interleavings regressions
defect all_columns_read core/src/store/sql/campaigns.rs \
    '"SELECT ", campaign_columns!(), " FROM campaigns WHERE id = $1"' '"SELECT * FROM campaigns WHERE id = $1"' \
    e2e every_call::each_is_answered_after
defect epoch_raised_by_a_late_loader core/src/store/sql/campaigns.rs \
    'WHERE id = $4 AND token = $5 RETURNING' 'WHERE id = $4 AND $5 >= 0 RETURNING' faults unreadable::a_late_loader
defect keys_dropped_unguarded lua/drop.lua \
    "if token == ARGV[1] and phase == 'suspended' then redis.call('UNLINK', unpack(KEYS)) end" \
    "redis.call('UNLINK', unpack(KEYS))" interleavings regressions
defect eviction_ignores_a_change core/src/store/sql/campaigns.rs \
    'AND token = $6 AND version = $7 RETURNING' 'AND token = $6 AND $7 >= 0 RETURNING' interleavings regressions

# Sentinel: the primary is the one that it names and that says so itself.
defect demoted_server_believed core/src/store/redis/primary.rs 'role(&info, mode)?;' 'let _ = role(&info, mode);' \
    faults sentinel::a_stale
defect switches_not_heard core/src/jobs/refresher.rs 'engine.sync.redis.follow_switches()' \
    'std::future::pending::<()>()' faults sentinel::the_primary_is_cut_off

# What a core had read when it died.
defect left_behind_is_left core/src/jobs/outbox_relay.rs \
    'while self.commit(handle, from, reader.read_delivered(keys, last).await?).await? > 0 {}' 'let _ = last;' \
    faults cores::one_of_two_cores_killed

# Replicas that count: which they are, what they have, and of whom they have it.
defect outsider_adopted core/src/domain/replica_set.rs \
    'self.sets.iter().find(|set| set.members.contains(&view.primary))' 'self.sets.first()' \
    faults replicas::a_server_outside
defect kept_id core/src/engine/serving.rs \
    'self.redis.keep_store_id(&self.store_id).await?;' '' faults what_a_serving_core
# On Redis a bare WAIT would do here.
CLAIMGATE_TEST_SERVER=valkey defect wait_for_barrier core/src/store/redis/replicas.rs \
    'let confirmed = asked.confirmed(connection, session).await?;' \
    'let wait = redis::cmd("WAIT").arg(1).arg(100).query_async::<u64>(&mut session.connection.clone()).await;
        if wait.is_ok_and(|replicas| replicas > 0) {
            return Ok(());
        }
        let confirmed = asked.confirmed(connection, session).await?;' \
    faults only_the_primary_has
defect replication_id_not_compared core/src/store/redis/replicas.rs \
    'field(info, "role:") == "master" && field(info, "master_replid2:") == &*session.replication_id' \
    'field(info, "role:") == "master"' faults a_replica_in_between
defect eviction_not_confirmed core/src/store/redis/loader.rs \
    '// The keys are looked for no more once SQL says that they are gone.
        self.confirmed(&session).await?;' '' \
    faults an_eviction_is_over
defect replacement_not_told core/src/store/redis/server.rs 'self.replacing.notify_waiters();' '' \
    faults claims_on_their_way

# A promoted server that goes on as it is has all that SQL has, nothing that SQL refused, and nothing that SQL never heard of.
defect refused_claims_adopted core/src/store/sql/campaigns.rs 'if !is_as_drawn || has_refused ||' 'if !is_as_drawn ||' \
    interleavings a_promoted_server_is_not_adopted
defect lacking_server_adopted core/src/store/sql/campaigns.rs \
    'has_refused || !has.covers(now.high_water_mark)' 'has_refused' interleavings a_promoted_server_is_not_adopted
defect deleted_entries_adopted core/src/engine/recovery.rs ' && relayed == backlog;' ';' \
    faults a_claim_whose_entry_was_deleted

# Campaigns that have changed are read at once, however many there are.
defect changes_not_followed core/src/store/sql/statements.rs \
    'WHERE change_number > $1 AND change_number > 0' 'WHERE change_number < $1 AND change_number > 0' faults at_rest::

# Cluster: a node that refuses a call as not its own is believed.
defect moved_slots_not_noticed core/src/store/redis/cluster.rs 'REDIRECTS.contains(&code)' 'code.is_empty()' \
    faults cluster::a_slot
defect keys_without_their_tag core/src/store/redis/slot.rs 'tag.filter(|tag| !tag.is_empty()).unwrap_or(key)' 'key' \
    faults cluster::a_node_forgets
# Each node has a reader of its own.
defect another_nodes_reader core/src/jobs/outbox_relay.rs \
    'self.readers().iter().find(|reader| reader.generation() == generation)' 'self.readers().first()' \
    faults cluster::each_outbox

# Redis and a database that do not belong together.
defect another_registers_campaign_suspended lua/suspend.lua \
    "if register_id and register_id ~= ARGV[2] then return { 'not_ready', 'register' } end" '' \
    faults lock::what_is_not_ours
defect lost_rows_not_rescued core/src/engine/recovery.rs \
    'if (totals.taken, totals.revisions) == (suspended.taken, revisions) {' \
    'if totals.revisions < u64::MAX {' faults registers::rows_that_sql_has_lost
defect granted_before_what_made_room core/src/engine/recovery.rs \
    'lacking.sort_by_key(|(_, claim)| (stands(claim), claim.sequence));' \
    'lacking.sort_by_key(|(_, claim)| (!stands(claim), claim.sequence));' faults registers::units_that_were_given_back
defect lost_rows_not_told core/src/jobs/lost_rows.rs 'look.backlog + totals.revisions' 'look.revisions' \
    faults registers::rows_that_sql_has_lost_are_told
defect foreign_keys_dropped_though_served core/src/engine/foreign.rs \
    'format!("{whole}.5")' 'format!("{}", i64::MAX >> whole.len())' faults registers::another_registers_campaign_is_removed
defect another_redis_may_serve core/src/engine/serving.rs \
    'let silent = there.silent_for >= SILENCE && listening.elapsed() >= LISTEN;' 'let silent = true;' \
    faults registers::a_second_core
defect index_never_used core/migrations/0006_claim_status_check.sql \
    'PRIMARY KEY (campaign_id, user_id, digest)' 'PRIMARY KEY (digest, user_id, campaign_id)' faults plans::
