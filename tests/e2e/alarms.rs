//! The alarms' rules and the dashboard name metrics that there are, and each alarm is documented and tested.

use std::collections::BTreeSet;

const RULES: &str = include_str!("../../ops/prometheus/claimgate.rules.yml");
const CASES: &str = include_str!("../../ops/prometheus/claimgate.test.yml");
const DASHBOARD: &str = include_str!("../../ops/grafana/claimgate.json");
const OPERATIONS: &str = include_str!("../../docs/operations.md");
const METRICS: &str = include_str!("../../core/src/metrics.rs");

/// What an operator has to be woken for, or told of: a part of a rule's expression for each.
const WATCHED: [&str; 20] = [
    "up{job=",
    "claimgate_up{part=\"redis\"}",
    "claimgate_up{part=\"sql\"}",
    "claimgate_outbox_lag_seconds",
    "result=\"out_of_memory\"",
    "claimgate_redis_memory_bytes",
    "claimgate_barrier_age_seconds",
    "claimgate_lease_losses_total",
    "claimgate_replicas_missing",
    "claimgate_primaries_refused",
    "claimgate_lost_events_total",
    "claimgate_deleted_events_total",
    "claimgate_dead_letters_total",
    "claimgate_redis_starts_total",
    "code=\"campaign_not_ready\"",
    "code=\"overloaded\"",
    "claimgate_decision_seconds",
    "claimgate_webhooks_disabled",
    "state=\"parked\"",
    "claimgate_build_info",
];

/// The words of `text` that begin so.
fn words<'a>(text: &'a str, prefix: &str) -> BTreeSet<&'a str> {
    let words = text.split(|character: char| !character.is_ascii_alphanumeric() && character != '_');
    words.filter(|word| word.starts_with(prefix)).collect()
}

/// The metrics of core, without a histogram's endings.
fn known(metric: &str) -> bool {
    let endings = ["_bucket", "_sum", "_count"];
    let base = endings.iter().find_map(|ending| metric.strip_suffix(ending)).unwrap_or(metric);
    METRICS.contains(&format!("\"{base}\"")) || METRICS.contains(&format!("\"{metric}\""))
}

#[test]
fn rules_and_dashboard_name_metrics_that_there_are() {
    for (name, text) in [("rules", RULES), ("cases", CASES), ("dashboard", DASHBOARD)] {
        let metrics = words(text, "claimgate_");
        assert!(metrics.len() >= 10, "{name}: {metrics:?}");
        for metric in metrics {
            assert!(known(metric), "{name}: core has no {metric}");
        }
    }
}

/// What docs/operations.md has a row for in its list of metrics is what core tells, with the same labels' names.
#[test]
fn each_metric_is_documented_and_no_other() {
    let rows = OPERATIONS.lines().filter_map(|line| line.strip_prefix("| `claimgate_"));
    let documented: BTreeSet<_> = rows.filter_map(|row| row.split(['{', '`']).next()).collect();
    let told = METRICS.lines().filter_map(|line| line.strip_prefix("const "));
    let told = told.filter_map(|line| line.split_once("&str = \"claimgate_")?.1.split('"').next());
    assert_eq!(documented, told.collect::<BTreeSet<_>>());
}

/// A reason that is not told from the start would be seen first with its first 503: no alarm sees that rise.
#[test]
fn each_reason_for_a_503_is_told_from_the_start() {
    const ERRORS: &str = concat!(
        include_str!("../../core/src/http/error.rs"),
        include_str!("../../core/src/http/middleware.rs"),
        include_str!("../../core/src/http/listeners.rs"),
        include_str!("../../core/src/http/admin/imports.rs"),
        include_str!("../../core/src/http/internal/claims.rs"),
    );
    let in_calls = ERRORS.split("because(\"").skip(1);
    let in_matches = ERRORS.lines().filter_map(|line| line.trim().strip_suffix("\",")?.split_once("=> \""));
    let is_label = |reason: &&str| reason.chars().all(|letter| letter.is_ascii_lowercase() || letter == '_');
    let in_matches = in_matches.map(|(_, reason)| reason).filter(is_label);
    let used: BTreeSet<_> = in_calls.filter_map(|rest| rest.split('"').next()).chain(in_matches).collect();
    assert!(used.len() > 10, "{used:?}");
    for reason in used {
        assert!(METRICS.contains(&format!(", \"{reason}\"),")), "core does not begin {reason} at zero");
        assert!(OPERATIONS.contains(&format!("`{reason}`")), "docs/operations.md lacks {reason}");
    }
}

#[test]
fn each_alarm_is_documented_and_tested_and_what_must_be_watched_is() {
    let alarms: Vec<_> = RULES.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    assert_eq!(alarms.len(), WATCHED.len());
    for alarm in alarms {
        assert!(OPERATIONS.contains(&format!("| `{alarm}` |")), "docs/operations.md lacks {alarm}");
        let case = format!("  - name: {alarm}\n");
        assert!(CASES.contains(&case), "no case lets {alarm} fire");
        assert!(
            CASES.contains(&format!("alertname: {alarm}, eval_time: 45m, exp_alerts: []")),
            "{alarm} on a quiet day"
        );
    }
    let rules: Vec<_> = RULES.lines().filter(|line| line.trim().starts_with("expr:")).collect();
    for watched in WATCHED {
        assert!(rules.iter().any(|rule| rule.contains(watched)), "no alarm watches {watched}");
    }
}
