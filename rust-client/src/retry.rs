//! Retries while an outcome is unknown.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::Error;

/// Retry period of a call, unless its [`Retries`] say otherwise.
pub const RETRY_TIMEOUT: Duration = Duration::from_secs(10);

/// The first backoff, which doubles with each try. A longer `Retry-After` takes precedence.
const BACKOFF_MIN: Duration = Duration::from_millis(50);
const BACKOFF_MAX: Duration = Duration::from_secs(2);

/// The retry policy for calls that are safe to retry.
#[derive(Debug, Clone, Copy)]
pub struct Retries {
    /// Time from the first try during which a call is retried.
    pub timeout: Duration,
    /// Called before each retry with the last error and the number of the retry, from 1; `false` ends the retries.
    pub before: fn(&Error, u32) -> bool,
}

impl Retries {
    /// Sends each call once.
    pub const NONE: Self = Self { timeout: Duration::ZERO, before: |_, _| false };

    /// Retries `call` as [`retry_until_decided`] does.
    pub(crate) async fn until_decided<T>(
        &self,
        mut call: impl AsyncFnMut() -> Result<T, Error>,
    ) -> Result<T, Error> {
        let deadline = Instant::now() + self.timeout;
        let mut backoff = BACKOFF_MIN;
        let mut last_unknown = None;
        let mut retry = 0;
        loop {
            retry += 1;
            let error = match call().await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            let pause = error.retry_after().map(|at_least| with_jitter(backoff).max(at_least));
            let pause =
                pause.filter(|pause| Instant::now() + *pause <= deadline && (self.before)(&error, retry));
            let Some(pause) = pause else {
                return Err(if error.was_not_processed() { last_unknown.unwrap_or(error) } else { error });
            };
            if !error.was_not_processed() {
                last_unknown = Some(error);
            }
            sleep(pause).await;
            backoff = (backoff * 2).min(BACKOFF_MAX);
        }
    }
}

impl Default for Retries {
    fn default() -> Self {
        Self { timeout: RETRY_TIMEOUT, before: |_, _| true }
    }
}

/// Calls `call` until its outcome is known, for at most `timeout`. Retries after a lost response, a 408, 429
/// or 5xx (but `not_configured` and `user_ids_differ`), not before `Retry-After`. `call` must be safe to retry, as a
/// claim with its key is.
///
/// # Errors
/// The error of the last try. If that try was not processed (`overloaded`, `not_configured`, 429, 401, no connection)
/// but an earlier try left the outcome unknown, the error of that earlier try.
pub async fn retry_until_decided<T>(
    timeout: Duration,
    call: impl AsyncFnMut() -> Result<T, Error>,
) -> Result<T, Error> {
    Retries { timeout, ..Retries::default() }.until_decided(call).await
}

/// Returns a random duration between half of `backoff` and all of it, so that callers that failed together do
/// not retry together.
fn with_jitter(backoff: Duration) -> Duration {
    let mut byte = [u8::MAX];
    // Without randomness there is no jitter.
    let _ = getrandom::fill(&mut byte);
    backoff / 2 + backoff / 2 * u32::from(byte[0]) / u32::from(u8::MAX)
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
    async fn an_unknown_outcome_is_retried_until_it_is_known() {
        let mut tries = 0;
        let answer = retry_until_decided(RETRY_TIMEOUT, async || {
            tries += 1;
            if tries < 3 { Err(lost()) } else { Ok(tries) }
        });
        assert_eq!(answer.await.unwrap(), 3);
    }

    #[tokio::test]
    async fn a_decided_call_is_not_retried() {
        let mut tries = 0;
        let failed = retry_until_decided(RETRY_TIMEOUT, async || {
            tries += 1;
            Err::<(), _>(Error::Setup("no".to_owned()))
        });
        assert!(failed.await.is_err());
        assert_eq!(tries, 1);
    }

    #[tokio::test]
    async fn retries_end_at_the_time_limit() {
        assert!(retry_until_decided(Duration::ZERO, async || Err::<(), _>(lost())).await.is_err());
    }

    #[tokio::test]
    async fn an_unknown_outcome_outranks_a_later_rejection() {
        let busy = |code: &str, status| {
            let json = serde_json::json!({"code": code, "title": "T", "detail": "D"});
            Error::Problem(Box::new(Problem::from_json(status, None, json).unwrap()))
        };
        for (code, status) in [
            ("overloaded", StatusCode::SERVICE_UNAVAILABLE),
            ("not_configured", StatusCode::SERVICE_UNAVAILABLE),
            ("rate_limited", StatusCode::TOO_MANY_REQUESTS),
            ("unauthenticated", StatusCode::UNAUTHORIZED),
        ] {
            let mut tries = 0;
            let ended = retry_until_decided(Duration::from_millis(200), async || {
                tries += 1;
                Err::<(), _>(if tries == 1 { lost() } else { busy(code, status) })
            });
            assert!(matches!(ended.await, Err(Error::NoAnswer { .. })), "{code}");
            let ended = retry_until_decided(Duration::ZERO, async || Err::<(), _>(busy(code, status)));
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
    fn jitter_stays_between_half_and_all_of_the_backoff() {
        for _ in 0..100 {
            let backoff = with_jitter(BACKOFF_MAX);
            assert!((BACKOFF_MAX / 2..=BACKOFF_MAX).contains(&backoff), "{backoff:?}");
        }
    }
}
