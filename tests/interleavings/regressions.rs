//! Schedules that once broke a guarantee, each under the name of the property it tests.

use super::schedule::Schedule;
use super::world::World;

/// Maximum number of times that a schedule is played until it runs as written.
const PLAYS_MAX: usize = 5;

/// Runs the schedule `line`; returns an error with all events if a guarantee was broken. If a store answered too late,
/// its caller got 503 and the schedule did not run as written: it is played again.
async fn played(line: &str) -> Result<(), String> {
    let schedule: Schedule = line.parse()?;
    assert_eq!(schedule.to_string(), line, "a schedule must be printed as it is read");
    let world = World::start(schedule.database).await;
    let mut lines = Vec::new();
    for _ in 0..PLAYS_MAX {
        let played = schedule.play(&world).await;
        lines = played.lines;
        if let Some(wrong) = played.wrong {
            return Err(format!("{line}\n{}\n{wrong}", lines.join("\n")));
        }
        // B may end before its recorded position, because the code has changed since.
        if played.met[0] {
            return Ok(());
        }
    }
    Err(format!("{line}\n{}\ndid not run as written", lines.join("\n")))
}

/// Runs the schedule of `INTERLEAVING`; without it, one that has always passed.
#[tokio::test(flavor = "current_thread")]
async fn replays_the_schedule_from_the_environment() {
    let line = std::env::var("INTERLEAVING");
    let line = line.as_deref().unwrap_or("sqlite live relay@4 relay lease=held");
    if let Err(broken) = played(line).await {
        panic!("{broken}");
    }
}

/// Fails if any of these schedules breaks a guarantee.
async fn keep_every_promise(lines: &[&str]) {
    let mut broken = Vec::new();
    for line in lines {
        broken.extend(played(line).await.err());
    }
    assert!(broken.is_empty(), "{}", broken.join("\n\n"));
}

macro_rules! schedules {
    ($($(#[$doc:meta])* $name:ident: $($line:literal),+;)+) => {
        $($(#[$doc])* #[tokio::test(flavor = "current_thread")]
        async fn $name() {
            keep_every_promise(&[$($line),+]).await;
        })+
    };
}

schedules! {
    a_revoked_claim_gets_no_code:
        "sqlite live relay@sql:write_entries fail-over lease=held codes";
    a_promoted_server_is_not_adopted_if_sql_refused_its_claims:
        "sqlite forked suspend@1 promote lease=held",
        "postgres forked suspend@1 promote lease=held";
    a_promoted_server_is_not_adopted_if_sql_has_newer_events:
        "sqlite live relay@sql:write_entries fail-over@sql:raise_epoch_to_adopt lease=held",
        "postgres live relay@sql:write_entries fail-over@sql:raise_epoch_to_adopt lease=held";
    a_load_cannot_open_what_another_core_suspended:
        "sqlite absent create@redis:load.open ensure-ready@sql:raise_epoch lease=held",
        "sqlite absent create@redis:load.begin ensure-ready@redis:load.begin lease=held",
        "postgres absent create@redis:load.open ensure-ready@sql:raise_epoch lease=held";
    a_loader_stalled_past_its_lease_erases_nothing:
        "sqlite lost ensure-ready@redis:load.open ensure-ready@redis:load.begin lease=expired",
        "sqlite lost ensure-ready@redis:load.begin ensure-ready@redis:load.begin lease=expired";
    a_change_during_an_eviction_is_not_lost:
        "sqlite over evict@sql:evict reopen lease=held",
        "sqlite over evict@sql:totals reopen lease=held",
        "postgres over evict@sql:evict reopen lease=held";
    a_core_with_outdated_rules_does_not_evict:
        "sqlite over evict@redis:lease.acquire reopen lease=held",
        "sqlite over reopen@redis:set_rules evict lease=held";
    a_stalled_evictor_does_not_delete_a_reopened_campaign:
        "sqlite over evict@redis:drop_keys reopen lease=expired",
        "postgres over evict@redis:drop_keys reopen lease=expired";
    keys_left_by_a_dead_evictor_are_removed:
        "sqlite over evict@redis:drop_keys=crash evict lease=expired",
        "sqlite over evict@sql:evict=lost evict lease=held";
    a_repair_keeps_data_that_only_sql_has_lost:
        "sqlite behind repair@1 refresh lease=held",
        "postgres behind repair@1 refresh lease=held";
    an_evicted_campaign_still_reports_its_pause:
        "sqlite evicted return@sql:transition pause lease=held";
    a_campaign_evicted_in_the_meantime_is_not_reloaded:
        "sqlite over evict@redis:outbox_page ensure-ready@sql:issue_token lease=expired",
        "postgres over evict@redis:outbox_page ensure-ready@sql:issue_token lease=expired";
    a_stub_left_by_a_late_suspension_expires:
        "sqlite over evict@redis:suspend evict lease=expired";
    a_returned_and_regranted_unit_is_not_in_sql_twice:
        "sqlite live return-and-relay@sql:write_entries overtake lease=held",
        "postgres live return-and-relay@sql:write_entries overtake lease=held";
    a_change_lost_by_sql_stays_in_force:
        "sqlite live forget@1 pause lease=held",
        "sqlite live pause@redis:set_rules forget lease=held",
        "postgres live lower@redis:set_rules forget lease=held";
    events_restored_after_a_loss_are_delivered:
        "sqlite live webhook@sql:advance_webhook forget lease=held",
        "postgres live webhook@sql:advance_webhook forget lease=held";
    a_claim_after_a_reopening_is_found_through_every_core:
        "sqlite evicted reopen@1 evict lease=held",
        "postgres evicted reopen@1 evict lease=held";
    a_campaign_lost_by_sql_is_not_reported_as_created:
        "sqlite absent create@sql:issue_token forget lease=held",
        "postgres absent create@sql:issue_token forget lease=held";
    a_reopening_lost_by_sql_stays_in_force:
        "sqlite evicted reopen@redis:load.open forget lease=held",
        "postgres evicted reopen@redis:load.open forget lease=held";
    a_core_agrees_with_sql_after_changing_an_evicted_campaign:
        "sqlite evicted refresh@1 pause lease=held",
        "sqlite evicted refresh@1 end lease=held",
        "postgres evicted refresh@1 pause lease=held";
}
