//! Retries of calls to the cores.

use claimgate_shared::{Attempt, Code, Problem, Timestamp};
use worker::js_sys::Math;

use super::CoreClient;
use super::circuit_breaker::{CallKind, CircuitBreaker};
use super::request::CoreRequest;
use super::response::{CoreResponse, Failure};
use crate::clock::{self, age_ms};

/// The time limit of a call, including all its attempts.
const CALL_MS_MAX: i64 = 2_000;
/// The time limit of one attempt if a different core can be tried. A live core decides a claim in less time.
const ATTEMPT_MS_MAX: i64 = 1_600;
/// The minimum time for a further attempt. A shorter attempt would only add load.
const ATTEMPT_MS_MIN: i64 = 100;

impl CoreClient<'_> {
    /// Sends `request` to the cores one after the other, ending with the first core again, until a core
    /// responds and can decide, within 2 s in total. A problem returned by core is `Ok`.
    ///
    /// A retry is safe: all cores find a decided claim by its key. It covers a lost response, which may have
    /// been a grant, and a core that is restarting. A slow core is not retried early, since more requests
    /// would slow it further.
    ///
    /// # Errors
    /// `unavailable` if there is no response in time, all circuits are open, or core rejects this edge. The
    /// caller must treat the outcome as unknown: core may have decided.
    pub async fn send(&self, request: CoreRequest<'_>) -> Result<CoreResponse, Problem> {
        let began_at = clock::now()?;
        let count = self.config.cores.len();
        let (mut request, mut called, mut undecided) = (request, None, None);
        for _ in 0..=count {
            let now = clock::now()?;
            let left_ms = CALL_MS_MAX - age_ms(began_at, now).min(CALL_MS_MAX);
            if left_ms < ATTEMPT_MS_MIN {
                break;
            }
            let Some(core) = self.cores.rotation.borrow_mut().choose(request.kind, called, now) else {
                break;
            };
            let limit_ms = if count > 1 { left_ms.min(ATTEMPT_MS_MAX) } else { left_ms };
            match self.attempt(core, request, now, limit_ms).await? {
                Attempted::Answered(response) if count > 1 && response.is_undecided() => {
                    undecided = Some(response);
                }
                // `overloaded` means that the request was not processed, but the previous attempt may have
                // been decided.
                Attempted::Answered(response) if called.is_some() && response.is_overloaded() => break,
                Attempted::Answered(response) => return Ok(response),
                Attempted::Rejected if count == 1 => break,
                Attempted::Rejected | Attempted::Lost => {}
            }
            (called, request.attempt) = (Some(core), Attempt::Unknown);
        }
        let no_response = "no response in time; the outcome is unknown, so retry with the same key";
        undecided.ok_or_else(|| Problem::new(Code::Unavailable, no_response))
    }

    /// Sends `request` to `core` once, at `began_at`, and reports the result to its circuit breaker.
    async fn attempt(
        &self,
        core: usize,
        request: CoreRequest<'_>,
        began_at: Timestamp,
        limit_ms: i64,
    ) -> Result<Attempted, Problem> {
        let origin = &self.config.cores[core].origin;
        match self.send_once(core, request, limit_ms).await {
            Ok(response) => {
                self.circuit_breaker(core, request.kind, CircuitBreaker::record_success);
                Ok(Attempted::Answered(response))
            }
            Err(Failure::Lost(why)) => {
                let ended_at = clock::now()?;
                let failed =
                    |circuit: &mut CircuitBreaker| circuit.record_failure(began_at, ended_at, Math::random());
                self.circuit_breaker(core, request.kind, failed);
                worker::console_warn!("{} no answer from core {origin}: {why}", request.request_id);
                Ok(Attempted::Lost)
            }
            Err(Failure::EdgeRejected(problem)) => {
                self.circuit_breaker(core, request.kind, CircuitBreaker::record_success);
                worker::console_error!(
                    "{} core {origin} answers {}: check EDGE_KEY and both clocks",
                    request.request_id,
                    problem.as_str()
                );
                Ok(Attempted::Rejected)
            }
        }
    }

    /// Calls `with` on the circuit breaker of `core` for calls of `kind`.
    fn circuit_breaker(&self, core: usize, kind: CallKind, with: impl FnOnce(&mut CircuitBreaker)) {
        with(self.cores.rotation.borrow_mut().circuit_breaker(core, kind));
    }
}

/// The result of one attempt.
#[derive(Debug)]
enum Attempted {
    /// A response from core.
    Answered(CoreResponse),
    /// No complete response.
    Lost,
    /// Core rejected this edge.
    Rejected,
}
