//! Asking again while an outcome is unknown.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::Error;

/// How long [`Internal::claim`](crate::Internal::claim) and [`Edge::claim`](crate::Edge::claim) ask again.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// The first wait between two tries, unless claimgate says a longer one; it doubles from try to try.
const WAIT_MIN: Duration = Duration::from_millis(50);
const WAIT_MAX: Duration = Duration::from_secs(2);

/// Calls `ask` until its outcome is known, for `patience` at most: after a lost answer, a 408, 429 or 5xx it is asked
/// again, not before `Retry-After` has passed. `ask` has to be safe to repeat, as a claim with its key is.
///
/// # Errors
/// What the last try ended with; but where that says that nothing was tried (`overloaded`, 429, 401), what the last one ended with
/// that left the outcome unknown, if there was one.
pub async fn until_decided<T>(
    patience: Duration,
    mut ask: impl AsyncFnMut() -> Result<T, Error>,
) -> Result<T, Error> {
    let deadline = Instant::now() + patience;
    let mut wait = WAIT_MIN;
    let mut doubt = None;
    loop {
        let error = match ask().await {
            Ok(answer) => return Ok(answer),
            Err(error) => error,
        };
        let (at_least, tried_nothing) = (error.retry_after(), error.tried_nothing());
        let pause = at_least.map(|at_least| spread(wait).max(at_least));
        if pause.is_none_or(|pause| Instant::now() + pause > deadline) {
            return Err(if tried_nothing { doubt.unwrap_or(error) } else { error });
        }
        if !tried_nothing {
            doubt = Some(error);
        }
        let pause = pause.unwrap_or_default();
        sleep(pause).await;
        wait = (wait * 2).min(WAIT_MAX);
    }
}

/// Half of `wait` to all of it: callers that failed together do not come back together.
fn spread(wait: Duration) -> Duration {
    let mut byte = [u8::MAX];
    // Without randomness they come back together, no more.
    let _ = getrandom::fill(&mut byte);
    wait / 2 + wait / 2 * u32::from(byte[0]) / u32::from(u8::MAX)
}

#[cfg(test)]
mod tests {
    use reqwest::StatusCode;

    use super::*;
    use crate::error::Problem;

    fn lost() -> Error {
        Error::NoAnswer { address: "there".to_owned(), why: "reset".to_owned() }
    }

    #[tokio::test]
    async fn what_is_unknown_is_asked_again_until_it_is_known() {
        let mut tries = 0;
        let answer = until_decided(PATIENCE, async || {
            tries += 1;
            if tries < 3 { Err(lost()) } else { Ok(tries) }
        });
        assert_eq!(answer.await.unwrap(), 3);
    }

    #[tokio::test]
    async fn what_is_decided_is_not_asked_again_and_patience_ends() {
        let mut tries = 0;
        let refused = until_decided(PATIENCE, async || {
            tries += 1;
            Err::<(), _>(Error::Setup("no".to_owned()))
        });
        assert!(refused.await.is_err());
        assert_eq!(tries, 1);
        assert!(until_decided(Duration::ZERO, async || Err::<(), _>(lost())).await.is_err());
    }

    #[tokio::test]
    async fn that_nothing_was_tried_is_not_said_once_the_outcome_is_unknown() {
        let busy = |code: &str, status| {
            let json = serde_json::json!({"code": code, "title": "T", "detail": "D"});
            Error::Problem(Box::new(Problem::of(status, None, json).unwrap()))
        };
        for (code, status) in [
            ("overloaded", StatusCode::SERVICE_UNAVAILABLE),
            ("rate_limited", StatusCode::TOO_MANY_REQUESTS),
            ("unauthenticated", StatusCode::UNAUTHORIZED),
        ] {
            let mut tries = 0;
            let ended = until_decided(Duration::from_millis(200), async || {
                tries += 1;
                Err::<(), _>(if tries == 1 { lost() } else { busy(code, status) })
            });
            assert!(matches!(ended.await, Err(Error::NoAnswer { .. })), "{code}");
            let ended = until_decided(Duration::ZERO, async || Err::<(), _>(busy(code, status)));
            assert!(matches!(ended.await, Err(Error::Problem(_))), "{code}");
        }
    }

    #[test]
    fn a_wait_is_never_longer_than_it_should_be() {
        for _ in 0..100 {
            let wait = spread(WAIT_MAX);
            assert!((WAIT_MAX / 2..=WAIT_MAX).contains(&wait), "{wait:?}");
        }
    }
}
