//! Units added to a campaign's total, or removed from it.

use claimgate_shared::campaign::AdminState;
use claimgate_shared::problem::parse_json;
use claimgate_shared::{Code, IdempotencyKey, Limits, Problem, Version};
use serde::Deserialize;

use super::campaign::Campaign;

/// `POST /admin/v1/campaigns/{id}/add`.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Addition {
    /// Units to add to the total; a negative number removes them.
    #[schema(minimum = -4_294_967_295_i64, maximum = 4_294_967_295_i64)]
    pub units: i64,
    /// A retry with the same key adds nothing more.
    pub idempotency_key: IdempotencyKey,
}

impl Addition {
    /// Parses the request body. An error names the invalid field.
    ///
    /// # Errors
    /// `invalid_request`, with the invalid field; `quantity_out_of_range` for more units than the highest
    /// possible total.
    pub fn parse(body: &[u8]) -> Result<Self, Problem> {
        let addition: Self = parse_json(body)?;
        if addition.units.unsigned_abs() > u64::from(u32::MAX) {
            let detail = format!("units: must be from -{0} to {0}", u32::MAX);
            return Err(out_of_range(detail));
        }
        Ok(addition)
    }

    /// Returns `campaign` with the units added and its version raised.
    ///
    /// # Errors
    /// `campaign_ended`; `import_unfinished`; `invalid_request` without a total; `quantity_out_of_range` if
    /// the new total would be out of range; `codes_missing`.
    pub(crate) fn apply(&self, campaign: &Campaign) -> Result<Campaign, Problem> {
        if campaign.admin_state == AdminState::Ended {
            return Err(Problem::new(
                Code::CampaignEnded,
                "the campaign has ended and can no longer be changed",
            ));
        }
        if campaign.unfinished_import.is_some() {
            let detail = "an import is unfinished; send the same file again to complete it";
            return Err(Problem::new(Code::ImportUnfinished, detail));
        }
        let unlimited = || Problem::invalid("units", "the campaign's total is unlimited");
        let total = campaign.limits.total.ok_or_else(unlimited)?;
        let sum = i64::from(total).checked_add(self.units).and_then(|sum| u32::try_from(sum).ok());
        let limits = Limits { total: Some(sum.ok_or_else(|| total_out_of_range(total))?), ..campaign.limits };
        campaign.check_new_total(limits.total)?;
        Ok(Campaign { limits, version: campaign.version.next(), evicted: None, ..campaign.clone() })
    }

    /// Returns the problem for a key that was used before with a different number of units.
    pub(crate) fn key_reused() -> Problem {
        let detail = "this idempotency key has added another number of units";
        Problem::new(Code::IdempotencyKeyReused, detail)
    }
}

/// An addition to the campaign's total that Redis has applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AppliedAddition {
    /// The idempotency key of the addition.
    pub idempotency_key: String,
    /// The units that were added.
    pub units: i64,
    /// The version that the addition created.
    pub version: Version,
}

impl AppliedAddition {
    /// Parses the lines that `set_rules.lua` writes to Redis; `None` if they are malformed.
    pub(crate) fn read_all(lines: &str) -> Option<Vec<Self>> {
        let read = |line: &str| {
            let mut parts = line.split(' ');
            let (idempotency_key, units, version) = (parts.next()?, parts.next()?, parts.next()?);
            Some(Self {
                idempotency_key: idempotency_key.to_owned(),
                units: units.parse().ok()?,
                version: Version::new(version.parse().ok()?),
            })
        };
        lines.lines().map(read).collect()
    }
}

fn total_out_of_range(total: u32) -> Problem {
    out_of_range(format!("units: the total is {total}; after the addition it must be 0 to {}", u32::MAX))
}

fn out_of_range(detail: String) -> Problem {
    let mut problem = Problem::new(Code::QuantityOutOfRange, detail);
    problem.extensions.field = Some("units".to_owned());
    problem
}

#[cfg(test)]
mod tests {
    use claimgate_shared::Timestamp;

    use super::super::campaign_change::NewCampaign;
    use super::*;

    fn total_after(total: &str, units: i64) -> Result<Option<u32>, Code> {
        let body = format!(
            r#"{{"id":"d","name":"D","starts_at":"2026-01-01T00:00:00Z","limits":{{"total":{total}}}}}"#
        );
        let campaign = NewCampaign::parse(body.as_bytes()).unwrap().created_at(Timestamp::default()).unwrap();
        let body = format!(r#"{{"units":{units},"idempotency_key":"k"}}"#);
        let added = Addition::parse(body.as_bytes()).and_then(|addition| addition.apply(&campaign));
        let added = added.map_err(|problem| problem.code)?;
        assert_eq!(added.version, campaign.version.next());
        Ok(added.limits.total)
    }

    #[test]
    fn the_total_stays_within_its_range() {
        assert_eq!(total_after("10", 5), Ok(Some(15)));
        assert_eq!(total_after("10", -10), Ok(Some(0)));
        assert_eq!(total_after("0", 4_294_967_295), Ok(Some(u32::MAX)));
        assert_eq!(total_after("10", -11), Err(Code::QuantityOutOfRange));
        assert_eq!(total_after("1", 4_294_967_295), Err(Code::QuantityOutOfRange));
        for extreme in [i64::MAX, i64::MIN, 4_294_967_296, -4_294_967_296] {
            assert_eq!(total_after("1", extreme), Err(Code::QuantityOutOfRange));
            assert_eq!(total_after("null", extreme), Err(Code::QuantityOutOfRange), "also without a total");
        }
        assert_eq!(total_after("null", 1), Err(Code::InvalidRequest));
    }

    #[test]
    fn a_malformed_addition_is_rejected_with_its_field() {
        for (body, field) in [
            (r#"{"units":1.5,"idempotency_key":"k"}"#, "units"),
            (r#"{"units":"1","idempotency_key":"k"}"#, "units"),
            (r#"{"units":99999999999999999999,"idempotency_key":"k"}"#, "units"),
            (r#"{"units":1,"idempotency_key":"a b"}"#, "idempotency_key"),
            (r#"{"units":1,"idempotency_key":"k","more":1}"#, "more"),
            (r#"{"units":1}"#, "idempotency_key"),
            (r#"[1,"k"]"#, "body"),
        ] {
            let problem = Addition::parse(body.as_bytes()).unwrap_err();
            assert_eq!(problem.extensions.field.as_deref(), Some(field), "{body}");
        }
    }
}
