//! The rate limiters' settings: `RATE_PERIOD_S` and `RATE_ON_FAILURE`.

use claimgate_shared::{Code, Problem};

use crate::variables::ConfigError;

const RATE_PERIOD_S: u32 = 10;
const RATE_PERIOD_S_MAX: u32 = 3_600;

/// The rate limiters' settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateConfig {
    /// The limiters' period, in seconds. A rejected client may retry after it.
    pub period_s: u32,
    /// Whether a failing limiter lets every request through. Core decides every claim anyway.
    pub fail_open: bool,
}

impl RateConfig {
    /// Returns the result for a request whose limiter failed.
    ///
    /// # Errors
    /// `overloaded` if the limiters fail closed.
    pub fn on_failure(self) -> Result<(), Problem> {
        if self.fail_open {
            return Ok(());
        }
        Err(Problem::new(Code::Overloaded, "a rate limiter failed; the request was not processed, so retry"))
    }
}

/// Reads the settings.
pub(super) fn read(variable: impl Fn(&str) -> Option<String>) -> Result<RateConfig, ConfigError> {
    Ok(RateConfig { period_s: rate_period_s(&variable)?, fail_open: rate_fail_open(&variable)? })
}

fn rate_period_s(variable: impl Fn(&str) -> Option<String>) -> Result<u32, ConfigError> {
    const NAME: &str = "RATE_PERIOD_S";
    match variable(NAME).as_deref() {
        None => Ok(RATE_PERIOD_S),
        Some(text) => text
            .parse()
            .ok()
            .filter(|seconds| (1..=RATE_PERIOD_S_MAX).contains(seconds))
            .ok_or_else(|| ConfigError::new(NAME, format!("must be 1 to {RATE_PERIOD_S_MAX} seconds"))),
    }
}

fn rate_fail_open(variable: impl Fn(&str) -> Option<String>) -> Result<bool, ConfigError> {
    match variable("RATE_ON_FAILURE").as_deref() {
        None | Some("open") => Ok(true),
        Some("closed") => Ok(false),
        Some(_) => Err(ConfigError::new("RATE_ON_FAILURE", "must be open or closed")),
    }
}
