//! Answers formatted for people. An id, a time or any other value is never truncated: rows wider than the
//! terminal become records with a line for each value.

mod report;

use claimgate_shared::Timestamp;
use comfy_table::Table;
use comfy_table::presets::NOTHING;
use serde_json::Value;

pub use self::report::report;
use super::times::{shown, zone_of};
use crate::domain::days::TimeZone;

/// Formats one row per campaign, with times in its time zone. On a narrow terminal the column of opening
/// times is dropped first.
pub fn campaigns(campaigns: &Value) -> String {
    let row = |campaign: &Value| {
        let zone = zone_of(campaign);
        vec![
            text_of(&campaign["id"]),
            text_of(&campaign["state"]),
            taken(campaign),
            time(&campaign["starts_at"], &zone),
            time_or(&campaign["ends_at"], "never", &zone),
        ]
    };
    let rows = rows_of(campaigns, row);
    let header = ["id", "state", "taken", "opens", "closes"];
    let width = terminal_width();
    let whole = grid(&header, &rows);
    if fits(&whole, width) {
        return whole.trim_fmt();
    }
    let without_start = rows.iter().map(|row| [&row[..3], &row[4..]].concat()).collect::<Vec<_>>();
    let narrow = grid(&["id", "state", "taken", "closes"], &without_start);
    if fits(&narrow, width) { narrow.trim_fmt() } else { records(&header, &rows) }
}

/// Formats a campaign with all its rules.
pub fn campaign(campaign: &Value) -> String {
    let (limits, zone) = (&campaign["limits"], zone_of(campaign));
    let mut rows = vec![
        ("id", text_of(&campaign["id"])),
        ("name", text_of(&campaign["name"])),
        ("state", text_of(&campaign["state"])),
        ("opens", time(&campaign["starts_at"], &zone)),
        ("closes", time_or(&campaign["ends_at"], "never", &zone)),
        ("time zone", text_of(&campaign["time_zone"])),
        ("taken / total", taken(campaign)),
        ("per user", text_or(&limits["per_user"], "unlimited")),
        ("per user and day", text_or(&limits["per_user_per_day"], "unlimited")),
        ("per claim", text_or(&limits["per_claim"], "unlimited")),
        ("held for", campaign["hold_seconds"].as_u64().map_or("not held".to_owned(), |s| format!("{s} s"))),
        ("pass", pass(&campaign["pass"], &zone)),
        ("waiting for SQL", text_or(&campaign["backlog"], "unknown")),
        ("version", text_of(&campaign["version"])),
    ];
    if campaign["archived"] == Value::Bool(true) {
        rows.push(("archived", "yes".to_owned()));
    }
    // Only the response to an addition has a key.
    if let Some(key) = campaign.get("idempotency_key") {
        rows.push(("key", text_of(key)));
    }
    pairs(&rows)
}

/// Formats the rule of when claims need a pass, with its time in `zone`.
pub fn pass(rule: &Value, zone: &TimeZone) -> String {
    match rule["required"].as_str() {
        None => "not required".to_owned(),
        Some("until") => format!("required until {}", time(&rule["until"], zone)),
        Some(required) => format!("required {required}"),
    }
}

/// Formats a claim, with times in `zone`.
pub fn claim(reply: &Value, replayed: bool, zone: &TimeZone) -> String {
    let claim = &reply["claim"];
    let status = text_of(&claim["status"]);
    let mut rows = vec![
        ("claim", text_of(&claim["id"])),
        ("status", if replayed { format!("{status} (replay: the same claim as before)") } else { status }),
        ("quantity", text_of(&claim["quantity"])),
        ("sequence", text_of(&claim["sequence"])),
        ("claimed at", time(&claim["claimed_at"], zone)),
        ("expires at", time_or(&claim["expires_at"], "never", zone)),
    ];
    // Only the response to a new claim has these members, not the response to a transition.
    if let Some(key) = reply.get("idempotency_key") {
        rows.push(("left", text_or(&reply["remaining"], "unlimited")));
        rows.push(("key", text_of(key)));
    }
    pairs(&rows)
}

/// Formats one row per claim, with its time in `zone`.
pub fn claims(claims: &Value, zone: &TimeZone) -> String {
    let row = |claim: &Value| {
        let mut row =
            ["id", "user_id", "quantity", "status", "sequence"].map(|name| text_of(&claim[name])).to_vec();
        row.push(time(&claim["claimed_at"], zone));
        if let Some(codes) = claim["codes"].as_array() {
            row.push(codes.iter().map(text_of).collect::<Vec<_>>().join(" "));
        }
        row
    };
    let mut rows = rows_of(claims, row);
    let heads = ["claim", "user", "quantity", "status", "sequence", "claimed at", "codes"];
    let columns = rows.iter().map(Vec::len).max().unwrap_or(heads.len() - 1);
    for row in &mut rows {
        row.resize(columns, String::new());
    }
    listed(&heads[..columns], &rows)
}

/// Formats the scheme of user ids and the last rejection.
pub fn user_ids(reply: &Value) -> String {
    let mut rows =
        vec![("user ids", text_or(&reply["user_ids"], "not pinned: the first claim by an edge pins them"))];
    if reply["since"].is_string() {
        rows.push(("since", time(&reply["since"], &TimeZone::default())));
    }
    if reply["refused"].is_string() {
        rows.push(("refused", text_of(&reply["refused"])));
    }
    pairs(&rows)
}

/// Formats each primary with its replicas and their roles in the set.
pub fn replication(reply: &Value) -> String {
    let mut lines =
        vec![format!("replicas that must have a claim: at least {}", text_of(&reply["replicas_min"]))];
    let mut rows = Vec::new();
    for primary in reply["primaries"].as_array().into_iter().flatten() {
        let in_set = |name: &Value, kind: &str| {
            primary["set"][kind].as_array().is_some_and(|names| names.contains(name))
        };
        rows.push(vec![
            text_of(&primary["primary"]),
            String::new(),
            text_or(&primary["refused"], ""),
            String::new(),
        ]);
        for replica in primary["replicas"].as_array().into_iter().flatten() {
            let name = &replica["replica"];
            let counts = match (in_set(name, "members"), in_set(name, "joining")) {
                (true, _) => "must have it",
                (_, true) => "joining",
                _ => "does not count",
            };
            let keeps_up = if replica["keeps_up"] == Value::Bool(true) { "keeps up" } else { "is behind" };
            rows.push(vec![String::new(), text_of(name), counts.to_owned(), keeps_up.to_owned()]);
        }
    }
    if !rows.is_empty() {
        lines.push(listed(&["primary", "replica", "counts", "state"], &rows));
    }
    for orphan in reply["orphans"].as_array().into_iter().flatten() {
        lines.push(format!(
            "the primary {} is gone, and no member of its set has replaced it",
            text_of(&orphan["primary"])
        ));
    }
    lines.join("\n")
}

/// Formats Redis and SQL side by side, then their differences and the repairs made.
pub fn reconciliation(reply: &Value) -> String {
    let (redis, sql, outbox) = (&reply["redis"], &reply["sql"], &reply["outbox"]);
    let both = |name: &str| vec![name.to_owned(), text_or(&redis[name], "not ready"), text_of(&sql[name])];
    let mut rows: Vec<_> = ["taken", "sequence", "version", "holds"].map(both).into();
    let in_sql = |name: &str| vec![name.to_owned(), String::new(), text_of(&sql[name])];
    rows.extend(["claims", "revoked"].map(in_sql));
    let mut lines = vec![grid(&["", "Redis", "SQL"], &rows).trim_fmt()];
    lines.push(format!(
        " outbox: {} entries waiting, {} dead letters",
        outbox["entries"], outbox["dead_letters"]
    ));
    for gap in sql["sequence_gaps"].as_array().into_iter().flatten() {
        lines.push(format!(
            " no claim has the sequence numbers {} to {}: these claims were lost before they reached SQL",
            gap["from"], gap["to"]
        ));
    }
    for difference in reply["differences"].as_array().into_iter().flatten() {
        lines.push(format!(" differs: {}: {}", text_of(&difference["name"]), text_of(&difference["detail"])));
    }
    for repair in reply["repairs"].as_array().into_iter().flatten() {
        lines.push(format!(" done: {}", text_of(repair)));
    }
    if reply["agrees"] == Value::Bool(true) {
        lines.push(" Redis and SQL agree".to_owned());
    }
    lines.join("\n")
}

/// Formats one row per change, with its time in `zone` and each changed value's old and new state.
pub fn audit(items: &Value, zone: &TimeZone) -> String {
    let row = |item: &Value| {
        let mut changed = Vec::new();
        if !item["before"].is_null() {
            differences("", &item["before"], &item["after"], zone, &mut changed);
        }
        changed.extend(item["reason"].as_str().map(|reason| format!("reason: {reason}")));
        vec![
            time(&item["at"], zone),
            text_of(&item["who"]),
            text_of(&item["what"]),
            text_or(&item["webhook_id"], &text_or(&item["claim_id"], &text_of(&item["campaign_id"]))),
            changed.join(", "),
        ]
    };
    listed(&["at", "who", "what", "campaign or claim", "changed"], &rows_of(items, row))
}

pub fn webhooks(items: &Value) -> String {
    let row = |item: &Value| {
        vec![
            text_of(&item["id"]),
            text_of(&item["url"]),
            text_or(&item["campaign_id"], "all"),
            text_of(&item["delivered"]),
            text_of(&item["waiting"]),
            text_of(&item["parked"]),
            text_or(&item["disabled_because"], "enabled"),
        ]
    };
    let header = ["id", "url", "campaign", "delivered", "waiting", "parked", "state"];
    listed(&header, &rows_of(items, row))
}

pub fn webhook(webhook: &Value) -> String {
    let mut rows = vec![
        ("webhook", text_of(&webhook["id"])),
        ("url", text_of(&webhook["url"])),
        ("campaign", text_or(&webhook["campaign_id"], "all")),
        ("state", text_or(&webhook["disabled_because"], "enabled")),
    ];
    if webhook["secret"].is_string() {
        rows.push(("secret (not shown again)", text_of(&webhook["secret"])));
    }
    pairs(&rows)
}

pub fn capacity(plan: &Value) -> String {
    let number = |name: &str| text_of(&plan[name]);
    let mut text = pairs(&[
        ("Redis primaries", number("redis_primaries")),
        ("Redis replicas in total", number("redis_replicas")),
        ("  maxmemory of each, MiB", number("redis_maxmemory_mib")),
        ("  memory of its machine, MiB", number("redis_machine_mib")),
        ("  processors at peak", number("redis_processors")),
        ("cores", number("cores")),
        ("  processors of each", number("core_processors")),
        ("workerd edges, if not on Cloudflare", number("edges")),
        ("rows in SQL", number("sql_rows")),
        ("  their size, MiB", number("sql_mib")),
        ("  seconds until SQL has all", number("sql_behind_s")),
    ]);
    for warning in plan["warnings"].as_array().into_iter().flatten() {
        text.push_str("\nwarning: ");
        text.push_str(&text_of(warning));
    }
    text + "\nThe figures and assumptions behind this plan are in docs/capacity.md."
}

pub fn tested(tested: &Value) -> String {
    pairs(&[("test event", text_or(&tested["error"], "accepted"))])
}

/// Formats one row per event, with times in UTC, because the events belong to several campaigns.
pub fn deliveries(events: &Value) -> String {
    let utc = TimeZone::default();
    let row = |event: &Value| {
        vec![
            text_of(&event["claim_id"]),
            text_of(&event["status"]),
            text_of(&event["tries"]),
            time(&event["first_at"], &utc),
            time_or(&event["next_at"], "never", &utc),
            text_of(&event["last_error"]),
        ]
    };
    listed(&["claim", "status", "tries", "since", "next", "last error"], &rows_of(events, row))
}

/// Collects the members of `after` that differ from those of `before`, by path, with times in `zone`.
fn differences(path: &str, before: &Value, after: &Value, zone: &TimeZone, into: &mut Vec<String>) {
    for (name, value) in after.as_object().into_iter().flatten() {
        let path = format!("{path}{name}");
        if value.is_object() {
            differences(&format!("{path}."), &before[name], value, zone, into);
        } else if before[name] != *value {
            let [before, after] = [&before[name], value].map(|value| time_or(value, "none", zone));
            into.push(format!("{path}: {before} to {after}"));
        }
    }
}

fn taken(campaign: &Value) -> String {
    format!(
        "{} / {}",
        text_or(&campaign["taken"], "unknown"),
        text_or(&campaign["limits"]["total"], "unlimited")
    )
}

fn rows_of(items: &Value, row: impl Fn(&Value) -> Vec<String>) -> Vec<Vec<String>> {
    items.as_array().into_iter().flatten().map(row).collect()
}

/// Formats a table, or records if the table is wider than the terminal.
fn listed(header: &[&str], rows: &[Vec<String>]) -> String {
    let table = grid(header, rows);
    if fits(&table, terminal_width()) { table.trim_fmt() } else { records(header, rows) }
}

/// Formats each row as a record: a line for each value, after its name in `header`.
fn records(header: &[&str], rows: &[Vec<String>]) -> String {
    let record =
        |row: &Vec<String>| pairs(&header.iter().copied().zip(row.iter().cloned()).collect::<Vec<_>>());
    rows.iter().map(record).collect::<Vec<_>>().join("\n\n")
}

fn pairs(rows: &[(&str, String)]) -> String {
    let mut table = Table::new();
    table.load_style(NOTHING);
    for (name, value) in rows {
        table.add_row([name, value.as_str()]);
    }
    table.trim_fmt()
}

/// Builds a table as wide as its values.
fn grid(header: &[&str], rows: &[Vec<String>]) -> Table {
    let mut table = Table::new();
    table.load_style(NOTHING).set_header(header).add_rows(rows);
    table
}

fn fits(table: &Table, width: Option<usize>) -> bool {
    // Each value has a space on either side; the space at a line's end is not printed.
    let wide: usize = table.column_max_content_widths().iter().map(|width| usize::from(*width) + 2).sum();
    width.is_none_or(|width| wide - 1 <= width)
}

/// Returns the terminal's width in columns; `None` if standard output is not a terminal, or its width is unknown.
fn terminal_width() -> Option<usize> {
    Table::new().width().map(usize::from).filter(|width| *width > 0)
}

/// Formats a time in `zone`; a value that is not a time stays as it is.
fn time(value: &Value, zone: &TimeZone) -> String {
    let at: Option<Timestamp> = value.as_str().and_then(|text| text.parse().ok());
    at.map_or_else(|| text_of(value), |at| shown(at, zone))
}

/// Formats a time in `zone`, or `none` for `null`; any other value stays as it is.
pub fn time_or(value: &Value, none: &str, zone: &TimeZone) -> String {
    if value.is_null() { none.to_owned() } else { time(value, zone) }
}

fn text_of(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn text_or(value: &Value, none: &str) -> String {
    if value.is_null() { none.to_owned() } else { text_of(value) }
}

#[cfg(test)]
mod tests {
    use claimgate_shared::Version;
    use claimgate_shared::admin::reconciliation::{
        Difference, Gap, OutboxSide, Reconciliation, RedisSide, SqlSide,
    };

    use super::*;

    /// Uses the type of core's response: a member renamed there but not here would be printed as `null`.
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
                "outbox: 41 entries waiting, 43 dead letters",
                "no claim has the sequence numbers 31 to 32: these claims were lost before they reached SQL",
                "differs: taken: 11 and 21",
                "done: loaded",
            ]
        );
    }
}
