# The defects, read by run.sh: defect NAME FILE OLD NEW [TEST FILTER].
# shellcheck shell=bash disable=SC2016

# Invariants 6 and 7: entries removed from the outbox are in SQL.
defect ack_before_commit core/src/jobs/outbox_relay.rs \
    '        let Committed { turn, codes } = self.commit_in_order(' \
    '        let mut early = self.parts.redis.session_of(handle.keys.slot, from).await?;
        self.parts.redis.acknowledge(&mut early, &handle.keys, &run.entries, &[]).await?;
        let Committed { turn, codes } = self.commit_in_order('
defect recovery_skips_the_outbox core/src/engine/lifecycle/recovery.rs \
    'let relayed = self.relay_suspended(handle, suspended.epoch).await?;' 'let relayed = 0;'
defect backlog_not_lowered lua/ack.lua \
    "struct.unpack('>I6', state, backlog_at) - events" "struct.unpack('>I6', state, backlog_at)"
defect entries_of_others_counted lua/ack.lua \
    'events + ARGV[at] * found' 'events + ARGV[at] * ARGV[at + 1]' \
    faults outbox::an_entry_removed_by_two_cores
defect older_row_wins core/src/store/sql/statements.rs \
    'excluded.revision > claims.revision' 'excluded.revision < claims.revision'

# A database that has lost its last transactions: acknowledged changes stay in force, and nothing is granted twice.
defect stale_row_version_used core/src/engine/campaign_changes.rs \
    'if self.recovery.sql_has_lost_data(&handle).await? {
            handle.suspect_sql_loss();' \
    'if false {
            handle.suspect_sql_loss();' \
    model a_change_first_restores
defect newer_rules_treated_as_success core/src/engine/campaign_changes.rs \
    'if reply != RulesReply::Applied {
            return' \
    'if false {
            return' \
    model rules_are_not_reported
defect archive_mark_in_memory_shown core/src/engine/campaigns.rs \
    'stored.map_or(known.archived, |stored| stored.archived)' 'stored.map_or(known.archived, |_| known.archived)' \
    e2e archive::an_evicted
defect repair_not_verified core/src/engine/lifecycle/reconcile.rs \
    '"backlog", "lost_events", "rules", "codes"]' '"backlog", "lost_events"]' \
    faults sql_loss::a_repair_restores_rules
defect quantity_left_out_of_the_upsert core/src/store/sql/statements.rs \
    'quantity = excluded.quantity, ' '' \
    faults sql_loss::a_revoked_key
defect evicted_handle_trusted core/src/engine/claim/mod.rs \
    'if handle.campaign().evicted.is_some() {
            handle = Box::pin(' \
    'if false {
            handle = Box::pin(' \
    faults sql_loss::every_core_finds_a_key
defect keys_of_additions_not_restored core/src/store/sql/restore.rs \
    'in additions {' 'in &additions[..0] {' \
    faults sql_loss::an_addition_whose_key
defect user_ids_not_restored core/src/engine/user_ids.rs \
    '(None, Some(known)) => Some(' '(None, Some(known)) if known.since.as_ms() < 0 => Some(' \
    faults sql_loss::a_user_id_scheme
defect entries_written_in_any_order core/src/jobs/group_commit.rs \
    'EntryOrder::Following' 'EntryOrder::Any' \
    interleavings a_returned_and_regranted_unit

# The feed reports each commit, in order.
defect feed_numbers_taken_first core/src/store/sql/outbox_writer.rs \
    '        let mut locked = self.lock_campaigns(&mut transaction, batches, order).await?;
        let (mut rows' \
    '        sqlx::query("UPDATE feed_position SET last_number = last_number").execute(&mut transaction.lease).await?;
        let mut locked = self.lock_campaigns(&mut transaction, batches, order).await?;
        let (mut rows' \
    faults feed::a_slow_commit
defect feed_numbers_of_lost_rows_reused core/src/engine/lifecycle/recovery.rs \
    'self.skip_lost_feed_numbers(handle, &row, &suspended).await?;' '' \
    interleavings a_cursor_to_a_lost_change
defect feed_numbers_of_lost_imports_reused core/src/engine/lifecycle/sql_loss.rs \
    'suspended.epoch.max(handle.campaign().epoch) > row.epoch' 'suspended.epoch > row.epoch' \
    interleavings a_cursor_to_a_lost_import
defect feed_lacks_salvaged_claims core/src/store/sql/outbox_writer.rs \
    '        self.commit_with_feed(transaction, &feed).await?;
        Ok(revoked.len()' \
    '        self.commit_with_feed(transaction, &feed[..0]).await?;
        Ok(revoked.len()' \
    faults registers::rows_lost_by_sql_are_not_granted_again_by_a_repair
defect feed_lacks_transitions core/src/store/sql/transition.rs \
    'self.commit_with_feed(transaction, &feed)' 'self.commit_with_feed(transaction, &feed[..0])' \
    faults evicted
defect feed_cursor_not_verified core/src/store/sql/feed.rs \
    'let at = claims.iter().position(|one| one == claim)?;' \
    'let at = claims.iter().position(|one| one == claim).unwrap_or(0);' \
    e2e changes::
defect feed_skip_constant core/src/store/sql/feed_writer.rs \
    'SKIPPED_MIN + u64::from(random)' 'SKIPPED_MIN' \
    interleavings a_cursor_to_a_lost_change

# Invariant 3: one claim per key.
defect no_replay_check lua/claim.lua \
    '    claim = tools.find(record, digest)' '    claim = nil'
defect key_reused_with_another_quantity lua/claim.lua \
    "struct.unpack('>I4', claim, QUANTITY_AT) == quantity and REPLAY .. claim" 'REPLAY .. claim'
defect moved_claims_forgotten lua/prelude.lua \
    'return moved[digest] or nil' 'return nil'

# Invariant 4: a denial changes nothing.
defect denial_counts lua/claim.lua \
    '  if remaining then
' \
    '  if remaining then
    taken = taken + quantity
'
defect denial_changes_the_day lua/claim.lua \
    '  if remaining then
' \
    "  if remaining then
    if record then
      record = struct.pack('>I3I5I5', day, on_day, ever) .. string.sub(record, #record % CLAIM + 1)
      redis.call('HSET', users_key, user_id, record)
    end
"

# Invariant 1: limits, days, windows.
defect partial_claims_granted lua/claim.lua \
    "  elseif quantity > per_user_per_day - on_day then
    answer, remaining, suffix = DAILY, per_user_per_day - on_day, struct.pack('>I3', day)
  elseif quantity > user_limit - ever then
    answer, remaining = USER, user_limit - ever
  elseif quantity > total - taken then" \
    "  elseif per_user_per_day - on_day <= 0 then
    answer, remaining, suffix = DAILY, per_user_per_day - on_day, struct.pack('>I3', day)
  elseif user_limit - ever <= 0 then
    answer, remaining = USER, user_limit - ever
  elseif total - taken <= 0 then"
defect total_before_user lua/claim.lua \
    '  elseif quantity > per_user_per_day - on_day then' \
    '  elseif quantity > total - taken then
    answer, remaining = TOTAL, total - taken
  elseif quantity > per_user_per_day - on_day then'
defect units_not_added lua/claim.lua \
    'sequence + 1, taken + quantity, events + 1' 'sequence + 1, taken + 1, events + 1'
defect day_one_zone_off lua/prelude.lua \
    '    if from > seconds then break end
    offset = ahead' \
    '    offset = ahead
    if from > seconds then break end'
defect day_in_utc lua/prelude.lua '(seconds + offset) / 86400' 'seconds / 86400'
defect day_goes_back lua/claim.lua 'if last_day >= today then' 'if last_day == today then'
defect window_ends_late lua/claim.lua 'if now >= campaign.ends_at' 'if now > campaign.ends_at'
defect pause_after_window lua/claim.lua \
    'if campaign.admin_state == ADMIN_PAUSED then' \
    "if now < campaign.starts_at then
  closed = NOT_STARTED .. struct.pack('>I6', campaign.starts_at)
elseif campaign.admin_state == ADMIN_PAUSED then"

# Invariant 9: units are returned once, and to the counters they came from.
defect return_ignores_the_day lua/prelude.lua \
    '    if claim.day == day then on_day = on_day - claim.quantity end' ''
defect return_to_any_day lua/prelude.lua 'if claim.day == day then' 'if true then'
defect returned_units_count lua/prelude.lua 'if status == GRANTED or status == HELD then' 'if true then'
defect other_days_count lua/prelude.lua 'last_day, on_day = day, 0 end' 'last_day = day end'
defect returned_twice lua/transition.lua \
    "(claim.status == HELD or claim.status == GRANTED)" '(claim.status ~= EXPIRED)'
defect extension_not_in_the_holds lua/transition.lua \
    "  append(work, 'held', expires_at, hold_member(user_id, digest))
" ''
defect extension_without_maximum lua/transition.lua \
    'math.min(work.now + campaign.hold_ms, claim.claimed_at + tonumber(ARGV[7]))' 'work.now + campaign.hold_ms' \
    e2e extensions::a_hold_is_extended_up
defect extension_shortens_holds lua/transition.lua \
    'if expires_at - claim.expires_at < EXTENSION_MS_MIN then return end' 'if expires_at == claim.expires_at then return end'
defect extensions_not_limited lua/transition.lua \
    'claim.revision > EXTENSIONS_MAX' 'false' \
    e2e extensions::a_hold_is_extended
defect due_hold_extended lua/transition.lua \
    'if claim.status == HELD and work.now >= claim.expires_at then' \
    "if claim.status == HELD and work.now >= claim.expires_at and ARGV[3] ~= 'extend' then"
defect extension_of_an_evicted_claim_repeated core/src/domain/claim_transition.rs \
    'if gained_ms < EXTENSION_MS_MIN {' 'if gained_ms < 0 {' \
    faults evicted
defect confirmed_hold_stays_due lua/transition.lua 'if claim.status == HELD then append' 'if false then append'
defect hold_lasts_longer lua/transition.lua 'work.now >= claim.expires_at' 'work.now > claim.expires_at'
defect denied_while_holds_are_due lua/claim.lua 'has_more_due and RETRY or answer' 'answer' model due_holds
# Holds are checked only from the next due time in the state on. That time may be too early, but never too
# late.
defect first_hold_sets_no_due_time lua/prelude.lua \
    'campaign.next_due = math.min(campaign.next_due,' 'campaign.next_due = math.max(campaign.next_due,'
defect holds_left_never_fall_due lua/prelude.lua 'campaign.next_due = first_due()' 'campaign.next_due = NEVER'
defect loaded_holds_never_fall_due lua/load.lua 'next_due = first_due()' 'next_due = NEVER'
defect holds_not_loaded core/src/store/redis/loader.rs \
    'claim.status == ClaimStatus::Held)' 'claim.status == ClaimStatus::Revoked)'

# Invariant 8: a Redis server that has lost data decides nothing.
defect minimum_events_not_checked lua/prelude.lua \
    "if events < tonumber(ARGV[2]) then return nil, 'behind' end" ''
defect missing_key_not_noticed lua/prelude.lua \
    "if redis.call('EXISTS', campaign_key, claims_key, holds_key, outbox_key) < 4 then return nil, 'sentinel' end" ''
# Compares only the epoch of the identity, which a promoted replica has too.
defect identity_not_compared lua/prelude.lua \
    'if not state or string.sub(state, 1, #identity) ~= identity then' \
    'if not state or string.sub(state, 2, 6) ~= string.sub(identity, 2, 6) then' \
    model a_promoted_redis
# Grants of a suspended campaign are not relayed, and the load discards them.
defect suspended_campaign_decides lua/suspend.lua \
    'string.char(ADMIN_SUSPENDED)' 'string.sub(state, at, at)' interleavings every_interleaving
defect sequence_reused core/src/engine/lifecycle/recovery.rs 'campaign.high_water_mark.sequence.max(totals.sequence)' 'totals.sequence'

# Under memory pressure nothing is written.
defect claims_past_the_limit core/src/store/redis/scripts/mod.rs \
    "redis.register_function('{name}', function(keys, arguments)" \
    "local function add(name, callback) redis.register_function{{function_name=name, callback=callback, \
             flags={{'allow-oom'}}}} end add('{name}', function(keys, arguments)" \
    faults redis::claims_write_nothing_when_redis_is_out_of_memory
# The relay frees memory, so it must not need any.
defect reading_needs_memory core/src/store/redis/scripts/mod.rs 'const READ_FLAGS: &str = "no-writes";' 'const READ_FLAGS: &str = "allow-stale";'
defect relay_needs_memory core/src/store/redis/scripts/mod.rs \
    'with_flags("allow-oom", include_str!("../../../../../lua/ack.lua"))' \
    'with_flags("allow-stale", include_str!("../../../../../lua/ack.lua"))'
# An eviction must not need memory either.
defect eviction_needs_memory core/src/store/redis/scripts/mod.rs \
    'with_flags("allow-oom", include_str!("../../../../../lua/suspend.lua"))' \
    'with_flags("allow-stale", include_str!("../../../../../lua/suspend.lua"))' faults without_free_memory

# Redis killed in the middle of a write, twice.
defect half_written_transactions_stay core/src/store/redis/managed.rs 'aof-load-truncated no' 'aof-load-truncated yes' \
    faults torn::half

# Two cores: a suspension invalidates the token of every older loader, at any step.
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
    e2e every_call::calls_work_after
defect epoch_raised_by_a_late_loader core/src/store/sql/campaigns.rs \
    'WHERE id = $4 AND token = $5 RETURNING' 'WHERE id = $4 AND $5 >= 0 RETURNING' faults unreadable::a_late_loader
defect keys_dropped_unguarded lua/drop.lua \
    "if token == ARGV[1] and phase == 'suspended' then redis.call('UNLINK', unpack(KEYS)) end" \
    "redis.call('UNLINK', unpack(KEYS))" interleavings regressions
defect eviction_ignores_a_change core/src/store/sql/campaigns.rs \
    'AND token = $6 AND version = $7 RETURNING' 'AND token = $6 AND $7 >= 0 RETURNING' interleavings regressions

# Sentinel: the primary is the server that it names and that reports the role itself.
defect demoted_server_believed core/src/store/redis/topology/primary.rs 'role(&info, mode)?;' 'let _ = role(&info, mode);' \
    faults sentinel::a_stale
defect primary_switches_ignored core/src/jobs/refresher.rs 'engine.stores.redis.follow_failovers()' \
    'std::future::pending::<()>()' faults sentinel::core_leaves_a_primary

# Entries that a core had read when it died.
defect pending_entries_not_taken_over core/src/jobs/outbox_relay.rs \
    'while self.commit(handle, from, reader.read_delivered(keys, last).await?).await? > 0 {}' 'let _ = last;' \
    faults cores::a_core_relays_what_a_killed_core_had_read

# Required replicas: membership of the set, their data, and their primary.
defect outsider_adopted core/src/domain/replica_set.rs \
    'self.sets.iter().find(|set| set.members.contains(&view.primary))' 'self.sets.first()' \
    faults replicas::a_promoted_server_outside
defect store_id_not_kept core/src/engine/lifecycle/serving.rs \
    'self.redis.set_store_id_if_missing(&self.store_id).await?;' '' faults a_serving_core_restores
# On Redis this test passes even with a bare WAIT, so it runs on Valkey.
CLAIMGATE_TEST_SERVER=valkey defect wait_instead_of_barrier core/src/store/redis/replicas.rs \
    'let status = query.run(connection, session).await?;' \
    'let wait = redis::cmd("WAIT").arg(1).arg(100).query_async::<u64>(&mut session.connection.clone()).await;
        if wait.is_ok_and(|replicas| replicas > 0) {
            return Ok(());
        }
        let status = query.run(connection, session).await?;' \
    faults only_the_primary_has
defect replication_id_not_compared core/src/store/redis/replicas.rs \
    'field(info, "role:") == "master" && field(info, "master_replid2:") == &*session.replication_id' \
    'field(info, "role:") == "master"' faults a_primary_demoted_before_the_barrier
defect eviction_not_confirmed core/src/store/redis/loader.rs \
    '// Once SQL records the eviction, nothing checks for these keys again.
        self.wait_for_replicas(&session).await?;' '' \
    faults an_eviction_completes
defect replacement_not_signalled core/src/store/redis/topology/server.rs 'self.replacing.notify_waiters();' '' \
    units-core topology::server::tests::calls_in_flight

# An adopted server has everything that SQL has, nothing that SQL refused, and no event that SQL will never get.
defect refused_claims_adopted core/src/store/sql/campaigns.rs 'if !is_unchanged || has_refused ||' 'if !is_unchanged ||' \
    interleavings a_promoted_server_is_not_adopted
defect lacking_server_adopted core/src/store/sql/campaigns.rs \
    'has_refused || !has.covers(now.high_water_mark)' 'has_refused' interleavings a_promoted_server_is_not_adopted
defect deleted_entries_adopted core/src/engine/lifecycle/recovery.rs ' && relayed == backlog;' ';' \
    faults a_claim_whose_outbox_entry_was_deleted

# Changed campaigns are read immediately, regardless of the number of campaigns.
defect changes_not_followed core/src/store/sql/statements.rs \
    'WHERE change_number > $1 AND change_number > 0' 'WHERE change_number < $1 AND change_number > 0' faults idle::

# Cluster: a node that redirects a call is trusted.
defect moved_slots_not_noticed core/src/store/redis/topology/cluster.rs 'REDIRECTS.contains(&code)' 'code.is_empty()' \
    faults cluster::no_claim_is_lost_when_a_slot
defect keys_without_their_tag core/src/store/redis/topology/slot.rs 'tag.filter(|tag| !tag.is_empty()).unwrap_or(key)' 'key' \
    faults cluster::scripts_lost_by_a_node
# Each node has its own outbox reader.
defect another_nodes_reader core/src/jobs/outbox_relay.rs \
    'self.readers.lock().iter().find(|reader| reader.generation() == generation)' 'self.readers.lock().first()' \
    faults cluster::each_outbox

# A Redis server and a database that do not belong together.
defect foreign_campaign_suspended lua/suspend.lua \
    "if register_id and register_id ~= ARGV[2] then return { 'not_ready', 'register' } end" '' \
    faults lock::a_foreign_campaign
defect lost_rows_not_rescued core/src/engine/lifecycle/recovery.rs \
    'if (totals.taken, totals.revisions) == (suspended.taken, revisions) {' \
    'if totals.revisions < u64::MAX {' faults registers::rows_lost_by_sql
defect grants_written_before_returns core/src/engine/lifecycle/recovery.rs \
    'lacking.sort_by_key(|(_, claim)| (is_active(claim), claim.sequence));' \
    'lacking.sort_by_key(|(_, claim)| (!is_active(claim), claim.sequence));' faults registers::claims_on_returned_units
defect lost_rows_not_reported core/src/jobs/sql_loss.rs 'snapshot.backlog + totals.revisions' 'snapshot.revisions' \
    faults registers::rows_lost_by_sql_are_reported
defect foreign_keys_dropped_though_served core/src/engine/lifecycle/foreign.rs \
    'format!("{whole}.5")' 'format!("{}", i64::MAX >> whole.len())' faults registers::drop_foreign
defect another_redis_may_serve core/src/engine/lifecycle/serving.rs \
    'let silent = there.silent_for >= TAKE_OVER_AFTER && listening.elapsed() >= OBSERVED_MIN;' 'let silent = true;' \
    faults registers::a_second_core
defect index_never_used core/migrations/0006_claim_status_check.sql \
    'PRIMARY KEY (campaign_id, user_id, digest)' 'PRIMARY KEY (digest, user_id, campaign_id)' faults plans::

# SQL or Redis that answers but cannot work.
defect read_only_connection_kept core/src/store/sql/server.rs \
    '["25006", "57P01", "57P02", "57P03"].contains(&&*state) ||' \
    '["57P01", "57P02", "57P03"].contains(&&*state) ||' \
    faults sql_refuses::a_session_that_became_read_only_is_closed
defect standby_connected_to core/src/store/sql/server.rs \
    '    require_writable(&mut connection).await?;' '' \
    faults sql_refuses::claims_continue_while_sql_is_a_standby
defect full_disk_not_reported core/src/store/sql/heartbeat.rs \
    'self.server.recent_fault().map_or(Ok(run), Err)' 'Ok(run)' \
    faults sql_refuses::claims_continue_while_the_postgres_disk_is_full
defect relay_kept_without_connection core/src/store/sql/server.rs \
    'if pool.drop_one_idle() {' 'if false {' \
    faults sql_refuses::the_relay_keeps_working_with_three
defect redis_probed_without_a_write core/src/store/redis/nodes.rs \
    '.cmd("LPUSHX").arg(key).arg("")' '.cmd("PING")' \
    faults redis_refuses::core_reports_redis_out_of_memory
# Invariant 11: a body must match its signature, and unauthenticated callers take no permit.
defect body_hash_not_compared core/src/http/extract.rs \
    '                authenticated.check_body(&body)?;
' '' \
    e2e slow_connections::a_body_that_differs_from_the_signed
defect permits_for_unauthenticated core/src/http/middleware.rs \
    'Head::NeedsBody => state.unproven_permits(),' 'Head::NeedsBody => permits,' \
    e2e slow_connections::edges_without_a_body_hash

# One user never gets two allowances.
defect reopened_after_new_user_ids core/src/domain/user_ids.rs \
    '!was_over(before) || was_over(after)' 'true' \
    e2e user_ids::a_campaign_of_a_former_scheme
defect pin_ignores_a_reopened_campaign core/src/store/sql/user_ids.rs \
    'scheme, checked.next(), by.at)' 'scheme, ChangeNumber::new(u64::MAX >> 1), by.at)' \
    interleavings user_ids_are_never_pinned
defect edges_of_any_scheme core/src/engine/user_ids.rs \
    'Some(edge) => Err(self.rejected(UserIdsDiffer::Edge { edge, pinned })),' 'Some(_) => Ok(()),' \
    e2e user_ids::an_edge_with_different_settings
defect rejections_renewed_by_claims core/src/engine/user_ids.rs \
    'return Err(EngineError::UserIdsDiffer(why));' 'return Err(self.rejected(why));' \
    e2e user_ids::an_edge_may_claim
defect campaigns_before_the_pin_trusted core/src/engine/claim/mod.rs \
    'pinned.filter(|pinned| pinned.requires_check_of(&campaign))' 'pinned.filter(|_| false)' \
    interleavings one_caller_is_granted
defect loads_check_no_user_ids core/src/store/sql/user_ids.rs \
    'Ok((!has_others).then_some(scheme))' 'Ok(Some(scheme).filter(|_| !has_others || has_others))' \
    interleavings one_caller_is_granted
defect other_ids_sent_after_the_pin core/src/engine/stores.rs \
    'if !is_admitted && campaign.ended_at(clock::now()).is_none() {' \
    'if !is_admitted && campaign.evicted.is_some() {' \
    interleavings one_caller_is_granted
defect imports_begun_after_the_pin core/src/store/sql/imports.rs \
    'AND COALESCE((SELECT scheme FROM user_ids WHERE one = 1)' \
    'AND COALESCE((SELECT $12 FROM user_ids WHERE one = 1)' \
    interleavings no_edge_claims_beside

# A claim needs a pass as long as the rule says, and a winner's retry never does.
defect pass_not_required lua/claim.lua \
    'denial = closed or no_pass' 'denial = closed'
defect presale_ends_late lua/claim.lua \
    'local requires_pass, passes, no_pass = now < campaign.pass_until' 'local requires_pass, passes, no_pass = now <= campaign.pass_until'
defect retry_needs_a_pass lua/claim.lua \
    '  if claim then
    answer = struct' '  if claim and not denial then
    answer = struct'
defect units_of_a_pass_ignored lua/claim.lua \
    'elseif units < PASS_UNLIMITED then' 'elseif false then'
defect pass_rule_not_restored core/src/domain/campaign.rs \
    'Campaign { window, limits, hold_seconds, pass, admin_state, version, ..campaign.clone() }' \
    'Campaign { window, limits, hold_seconds, pass: campaign.pass, admin_state, version, ..campaign.clone() }' \
    faults passes::a_required_pass_outlives_its_loss_in_sql
defect back_end_needs_a_pass core/src/http/authentication.rs \
    'let pass = Some(ShownPass::UNLIMITED);' 'let pass = None;' \
    faults passes::the_pass_is_judged
defect pass_not_signed shared/src/signature.rs \
    'let pass = (!self.pass.is_empty()).then' 'let pass = false.then' \
    faults passes::a_pass_is_part
defect evicted_retry_needs_a_pass core/src/engine/claim/mod.rs \
    'Some(evicted) => {' \
    'Some(_) if pass.is_none() && campaign.pass.is_some() => Err(EngineError::CampaignEnded),
            Some(evicted) => {' \
    faults passes::a_winner_finds
defect retry_without_a_pass_rejected_by_the_edge edge/src/admission.rs \
    'if self.attempt == Attempt::Unknown {' 'if self.attempt == Attempt::Unknown && has_pass {' \
    units-edge admission::tests::a_missing_pass
defect presale_ends_by_the_edges_clock edge/src/campaign_cache/snapshot.rs \
    'rule.requires_at(latest)' 'rule.requires_at(latest.min(now))' \
    units-edge admission::tests::a_presale
defect passes_of_other_users_accepted shared/src/jwt/pass.rs \
    'if payload.sub != self.user.as_str() {' 'if payload.sub.is_empty() {' \
    units-shared jwt::pass::tests::a_pass_for_another
defect passes_for_other_campaigns_accepted shared/src/jwt/pass.rs \
    'if payload.campaign != self.campaign.as_str() {' 'if payload.campaign.is_empty() {' \
    units-shared jwt::pass::tests::a_pass_for_another
defect passes_of_any_type_accepted shared/src/jwt/token.rs \
    'if is_pass_type(&typ) != is_pass {' 'if is_pass_type(&typ) && !is_pass {' \
    units-shared jwt::pass::tests::no_token_is_both
# Claims without a pass cost Redis no more than other denials.
defect claims_without_a_pass_not_batched core/src/engine/claim/batcher.rs \
    'while batch.len() < batch_max
' \
    'while batch.len() < batch_max
                && batch.last().is_some_and(|last| last.pass.is_some())
' \
    faults passes::claims_without_a_pass
defect claims_without_a_pass_write lua/claim.lua \
    'denial = closed or no_pass' 'denial, work.must_write_state = closed or no_pass, true' \
    faults passes::claims_without_a_pass

# Redis layout 6 is converted.
defect entries_of_layout_6_not_relayed core/src/store/redis/outbox.rs \
    '[Self::Earlier, Self::Current]' '[Self::Current, Self::Current]' \
    faults conversion::a_campaign_of_layout_6
defect rules_of_layout_6_misread lua/suspend.lua \
    'string.sub(rules, 45, 50) .. string.sub(rules, 39, 44)' 'string.sub(rules, 39, 50)' \
    faults conversion::a_change_lost_by_sql
defect records_of_layout_6_not_converted core/src/engine/lifecycle/recovery.rs \
    'scan_claims(&handle.keys, suspended.layout)' 'scan_claims(&handle.keys, LAYOUT)' \
    faults conversion::claims_only_in_records

# Codes: no code has two claims, and one that was shown stays its winner's.
defect code_numbers_overlap core/src/domain/codes.rs \
    'self.assigned += u64::from(quantity);' 'self.assigned += 1;' \
    faults codes::each_granted_claim
defect codes_shown_before_the_acknowledgement core/src/engine/stores.rs \
    'if campaign.evicted.is_some() {
            return Ok(self.sql.codes_of' \
    'if true {
            return Ok(self.sql.codes_of' \
    faults codes::codes_are_shown_from_redis
defect late_acknowledgement_replaces_codes lua/ack.lua \
    'if removed == entries then' 'if true then' \
    interleavings a_late_acknowledgement
defect numbering_not_raised_by_a_restore core/src/store/sql/restored_codes.rs \
    'stock.assigned.max(highest)' 'stock.assigned' \
    faults codes::no_code_is_assigned_twice_if_sql_loses_claims
defect revoked_claims_get_codes core/src/store/sql/outbox_writer.rs \
    '&& row.epoch >= locked.epoch' '' \
    interleavings a_revoked_claim_gets_no_code
defect codes_added_twice core/src/store/sql/codes.rs \
    'filter(|code| !known.contains_key(**code))' 'filter(|_| true)' \
    faults codes::a_total_is_never_raised
defect codes_not_loaded core/src/engine/lifecycle/recovery.rs \
    'self.load_codes(&mut loader, campaign).await?;' '' \
    faults codes::codes_survive
defect lost_codes_given_again core/src/engine/lifecycle/recovery.rs \
    'self.restore_codes(handle).await?;' '' \
    faults codes::no_code_is_assigned_twice_if_sql_loses_an_upload
defect forgotten_codes_acknowledged core/src/store/sql/codes.rs \
    'upload.last.is_some_and(|last| !known.contains_key(last))' 'false' \
    faults codes::an_upload_of_which
defect shown_codes_not_recorded core/src/store/sql/codes.rs \
    'is_last || gives_codes' 'is_last' \
    faults codes::no_code_is_assigned_twice_if_sql_loses_part
defect changes_without_the_version_in_redis core/src/engine/lifecycle/sql_loss.rs \
    'Some(Err(error)) if row.codes.is_some() => return Err(error.into()),' '' \
    faults lost_codes::an_upload_while_redis_stalls
defect version_of_a_lost_upload_taken core/src/store/sql/lost_codes.rs \
    'shown.ok().flatten().is_none_or(|shown| locked.lacks(shown))' \
    'shown.ok().flatten().is_none_or(|shown| locked.lacks(shown)) && false' \
    interleavings no_change_takes
defect version_of_a_lost_upload_taken_by_an_addition core/src/store/sql/additions.rs \
    'may_have_lost_codes(&before, shown).await' 'may_have_lost_codes(&before, shown).await && false' \
    interleavings no_change_takes
defect emptied_code_numbers_stay_empty core/src/store/sql/restored_codes.rs \
    'self.fill(&mut transaction, id, stock, &freed).await?;' \
    'self.fill(&mut transaction, id, stock, &Freed { emptied: Vec::new(), ..freed }).await?;' \
    faults lost_codes::restoring_codes_leaves
defect codes_not_compared core/src/engine/lifecycle/reconcile.rs \
    'if self.codes_differ > 0' 'if false' \
    faults lost_codes::the_reconciliation_finds_codes_that_differ
defect runs_of_any_number_of_codes core/src/jobs/outbox_relay.rs \
    'into_runs(handle.campaign().codes.is_some())' 'into_runs(false)' \
    faults many_codes::
defect codes_of_lost_claims_left_over core/src/store/sql/restored_codes.rs \
    'not_shown.retain(|number, _| !shown.contains_key(number));' 'not_shown.clear();' \
    faults lost_codes::numbers_of_lost_claims
defect imported_claims_without_codes core/src/store/sql/outbox_writer.rs \
    '        self.number(&mut transaction, campaign, &mut locked, &mut rows).await?;
        self.write_and_commit(transaction, &[(campaign' \
    '        self.write_and_commit(transaction, &[(campaign' \
    faults codes_without_the_relay::imported
defect late_confirmations_without_codes core/src/store/sql/transition.rs \
    'if after.status == ClaimStatus::Granted {' 'if false {' \
    faults codes_without_the_relay::a_claim_confirmed
defect codes_given_after_a_reload core/src/engine/stores.rs \
    'let target = handle.target(campaign);' 'let campaign = handle.campaign(); let target = handle.target(&campaign);' \
    interleavings codes_read_before_a_reload
defect codes_of_a_replaced_upload_given core/src/engine/claim/codes.rs \
    '(now.version, now.changed_at) != (campaign.version, campaign.changed_at)' 'now.version != campaign.version' \
    interleavings codes_of_a_replaced

# A slow database is used.
defect late_connections_dropped core/src/store/sql/pool.rs \
    'connections.put_back(open);
                drop(permit);' \
    'drop((open, permit));' \
    e2e dashboard::live::a_database_behind
defect slow_reads_begun_again core/src/engine/live/snapshot.rs \
    'let read = timeout(SQL_MAX, read).await.ok()?;' \
    'let Ok(read) = timeout(SQL_MAX, read).await else {
        *reading = None;
        return None;
    };' \
    e2e dashboard::live::a_database_behind
