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
/// What the last try ended with.
pub async fn until_decided<T>(
    patience: Duration,
    mut ask: impl AsyncFnMut() -> Result<T, Error>,
) -> Result<T, Error> {
    let deadline = Instant::now() + patience;
    let mut wait = WAIT_MIN;
    loop {
        let error = match ask().await {
            Ok(answer) => return Ok(answer),
            Err(error) => error,
        };
        let Some(at_least) = error.retry_after() else { return Err(error) };
        let pause = spread(wait).max(at_least);
        if Instant::now() + pause > deadline {
            return Err(error);
        }
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
    use super::*;

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

    #[test]
    fn a_wait_is_never_longer_than_it_should_be() {
        for _ in 0..100 {
            let wait = spread(WAIT_MAX);
            assert!((WAIT_MAX / 2..=WAIT_MAX).contains(&wait), "{wait:?}");
        }
    }
}
