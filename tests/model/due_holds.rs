//! If more holds are due than one call expires, no limit denies a claim until the units of all due holds have
//! been returned.

use jiff::Timestamp;

use super::operations::ClaimAttempt;
use super::reference::{Answer, DUE_MAX, Rules};
use super::system::System;

const HOLD_MS: i64 = 60_000;

#[tokio::test(flavor = "current_thread")]
async fn a_claim_waits_for_all_due_holds_before_a_limit_denies_it() {
    let holds = u32::try_from(2 * DUE_MAX + 1).unwrap();
    let begins_at = Timestamp::now().as_millisecond();
    let rules = Rules::held(holds, HOLD_MS, begins_at);
    let mut system = System::start(&rules, begins_at).await;
    let attempt = |user: String, quantity| ClaimAttempt { quantity, ..ClaimAttempt::of(&user, "k") };
    let all: Vec<_> = (0..holds).map(|user| attempt(format!("u{user}"), 1)).collect();
    for answer in system.claims(&all).await.unwrap() {
        assert!(matches!(answer, Answer::Taken(..)), "{answer:?}");
    }
    system.set_clock(begins_at + HOLD_MS + 1000).await;
    let answers = system.claims(&[attempt("late".to_owned(), holds)]).await.unwrap();
    assert!(matches!(answers[..], [Answer::Taken(..)]), "{answers:?}");
}
