//! A drill of the installation that `make up`, `make up-workerd` or `make up-cluster` starts, on the tests'
//! topology and edge runtime.

use support::edge::Runtime;
use support::redis_server::Kind;
use support::topology::Topology;
use support::{heavy, only_on};

use crate::up::Up;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drill_passes_and_fails_with_one_unit_too_many() {
    only_on!(&[Topology::Own, Topology::Cluster], "`make up` starts only these");
    let _machine = heavy().await;
    let mut arguments = match Runtime::from_env() {
        Runtime::Workerd => vec!["workerd"],
        Runtime::Wrangler => vec!["wrangler"],
    };
    if Topology::from_env() == Topology::Cluster {
        arguments.push("cluster");
    }
    let server = match Kind::from_env() {
        Kind::Redis => "redis",
        Kind::Valkey => "valkey",
    };
    let up = Up::start(&arguments, server).await;
    // Few enough for the edge's rate limit per address.
    let size = ["--units", "10", "--users", "25", "--json"];
    let report = up.drill(&size).await.ended(0).json();
    assert_eq!((&report["passed"], &report["through"]), (&true.into(), &"edge".into()), "{report:#}");
    let report = up.drill(&[&size[..], &["--expect", "11"]].concat()).await.ended(1).json();
    assert_eq!(report["passed"], false, "{report:#}");
}
