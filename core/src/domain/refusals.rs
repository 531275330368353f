//! Refused claims, as reported by edges and counted by core.

use claimgate_shared::refusals::{RefusalReport, Refused, UNKNOWN_CAMPAIGN};
use claimgate_shared::{CampaignId, Code, Problem};

/// The reason of refusals whose code this version does not know.
const OTHER_REASON: &str = "other";

/// The program that refused a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum RefusedBy {
    /// An edge, without core.
    Edge,
    /// A core.
    Core,
}

impl RefusedBy {
    /// Returns the name used in SQL.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Edge => "edge",
            Self::Core => "core",
        }
    }
}

/// Refused claims of one campaign, for one reason, in one second.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The campaign's id; empty for ids that name no campaign.
    pub campaign: String,
    /// Seconds since 1970.
    pub at_s: i64,
    /// The problem's code, or `other`.
    pub reason: &'static str,
    /// Number of claims.
    pub count: u64,
}

/// Counts that one reporter sends once, under the next number. Sending them again has no effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The isolate of an edge, or the run of a core.
    pub reporter: String,
    /// Rises with each report of the reporter.
    pub number: u64,
    /// The program that refused the claims.
    pub by: RefusedBy,
    /// The counts.
    pub refusals: Vec<Refusal>,
}

impl Report {
    /// Creates the report that an edge sent.
    ///
    /// # Errors
    /// `invalid_request` if a number does not fit into SQL, or a campaign's id is malformed.
    pub fn of_edge(report: RefusalReport) -> Result<Self, Problem> {
        let out_of_range = |field: &str| Problem::invalid(field, "is too large");
        i64::try_from(report.number).map_err(|_| out_of_range("number"))?;
        let mut refusals = Vec::with_capacity(report.refusals.len());
        for refused in report.refusals {
            let is_id =
                refused.campaign_id == UNKNOWN_CAMPAIGN || refused.campaign_id.parse::<CampaignId>().is_ok();
            if !is_id {
                return Err(Problem::invalid("refusals.campaign_id", "must be an id or empty"));
            }
            refusals.push(Refusal {
                at_s: i64::try_from(refused.at_s).map_err(|_| out_of_range("refusals.at_s"))?,
                reason: known_reason(&refused.reason),
                count: refused.count.into(),
                campaign: refused.campaign_id,
            });
        }
        let reporter = report.reporter.as_str().to_owned();
        Ok(Self { reporter, number: report.number, by: RefusedBy::Edge, refusals })
    }

    /// Creates a report of the core's run `run`.
    pub fn of_core(run: &str, number: u64, refused: Vec<Refused>) -> Self {
        let refusal = |Refused { campaign, code, at_s, count }| Refusal {
            campaign,
            at_s,
            reason: code.as_str(),
            count: u64::from(count),
        };
        let refusals = refused.into_iter().map(refusal).collect();
        Self { reporter: run.to_owned(), number, by: RefusedBy::Core, refusals }
    }
}

fn known_reason(reason: &str) -> &'static str {
    let known = Code::ALL.iter().map(|code| code.as_str()).find(|known| *known == reason);
    known.unwrap_or(OTHER_REASON)
}

#[cfg(test)]
mod tests {
    use claimgate_shared::problem::parse_json;

    use super::*;

    fn report(campaign: &str, reason: &str, number: &str) -> Result<Report, Problem> {
        let body = format!(
            r#"{{"reporter":"r","number":{number},"refusals":[{{"campaign_id":"{campaign}","reason":"{reason}","at_s":7,"count":3}}]}}"#
        );
        Report::of_edge(parse_json(body.as_bytes())?)
    }

    #[test]
    fn unknown_reasons_are_counted_together() {
        assert_eq!(report("demo", "sold_out", "1").unwrap().refusals[0].reason, "sold_out");
        assert_eq!(report("", "from_the_future", "1").unwrap().refusals[0].reason, "other");
    }

    #[test]
    fn malformed_reports_are_rejected() {
        for (campaign, number) in [("a b", "1"), ("demo", "9223372036854775808"), ("demo", "-1")] {
            let problem = report(campaign, "sold_out", number).unwrap_err();
            assert_eq!(problem.code, Code::InvalidRequest, "{campaign} {number}");
        }
    }
}
