//! Examples in the documents of the clients.

use std::fs;
use std::process::Command;

use claimgate_client::{ClaimCall, Internal};
use claimgate_shared::{ClaimId, Code, Quantity};
use serde_json::json;
use support::Core;
use support::edge::{Runtime, World, root, tool};
use support::examples::Examples;

use crate::edge::run;

#[test]
fn the_javascript_example_makes_a_claim() {
    run(async {
        let world = World::start(Runtime::from_env(), "examples-client", "test", &[]).await;
        world.core.create("tickets", json!({"total": 1})).await;
        let mut readme = Examples::of("client/README.md");
        let example = readme.next("import { ClaimgateClient");
        readme.left_out("import { hmacUserIds", "client/test/server.test.js derives this id");
        readme.left_out("import { passIssuer", "client/test/server.test.js signs passes");
        readme.end();
        // The same layout as after `npm install`.
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("node_modules")).unwrap();
        let installed = directory.path().join("node_modules/claimgate-client");
        std::os::unix::fs::symlink(root().join("client"), installed).unwrap();
        let here = example.replace("https://claims.example.com", &world.edge.url(""));
        assert_ne!(here, example);
        fs::write(directory.path().join("shop.mjs"), format!("const jwt = process.env.JWT;\n{here}"))
            .unwrap();
        let shop = |user: &str| {
            let mut node = Command::new(tool("node"));
            let ended =
                node.arg("shop.mjs").current_dir(&directory).env("JWT", world.token(user)).output().unwrap();
            assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
            String::from_utf8(ended.stdout).unwrap()
        };
        let alice = shop("alice");
        assert!(alice.starts_with("number 1 tickets.alice.") && alice.ends_with(" false\n"), "{alice}");
        assert_eq!(shop("bob"), "all taken\n");
    });
}

// Copied from the crate's documentation; the test below compares both.
#[rustfmt::skip]
/// Claims a ticket for `user`; `None` if the tickets are sold out.
async fn ticket(core: &Internal, user: &str) -> Result<Option<ClaimId>, Box<dyn std::error::Error>> {
    let mut call = ClaimCall::new("tickets".parse()?, user.parse()?, Quantity::ONE)?;
    // Store `call.request()` here. After a crash, `ClaimCall::retry` makes the same claim.
    match core.claim(&mut call).await {
        Ok(answer) => Ok(Some(answer.read()?.claim.id)),
        Err(error) if error.is(Code::SoldOut) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

#[tokio::test]
async fn the_rust_example_makes_a_claim() {
    let mut documentation = Examples::of("rust-client/src/lib.rs");
    let example = documentation.next("use claimgate_client::");
    documentation.end();
    let (_, function) = example.split_once("\n\n").unwrap();
    assert!(include_str!("clients.rs").contains(function), "the documentation differs: {function}");
    let core = Core::start().await;
    core.create("tickets", json!({"total": 1})).await;
    let shop = Internal::new(&core.url(""), support::core_client::API_TOKEN).unwrap();
    assert!(ticket(&shop, "alice").await.unwrap().unwrap().to_string().starts_with("tickets.alice."));
    assert!(ticket(&shop, "bob").await.unwrap().is_none());
}
