//! `claimgate drill` through the edge: with and without limits on how often one address may claim.

use serde_json::{Value, json};
use support::edge::{Runtime, World};

use super::edge::{self, open_world, run_alone};
use crate::command_line::{Said, ask, run};

/// Drills `world` through its edge, as on core's own machine.
async fn drill(world: &World, arguments: &[&str]) -> Said {
    let url = world.edge.url("");
    ask(&world.core, &[&["drill", &url, "--json"], arguments].concat()).await
}

fn count(report: &Value, what: &str) -> u64 {
    report["answers"][what].as_u64().unwrap_or_default()
}

#[test]
fn a_storm_through_the_edge_is_proven() {
    run_alone(async {
        let world = open_world().await;
        let report = drill(world, &["--units", "50", "--users", "400"]).await.ended(0).json();
        assert_eq!(report["through"], "edge");
        // At most all units, and the one that was returned: a grant whose connection was cut is heard of as a replay.
        assert!((1..=51).contains(&count(&report, "granted")), "{report:#}");
        assert!(count(&report, "sold_out") > 300, "{report:#}");
        let report =
            drill(world, &["--units", "20", "--users", "60", "--expect", "21"]).await.ended(1).json();
        assert_eq!(report["passed"], json!(false));
    });
}

#[test]
fn an_edge_that_limits_requests_is_drilled_as_fast_as_it_allows() {
    edge::run(async {
        let world = World::start(Runtime::asked(), "edge-drill", "production", &[]).await;
        let said = drill(&world, &["--units", "30", "--users", "200"]).await.ended(0);
        said.one_line("RATE_PER_ADDRESS");
        let report = said.json();
        assert!(count(&report, "rate_limited") > 0, "{report:#}");
        assert!((1..=31).contains(&count(&report, "granted")), "{report:#}");
    });
}

#[test]
fn a_key_that_is_not_the_edges_is_said() {
    run_alone(async {
        let world = open_world().await;
        let (listen, admin) = (world.core.listen().to_string(), world.core.admin_listen().to_string());
        let (url, data) = (world.edge.url(""), world.core.data_dir());
        let environment = [
            ("CLAIMGATE_LISTEN", listen.as_str()),
            ("CLAIMGATE_ADMIN_LISTEN", admin.as_str()),
            ("CLAIMGATE_DATA_DIR", data.to_str().unwrap()),
            ("CLAIMGATE_USER_JWT_KEY", "dGhlLWtleS1vZi1hbm90aGVyLWVkZ2UtMDEyMzQ1NiE"),
        ];
        let said = run(&["drill", &url, "--users", "20"], &environment, &data).await.ended(2);
        said.one_line("CLAIMGATE_USER_JWT_KEY");
    });
}
