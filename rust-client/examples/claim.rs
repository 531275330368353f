//! Claims with the Rust client, through core or the edge. The conformance suite (`client/conformance/`) runs it.
//!
//! `claim core|edge CAMPAIGN USER [QUANTITY]` prints the outcome as one line of JSON. If it is unknown, run
//! it again: the claim counts once. Through the edge, USER must be the user of `CLAIMGATE_TOKEN`.

use std::error::Error as StdError;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{env, fs, io};

use claimgate_client::{Answer, ClaimCall, Edge, Error, Internal, Retries};
use claimgate_shared::{ClaimReply, ClaimRequest, Quantity};
use serde_json::{Value, json};

type Failure = Box<dyn StdError>;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let words: Vec<_> = env::args().skip(1).collect();
    let [door, campaign, user, quantity @ ..] = words.as_slice() else {
        return Err("usage: claim core|edge CAMPAIGN USER [QUANTITY]".into());
    };
    let quantity = quantity.first().map_or(Ok(1), |text| text.parse())?;
    let new = ClaimCall::new(campaign.parse()?, user.parse()?, Quantity::try_from(quantity)?)?;
    let file = PathBuf::from(env::var("CLAIMGATE_KEYS").unwrap_or_else(|_| ".".to_owned()))
        .join(format!("{campaign}.{user}.json"));
    let (mut call, is_new) = store(&file, new)?;
    let outcome = if call.request().quantity.get() == quantity {
        outcome(send(door, &mut call).await, is_new)?
    } else {
        let problem = json!({"code": "claim_pending", "detail": "of a different quantity"});
        json!({"outcome": "unknown", "problem": problem})
    };
    writeln!(io::stdout(), "{outcome}")?;
    // The outcome is shown: after a crash before this line, the same claim is retried.
    if outcome["outcome"] != "unknown" {
        fs::remove_file(file)?;
    }
    Ok(())
}

/// Keeps the request in a file before its first try. Returns the call to make, and whether it is new. A link
/// never replaces a request that is stored already.
fn store(file: &Path, new: ClaimCall) -> Result<(ClaimCall, bool), Failure> {
    let unlinked = file.with_extension(new.request().idempotency_key.as_str());
    fs::write(&unlinked, serde_json::to_vec(new.request())?)?;
    let linked = fs::hard_link(&unlinked, file);
    fs::remove_file(unlinked)?;
    match linked {
        Ok(()) => Ok((new, true)),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            let old: Value = serde_json::from_slice(&fs::read(file)?)?;
            let key = old["idempotency_key"].as_str().unwrap_or_default().parse()?;
            let quantity = u32::try_from(old["quantity"].as_u64().unwrap_or_default())?.try_into()?;
            let request = ClaimRequest { idempotency_key: key, quantity, ..new.request().clone() };
            Ok((ClaimCall::retry(request), false))
        }
        Err(error) => Err(error.into()),
    }
}

async fn send(door: &str, call: &mut ClaimCall) -> Result<Answer<ClaimReply>, Error> {
    let variable = |name| env::var(name).map_err(|_| Error::Setup(format!("{name} is not set")));
    let (url, token) = (variable("CLAIMGATE_URL")?, variable("CLAIMGATE_TOKEN")?);
    let try_timeout = milliseconds("CLAIMGATE_TRY_MS", 6000)?;
    let retries = Retries { timeout: milliseconds("CLAIMGATE_DEADLINE_MS", 10_000)?, ..Retries::default() };
    if door == "edge" {
        Edge::new(&url)?.with_retries(retries).with_try_timeout(try_timeout).claim(&token, call).await
    } else {
        Internal::new(&url, &token)?.with_retries(retries).with_try_timeout(try_timeout).claim(call).await
    }
}

fn milliseconds(name: &str, default: u64) -> Result<Duration, Error> {
    let Ok(text) = env::var(name) else { return Ok(Duration::from_millis(default)) };
    let milliseconds = text.parse().map_err(|_| Error::Setup(format!("{name}: {text} is not a number")))?;
    Ok(Duration::from_millis(milliseconds))
}

fn outcome(answer: Result<Answer<ClaimReply>, Error>, is_new: bool) -> Result<Value, Failure> {
    let error = match answer {
        Ok(answer) => {
            let claim = answer.read()?.claim;
            return Ok(json!({"outcome": "claimed", "claim": claim, "replayed": answer.replayed}));
        }
        Err(error) => error,
    };
    let problem = match &error {
        Error::Problem(problem) => problem.json.clone(),
        Error::NoAnswer { .. } => json!({"code": "network", "status": 0, "detail": error.to_string()}),
        Error::Unread(_) | Error::Setup(_) => return Err(error.into()),
    };
    // Core looks up the key before its rules: a denial also decides the claims of earlier runs.
    let is_denied = error.problem().is_some_and(|problem| matches!(problem.status.as_u16(), 403 | 409 | 422));
    let is_unknown = error.retry_after().is_some() || (!is_new && !is_denied);
    Ok(json!({"outcome": if is_unknown { "unknown" } else { "refused" }, "problem": problem}))
}
