//! Output of the commands that create or change a campaign.

use serde_json::Value;

use super::call_args::CallArgs;
use super::client::CallError;
use super::printer::{say, show};
use super::table;
use crate::domain::codes::PER_CLAIM_MAX;

/// The limits, from the narrowest to the widest.
const LIMITS: [&str; 4] = ["per_claim", "per_user_per_day", "per_user", "total"];

/// Shows a campaign that was created or changed, and warns about limits that are probably not intended.
pub fn show_changed(call: &CallArgs, campaign: &Value) -> Result<(), CallError> {
    show::<CallError>(call.json, campaign, || table::campaign(campaign))?;
    for warning in warnings(campaign, flag) {
        say(&warning);
    }
    Ok(())
}

/// Returns the flag of a limit.
fn flag(limit: &str) -> String {
    format!("--{}", limit.replace('_', "-"))
}

/// Returns a sentence for each limit of `campaign` that is probably not intended. `name` returns the name of
/// a limit in these sentences.
pub fn warnings(campaign: &Value, name: fn(&str) -> String) -> Vec<String> {
    let limits = &campaign["limits"];
    let mut given: Vec<_> =
        LIMITS.iter().filter_map(|limit| Some((*limit, limits[limit].as_u64()?))).collect();
    // With codes, this is the limit if none was set.
    given.retain(|limit| campaign["codes"] != true || *limit != ("per_claim", PER_CLAIM_MAX.get().into()));
    let mut warnings = Vec::new();
    for (at, (limit, units)) in given.iter().enumerate() {
        // A total of 0 is for a campaign that starts empty.
        let wider = given[at + 1..].iter().find(|(_, wider)| (1..*units).contains(wider));
        if let Some((wider_limit, wider)) = wider {
            let (limit, wider_limit) = (name(limit), name(wider_limit));
            warnings.push(format!("{limit} {units} is never reached: {wider_limit} {wider} is lower"));
        }
    }
    match (campaign["taken"].as_u64(), limits["total"].as_u64()) {
        (Some(taken), Some(total)) if taken > total => {
            warnings.push(format!(
                "{taken} units are taken, more than the total of {total}: no more are granted, and none are revoked"
            ));
        }
        _ => {}
    }
    warnings
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn limits_that_are_never_reached_are_reported() {
        let warnings = |limits: Value, taken: u64| warnings(&json!({"limits": limits, "taken": taken}), flag);
        let none: [&str; 0] = [];
        assert_eq!(
            warnings(json!({"total": 100, "per_user": 3, "per_user_per_day": 1, "per_claim": 1}), 100),
            none
        );
        assert_eq!(warnings(json!({"total": 0, "per_user": 3}), 0), none);
        assert_eq!(warnings(json!({"total": null, "per_user": 3}), 9), none);
        assert_eq!(
            warnings(json!({"total": 5, "per_user": 10, "per_claim": 11}), 0),
            [
                "--per-claim 11 is never reached: --per-user 10 is lower",
                "--per-user 10 is never reached: --total 5 is lower"
            ]
        );
        let with_codes = json!({"codes": true, "limits": {"total": 4, "per_user": 1, "per_claim": 1000}});
        assert_eq!(super::warnings(&with_codes, flag), none, "the limit per claim was not set");
        assert_eq!(
            warnings(json!({"total": 1}), 3),
            ["3 units are taken, more than the total of 1: no more are granted, and none are revoked"]
        );
        assert_eq!(
            warnings(json!({"total": 0}), 3),
            ["3 units are taken, more than the total of 0: no more are granted, and none are revoked"]
        );
    }
}
