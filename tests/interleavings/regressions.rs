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
        None if !played.met => Err(format!("{line}\n{}\nis not played as written", played.lines.join("\n"))),
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
