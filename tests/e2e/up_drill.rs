//! What `make up`, `make up-workerd` and `make up-cluster` start holds a drill: the edge in the runtime, and the servers, that
//! the tests run on.

use support::edge::Runtime;
use support::redis_server::Kind;
use support::topology::Topology;
use support::{heavy, only_on};

use crate::up::Up;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_up_is_proven_and_fails_with_a_unit_too_many() {
    only_on!(&[Topology::Own, Topology::Cluster], "`make up` starts no other one");
    let _machine = heavy().await;
    let mut arguments = match Runtime::asked() {
        Runtime::Workerd => vec!["workerd"],
        Runtime::Wrangler => vec!["wrangler"],
    };
    if Topology::asked() == Topology::Cluster {
        arguments.push("cluster");
    }
    let server = match Kind::asked() {
        Kind::Redis => "redis",
        Kind::Valkey => "valkey",
    };
    let up = Up::start(&arguments, server).await;
    // Few enough for the edge's limit on how often one address may ask.
    let size = ["--units", "10", "--users", "25", "--json"];
    let report = up.drill(&size).await.ended(0).json();
    assert_eq!((&report["passed"], &report["through"]), (&true.into(), &"edge".into()), "{report:#}");
    let report = up.drill(&[&size[..], &["--expect", "11"]].concat()).await.ended(1).json();
    assert_eq!(report["passed"], false, "{report:#}");
}
