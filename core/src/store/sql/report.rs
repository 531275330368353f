//! Sums over a campaign's claims and refusals, for the report on its demand.

use std::collections::BTreeMap;

use claimgate_shared::admin::report::{Peak, ReasonCount, StatusCounts};
use claimgate_shared::{CampaignId, ClaimStatus, Timestamp};
use sqlx::Row as _;
use sqlx::any::AnyRow;

use super::numbers::{unreadable, unsigned};
use super::pool::Pool;
use super::{SqlError, SqlStore, WHOLE_CAMPAIGN_MAX, statements};
use crate::domain::refusals::RefusedBy;

const REASONS: &str = "SELECT reason, refused_by, CAST(SUM(refused) AS BIGINT), MIN(at_s), MAX(at_s) FROM refusals \
    WHERE campaign_id = $1 GROUP BY reason, refused_by ORDER BY reason";

const PEAK: &str = "SELECT at_s, refused_then FROM (SELECT at_s, CAST(SUM(refused) AS BIGINT) AS refused_then FROM refusals \
    WHERE campaign_id = $1 GROUP BY at_s) AS seconds ORDER BY refused_then DESC, at_s LIMIT 1";

/// Sums over a campaign's claims.
#[derive(Debug)]
pub struct ClaimTotals {
    /// Number of claims that are not revoked.
    pub made: u64,
    /// Number of users with such a claim.
    pub users: u64,
    /// Units of these claims, including those that were returned since.
    pub units: u64,
    /// When the first and the last was made; `None` if there is none.
    pub first_and_last: Option<(Timestamp, Timestamp)>,
    /// When the last unit of the total was taken for the first time.
    pub sold_out_at: Option<Timestamp>,
    /// Number of claims by their current status, and the units taken.
    pub statuses: StatusCounts,
    /// Units of granted and held claims.
    pub taken: u64,
    /// The second with the most claims.
    pub peak: Option<Peak>,
}

/// Sums over the refused claims of a campaign.
#[derive(Debug, Default)]
pub struct RefusalTotals {
    /// By reason, in alphabetical order.
    pub by_reason: Vec<ReasonCount>,
    /// The first and the last second with a refusal, since 1970.
    pub first_and_last_s: Option<(i64, i64)>,
    /// The second with the most refusals.
    pub peak: Option<Peak>,
}

/// Claims and refusals in one step of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// When the step begins, in seconds since 1970: a multiple of its length.
    pub at_s: i64,
    /// Claims made.
    pub claims: u64,
    /// Units of these claims.
    pub units: u64,
    /// Claims refused by edges without core.
    pub refused_at_edges: u64,
    /// Claims refused by core.
    pub refused_at_core: u64,
}

impl SqlStore {
    /// Returns the sums over a campaign's claims.
    pub(crate) async fn claim_totals(&self, campaign: &CampaignId) -> Result<ClaimTotals, SqlError> {
        let pool = self.pool.within(WHOLE_CAMPAIGN_MAX);
        let totals = sqlx::query(statements::REPORT_TOTALS).bind(campaign.as_str());
        let row = totals.fetch_one(&mut pool.lease().await?).await?;
        let at = |column: usize| {
            let at_ms: Option<i64> = row.try_get(column)?;
            at_ms.map(Timestamp::from_ms).transpose().map_err(unreadable)
        };
        let (statuses, taken) = statuses(&pool, campaign).await?;
        Ok(ClaimTotals {
            made: unsigned(row.try_get(0)?)?,
            users: unsigned(row.try_get(1)?)?,
            units: unsigned(row.try_get(2)?)?,
            first_and_last: at(3)?.zip(at(4)?),
            sold_out_at: at(5)?,
            statuses,
            taken,
            peak: peak(&pool, statements::REPORT_PEAK, campaign).await?,
        })
    }

    /// Returns the sums over the refused claims of a campaign.
    pub(crate) async fn refusal_totals(&self, campaign: &CampaignId) -> Result<RefusalTotals, SqlError> {
        let pool = self.pool.within(WHOLE_CAMPAIGN_MAX);
        let reasons = sqlx::query(REASONS).bind(campaign.as_str());
        let rows = reasons.fetch_all(&mut pool.lease().await?).await?;
        let (mut by_reason, mut seconds) = (BTreeMap::<String, ReasonCount>::new(), Vec::new());
        for row in &rows {
            let reason: String = row.try_get(0)?;
            let count = by_reason.entry(reason.clone()).or_insert_with(|| ReasonCount::new(reason));
            let by_edges = row.try_get::<&str, _>(1)? == RefusedBy::Edge.as_str();
            *if by_edges { &mut count.at_edges } else { &mut count.at_core } += unsigned(row.try_get(2)?)?;
            seconds.extend([row.try_get::<i64, _>(3)?, row.try_get(4)?]);
        }
        Ok(RefusalTotals {
            by_reason: by_reason.into_values().collect(),
            first_and_last_s: seconds.iter().min().copied().zip(seconds.iter().max().copied()),
            peak: peak(&pool, PEAK, campaign).await?,
        })
    }

    /// Returns claims and refusals from the second `from_s` to before `to_s`, in steps of `each_s` seconds,
    /// without empty steps.
    pub(crate) async fn demand_steps(
        &self,
        campaign: &CampaignId,
        each_s: i64,
        (from_s, to_s): (i64, i64),
    ) -> Result<Vec<Step>, SqlError> {
        let pool = self.pool.within(WHOLE_CAMPAIGN_MAX);
        let query = sqlx::query(statements::REPORT_STEPS).bind(campaign.as_str());
        let query = query.bind(each_s).bind(from_s).bind(to_s);
        let rows = query.fetch_all(&mut pool.lease().await?).await?;
        rows.iter().map(step).collect()
    }
}

async fn statuses(pool: &Pool, campaign: &CampaignId) -> Result<(StatusCounts, u64), SqlError> {
    let query = sqlx::query(statements::REPORT_STATUSES).bind(campaign.as_str());
    let (mut counts, mut taken) = (StatusCounts::default(), 0);
    for row in query.fetch_all(&mut pool.lease().await?).await? {
        let status: ClaimStatus = row.try_get::<&str, _>(0)?.parse().map_err(unreadable)?;
        let (count, units) = (unsigned(row.try_get(1)?)?, unsigned(row.try_get(2)?)?);
        *counts.of(status) = count;
        taken += if matches!(status, ClaimStatus::Granted | ClaimStatus::Held) { units } else { 0 };
    }
    Ok((counts, taken))
}

async fn peak(pool: &Pool, statement: &'static str, campaign: &CampaignId) -> Result<Option<Peak>, SqlError> {
    let query = sqlx::query(statement).bind(campaign.as_str());
    let Some(row) = query.fetch_optional(&mut pool.lease().await?).await? else { return Ok(None) };
    let at = Timestamp::from_ms(row.try_get::<i64, _>(0)?.saturating_mul(1_000)).map_err(unreadable)?;
    Ok(Some(Peak { at, per_s: unsigned(row.try_get(1)?)? }))
}

fn step(row: &AnyRow) -> Result<Step, SqlError> {
    Ok(Step {
        at_s: row.try_get(0)?,
        claims: unsigned(row.try_get(1)?)?,
        units: unsigned(row.try_get(2)?)?,
        refused_at_edges: unsigned(row.try_get(3)?)?,
        refused_at_core: unsigned(row.try_get(4)?)?,
    })
}
