//! `claimgate drill` through the edge, with and without rate limits per address.

use serde_json::{Value, json};
use support::edge::{Runtime, World};

use super::{open_world, run_alone};
use crate::command_line::{CommandOutput, run, run_against};

/// Drills `world` through its edge, from core's machine.
async fn drill(world: &World, arguments: &[&str]) -> CommandOutput {
    let url = world.edge.url("");
    run_against(&world.core, &[&["drill", &url, "--json"], arguments].concat()).await
}

fn count(report: &Value, what: &str) -> u64 {
    report["answers"][what].as_u64().unwrap_or_default()
}

#[test]
fn a_drill_through_the_edge_passes() {
    run_alone(async {
        let world = open_world().await;
        let report = drill(world, &["--units", "50", "--users", "400"]).await.ended(0).json();
        assert_eq!(report["through"], "edge");
        // At most all units plus the returned one. A grant whose connection was cut is counted as a replay.
        assert!((1..=51).contains(&count(&report, "granted")), "{report:#}");
        assert!(count(&report, "sold_out") > 300, "{report:#}");
        let report =
            drill(world, &["--units", "20", "--users", "60", "--expect", "21"]).await.ended(1).json();
        assert_eq!(report["passed"], json!(false));
    });
}

#[test]
fn a_drill_slows_down_to_the_rate_limits_of_the_edge() {
    super::run(async {
        let world = World::start(Runtime::from_env(), "edge-drill", "production", &[]).await;
        let output = drill(&world, &["--units", "30", "--users", "200"]).await.ended(0);
        output.one_line("RATE_PER_ADDRESS");
        let report = output.json();
        assert!(count(&report, "rate_limited") > 0, "{report:#}");
        assert!((1..=31).contains(&count(&report, "granted")), "{report:#}");
    });
}

#[test]
fn a_drill_reports_a_token_key_the_edge_does_not_use() {
    super::run(async {
        let world = open_world().await;
        let (listen, admin) = (world.core.listen().to_string(), world.core.admin_listen().to_string());
        let (url, data) = (world.edge.url(""), world.core.data_dir());
        let environment = [
            ("CLAIMGATE_LISTEN", listen.as_str()),
            ("CLAIMGATE_ADMIN_LISTEN", admin.as_str()),
            ("CLAIMGATE_DATA_DIR", data.to_str().unwrap()),
            ("CLAIMGATE_USER_JWT_KEY", "dGhlLWtleS1vZi1hbm90aGVyLWVkZ2UtMDEyMzQ1NiE"),
        ];
        let output = run(&["drill", &url, "--users", "20"], &environment, &data).await.ended(2);
        output.one_line("CLAIMGATE_USER_JWT_KEY");
    });
}
