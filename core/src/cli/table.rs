//! Answers as people read them, at 80 columns.

use comfy_table::presets::NOTHING;
use comfy_table::{ContentArrangement, Table};
use serde_json::Value;

/// Prints `value` as JSON, or what `text` makes of it.
#[allow(clippy::print_stdout)] // the command line's answer
pub fn show(json: bool, value: &Value, text: impl FnOnce() -> String) {
    if json {
        println!("{value:#}");
    } else {
        println!("{}", text());
    }
}

/// One row a campaign; a single one with all its rules.
pub fn campaigns(campaigns: &[Value]) -> String {
    let [campaign] = campaigns else {
        return list(campaigns);
    };
    let limits = &campaign["limits"];
    pairs(&[
        ("id", word(&campaign["id"])),
        ("name", word(&campaign["name"])),
        ("state", word(&campaign["state"])),
        ("opens", word(&campaign["starts_at"])),
        ("closes", or(&campaign["ends_at"], "never")),
        ("time zone", word(&campaign["time_zone"])),
        (
            "taken / total",
            format!(
                "{} / {}",
                or(&campaign["taken"], "unknown"),
                or(&limits["total"], "unlimited")
            ),
        ),
        ("per user", or(&limits["per_user"], "unlimited")),
        ("per user and day", or(&limits["per_user_per_day"], "unlimited")),
        ("per claim", or(&limits["per_claim"], "unlimited")),
        (
            "held for",
            campaign["hold_seconds"]
                .as_u64()
                .map_or("not held".to_owned(), |s| format!("{s} s")),
        ),
        ("waiting for SQL", or(&campaign["backlog"], "unknown")),
        ("version", word(&campaign["version"])),
    ])
}

/// A claim that stands.
pub fn claim(reply: &Value, replayed: bool) -> String {
    let claim = &reply["claim"];
    let status = word(&claim["status"]);
    pairs(&[
        ("claim", word(&claim["id"])),
        (
            "status",
            if replayed {
                format!("{status} (asked before: the same claim)")
            } else {
                status
            },
        ),
        ("quantity", word(&claim["quantity"])),
        ("sequence", word(&claim["sequence"])),
        ("claimed at", word(&claim["claimed_at"])),
        ("expires at", or(&claim["expires_at"], "never")),
        ("left", or(&reply["remaining"], "unlimited")),
        ("key", word(&reply["idempotency_key"])),
    ])
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
    table
        .load_style(NOTHING)
        .set_content_arrangement(ContentArrangement::Dynamic);
    table
}

fn word(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn or(value: &Value, none: &str) -> String {
    if value.is_null() {
        none.to_owned()
    } else {
        word(value)
    }
}
