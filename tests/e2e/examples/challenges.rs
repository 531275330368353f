//! docs/challenges.md, and the challenges in docs/api.md: each kind is set up as shown and issues what is shown.

use serde_json::{Value, json};
use support::edge::{Runtime, World};
use support::examples::{Examples, example};

use super::assert_same_shape;
use crate::edge::run;

const SECRET: &str = "AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyA";

#[test]
fn each_kind_issues_the_documented_challenge() {
    run(async {
        let mut shown = Examples::of("docs/challenges.md");
        let altcha = (shown.next("CHALLENGE=altcha"), r#"{"altcha""#);
        let turnstile = (shown.next("CHALLENGE=turnstile"), r#"{"turnstile""#);
        shown.end();
        for (kind, (settings, start)) in [("altcha", altcha), ("turnstile", turnstile)] {
            let settings = settings.replacen("SECRET", SECRET, 1);
            let variables: Vec<_> = settings.lines().filter_map(|line| line.split_once('=')).collect();
            let world =
                World::start(Runtime::from_env(), &format!("examples-{kind}"), "test", &variables).await;
            world.core.create("shown", json!({"total": 1})).await;
            let request = world.request("GET", "/v1/campaigns/shown/challenge");
            let issued = world.send(request.bearer_auth(world.token("alice"))).await.expect(200).json();
            let shown: Value = serde_json::from_str(&example("docs/api.md", start)).unwrap();
            assert_same_shape(&shown, &issued, kind);
        }
    });
}
