//! `claimgate capacity` reckons what is there once the claims are.

use std::fmt::Write as _;

use serde_json::json;
use support::topology::OWN;
use support::wait::holds;
use support::{Core, RedisView, SOON, eventually, only_on};

use crate::command_line::ask;

const USERS: u32 = 50_000;

/// The memory that Redis says it uses, in bytes.
async fn used(redis: &RedisView) -> f64 {
    let info: String = redis.query(&["INFO", "memory"]).await;
    let line = info.lines().find_map(|line| line.strip_prefix("used_memory:")).expect("used_memory");
    line.trim().parse().expect("bytes")
}

#[tokio::test]
async fn a_users_memory_is_what_is_reckoned() {
    only_on!(OWN, "it looks at the memory of core's own Redis");
    let core = Core::start().await;
    core.create("demo", json!({"total": USERS})).await;
    core.set_admin_state("demo", "pause").await.expect(200);
    let redis = core.redis().await;
    let before = used(&redis).await;
    let mut file = String::from("user_id,quantity\n");
    for user in 0..USERS {
        // As long as a UUID.
        let _ = writeln!(file, "{user:036},1");
    }
    let path = core.data_dir().join("claims.csv");
    std::fs::write(&path, file).unwrap();
    ask(&core, &["campaign", "import", "demo", path.to_str().unwrap()]).await.ended(0);
    eventually(SOON, || async {
        let taken = core.admin_get("/admin/v1/campaigns/demo").await.json()["taken"].clone();
        holds(taken == USERS, || taken.to_string())
    })
    .await;
    let measured = (used(&redis).await - before) / f64::from(USERS);
    let plan = async |users: u32| {
        let users = users.to_string();
        let said =
            ask(&core, &["capacity", "--users", &users, "--rate", "1", "--json"]).await.ended(0).json();
        said["redis_maxmemory_mib"].as_f64().unwrap() * f64::from(1 << 20)
    };
    // A quarter of it is room.
    let reckoned = (plan(10_000_000).await - plan(1).await) / 1e7 / 1.25;
    let off = measured / reckoned;
    assert!((0.75..=1.25).contains(&off), "{measured:.0} bytes a user, where {reckoned:.0} are reckoned");
}

#[tokio::test]
async fn what_is_no_number_is_refused_by_its_flag() {
    let core = Core::start().await;
    for wrong in [["--users", "0", "--rate", "1"], ["--users", "1", "--rate", "many"]] {
        let all: Vec<_> = ["capacity"].iter().chain(&wrong).copied().collect();
        ask(&core, &all).await.ended(2);
    }
}
