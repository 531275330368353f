//! Claims, for the edge and for back ends.

use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::{HeaderName, HeaderValue, StatusCode, Uri, request};
use claimgate_shared::claim::{ClaimFields, ClaimLookup};
use claimgate_shared::problem::ProblemFields;
use claimgate_shared::signature::SignedParts;
use claimgate_shared::{
    Attempt, CampaignView, Claim, ClaimId, ClaimReply, ClaimRequest, ClaimStatus, Code, Outcome, Problem,
    Quantity, http,
};

use super::auth::Caller;
use super::exchange::{Answer, Refused, json, read_json};
use crate::app::App;
use crate::archive::Settled;
use crate::clock;
use crate::gate::GateError;
use crate::ledger::record::Record;
use crate::ledger::{LedgerError, Settlement};

/// The longest a caller waits for a decision; the edge gives core 2 s in all.
const DECISION_WAIT: Duration = Duration::from_millis(1500);
const REPLAYED: HeaderName = HeaderName::from_static(http::REPLAYED_HEADER);

/// Decides a claim.
#[utoipa::path(
    post, path = "/internal/v1/claims", tag = "internal",
    params(
        ("Claimgate-Attempt" = Option<String>, Header,
            description = "`1` on a claim's very first try: core may then answer sold_out from memory"),
    ),
    request_body = ClaimFields,
    responses(
        (status = 201, description = "Granted, or held", body = ClaimReply),
        (status = 200, description = "The same key asked again: the same claim as it stands", body = ClaimReply),
        (status = "default", description = "A denial or another problem", body = ProblemFields),
    ),
)]
pub async fn claim(State(app): State<App>, request: Request) -> Answer {
    let (parts, body) = read_json(request).await?;
    let request = ClaimRequest::parse(&body)?;
    let (caller, attempt) = app.gatekeeper.caller(&parts.headers, signed_claim(&parts, &body, &request))?;
    caller.may_act_for(&request.user_id)?;
    // Of a campaign that this core has not heard of, SQL tells.
    let decided = async {
        let known = app.known(&request.campaign_id).await?;
        app.decide(&known, &request, attempt).await.map_err(|error| refused(&error))
    };
    let decision = tokio::time::timeout(DECISION_WAIT, decided).await.map_err(|_| unknown_outcome())??;
    let version = decision.version;
    let reply = |claim| ClaimReply { claim, remaining: decision.remaining, version };
    match decision.outcome {
        Outcome::Granted(claim) | Outcome::Held(claim) => json(StatusCode::CREATED, &reply(claim)),
        Outcome::Replayed(claim) => {
            let mut response = json(StatusCode::OK, &reply(claim))?;
            response.headers_mut().insert(REPLAYED, HeaderValue::from_static(http::REPLAYED));
            Ok(response)
        }
        Outcome::Denied(denial) => Err(denial.problem(version, clock::now()).into()),
    }
}

/// Looks a claim up.
#[utoipa::path(
    get, path = "/internal/v1/claims/{claim_id}", tag = "internal",
    params(("claim_id" = ClaimId, Path)),
    responses(
        (status = 200, description = "The claim as it stands, and whether SQL holds it so", body = ClaimLookup),
        (status = "default", description = "404 and other problems", body = ProblemFields),
    ),
)]
pub async fn look_up(State(app): State<App>, parts: request::Parts) -> Answer {
    let caller = caller(&app, &parts)?;
    let id: ClaimId = path_id(&parts.uri).parse().map_err(|_| no_such_claim())?;
    // Missing or not yours: the same answer.
    caller.may_act_for(&id.user).map_err(|_| no_such_claim())?;
    let known = app.known(&id.campaign).await.map_err(|problem| match problem.code {
        Code::CampaignNotFound => no_such_claim(),
        _ => problem,
    })?;
    let (_, record) = app.find(&known, Some(&id)).await.map_err(|error| undecided(&error))?;
    let row = app.archive.claim(&id).await.map_err(|error| app.sql_failed(&error))?;
    let claim = match (record, row) {
        (Some(record), row) => {
            let persisted = row.is_some_and(|row| {
                // The same claim: a revoked one has another place.
                row.claim.sequence == record.sequence && row.revision >= u64::from(record.revision)
            });
            standing(id, &record, Some(persisted))?
        }
        (None, Some(row)) => Claim { persisted: Some(true), ..row.claim },
        (None, None) => return Err(no_such_claim().into()),
    };
    json(StatusCode::OK, &ClaimLookup { claim })
}

/// Confirms a held claim.
#[utoipa::path(
    post, path = "/internal/v1/claims/{claim_id}/confirm", tag = "internal",
    params(("claim_id" = ClaimId, Path)),
    responses(
        (status = 200, description = "Granted", body = ClaimLookup),
        (status = "default", description = "409 claim_expired, claim_returned and other problems", body = ProblemFields),
    ),
)]
pub async fn confirm(State(app): State<App>, parts: request::Parts) -> Answer {
    let claim = settle(&app, &parts, Settlement::Confirm).await?;
    match claim.status {
        ClaimStatus::Expired => Err(stands_in_the_way(Code::ClaimExpired, claim)),
        ClaimStatus::Returned => Err(stands_in_the_way(Code::ClaimReturned, claim)),
        ClaimStatus::Revoked => Err(stands_in_the_way(Code::ClaimRevoked, claim)),
        ClaimStatus::Granted | ClaimStatus::Held => json(StatusCode::OK, &ClaimLookup { claim }),
    }
}

/// Gives a claim's units back.
#[utoipa::path(
    post, path = "/internal/v1/claims/{claim_id}/return", tag = "internal",
    params(("claim_id" = ClaimId, Path)),
    responses(
        (status = 200, description = "Returned; an expired claim stays as it is", body = ClaimLookup),
        (status = "default", description = "404 and other problems", body = ProblemFields),
    ),
)]
pub async fn give_back(State(app): State<App>, parts: request::Parts) -> Answer {
    let claim = settle(&app, &parts, Settlement::Return).await?;
    match claim.status {
        ClaimStatus::Revoked => Err(stands_in_the_way(Code::ClaimRevoked, claim)),
        _ => json(StatusCode::OK, &ClaimLookup { claim }),
    }
}

async fn settle(app: &App, parts: &request::Parts, settlement: Settlement) -> Result<Claim, Problem> {
    if let Caller::Edge(_) = caller(app, parts)? {
        return Err(Problem::new(Code::Forbidden, "the edge may only claim and read"));
    }
    let id: ClaimId = path_id(&parts.uri).parse().map_err(|_| no_such_claim())?;
    let known = app.known_for_claim(&id).await?;
    if known.campaign().archived.is_some() {
        let settled = app.archive.settle(&id, settlement, clock::now()).await;
        match settled.map_err(|error| app.sql_failed(&error))? {
            Settled::Stands(claim) => return Ok(claim),
            Settled::Changed(claim, campaign) => {
                app.campaigns.learn(campaign);
                return Ok(claim);
            }
            Settled::Unknown => return Err(no_such_claim()),
            // It has come back since this core last looked.
            Settled::NotArchived => app.campaigns.learn(app.register(id.campaign.as_str()).await?),
        };
    }
    let settled = app.ledger.settle(&known, &id, settlement).await.map_err(|error| undecided(&error))?;
    app.gate.changed(&id.campaign);
    if let Some(record) = settled {
        return standing(id, &record, None);
    }
    // Not in Redis: revoked, or Redis has lost it. Only SQL can tell.
    match app.archive.claim(&id).await.map_err(|error| app.sql_failed(&error))? {
        None => Err(no_such_claim()),
        Some(row) if row.claim.status == ClaimStatus::Revoked => Ok(row.claim),
        Some(_) => {
            known.distrust();
            Err(undecided(&LedgerError::NotReady("a claim that SQL holds is missing".to_owned())))
        }
    }
}

fn stands_in_the_way(code: Code, claim: Claim) -> Refused {
    let mut problem = Problem::new(code, format!("the claim is {}", claim.status.as_str()));
    problem.members.claim = Some(Box::new(claim));
    problem.into()
}

/// Shows a campaign.
#[utoipa::path(
    get, path = "/internal/v1/campaigns/{id}", tag = "internal",
    params(("id" = claimgate_shared::CampaignId, Path)),
    responses(
        (status = 200, description = "The campaign", body = CampaignView),
        (status = "default", description = "404 and other problems", body = ProblemFields),
    ),
)]
pub async fn campaign(State(app): State<App>, parts: request::Parts) -> Answer {
    caller(&app, &parts)?;
    let known = app.known_by_text(path_id(&parts.uri)).await?;
    let (counters, _) = app.find(&known, None).await.map_err(|error| undecided(&error))?;
    let campaign = app.at_least(&known, counters.version).await?;
    json(StatusCode::OK, &campaign.view(counters.taken, counters.now))
}

/// Who makes a call that has no body.
fn caller(app: &App, parts: &request::Parts) -> Result<Caller, Problem> {
    let (caller, _) = app.gatekeeper.caller(&parts.headers, signed(parts))?;
    Ok(caller)
}

/// What the edge would have signed of a call without a body.
fn signed(parts: &request::Parts) -> SignedParts<'_> {
    let content_type =
        parts.headers.get("content-type").and_then(|value| value.to_str().ok()).unwrap_or_default();
    SignedParts {
        method: parts.method.as_str(),
        path_and_query: parts.uri.path_and_query().map_or("", |path| path.as_str()),
        content_type,
        body: &[],
        user: "",
        client_ip: "",
        idempotency_key: "",
        attempt: Attempt::Unknown,
    }
}

/// What the edge would have signed of a claim.
fn signed_claim<'a>(parts: &'a request::Parts, body: &'a [u8], request: &'a ClaimRequest) -> SignedParts<'a> {
    let mut marks = parts.headers.get_all(Attempt::HEADER).iter();
    let mark = marks.next().and_then(|value| value.to_str().ok()).filter(|_| marks.next().is_none());
    SignedParts {
        body,
        idempotency_key: request.idempotency_key.as_str(),
        attempt: Attempt::of_header(mark),
        ..signed(parts)
    }
}

/// The id in a path, as sent: no id has characters that need decoding, so what has them is no id. It stands in the
/// same place in every route.
pub(super) fn path_id(uri: &Uri) -> &str {
    uri.path().split('/').nth(4).unwrap_or_default()
}

fn standing(id: ClaimId, record: &Record, persisted: Option<bool>) -> Result<Claim, Problem> {
    Ok(Claim {
        campaign_id: id.campaign.clone(),
        user_id: id.user.clone(),
        id,
        quantity: Quantity::try_from(record.quantity).map_err(|_| unknown_outcome())?,
        status: record.status,
        sequence: record.sequence,
        claimed_at: record.claimed_at,
        expires_at: record.expires_at,
        persisted,
    })
}

pub(crate) fn no_such_claim() -> Problem {
    Problem::new(Code::ClaimNotFound, "there is no such claim, or it is not yours")
}

fn unknown_outcome() -> Problem {
    Problem::new(Code::Unavailable, "the outcome is unknown: ask again with the same key")
}

fn refused(error: &GateError) -> Problem {
    match error {
        GateError::Overloaded => {
            Problem::new(Code::Overloaded, "too many claims are waiting; nothing was tried")
        }
        GateError::Ledger(error) => undecided(error),
        GateError::Stopped => unknown_outcome(),
    }
}

/// The one rule by which Redis' troubles become answers.
pub(super) fn undecided(error: &LedgerError) -> Problem {
    // One line a request would let anyone fill the log; the health checks say it once.
    tracing::debug!(%error, "no decision");
    match error {
        LedgerError::NotReady(_) => {
            Problem::new(Code::CampaignNotReady, "the campaign's counters are being rebuilt")
        }
        LedgerError::OutOfMemory(_) => Problem::new(Code::Overloaded, "out of memory; nothing was tried"),
        LedgerError::Unavailable(_) | LedgerError::Register(_) | LedgerError::Malformed(_) => {
            unknown_outcome()
        }
    }
}
