//! More holds fall due at once than one call gives back: no limit refuses a claim while units are still to come back.

use jiff::Timestamp;

use super::operations::Ask;
use super::reference::{Answer, DUE_MAX, Rules};
use super::system::System;

const HOLD_MS: i64 = 60_000;

#[tokio::test(flavor = "current_thread")]
async fn who_needs_more_than_one_call_gives_back_is_asked_again() {
    let holds = u32::try_from(2 * DUE_MAX + 1).unwrap();
    let begins_at = Timestamp::now().as_millisecond();
    let rules = Rules::held(holds, HOLD_MS, begins_at);
    let mut system = System::start(&rules, begins_at).await;
    let ask = |user: String, quantity| Ask { user, key: "k".to_owned(), quantity };
    let all: Vec<_> = (0..holds).map(|user| ask(format!("u{user}"), 1)).collect();
    for answer in system.claims(&all).await.unwrap() {
        assert!(matches!(answer, Answer::Taken(..)), "{answer:?}");
    }
    system.set_clock(begins_at + HOLD_MS + 1000).await;
    let answers = system.claims(&[ask("late".to_owned(), holds)]).await.unwrap();
    assert!(matches!(answers[..], [Answer::Taken(..)]), "{answers:?}");
}
