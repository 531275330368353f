//! Asking again while an outcome is unknown.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::Error;

/// For how long a client repeats a call, unless [`Retries`] say otherwise.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// The first wait between two tries, unless claimgate says a longer one; it doubles from try to try.
const WAIT_MIN: Duration = Duration::from_millis(50);
const WAIT_MAX: Duration = Duration::from_secs(2);

/// How a client repeats the calls that are safe to repeat.
#[derive(Debug, Clone, Copy)]
pub struct Retries {
    /// For how long, from the first try on.
    pub timeout: Duration,
    /// Called before each repetition with the error of the last try and the number of the repetition, from 1 on; `false` ends
    /// them.
    pub before: fn(&Error, u32) -> bool,
}

impl Retries {
    /// Sends each call once.
    pub const NONE: Self = Self { timeout: Duration::ZERO, before: |_, _| false };

    /// Repeats `ask` as [`until_decided`] does.
    pub(crate) async fn until_decided<T>(
        &self,
        mut ask: impl AsyncFnMut() -> Result<T, Error>,
    ) -> Result<T, Error> {
        let deadline = Instant::now() + self.timeout;
        let mut wait = WAIT_MIN;
        let mut doubt = None;
        let mut repetition = 0;
        loop {
            repetition += 1;
            let error = match ask().await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            let pause = error.retry_after().map(|at_least| spread(wait).max(at_least));
            let pause = pause
                .filter(|pause| Instant::now() + *pause <= deadline && (self.before)(&error, repetition));
            let Some(pause) = pause else {
                return Err(if error.tried_nothing() { doubt.unwrap_or(error) } else { error });
            };
            if !error.tried_nothing() {
                doubt = Some(error);
            }
            sleep(pause).await;
            wait = (wait * 2).min(WAIT_MAX);
        }
    }
}

impl Default for Retries {
    fn default() -> Self {
        Self { timeout: PATIENCE, before: |_, _| true }
    }
}

/// Calls `ask` until its outcome is known, for `patience` at most. Repeats it after a lost answer, a 408, 429 or 5xx, not before
/// `Retry-After` has passed. `ask` has to be safe to repeat, as a claim with its key is.
///
/// # Errors
/// The error of the last try. If that try did nothing (`overloaded`, 429, 401, no connection) and an earlier one left the
/// outcome unknown, the error of the earlier one.
pub async fn until_decided<T>(
    patience: Duration,
    ask: impl AsyncFnMut() -> Result<T, Error>,
) -> Result<T, Error> {
    Retries { timeout: patience, ..Retries::default() }.until_decided(ask).await
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
        Error::NoAnswer { address: "there".to_owned(), why: "reset".to_owned(), sent: true }
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

    #[tokio::test]
    async fn a_call_without_retries_is_sent_once_and_a_hook_ends_them() {
        for retries in [Retries::NONE, Retries { before: |_, _| false, ..Retries::default() }] {
            let mut tries = 0;
            let ended = retries.until_decided(async || {
                tries += 1;
                Err::<(), _>(lost())
            });
            assert!(ended.await.is_err());
            assert_eq!(tries, 1, "{retries:?}");
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
