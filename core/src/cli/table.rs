//! Answers as people read them, at 80 columns.

use comfy_table::presets::NOTHING;
use comfy_table::{ContentArrangement, Table};
use serde_json::Value;

/// One row a campaign; a single one with all its rules.
pub fn campaigns(campaigns: &Value) -> String {
    match campaigns.as_array().map(Vec::as_slice) {
        Some([one]) => campaign(one),
        several => list(several.unwrap_or_default()),
    }
}

/// A campaign with all its rules.
pub fn campaign(campaign: &Value) -> String {
    let limits = &campaign["limits"];
    let mut rows = vec![
        ("id", word(&campaign["id"])),
        ("name", word(&campaign["name"])),
        ("state", word(&campaign["state"])),
        ("opens", word(&campaign["starts_at"])),
        ("closes", or(&campaign["ends_at"], "never")),
        ("time zone", word(&campaign["time_zone"])),
        (
            "taken / total",
            format!("{} / {}", or(&campaign["taken"], "unknown"), or(&limits["total"], "unlimited")),
        ),
        ("per user", or(&limits["per_user"], "unlimited")),
        ("per user and day", or(&limits["per_user_per_day"], "unlimited")),
        ("per claim", or(&limits["per_claim"], "unlimited")),
        ("held for", campaign["hold_seconds"].as_u64().map_or("not held".to_owned(), |s| format!("{s} s"))),
        ("waiting for SQL", or(&campaign["backlog"], "unknown")),
        ("version", word(&campaign["version"])),
    ];
    // Units that were added bring one.
    if let Some(key) = campaign.get("idempotency_key") {
        rows.push(("key", word(key)));
    }
    pairs(&rows)
}

/// A claim that stands.
pub fn claim(reply: &Value, replayed: bool) -> String {
    let claim = &reply["claim"];
    let status = word(&claim["status"]);
    let mut rows = vec![
        ("claim", word(&claim["id"])),
        ("status", if replayed { format!("{status} (asked before: the same claim)") } else { status }),
        ("quantity", word(&claim["quantity"])),
        ("sequence", word(&claim["sequence"])),
        ("claimed at", word(&claim["claimed_at"])),
        ("expires at", or(&claim["expires_at"], "never")),
    ];
    // A claim just made brings these; one confirmed or returned does not.
    if let Some(key) = reply.get("idempotency_key") {
        rows.push(("left", or(&reply["remaining"], "unlimited")));
        rows.push(("key", word(key)));
    }
    pairs(&rows)
}

/// One row a claim.
pub fn claims(claims: &Value) -> String {
    let mut table = table();
    table.set_header(["claim", "quantity", "status", "sequence", "claimed at"]);
    for claim in claims.as_array().into_iter().flatten() {
        table.add_row(["id", "quantity", "status", "sequence", "claimed_at"].map(|name| word(&claim[name])));
    }
    table.to_string()
}

/// Each primary with its replicas, and what each of them counts for.
pub fn replication(reply: &Value) -> String {
    let mut lines =
        vec![format!("replicas that must have a claim: {} at least", word(&reply["replicas_min"]))];
    let mut table = table();
    table.set_header(["primary", "replica", "", ""]);
    for primary in reply["primaries"].as_array().into_iter().flatten() {
        let in_set = |name: &Value, kind: &str| {
            primary["set"][kind].as_array().is_some_and(|names| names.contains(name))
        };
        table.add_row([word(&primary["primary"]), String::new(), or(&primary["refused"], ""), String::new()]);
        for replica in primary["replicas"].as_array().into_iter().flatten() {
            let name = &replica["replica"];
            let counts = match (in_set(name, "members"), in_set(name, "joining")) {
                (true, _) => "must have it",
                (_, true) => "joining",
                _ => "does not count",
            };
            let keeps_up = if replica["keeps_up"] == Value::Bool(true) { "keeps up" } else { "is behind" };
            table.add_row([String::new(), word(name), counts.to_owned(), keeps_up.to_owned()]);
        }
    }
    if table.row_count() > 0 {
        lines.push(table.to_string());
    }
    for orphan in reply["orphans"].as_array().into_iter().flatten() {
        lines.push(format!(
            "the primary {} is gone, and no member of its set has replaced it",
            word(&orphan["primary"])
        ));
    }
    lines.join("\n")
}

/// Redis and SQL side by side, then what differs and what was done about it.
pub fn reconciliation(reply: &Value) -> String {
    let (redis, sql, outbox) = (&reply["redis"], &reply["sql"], &reply["outbox"]);
    let mut table = table();
    table.set_header(["", "Redis", "SQL"]);
    for name in ["taken", "sequence", "version", "holds"] {
        table.add_row([name.to_owned(), or(&redis[name], "not ready"), word(&sql[name])]);
    }
    table.add_row(["claims", "", &word(&sql["claims"])]);
    table.add_row(["revoked", "", &word(&sql["revoked"])]);
    let mut lines = vec![table.to_string()];
    lines.push(format!(
        " outbox: {} entries wait, {} dead letters",
        outbox["entries"], outbox["dead_letters"]
    ));
    for gap in sql["sequence_gaps"].as_array().into_iter().flatten() {
        lines.push(format!(
            " no claim has the sequences {} to {}: a loss before they reached SQL",
            gap["from"], gap["to"]
        ));
    }
    for difference in reply["differences"].as_array().into_iter().flatten() {
        lines.push(format!(" differs: {}: {}", word(&difference["name"]), word(&difference["detail"])));
    }
    for repair in reply["repairs"].as_array().into_iter().flatten() {
        lines.push(format!(" done: {}", word(repair)));
    }
    if reply["agrees"] == Value::Bool(true) {
        lines.push(" Redis and SQL agree".to_owned());
    }
    lines.join("\n")
}

/// One row a change: what it changed, from what, and to what.
pub fn audit(items: &Value) -> String {
    let mut table = table();
    table.set_header(["at", "who", "what", "campaign or claim", "changed"]);
    for item in items.as_array().into_iter().flatten() {
        let mut changed = Vec::new();
        if !item["before"].is_null() {
            differences("", &item["before"], &item["after"], &mut changed);
        }
        table.add_row([
            word(&item["at"]),
            word(&item["who"]),
            word(&item["what"]),
            or(&item["webhook_id"], &or(&item["claim_id"], &word(&item["campaign_id"]))),
            changed.join(", "),
        ]);
    }
    table.to_string()
}

pub fn webhooks(items: &Value) -> String {
    let mut table = table();
    table.set_header(["id", "url", "campaign", "delivered", "waiting", "parked", "state"]);
    for item in items.as_array().into_iter().flatten() {
        table.add_row([
            word(&item["id"]),
            word(&item["url"]),
            or(&item["campaign_id"], "all"),
            word(&item["delivered"]),
            word(&item["waiting"]),
            word(&item["parked"]),
            or(&item["disabled_because"], "enabled"),
        ]);
    }
    table.to_string()
}

pub fn webhook(webhook: &Value) -> String {
    let mut rows = vec![
        ("webhook", word(&webhook["id"])),
        ("url", word(&webhook["url"])),
        ("campaign", or(&webhook["campaign_id"], "all")),
        ("state", or(&webhook["disabled_because"], "enabled")),
    ];
    if webhook["secret"].is_string() {
        rows.push(("secret, not shown again", word(&webhook["secret"])));
    }
    pairs(&rows)
}

pub fn capacity(plan: &Value) -> String {
    let number = |name: &str| word(&plan[name]);
    let mut text = pairs(&[
        ("Redis primaries", number("redis_primaries")),
        ("Redis replicas, in all", number("redis_replicas")),
        ("  maxmemory of each, MiB", number("redis_maxmemory_mib")),
        ("  memory of its machine, MiB", number("redis_machine_mib")),
        ("  processors at the peak", number("redis_processors")),
        ("cores", number("cores")),
        ("  processors of each", number("core_processors")),
        ("workerd edges, if not on Cloudflare", number("edges")),
        ("rows in SQL", number("sql_rows")),
        ("  MiB of them", number("sql_mib")),
        ("  s until SQL has all", number("sql_behind_s")),
    ]);
    for warning in plan["warnings"].as_array().into_iter().flatten() {
        text.push_str("\nwarning: ");
        text.push_str(&word(warning));
    }
    text + "\nWhat this reckons with, and what it assumes: docs/capacity.md"
}

pub fn tested(tested: &Value) -> String {
    pairs(&[("test event", or(&tested["error"], "taken"))])
}

pub fn deliveries(events: &Value) -> String {
    let mut table = table();
    table.set_header(["claim", "status", "tries", "since", "next", "last error"]);
    for event in events.as_array().into_iter().flatten() {
        table.add_row([
            word(&event["claim_id"]),
            word(&event["status"]),
            word(&event["tries"]),
            word(&event["first_at"]),
            or(&event["next_at"], "never"),
            word(&event["last_error"]),
        ]);
    }
    table.to_string()
}

/// The members of `after` that differ from those of `before`, each by its path.
fn differences(path: &str, before: &Value, after: &Value, into: &mut Vec<String>) {
    for (name, value) in after.as_object().into_iter().flatten() {
        let path = format!("{path}{name}");
        if value.is_object() {
            differences(&format!("{path}."), &before[name], value, into);
        } else if before[name] != *value {
            into.push(format!("{path}: {} to {}", or(&before[name], "none"), or(value, "none")));
        }
    }
}

fn list(campaigns: &[Value]) -> String {
    let mut table = table();
    table.set_header(["id", "state", "taken", "total", "opens", "closes"]);
    for campaign in campaigns {
        table.add_row([
            word(&campaign["id"]),
            word(&campaign["state"]),
            or(&campaign["taken"], "unknown"),
            or(&campaign["limits"]["total"], "unlimited"),
            word(&campaign["starts_at"]),
            or(&campaign["ends_at"], "never"),
        ]);
    }
    table.to_string()
}

fn pairs(rows: &[(&str, String)]) -> String {
    let mut table = table();
    for (name, value) in rows {
        table.add_row([name, value.as_str()]);
    }
    table.to_string()
}

fn table() -> Table {
    let mut table = Table::new();
    table.load_style(NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
    table
}

fn word(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn or(value: &Value, none: &str) -> String {
    if value.is_null() { none.to_owned() } else { word(value) }
}

#[cfg(test)]
mod tests {
    use claimgate_shared::Version;

    use super::*;
    use crate::engine::reconcile::{Difference, Gap, OutboxSide, Reconciliation, RedisSide, SqlSide};

    /// From the type that core answers with: a member renamed there but not here would be printed as `null`.
    #[test]
    fn a_reconciliation_is_printed_with_all_its_numbers() {
        let reply = Reconciliation {
            agrees: false,
            redis: Some(RedisSide {
                taken: 11,
                taken_by_users: 12,
                sequence: 13,
                version: Version::new(14),
                holds: 15,
            }),
            sql: SqlSide {
                taken: 21,
                sequence: 22,
                version: Version::new(23),
                holds: 24,
                claims: 25,
                revoked: 26,
                sequence_gaps: vec![Gap { from: 31, to: 32 }],
            },
            outbox: OutboxSide { entries: 41, events: 42, oldest: None, dead_letters: 43 },
            differences: vec![Difference { name: "taken".to_owned(), detail: "11 and 21".to_owned() }],
            repairs: vec!["loaded".to_owned()],
        };
        let text = reconciliation(&serde_json::to_value(reply).unwrap());
        let lines: Vec<_> =
            text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        assert_eq!(
            lines,
            [
                "Redis SQL",
                "taken 11 21",
                "sequence 13 22",
                "version 14 23",
                "holds 15 24",
                "claims 25",
                "revoked 26",
                "outbox: 41 entries wait, 43 dead letters",
                "no claim has the sequences 31 to 32: a loss before they reached SQL",
                "differs: taken: 11 and 21",
                "done: loaded",
            ]
        );
    }
}
