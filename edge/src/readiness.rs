//! `GET /readyz`: whether this isolate could decide a claim now. The response names variables and numbers of
//! cores; addresses and reasons are only in the log.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use claimgate_shared::{Code, Problem, Timestamp};
use serde::Serialize;
use worker::{Context, Delay, Env};

use crate::auth::remote_keys::Runtime;
use crate::background;
use crate::clock::{self, age_ms};
use crate::config::Config;
use crate::core_client::CoreClient;
use crate::log;
use crate::response::Response;

/// TTL of a result: anyone may call, and each check calls every core.
const RESULT_TTL_MS: i64 = 1_000;
/// Age at which a check counts as aborted.
const CHECK_MS_MAX: i64 = 3_000;
const POLL: Duration = Duration::from_millis(20);

thread_local! {
    static CHECKS: RefCell<Checks> = const { RefCell::new(Checks { result: None, checking_since: None }) };
}

/// The result of a check.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Readiness {
    /// Whether each core is ready.
    cores: Vec<bool>,
    /// The variable whose keys cannot verify tokens.
    without_keys: Option<&'static str>,
}

#[derive(Serialize)]
struct Body {
    cores: Vec<CoreState>,
}

#[derive(Serialize)]
struct CoreState {
    core: usize,
    state: &'static str,
}

impl Readiness {
    /// Returns 200 with the state of each core, if one is ready and tokens can be verified.
    fn response(&self) -> Result<Response, Problem> {
        if let Some(variable) = self.without_keys {
            return Err(unavailable(format!("not ready: {variable} gives no keys")));
        }
        if !self.cores.contains(&true) {
            let numbers: Vec<_> = (1..=self.cores.len()).map(|number| format!("core {number}")).collect();
            return Err(unavailable(format!("not ready: {}", numbers.join(", "))));
        }
        let state = |is_ready: &bool| if *is_ready { "up" } else { "down" };
        let states =
            (1..).zip(&self.cores).map(|(core, is_ready)| CoreState { core, state: state(is_ready) });
        Response::json(200, &Body { cores: states.collect() })
    }
}

fn unavailable(detail: impl Into<String>) -> Problem {
    Problem::new(Code::Unavailable, detail)
}

/// The latest result, and the check in flight.
#[derive(Debug)]
struct Checks {
    result: Option<(Timestamp, Readiness)>,
    checking_since: Option<Timestamp>,
}

impl Checks {
    /// Returns the result, if it may be reused at `now`.
    fn recent(&self, now: Timestamp) -> Option<Readiness> {
        let recent = self.result.as_ref().filter(|(at, _)| age_ms(*at, now) < RESULT_TTL_MS);
        recent.map(|(_, readiness)| readiness.clone())
    }

    /// Begins a check at `now`, unless one is in flight.
    fn begin(&mut self, now: Timestamp) -> bool {
        if self.checking_since.is_some_and(|since| age_ms(since, now) < CHECK_MS_MAX) {
            return false;
        }
        self.checking_since = Some(now);
        true
    }

    fn end(&mut self, now: Timestamp, readiness: Readiness) {
        *self = Self { result: Some((now, readiness)), checking_since: None };
    }
}

/// Returns 200 if this edge is ready.
///
/// # Errors
/// `unavailable`, naming what is not ready.
pub async fn ready(config: &Rc<Config>, env: &Env, context: &Context) -> Result<Response, Problem> {
    let began_at = clock::now()?;
    loop {
        let now = clock::now()?;
        if let Some(readiness) = CHECKS.with_borrow(|checks| checks.recent(now)) {
            return readiness.response();
        }
        if age_ms(began_at, now) >= CHECK_MS_MAX {
            return Err(unavailable("not ready: the check takes too long"));
        }
        if CHECKS.with_borrow_mut(|checks| checks.begin(now)) {
            check_in_background(config, env, context);
        }
        Delay::from(POLL).await;
    }
}

/// Checks in the background: requests of other clients poll for the result, so it must not end with the
/// connection of the first.
fn check_in_background(config: &Rc<Config>, env: &Env, context: &Context) {
    let keys = config.authenticator.verifier.clone();
    let runtime = Runtime { env, context };
    keys.refresh(runtime);
    let (config, env) = (Rc::clone(config), env.clone());
    background::run(context, async move {
        let checked = CoreClient::new(&env, &config).check_ready().await;
        let without_keys = keys.without_keys();
        // Without a clock the check stays in flight until it counts as aborted.
        let Ok(now) = clock::now() else { return };
        for (number, why) in (1..).zip(&checked) {
            if let Err(why) = why {
                log::core_not_ready(number, why, now);
            }
        }
        let cores = checked.iter().map(Result::is_ok).collect();
        CHECKS.with_borrow_mut(|checks| checks.end(now, Readiness { cores, without_keys }));
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_ms(1_700_000_000_000 + ms).unwrap()
    }

    fn detail(cores: &[bool], without_keys: Option<&'static str>) -> Result<(), String> {
        let readiness = Readiness { cores: cores.to_vec(), without_keys };
        readiness.response().map(|_| ()).map_err(|problem| problem.detail)
    }

    #[test]
    fn one_ready_core_and_keys_are_enough() {
        assert_eq!(detail(&[false, true], None), Ok(()));
        assert_eq!(detail(&[false, false], None), Err("not ready: core 1, core 2".to_owned()));
        let without = Err("not ready: USER_JWT_JWKS_URL gives no keys".to_owned());
        assert_eq!(detail(&[true], Some("USER_JWT_JWKS_URL")), without);
    }

    #[test]
    fn a_result_is_reused_for_a_second_and_checked_once() {
        let mut checks = Checks { result: None, checking_since: None };
        assert!(checks.begin(at(0)));
        assert!(!checks.begin(at(CHECK_MS_MAX - 1)), "one is in flight");
        assert!(checks.begin(at(CHECK_MS_MAX)), "the first was aborted");
        let readiness = Readiness { cores: vec![true], without_keys: None };
        checks.end(at(4_000), readiness.clone());
        assert_eq!(checks.recent(at(4_999)), Some(readiness));
        assert_eq!(checks.recent(at(5_000)), None);
        assert!(checks.begin(at(5_000)));
    }
}
