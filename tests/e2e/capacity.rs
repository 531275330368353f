//! `claimgate capacity` estimates the memory that real claims need; docs/capacity.md computes requests of the page.

use std::fmt::Write as _;
use std::fs;

use serde_json::json;
use support::edge::root;
use support::topology::OWN;
use support::wait::holds;
use support::{Core, RedisView, SOON, eventually, only_on};

use crate::command_line::run_against;

const USERS: u32 = 50_000;

/// Returns the memory used by Redis in bytes.
async fn used_memory(redis: &RedisView) -> f64 {
    let info: String = redis.query(&["INFO", "memory"]).await;
    let line = info.lines().find_map(|line| line.strip_prefix("used_memory:")).expect("used_memory");
    line.trim().parse().expect("bytes")
}

#[tokio::test]
async fn memory_per_user_matches_the_estimate() {
    only_on!(OWN, "it measures the memory of core's own Redis");
    let core = Core::start().await;
    core.create("demo", json!({"total": USERS})).await;
    core.set_admin_state("demo", "pause").await.expect(200);
    let redis = core.redis().await;
    let before = used_memory(&redis).await;
    let mut file = String::from("user_id,quantity\n");
    for user in 0..USERS {
        // As long as a UUID.
        let _ = writeln!(file, "{user:036},1");
    }
    let path = core.data_dir().join("claims.csv");
    std::fs::write(&path, file).unwrap();
    run_against(&core, &["campaign", "import", "demo", path.to_str().unwrap()]).await.ended(0);
    eventually(SOON, || async {
        let taken = core.admin_get("/admin/v1/campaigns/demo").await.json()["taken"].clone();
        holds(taken == USERS, || taken.to_string())
    })
    .await;
    let measured = (used_memory(&redis).await - before) / f64::from(USERS);
    let plan = async |users: u32| {
        let users = users.to_string();
        let output = run_against(&core, &["capacity", "--users", &users, "--rate", "1", "--json"])
            .await
            .ended(0)
            .json();
        output["redis_maxmemory_mib"].as_f64().unwrap() * f64::from(1 << 20)
    };
    // The plan adds a quarter as headroom.
    let estimated = (plan(10_000_000).await - plan(1).await) / 1e7 / 1.25;
    let ratio = measured / estimated;
    assert!((0.75..=1.25).contains(&ratio), "{measured:.0} bytes per user, but {estimated:.0} are estimated");
}

#[tokio::test]
async fn an_invalid_flag_value_ends_with_status_2() {
    let core = Core::start().await;
    for wrong in [["--users", "0", "--rate", "1"], ["--users", "1", "--rate", "many"]] {
        let all: Vec<_> = ["capacity"].iter().chain(&wrong).copied().collect();
        run_against(&core, &all).await.ended(2);
    }
}

#[test]
fn the_page_polls_as_the_document_computes() {
    for (file, code) in [
        ("page.js", "POLL_MS_MIN = 2000, POLL_MS_MAX = 15000,"),
        ("page.js", "OPENING_MS = 30000;"),
        ("page.js", "Math.abs(untilOpening) < OPENING_MS ? POLL_MS_MIN : Math.min(interval * 1.4, max);"),
        ("page.js", "let wait = jitter(interval);"),
        ("page.js", "Math.min(wait, untilOpening - OPENING_MS + POLL_MS_MAX * Math.random());"),
        ("page.js", "const jitter = (ms) => ms * (0.8 + 0.4 * Math.random());"),
        ("page.js", "if (lastState && state !== lastState) pollIn(Math.random() * 800);"),
        ("client/button.js", "const POLL_MS = 15000,"),
        ("campaigns/campaigns.js", "const POLL_MS = 15000,"),
    ] {
        let source = fs::read_to_string(root().join("edge/assets").join(file)).unwrap();
        assert!(source.contains(code), "docs/capacity.md computes with this code of {file}: {code}");
    }
}
