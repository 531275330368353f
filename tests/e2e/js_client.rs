//! Runs the JavaScript client's tests in Node against a real edge and core.

use std::process::Command;

use serde_json::{Map, json};
use support::core_client::campaign;
use support::edge::{Runtime, World, root, tool};
use support::topology::OWN;
use support::{CoreOptions, only_on};

use super::edge::run;

/// The users of client/test/claims.test.js; each of its tests has its own.
const USERS: [&str; 28] = [
    "ann", "bob", "carol", "dave", "erin", "finn", "gwen", "hugo", "iris", "jack", "kate", "liam", "mona",
    "nick", "olga", "pete", "quin", "rosa", "saul", "tess", "theo", "ugo", "vera", "walt", "xena", "yara",
    "yves", "zoe",
];
/// A key of passes: the bytes 0x01 … 0x20.
const PASS_KEY: &str = "shop:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyA";

#[test]
fn the_client_passes_its_tests_against_a_real_edge() {
    run(async {
        // Each test expects exact responses, and a slow disk would cause additional 503s.
        let core = CoreOptions::default().on_fast_disk().start().await;
        let world =
            World::before(core, Runtime::from_env(), "client", "test", &[("PASS_KEYS", PASS_KEY)]).await;
        let limits = json!({"total": 100, "per_user": 3, "per_user_per_day": 1, "per_claim": 1});
        world.core.create("client-open", json!({})).await;
        world.core.create("client-limited", limits).await;
        world.core.create("client-taken", json!({"total": 1})).await;
        let mut members = campaign("client-members", json!({}));
        members["pass"] = json!({"required": "always"});
        world.core.create_with(members).await;
        let _ = world.claim("client-taken", "winner", "k").await.expect(201);
        let tokens: Map<_, _> =
            USERS.map(|user| (user.to_owned(), json!(world.token(user)))).into_iter().collect();
        let tested = Command::new(tool("node"))
            .args([
                "--test",
                "client/test/claims.test.js",
                "client/test/conformance.test.js",
                "client/test/server.test.js",
                "client/test/types.test.js",
            ])
            .current_dir(root())
            .env("CLAIMGATE_TEST_URL", world.edge.url(""))
            .env("CLAIMGATE_TEST_PASS_KEY", PASS_KEY)
            .env("CLAIMGATE_TEST_TOKENS", json!(tokens).to_string())
            .output()
            .unwrap();
        let output = [tested.stdout, tested.stderr].concat();
        assert!(tested.status.success(), "{}", String::from_utf8_lossy(&output));
    });
}

/// The part `conformance` of `make soak` runs the cases with all clients.
#[test]
fn two_clients_conform_and_broken_clients_do_not() {
    only_on!(OWN, "it needs no server");
    let played = Command::new(tool("node"))
        .args(["client/conformance/run.js", "javascript", "python", "controls"])
        .current_dir(root())
        .env_remove("CASE")
        .env_remove("JOBS")
        .output()
        .unwrap();
    let output = String::from_utf8([played.stdout, played.stderr].concat()).unwrap();
    assert!(played.status.success() && !output.contains("SKIPPED"), "{output}");
}
