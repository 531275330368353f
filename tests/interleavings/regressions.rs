//! Schedules that once broke a promise, each under the name of what it guards.

use super::schedule::Schedule;
use super::world::World;

/// Plays `line`; whether every promise was kept, with all that happened.
async fn played(line: &str) -> Result<(), String> {
    let schedule: Schedule = line.parse()?;
    assert_eq!(schedule.to_string(), line, "a schedule reads as it is written");
    let world = World::start(schedule.database).await;
    let played = schedule.play(&world).await;
    match played.wrong {
        Some(wrong) => Err(format!("{line}\n{}\n{wrong}", played.lines.join("\n"))),
        // B may end before its place, where what was broken once is done in another way now.
        None if !played.met[0] => {
            Err(format!("{line}\n{}\nis not played as written", played.lines.join("\n")))
        }
        None => {
            println!("{line}\n{}", played.lines.join("\n"));
            Ok(())
        }
    }
}

/// `INTERLEAVING="..."` plays that schedule; without it, one that has always kept every promise.
#[tokio::test(flavor = "current_thread")]
async fn replay() {
    let line = std::env::var("INTERLEAVING");
    let line = line.as_deref().unwrap_or("sqlite live relay@4 relay lease=held");
    if let Err(broken) = played(line).await {
        panic!("{broken}");
    }
}

/// Red when any of these schedules breaks a promise.
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
    a_promoted_server_is_not_adopted_where_sql_has_refused_its_claims:
        "sqlite forked suspend@1 promote lease=held",
        "postgres forked suspend@1 promote lease=held";
    a_promoted_server_is_not_adopted_where_sql_hears_of_more_meanwhile:
        "sqlite live relay@sql:write_entries fail-over@sql:adopt_epoch lease=held",
        "postgres live relay@sql:write_entries fail-over@sql:adopt_epoch lease=held";
    a_load_that_is_under_way_cannot_open_what_another_has_closed:
        "sqlite absent create@redis:load.open ensure-ready@sql:raise_epoch lease=held",
        "sqlite absent create@redis:load.begin ensure-ready@redis:load.begin lease=held",
        "postgres absent create@redis:load.open ensure-ready@sql:raise_epoch lease=held";
    a_loader_that_has_stalled_past_its_lease_wipes_nothing:
        "sqlite lost ensure-ready@redis:load.open ensure-ready@redis:load.begin lease=expired",
        "sqlite lost ensure-ready@redis:load.begin ensure-ready@redis:load.begin lease=expired";
    a_change_that_comes_while_the_campaign_is_evicted_is_not_lost:
        "sqlite over evict@sql:evict reopen lease=held",
        "sqlite over evict@sql:totals reopen lease=held",
        "postgres over evict@sql:evict reopen lease=held";
    a_core_that_has_not_heard_of_a_change_does_not_evict_by_the_old_rules:
        "sqlite over evict@redis:lease.acquire reopen lease=held",
        "sqlite over reopen@redis:set_rules evict lease=held";
    a_stalled_evictor_does_not_delete_a_campaign_that_was_reopened:
        "sqlite over evict@redis:drop_keys reopen lease=expired",
        "postgres over evict@redis:drop_keys reopen lease=expired";
    what_an_evictor_that_died_has_left_in_redis_is_freed:
        "sqlite over evict@redis:drop_keys=crash evict lease=expired",
        "sqlite over evict@sql:evict=lost evict lease=held";
    a_repair_does_not_destroy_what_sql_alone_has_lost:
        "sqlite behind repair@1 refresh lease=held",
        "postgres behind repair@1 refresh lease=held";
    a_paused_campaign_says_so_also_once_it_is_evicted:
        "sqlite evicted return@sql:transition pause lease=held";
    a_campaign_that_was_evicted_meanwhile_is_not_loaded_again:
        "sqlite over evict@redis:outbox_page ensure-ready@sql:draw_token lease=expired",
        "postgres over evict@redis:outbox_page ensure-ready@sql:draw_token lease=expired";
    what_a_late_suspender_has_left_of_an_evicted_campaign_goes_by_itself:
        "sqlite over evict@redis:suspend evict lease=expired";
    a_unit_that_changed_hands_is_not_in_sql_twice:
        "sqlite live return-and-relay@sql:write_entries overtake lease=held",
        "postgres live return-and-relay@sql:write_entries overtake lease=held";
    a_change_that_sql_has_lost_is_in_force_all_the_same:
        "sqlite live forget@1 pause lease=held",
        "sqlite live pause@redis:set_rules forget lease=held",
        "postgres live lower@redis:set_rules forget lease=held";
    a_key_acknowledged_after_a_reopening_is_found_through_every_core:
        "sqlite evicted reopen@1 evict lease=held",
        "postgres evicted reopen@1 evict lease=held";
    a_campaign_that_sql_has_lost_is_not_said_to_be_created:
        "sqlite absent create@sql:draw_token forget lease=held",
        "postgres absent create@sql:draw_token forget lease=held";
    a_reopening_that_sql_has_lost_is_in_force_all_the_same:
        "sqlite evicted reopen@redis:load.open forget lease=held",
        "postgres evicted reopen@redis:load.open forget lease=held";
    a_core_that_changes_an_evicted_campaign_says_of_it_what_sql_says:
        "sqlite evicted refresh@1 pause lease=held",
        "sqlite evicted refresh@1 end lease=held",
        "postgres evicted refresh@1 pause lease=held";
}
