//! Alarm rules and the Grafana dashboard use existing metrics, and each alarm is documented and tested.

use std::collections::BTreeSet;

const RULES: &str = include_str!("../../ops/prometheus/claimgate.rules.yml");
const CASES: &str = include_str!("../../ops/prometheus/claimgate.test.yml");
const DASHBOARD: &str = include_str!("../../ops/grafana/claimgate.json");
const OPERATIONS: &str = include_str!("../../docs/operations.md");
const METRICS: &str = include_str!("../../core/src/metrics.rs");

/// Conditions that must raise an alarm, each a part of a rule's expression.
const WATCHED: [&str; 24] = [
    "up{job=",
    "claimgate_up{part=\"redis\"}",
    "claimgate_up{part=\"sql\"}",
    "claimgate_outbox_lag_seconds",
    "result=\"out_of_memory\"",
    "claimgate_redis_memory_bytes",
    "claimgate_redis_rewrite_failed",
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
    "code=\"unavailable\"",
    "code=\"user_ids_differ\"",
    "claimgate_decision_seconds",
    "claimgate_webhooks_disabled",
    "claimgate_claims_without_codes",
    "state=\"parked\"",
    "claimgate_build_info",
];

/// Returns the words of `text` that begin with `prefix`.
fn words<'a>(text: &'a str, prefix: &str) -> BTreeSet<&'a str> {
    let words = text.split(|character: char| !character.is_ascii_alphanumeric() && character != '_');
    words.filter(|word| word.starts_with(prefix)).collect()
}

/// Returns whether core exports `metric`, ignoring the suffixes of histograms.
fn is_metric_of_core(metric: &str) -> bool {
    let endings = ["_bucket", "_sum", "_count"];
    let base = endings.iter().find_map(|ending| metric.strip_suffix(ending)).unwrap_or(metric);
    METRICS.contains(&format!("\"{base}\"")) || METRICS.contains(&format!("\"{metric}\""))
}

#[test]
fn alarm_rules_and_dashboard_use_only_existing_metrics() {
    for (name, text) in [("rules", RULES), ("cases", CASES), ("dashboard", DASHBOARD)] {
        let metrics = words(text, "claimgate_");
        assert!(metrics.len() >= 10, "{name}: {metrics:?}");
        for metric in metrics {
            assert!(is_metric_of_core(metric), "{name}: core has no {metric}");
        }
    }
}

/// The list of metrics in docs/operations.md must match the metrics that core exports.
#[test]
fn exactly_the_existing_metrics_are_documented() {
    let rows = OPERATIONS.lines().filter_map(|line| line.strip_prefix("| `claimgate_"));
    let documented: BTreeSet<_> = rows.filter_map(|row| row.split(['{', '`']).next()).collect();
    let exported = METRICS.lines().filter_map(|line| line.split_once(" = \"claimgate_")?.1.split('"').next());
    assert_eq!(documented, exported.collect::<BTreeSet<_>>());
}

/// A counter that first appears with its first 503 shows no increase, so no alarm would fire.
#[test]
fn each_reason_for_a_503_is_exported_from_the_start() {
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
        assert!(METRICS.contains(&format!(", \"{reason}\"),")), "core does not export {reason} at zero");
        assert!(OPERATIONS.contains(&format!("`{reason}`")), "docs/operations.md lacks {reason}");
    }
}

#[test]
fn each_required_alarm_exists_is_documented_and_tested() {
    let alarms: Vec<_> = RULES.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    assert_eq!(alarms.len(), WATCHED.len());
    for alarm in alarms {
        assert!(OPERATIONS.contains(&format!("| `{alarm}` |")), "docs/operations.md lacks {alarm}");
        let case = format!("  - name: {alarm}\n");
        assert!(CASES.contains(&case), "no test case makes {alarm} fire");
        assert!(
            CASES.contains(&format!("alertname: {alarm}, eval_time: 45m, exp_alerts: []")),
            "no test case keeps {alarm} silent without a fault"
        );
    }
    let rules: Vec<_> = RULES.lines().filter(|line| line.trim().starts_with("expr:")).collect();
    for watched in WATCHED {
        assert!(rules.iter().any(|rule| rule.contains(watched)), "no alarm covers {watched}");
    }
}
