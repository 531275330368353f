//! Challenges: a user who solves one gets a pass for one campaign, signed by this edge.
//!
//! `settings` reads the variables, `altcha` issues and checks proofs of work, `turnstile` asks Cloudflare's server, and
//! `routes` handles the calls.

mod altcha;
mod routes;
mod settings;
mod turnstile;

use claimgate_shared::altcha::AltchaData;
use claimgate_shared::challenge::{Challenge, PassReply, SolvedChallenge};
use claimgate_shared::jwt::Pass;
use claimgate_shared::signature::NamedKey;
use claimgate_shared::{CampaignId, Code, Problem, Timestamp, UserId};
use worker::Env;

pub use self::altcha::Altcha;
use self::altcha::AltchaSecrets;
pub use self::settings::read;
pub use self::turnstile::Turnstile;
use self::turnstile::{TOKEN_BYTES_MAX, Verdict};
use crate::log;

/// `CHALLENGE` and the settings that belong to it.
#[derive(Debug, Clone)]
pub struct Challenges {
    kind: Kind,
    /// `PASS_SIGNING_KEY`: signs the passes.
    pub signing_key: NamedKey,
    /// `PASS_SECONDS`: how long a pass is valid.
    pass_s: u32,
}

/// The kind of challenge.
#[derive(Debug, Clone)]
enum Kind {
    Altcha(Altcha),
    Turnstile(Turnstile),
}

/// The user who solves a challenge, and the campaign.
#[derive(Debug, Clone)]
struct Solver {
    user: UserId,
    campaign: CampaignId,
    /// The client's address, if known.
    address: Option<String>,
}

impl Challenges {
    /// Returns the origin of the scripts and frames that the page may load for a challenge, if it is not the page's.
    pub fn page_origin(&self) -> Option<&str> {
        match &self.kind {
            Kind::Altcha(_) => None,
            Kind::Turnstile(turnstile) => Some(turnstile.origin()),
        }
    }

    async fn issue(&self, solver: Solver, now: Timestamp) -> Result<Challenge, Problem> {
        match &self.kind {
            Kind::Altcha(altcha) => {
                altcha.issue(&self.secrets(), solver.data(), now).await.map(Challenge::Altcha)
            }
            Kind::Turnstile(turnstile) => Ok(Challenge::Turnstile(turnstile.widget())),
        }
    }

    async fn check(
        &self,
        answer: &SolvedChallenge,
        solver: &Solver,
        env: &Env,
        now: Timestamp,
    ) -> Result<(), Problem> {
        match (&self.kind, answer) {
            (Kind::Altcha(_), SolvedChallenge { altcha: Some(payload), turnstile: None }) => {
                let checked = self.secrets().check(payload, &solver.data(), now);
                checked.map_err(|why| not_solved(format!("{why}: get a new challenge")))
            }
            (Kind::Turnstile(turnstile), SolvedChallenge { altcha: None, turnstile: Some(token) }) => {
                if token.is_empty() || token.len() > TOKEN_BYTES_MAX {
                    let form = format!("must have 1 to {TOKEN_BYTES_MAX} bytes");
                    return Err(Problem::invalid("turnstile", form));
                }
                let verdict = turnstile.verify(env, token, solver.address.clone()).await;
                judge(verdict, turnstile.fail_open, now)
            }
            _ => Err(Problem::invalid("body", "must have the one member of this edge's kind of challenge")),
        }
    }

    fn pass(&self, solver: Solver, now: Timestamp) -> Result<PassReply, Problem> {
        let whole_second = Timestamp::from_ms(now.as_ms() / 1000 * 1000).unwrap_or(now);
        let expires_at = whole_second.saturating_add_ms(i64::from(self.pass_s) * 1000);
        let pass =
            Pass { user: solver.user, campaign: solver.campaign, expires_at, not_before: None, units: None };
        let failed = |_| Problem::new(Code::Unavailable, "the pass could not be signed");
        Ok(PassReply { pass: pass.sign(&self.signing_key).map_err(failed)?, expires_at })
    }

    fn secrets(&self) -> AltchaSecrets {
        AltchaSecrets::of(&self.signing_key.key)
    }
}

impl Solver {
    fn data(&self) -> AltchaData {
        AltchaData { campaign: self.campaign.clone(), user: self.user.clone() }
    }
}

/// Decides by the service's verdict. An outage is not the user's fault, but only an operator can decide that users
/// then get a pass. An invalid token never gets one.
fn judge(verdict: Verdict, fail_open: bool, now: Timestamp) -> Result<(), Problem> {
    match verdict {
        Verdict::Solved => Ok(()),
        Verdict::Refused(why) => {
            log::challenge_refused(&why, now);
            Err(not_solved("the challenge was not solved, has expired, or was already used: solve a new one"))
        }
        Verdict::Unanswered(why) => {
            log::challenge_not_checked(&why, fail_open, now);
            if fail_open { Ok(()) } else { Err(not_checked()) }
        }
        Verdict::Unusable(why) => {
            log::challenge_not_checked(&why, false, now);
            Err(not_checked())
        }
    }
}

fn not_solved(detail: impl Into<String>) -> Problem {
    Problem::new(Code::ChallengeFailed, detail)
}

fn not_checked() -> Problem {
    Problem::new(Code::Unavailable, "the challenge could not be checked: solve a new one")
}
