//! Many claims and their outcomes, checked by [`Checker`](crate::checker::Checker).

use crate::Reply;

/// One attempt to claim.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClaimAttempt {
    /// The user who claims.
    pub user: String,
    /// The idempotency key.
    pub key: String,
    /// Requested units.
    pub units: u32,
}

/// The outcome of a claim attempt as its caller sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClaimOutcome {
    /// 200 or 201: the claim exists.
    Claimed {
        /// The claim's id.
        id: String,
        /// The sequence number.
        sequence: u64,
        /// 200 instead of 201: an earlier try was granted.
        replayed: bool,
        /// Units left after this claim; `None` also for a replay.
        remaining: Option<u64>,
    },
    /// The claim was denied.
    Denied {
        /// The problem's code.
        code: String,
        /// The denial's `remaining`.
        remaining: Option<u64>,
    },
    /// 503, or no response.
    Unknown,
}

impl ClaimOutcome {
    /// Returns the outcome in a claim's response; `None` for 503.
    pub fn of(reply: &Reply) -> Option<Self> {
        match reply.status {
            200 | 201 => {
                let body = reply.json();
                Some(Self::Claimed {
                    id: body["claim"]["id"].as_str().expect("an id").to_owned(),
                    sequence: body["claim"]["sequence"].as_u64().expect("a sequence"),
                    replayed: reply.status == 200,
                    remaining: body["remaining"].as_u64(),
                })
            }
            403 | 409 | 422 => {
                Some(Self::Denied { code: reply.code(), remaining: reply.json()["remaining"].as_u64() })
            }
            503 => None,
            other => panic!("{other}: {}", reply.text()),
        }
    }
}

/// Attempts of `users` users with `each` keys each, one unit per claim; all first keys come first.
pub fn claim_attempts(users: usize, each: usize) -> Vec<ClaimAttempt> {
    let one = |each: usize, user: usize| ClaimAttempt {
        user: format!("u{user}"),
        key: format!("k{each}"),
        units: 1,
    };
    (0..each).flat_map(|key| (0..users).map(move |user| one(key, user))).collect()
}
