//! Rate-limited logging of errors that clients cause: a flood of bad requests must not flood the log.

use std::cell::RefCell;
use std::fmt::Display;
use std::thread::LocalKey;

use claimgate_shared::Timestamp;
use claimgate_shared::jwt::{TokenError, TokenRejection};
use wasm_bindgen::JsValue;

use crate::clock::age_ms;
use crate::variables::ConfigErrors;

/// The minimum time between two lines about the same subject, in milliseconds.
const PERIOD_MS: i64 = 10_000;

thread_local! {
    static TOKENS: RefCell<LogGate<TokenError>> = const { RefCell::new(LogGate::new()) };
    static CONFIG: RefCell<LogGate<()>> = const { RefCell::new(LogGate::new()) };
    static CORES: RefCell<LogGate<usize>> = const { RefCell::new(LogGate::new()) };
    static PASSES: RefCell<LogGate<TokenError>> = const { RefCell::new(LogGate::new()) };
    static KEYS: RefCell<LogGate<KeysSubject>> = const { RefCell::new(LogGate::new()) };
    static CHALLENGES: RefCell<LogGate<ChallengeSubject>> = const { RefCell::new(LogGate::new()) };
}

/// Logs why a request's token was rejected, with the value that differs but without the token.
pub fn token_rejected(request_id: &str, why: &TokenRejection, now: Timestamp) {
    let advice =
        if why.reason == TokenError::Subject { "; USER_ID_FORM=hmac accepts other values" } else { "" };
    rate_limited(&TOKENS, why.reason, now, |suppressed| {
        worker::console_warn!("{request_id} token rejected: {why}{advice}{suppressed}");
    });
}

/// Logs why a claim's pass was rejected, with the value that differs but without the pass.
pub fn pass_rejected(request_id: &str, why: &TokenRejection, now: Timestamp) {
    let advice = match why.reason {
        TokenError::User => "; sub must be the user's id in claims",
        TokenError::UnknownKey => "; PASS_KEYS lists the keys of passes",
        _ => "",
    };
    rate_limited(&PASSES, why.reason, now, |suppressed| {
        worker::console_warn!("{request_id} pass rejected: {why}{advice}{suppressed}");
    });
}

/// Logs which settings are missing or invalid.
pub fn not_configured(why: &ConfigErrors, now: Timestamp) {
    rate_limited(&CONFIG, (), now, |suppressed| worker::console_error!("configuration: {why}{suppressed}"));
}

/// Logs why a core, counted from 1, is not ready.
pub fn core_not_ready(core: usize, why: &str, now: Timestamp) {
    rate_limited(&CORES, core, now, |suppressed| {
        worker::console_warn!("core {core} is not ready: {why}{suppressed}");
    });
}

/// The kind of tokens that keys verify.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyPurpose {
    /// Users' tokens.
    User,
    /// Passes.
    Pass,
}

impl KeyPurpose {
    fn as_str(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Pass => "pass",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KeysSubject {
    NotFetched,
    Ignored(KeyPurpose),
    NotImported(KeyPurpose),
}

/// Logs why the issuer's key set was not fetched.
pub fn keys_not_fetched(why: &dyn Display, now: Timestamp) {
    rate_limited(&KEYS, KeysSubject::NotFetched, now, |suppressed| {
        worker::console_error!("user keys not fetched: {why}{suppressed}");
    });
}

/// Logs why keys of a set may not verify tokens, if there are any.
pub fn keys_ignored(purpose: KeyPurpose, why: &[String], now: Timestamp) {
    if why.is_empty() {
        return;
    }
    rate_limited(&KEYS, KeysSubject::Ignored(purpose), now, |suppressed| {
        worker::console_warn!("{} keys ignored: {}{suppressed}", purpose.as_str(), why.join("; "));
    });
}

/// Logs why the runtime cannot use a key.
pub fn key_not_imported(purpose: KeyPurpose, why: &JsValue, now: Timestamp) {
    rate_limited(&KEYS, KeysSubject::NotImported(purpose), now, |suppressed| {
        worker::console_error!("{} key cannot be used: {why:?}{suppressed}", purpose.as_str());
    });
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ChallengeSubject {
    Refused,
    NotChecked,
}

/// Logs why Turnstile refused a user's token, without the token.
pub fn challenge_refused(why: &str, now: Timestamp) {
    rate_limited(&CHALLENGES, ChallengeSubject::Refused, now, |suppressed| {
        worker::console_warn!("Turnstile token refused: {why}{suppressed}");
    });
}

/// Logs why Turnstile could not check a user's token, and whether the user got a pass anyway.
pub fn challenge_not_checked(why: &str, gets_pass: bool, now: Timestamp) {
    let effect = if gets_pass { "the user gets a pass" } else { "the user gets no pass" };
    rate_limited(&CHALLENGES, ChallengeSubject::NotChecked, now, |suppressed| {
        worker::console_error!("Turnstile token not checked, {effect}: {why}{suppressed}");
    });
}

/// Calls `write` if a line about `subject` is due at `now`, with a note on the suppressed lines.
fn rate_limited<S: PartialEq>(
    gate: &'static LocalKey<RefCell<LogGate<S>>>,
    subject: S,
    now: Timestamp,
    write: impl FnOnce(&str),
) {
    match gate.with_borrow_mut(|gate| gate.admit(subject, now)) {
        None => {}
        Some(0) => write(""),
        Some(suppressed) => write(&format!(" ({suppressed} more since the last such line)")),
    }
}

/// Decides which lines are written. The gate stores every subject, so there must be few.
#[derive(Debug)]
struct LogGate<S> {
    subjects: Vec<(S, LastLine)>,
}

#[derive(Debug)]
struct LastLine {
    at: Timestamp,
    suppressed: u32,
}

impl<S: PartialEq> LogGate<S> {
    const fn new() -> Self {
        Self { subjects: Vec::new() }
    }

    /// Returns how many lines about `subject` were suppressed since the last written line, or `None` if this
    /// line is to be suppressed.
    fn admit(&mut self, subject: S, now: Timestamp) -> Option<u32> {
        let Some((_, last)) = self.subjects.iter_mut().find(|(known, _)| *known == subject) else {
            self.subjects.push((subject, LastLine { at: now, suppressed: 0 }));
            return Some(0);
        };
        if age_ms(last.at, now) < PERIOD_MS {
            last.suppressed = last.suppressed.saturating_add(1);
            return None;
        }
        let suppressed = last.suppressed;
        *last = LastLine { at: now, suppressed: 0 };
        Some(suppressed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_ms(1_700_000_000_000 + ms).unwrap()
    }

    #[test]
    fn a_subject_is_logged_once_per_period_with_a_count() {
        let mut gate = LogGate::new();
        let mut admit = |ms| gate.admit(TokenError::Expired, at(ms));
        assert_eq!([admit(0), admit(1), admit(9_999)], [Some(0), None, None]);
        assert_eq!([admit(10_000), admit(10_001)], [Some(2), None]);
        assert_eq!(admit(60_000), Some(1));
        assert_eq!(admit(90_000), Some(0));
        assert_eq!(admit(0), Some(0), "a clock that was set back suppresses nothing");
    }

    #[test]
    fn subjects_are_limited_independently() {
        let mut gate = LogGate::new();
        assert_eq!(gate.admit(TokenError::Expired, at(0)), Some(0));
        assert_eq!(gate.admit(TokenError::Issuer, at(0)), Some(0));
        assert_eq!(gate.admit(TokenError::Expired, at(1)), None);
    }
}
