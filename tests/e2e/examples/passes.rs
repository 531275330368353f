//! docs/passes.md: a members' sale and a presale, with a real edge.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};
use support::edge::{Edge, Runtime, World, root, tool};
use support::examples::{ExampleShell, Examples};
use support::process::free_address;
use support::wait::holds;
use support::{SOON, eventually};

use crate::edge::run;

const SHOP: &str = "AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyA";
const ROOM: &str = "ICEiIyQlJicoKSorLC0uLzAxMjM0NTY3ODk6Ozw9Pj8";
/// The shop's server: sends alice's pass.
const SERVER: &str = r#"
import { createServer } from "node:http";
import { passOf } from "./shop.mjs";

export const server = createServer((_, response) => response.end(passOf("alice")));
await new Promise((done) => server.listen(Number(process.env.SHOP_PORT), "127.0.0.1", done));
"#;

/// Runs a module next to the installed client.
fn node(directory: &Path, module: &str, text: &str, environment: &[(&str, &str)]) -> Output {
    fs::write(directory.join(module), text).unwrap();
    Command::new(tool("node"))
        .arg(module)
        .current_dir(directory)
        .envs(environment.iter().copied())
        .output()
        .unwrap()
}

/// Returns the status and the body of the response to a claim with this pass.
async fn claim(world: &World, campaign: &str, user: &str, pass: &str) -> (u16, Value) {
    let request = world.keyed_request(campaign, user, "k").header("Claimgate-Pass", pass);
    let reply = world.send(request).await;
    (reply.status, reply.json())
}

#[test]
fn the_sales_run_as_shown() {
    run(async {
        let mut passes = Examples::of("docs/passes.md");
        let keys = passes.next("PASS_KEYS=").replacen("SECRET", SHOP, 1).replacen("SECRET", ROOM, 1);
        let (variable, keys) = keys.trim().split_once('=').unwrap();
        let world = World::start(Runtime::from_env(), "examples-passes", "test", &[(variable, keys)]).await;
        let (directory, desk) = (tempfile::tempdir().unwrap(), ExampleShell::of(&world.core));
        let directory = directory.path();
        public_keys(&passes.next("node -p"), &world, directory).await;

        let _ = desk.run(&passes.next("claimgate campaign create members-sale")).await.ended(0);
        let shop = passes.next("import { passIssuer }");
        fs::create_dir(directory.join("node_modules")).unwrap();
        let installed = directory.join("node_modules/claimgate-client");
        std::os::unix::fs::symlink(root().join("client"), installed).unwrap();
        fs::write(directory.join("shop.mjs"), shop).unwrap();
        fs::write(directory.join("server.mjs"), SERVER).unwrap();
        let port = free_address().port().to_string();
        let page = passes.next("import { ClaimgateClient }");
        let page = page.replace("https://claims.example.com", &world.edge.url(""));
        let page = page.replace("https://shop.example.com", &format!("http://127.0.0.1:{port}"));
        let page = format!(
            "import {{ server }} from './server.mjs';\nconst jwt = process.env.JWT;\n{page}\n\
             console.log(claim.user_id, claim.quantity);\nserver.close();\n"
        );
        let (key, jwt) = (format!("shop:{SHOP}"), world.token("alice"));
        let environment = [("PASS_KEY", key.as_str()), ("JWT", &jwt), ("SHOP_PORT", &port)];
        let output = node(directory, "page.mjs", &page, &environment);
        assert_eq!(String::from_utf8_lossy(&output.stdout), "alice 2\n", "{output:?}");
        // The pass allows two units, the campaign four.
        let again = node(directory, "page.mjs", &page, &environment);
        assert!(String::from_utf8_lossy(&again.stderr).contains("user_limit_reached"), "{again:?}");
        assert_eq!(claim(&world, "members-sale", "bob", "").await.1["code"], "pass_required");

        let presale = desk.commands(&passes.next("claimgate campaign create presale"));
        let [create, issue, open] = &presale[..] else { panic!("{presale:?}") };
        let _ = desk.run(create).await.ended(0);
        let (status, refused) = claim(&world, "presale", "bob", "").await;
        assert_eq!((status, &refused["code"]), (403, &json!("pass_required")));
        assert!(refused["until"].is_string(), "{refused}");
        fs::write(directory.join("pass.key"), format!("{key}\n")).unwrap();
        let issued = ExampleShell::at(directory).run(issue).await.ended(0).out;
        assert_eq!(claim(&world, "presale", "alice", issued.trim()).await.0, 201);
        let _ = desk.run(open).await.ended(0);
        assert_eq!(claim(&world, "presale", "bob", "").await.0, 201);
        passes.end();
    });
}

/// Converts a public key as shown, and checks that an edge accepts the result.
async fn public_keys(command: &str, world: &World, directory: &Path) {
    for arguments in [
        "genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out private.pem",
        "pkey -in private.pem -pubout -out shop.pem",
    ] {
        let mut openssl = Command::new("openssl");
        let made = openssl.args(arguments.split(' ')).current_dir(directory).output().unwrap();
        assert!(made.status.success(), "{made:?}");
    }
    let keys = ExampleShell::at(directory).run(command).await.ended(0).out;
    let set: Value = serde_json::from_str(&keys).unwrap();
    assert_eq!((&set["keys"][0]["kid"], &set["keys"][0]["crv"]), (&json!("shop"), &json!("P-256")));
    let core_url = format!("http://{}", world.core.listen());
    let (edge_key, user_key) = (world.core.data_file("edge.key"), world.core.data_file("user-jwt.key"));
    let variables = [
        ("CORE_URL", core_url.as_str()),
        ("EDGE_KEY", &edge_key),
        ("USER_JWT_KEY", &user_key),
        ("PASS_KEYS", keys.trim()),
    ];
    let edge = Edge::start(Runtime::from_env(), "examples-passes-public", "test", &variables).await;
    eventually(SOON, || async {
        let ready = support::client::client().once().try_get(&edge.url("/readyz"), "").await.unwrap();
        holds(ready.status == 200, || ready.text())
    })
    .await;
}
