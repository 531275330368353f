//! The JavaScript client in Node, in front of a real edge and a real core: runs the client's own tests.

use std::process::Command;

use serde_json::{Map, json};
use support::CoreOptions;
use support::edge::{Runtime, World, root, tool};

use super::edge::run;

/// Each test of client/test/claims.test.js has users of its own.
const USERS: [&str; 24] = [
    "ann", "bob", "carol", "dave", "erin", "finn", "gwen", "hugo", "iris", "jack", "kate", "liam", "mona",
    "nick", "olga", "pete", "quin", "rosa", "saul", "tess", "ugo", "vera", "walt", "xena",
];

#[test]
fn the_client_passes_its_own_tests_before_a_real_edge() {
    run(async {
        // Each test says which answers the client gets; a slow disk would add some.
        let core = CoreOptions::default().on_fast_disk().start().await;
        let world = World::before(core, Runtime::asked(), "client", "test", &[]).await;
        let limits = json!({"total": 100, "per_user": 3, "per_user_per_day": 1, "per_claim": 1});
        world.core.create("client-open", json!({})).await;
        world.core.create("client-limited", limits).await;
        world.core.create("client-taken", json!({"total": 1})).await;
        let _ = world.claim("client-taken", "winner", "k").await.expect(201);
        let tokens: Map<_, _> =
            USERS.map(|user| (user.to_owned(), json!(world.token(user)))).into_iter().collect();
        let tested = Command::new(tool("node"))
            .args(["--test", "client/test/claims.test.js", "client/test/types.test.js"])
            .current_dir(root())
            .env("CLAIMGATE_TEST_URL", world.edge.url(""))
            .env("CLAIMGATE_TEST_TOKENS", json!(tokens).to_string())
            .output()
            .unwrap();
        let said = [tested.stdout, tested.stderr].concat();
        assert!(tested.status.success(), "{}", String::from_utf8_lossy(&said));
    });
}
