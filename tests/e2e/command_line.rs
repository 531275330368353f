//! The command line as people and scripts meet it.

use std::path::Path;
use std::process::{Output, Stdio};

use serde_json::{Value, json};
use support::core_client::campaign;
use support::process::{Process, Signal, command, free_address, signal_pid};
use support::signing::claim_id;
use support::stand_in::{Canned, StandIn};
use support::wait::holds;
use support::{Core, CoreOptions, SOON, binary, eventually};

/// What a command said, and how it ended.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) status: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Said {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("no JSON ({error}): {self:?}"))
    }

    pub(crate) fn ended(self, status: i32) -> Self {
        assert_eq!(self.status, status, "{self:?}");
        self
    }

    /// One line on standard error, which has `part`.
    pub(crate) fn one_line(&self, part: &str) {
        let lines: Vec<_> = self.err.lines().collect();
        assert!(lines.len() == 1 && lines[0].contains(part), "not one line with {part}: {self:?}");
    }
}

pub(crate) async fn run(arguments: &[&str], environment: &[(&str, &str)], directory: &Path) -> Said {
    run_into([Stdio::piped(), Stdio::piped()], arguments, environment, directory).await
}

/// Runs a command with `output` as its standard output and standard error.
async fn run_into(
    output: [Stdio; 2],
    arguments: &[&str],
    environment: &[(&str, &str)],
    directory: &Path,
) -> Said {
    let [out, err] = output;
    let mut command = command(&binary::claimgate());
    command.args(arguments).envs(environment.iter().copied()).current_dir(directory);
    command.stdin(Stdio::null()).stdout(out).stderr(err);
    let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
    let Output { status, stdout, stderr } = output;
    Said {
        status: status.code().unwrap_or(-1),
        out: String::from_utf8(stdout).unwrap(),
        err: String::from_utf8(stderr).unwrap(),
    }
}

/// Runs a command against `core`, as on its own machine.
pub(crate) async fn ask(core: &Core, arguments: &[&str]) -> Said {
    ask_into([Stdio::piped(), Stdio::piped()], core, arguments).await
}

/// Runs a command against `core`, with `output` as its standard output and standard error.
async fn ask_into(output: [Stdio; 2], core: &Core, arguments: &[&str]) -> Said {
    let (listen, admin) = (core.listen().to_string(), core.admin_listen().to_string());
    let data = core.data_dir();
    let environment = [
        ("CLAIMGATE_LISTEN", listen.as_str()),
        ("CLAIMGATE_ADMIN_LISTEN", admin.as_str()),
        ("CLAIMGATE_DATA_DIR", data.to_str().unwrap()),
    ];
    run_into(output, arguments, &environment, &data).await
}

/// A pipe whose reader has gone, as `head -1` has after its line.
fn broken_pipe() -> Stdio {
    let (_, writer) = std::io::pipe().unwrap();
    writer.into()
}

#[tokio::test]
async fn past_claims_are_imported_from_a_file() {
    let core = Core::start().await;
    core.create("demo", json!({"per_user": 2})).await;
    let file = core.data_dir().join("claims.csv");
    let file = file.to_str().unwrap();
    let import = ["campaign", "import", "demo", file];
    ask(&core, &import).await.ended(2).one_line("claims.csv: No such file");
    std::fs::write(file, "user_id,quantity\nann,2\nbob,1\n").unwrap();
    ask(&core, &import).await.ended(1).one_line("campaign_open");
    core.set_admin_state("demo", "pause").await.expect(200);
    let done = ask(&core, &import).await.ended(0);
    assert_eq!(done.out, "2 claims imported, 0 were there already\n");
    assert!(done.err.is_empty(), "no progress where it is not a terminal: {done:?}");
    let again = ask(&core, &[&import[..], &["--json"]].concat()).await.ended(0);
    assert_eq!(again.json(), json!({"imported": 0, "already": 2}));
    std::fs::write(file, "user_id,quantity\nann,2\nbob\n").unwrap();
    ask(&core, &import).await.ended(2).one_line("line 3");
    std::fs::write(file, "user_id,quantity\nann,2\nann,1\n").unwrap();
    ask(&core, &import).await.ended(1).one_line("user_limit_reached");
}

#[tokio::test]
async fn the_audit_shows_campaigns_and_claims() {
    let core = Core::start().await;
    let mut body = campaign("demo", json!({}));
    body["hold_seconds"] = json!(600);
    core.create_with(body).await;
    let id = core.claim("demo", "ann", "k").await.expect(201).json()["claim"]["id"].clone();
    let id = id.as_str().unwrap();
    ask(&core, &["confirm", id]).await.ended(0);
    ask(&core, &["campaign", "pause", "demo"]).await.ended(0);
    let items = eventually(SOON, || async {
        let items = ask(&core, &["audit", "demo", "--json"]).await.ended(0).json();
        holds(items.as_array().unwrap().len() == 3, || items.to_string()).map(|()| items)
    })
    .await;
    let confirmed = items.as_array().unwrap().iter().find(|item| item["what"] == "confirm").unwrap();
    assert_eq!((&confirmed["claim_id"], &confirmed["who"]), (&json!(id), &json!("admin")));
    let table = ask(&core, &["audit", "demo"]).await.ended(0).out;
    for word in ["confirm", "status: held to granted", "pause", "admin_state: on to paused"] {
        assert!(table.contains(word), "{word}: {table}");
    }
}

#[tokio::test]
async fn every_command_helps() {
    let directory = tempfile::tempdir().unwrap();
    let commands: [&[&str]; 22] = [
        &[],
        &["serve"],
        &["campaign"],
        &["campaign", "create"],
        &["campaign", "list"],
        &["campaign", "show"],
        &["campaign", "update"],
        &["campaign", "add"],
        &["campaign", "pause"],
        &["campaign", "resume"],
        &["campaign", "end"],
        &["audit"],
        &["campaign", "import"],
        &["claim"],
        &["claims"],
        &["confirm"],
        &["return"],
        &["reconcile"],
        &["doctor"],
        &["drill"],
        &["token"],
        &["changes"],
    ];
    for words in commands {
        let help = run(&[words, &["--help"]].concat(), &[], directory.path()).await.ended(0);
        assert!(help.out.contains("Usage: claimgate"), "{words:?}: {help:?}");
        let talks = !words.is_empty() && words != ["serve"] && words != ["campaign"];
        assert!(!talks || help.out.contains("--json"), "{words:?} has no --json: {help:?}");
    }
    let help = run(&["serve", "--help"], &[], directory.path()).await;
    for variable in [
        "CLAIMGATE_LISTEN",
        "CLAIMGATE_ADMIN_LISTEN",
        "CLAIMGATE_DATA_DIR",
        "CLAIMGATE_REDIS_URL",
        "CLAIMGATE_DATABASE_URL",
    ] {
        assert!(help.out.contains(variable), "{variable} is not in the help of serve");
    }
    run(&["--version"], &[], directory.path()).await.ended(0);
    for wrong in [
        &["fly"][..],
        &["campaign"],
        &["claim"],
        &["claim", "demo"],
        &["token"],
        &["serve", "--fly"],
        &["campaign", "show", "a b"],
        &[],
    ] {
        run(wrong, &[], directory.path()).await.ended(2);
    }
}

#[tokio::test]
async fn a_campaigns_life() {
    let core = Core::start().await;
    let made = ask(
        &core,
        &[
            "campaign",
            "create",
            "demo",
            "--total",
            "2",
            "--per-user",
            "1",
            "--time-zone",
            "Asia/Shanghai",
            "--json",
        ],
    )
    .await
    .ended(0)
    .json();
    assert_eq!(
        (&made["id"], &made["limits"]["total"], &made["time_zone"]),
        (&json!("demo"), &json!(2), &json!("Asia/Shanghai"))
    );
    let shown = ask(&core, &["campaign", "show", "demo", "--json"]).await.ended(0).json();
    assert_eq!((&shown["remaining"], &shown["state"]), (&json!(2), &json!("open")));
    let listed = ask(&core, &["campaign", "list", "--json"]).await.ended(0).json();
    assert_eq!(listed[0]["id"], "demo");
    let changed = ask(
        &core,
        &["campaign", "update", "demo", "--name", "New", "--per-user", "none", "--total", "3", "--json"],
    )
    .await
    .ended(0)
    .json();
    assert_eq!(
        (&changed["name"], &changed["limits"]["per_user"], &changed["limits"]["total"]),
        (&json!("New"), &json!(null), &json!(3))
    );
    ask(&core, &["campaign", "update", "demo", "--name", "Stale", "--version", "1"])
        .await
        .ended(1)
        .one_line("version_conflict");
    let held =
        ask(&core, &["campaign", "update", "demo", "--hold-seconds", "60", "--json"]).await.ended(0).json();
    assert_eq!((&held["hold_seconds"], &held["limits"]["total"]), (&json!(60), &json!(3)));
    let free = ask(&core, &["campaign", "update", "demo", "--hold-seconds", "none", "--json"]).await;
    assert_eq!(free.ended(0).json()["hold_seconds"], json!(null));
    for (verb, state) in [("pause", "paused"), ("resume", "open"), ("end", "ended")] {
        assert_eq!(ask(&core, &["campaign", verb, "demo", "--json"]).await.ended(0).json()["state"], state);
    }
    ask(&core, &["campaign", "resume", "demo"]).await.ended(1).one_line("campaign_ended");
}

#[tokio::test]
async fn units_are_added_and_taken_off() {
    let core = Core::start().await;
    ask(&core, &["campaign", "create", "demo", "--total", "0"]).await.ended(0);
    let added = ask(&core, &["campaign", "add", "demo", "5", "--key", "k1", "--json"]).await.ended(0).json();
    assert_eq!((&added["limits"]["total"], &added["idempotency_key"]), (&json!(5), &json!("k1")));
    let again = ask(&core, &["campaign", "add", "demo", "5", "--key", "k1"]).await.ended(0);
    assert!(again.out.contains("0 / 5") && again.out.contains("k1"), "{again:?}");
    let less = ask(&core, &["campaign", "add", "demo", "-2", "--json"]).await.ended(0).json();
    assert_eq!(less["limits"]["total"], 3);
    assert_eq!(less["idempotency_key"].as_str().unwrap().len(), 22, "a random one is told");
    ask(&core, &["campaign", "add", "demo", "4", "--key", "k1"])
        .await
        .ended(1)
        .one_line("idempotency_key_reused");
    ask(&core, &["campaign", "add", "demo", "-4"]).await.ended(1).one_line("quantity_out_of_range");
    ask(&core, &["campaign", "add", "none", "1"]).await.ended(1).one_line("campaign_not_found");
    for words in [&["campaign", "add", "demo"][..], &["campaign", "add", "demo", "1.5"]] {
        ask(&core, words).await.ended(2);
    }
}

#[tokio::test]
async fn what_core_refuses_is_said_in_one_line() {
    let core = Core::start().await;
    ask(&core, &["campaign", "create", "demo", "--total", "2"]).await.ended(0);
    ask(&core, &["campaign", "end", "demo"]).await.ended(0);
    ask(&core, &["campaign", "show", "none"]).await.ended(1).one_line("campaign_not_found");
    ask(&core, &["campaign", "create", "demo", "--total", "9"]).await.ended(1).one_line("campaign_exists");
    ask(&core, &["campaign", "create", "bad", "--time-zone", "Mars/Olympus"])
        .await
        .ended(2)
        .one_line("time_zone");
    ask(&core, &["campaign", "create", "bad", "--per-user", "0"]).await.ended(2);
    for words in [&["campaign", "show", "demo"][..], &["campaign", "list"]] {
        let table = ask(&core, words).await.ended(0);
        assert!(table.out.contains("demo") && table.out.contains("ended"), "{table:?}");
        assert!(table.out.lines().all(|line| line.chars().count() <= 100), "{table:?}");
    }
}

#[tokio::test]
async fn claims_and_tokens() {
    let core = Core::start().await;
    core.create("demo", json!({"total": 1})).await;
    let claim = ["claim", "demo", "--user", "alice", "--key", "k1", "--json"];
    let granted = ask(&core, &claim).await.ended(0).json();
    assert_eq!(granted["claim"]["id"], claim_id("demo", "alice", "k1"));
    assert_eq!(granted["idempotency_key"], "k1");
    let again = ask(&core, &claim).await.ended(0).json();
    assert_eq!(again["claim"], granted["claim"]);
    let people = ask(&core, &claim[..6]).await.ended(0);
    assert!(
        people.out.contains("granted") && people.out.contains(&claim_id("demo", "alice", "k1")),
        "{people:?}"
    );
    ask(&core, &["claim", "demo", "--user", "bob"]).await.ended(1).one_line("sold_out");
    ask(&core, &["claim", "demo", "--user", "alice", "--key", "k1", "--quantity", "2"])
        .await
        .ended(1)
        .one_line("idempotency_key_reused");
    ask(&core, &["claim", "demo", "--user", "a b"]).await.ended(2);
    let token = ask(&core, &["token", "--user", "alice", "--json"]).await.ended(0).json();
    assert_eq!(token["token"].as_str().unwrap().split('.').count(), 3);
    assert_eq!(token["user_id"], "alice");
    let plain = ask(&core, &["token", "--user", "alice"]).await.ended(0);
    assert_eq!(plain.out.trim().split('.').count(), 3, "a token and nothing else");
}

#[tokio::test]
async fn a_reader_that_has_gone_changes_nothing_about_how_a_command_ends() {
    let core = Core::start().await;
    core.create("demo", json!({"total": 1})).await;
    core.create("other", json!({"total": 1})).await;
    for words in [
        &["--help"][..],
        &["campaign", "list", "--help"],
        &["campaign", "list"],
        &["campaign", "list", "--json"],
        &["campaign", "show", "demo"],
        &["claim", "demo", "--user", "alice", "--key", "k1"],
        &["reconcile", "other"],
        &["doctor"],
        &["doctor", "--json"],
        &["token", "--user", "alice"],
        &["campaign", "show", "none"],
        &["campaign", "show", "none", "--json"],
    ] {
        let read = ask(&core, words).await;
        let unread = ask_into([broken_pipe(), Stdio::piped()], &core, words).await;
        assert_eq!((unread.status, &unread.err), (read.status, &read.err), "{words:?}");
        ask_into([broken_pipe(), broken_pipe()], &core, words).await.ended(read.status);
    }
}

#[tokio::test]
async fn an_answer_that_cannot_be_written_is_an_error_in_one_line() {
    let core = Core::start().await;
    let full = || std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap().into();
    for words in [&["campaign", "list"][..], &["doctor"], &["token", "--user", "alice", "--json"]] {
        ask_into([full(), Stdio::piped()], &core, words).await.ended(2).one_line("standard output");
    }
}

#[tokio::test]
async fn no_core_there_is_unavailable_and_no_token_is_configuration() {
    let core = Core::start().await;
    let (nowhere, data) = (free_address().to_string(), core.data_dir());
    let environment = [
        ("CLAIMGATE_LISTEN", nowhere.as_str()),
        ("CLAIMGATE_ADMIN_LISTEN", nowhere.as_str()),
        ("CLAIMGATE_DATA_DIR", data.to_str().unwrap()),
    ];
    for words in [&["campaign", "list"][..], &["claim", "demo", "--user", "alice"]] {
        run(words, &environment, &data).await.ended(3).one_line(&nowhere);
        let elsewhere = tempfile::tempdir().unwrap();
        run(words, &environment[..2], elsewhere.path()).await.ended(2).one_line("CLAIMGATE_ADMIN_TOKEN");
        assert!(
            elsewhere.path().read_dir().unwrap().next().is_none(),
            "a command that talks to core makes no files"
        );
    }
    let wrong = [environment[2], ("CLAIMGATE_ADMIN_TOKEN", "not-the-token-but-long-enough-to-be-one")];
    let (listen, admin) = (core.listen().to_string(), core.admin_listen().to_string());
    let there = [("CLAIMGATE_LISTEN", listen.as_str()), ("CLAIMGATE_ADMIN_LISTEN", admin.as_str())];
    run(&["campaign", "list"], &[&wrong[..], &there[..]].concat(), &data)
        .await
        .ended(2)
        .one_line("unauthenticated");
}

/// Only a core of a later release says such words, so a server of the test's own speaks in its place.
#[tokio::test]
async fn what_a_newer_core_says_is_told_as_it_says_it() {
    let directory = tempfile::tempdir().unwrap();
    let core = StandIn::start();
    let address = core.listen.to_string();
    let environment = [
        ("CLAIMGATE_LISTEN", address.as_str()),
        ("CLAIMGATE_ADMIN_LISTEN", address.as_str()),
        ("CLAIMGATE_ADMIN_TOKEN", "an-admin-token-for-the-tests-only-of-some-length"),
        ("CLAIMGATE_DATA_DIR", directory.path().to_str().unwrap()),
    ];
    let claim = async |more: &[&str]| {
        let words = [&["claim", "demo", "--user", "alice", "--key", "k"], more].concat();
        run(&words, &environment, directory.path()).await
    };
    for (http, status) in [(409, 1), (403, 1), (400, 2), (503, 3)] {
        let problem = json!({"title": "Of tomorrow", "status": http, "detail": "not today", "code": "weekly_limit",
            "limit": "per_week", "remaining": "three", "claim": {"status": "escrowed"}, "instance": "r-1"});
        // Later than a person waits: it is not asked again.
        let answer = Canned::problem(http, &problem).with("Retry-After", "3600");
        core.answers("POST /internal/v1/claims", answer);
        claim(&[]).await.ended(status).one_line("Of tomorrow (weekly_limit): not today");
        assert_eq!(claim(&["--json"]).await.ended(status).json(), problem);
    }
    let stands = json!({"claim": {"id": "demo.alice.x", "quantity": 1, "status": "shipped", "sequence": 4,
        "claimed_at": "2026-01-01T00:00:00.000Z", "parcel": {"of": 2}}, "remaining": 3, "receipt": null});
    core.answers("POST /internal/v1/claims", Canned::json(201, &stands));
    let told = claim(&[]).await.ended(0);
    assert!(told.out.contains("shipped"), "{told:?}");
    let campaign = json!({"id": "demo", "name": "Demo", "state": "lottery", "starts_at": "2026-01-01T00:00:00.000Z",
        "limits": {"total": 0, "per_week": 2}, "version": 3, "more": [1]});
    core.answers("GET /admin/v1/campaigns/demo", Canned::json(200, &campaign));
    let told = run(&["campaign", "show", "demo"], &environment, directory.path()).await.ended(0);
    assert!(told.out.contains("lottery"), "{told:?}");
}

#[tokio::test]
async fn claims_are_listed_by_user_and_status() {
    let core = Core::start().await;
    core.create("demo", json!({})).await;
    for (user, key) in [("alice", "a"), ("bob", "a"), ("alice", "b")] {
        core.claim("demo", user, key).await.expect(201);
    }
    let returned = claim_id("demo", "alice", "a");
    ask(&core, &["return", &returned]).await.ended(0);
    core.sql().until("demo", 3).await;
    eventually(SOON, || async {
        let all = ask(&core, &["claims", "demo", "--json"]).await.ended(0).json();
        let statuses: Vec<_> = all.as_array().unwrap().iter().map(|claim| claim["status"].clone()).collect();
        holds(statuses == ["returned", "granted", "granted"], || all.to_string())
    })
    .await;
    let of = async |options: &[&str]| -> Vec<String> {
        let listed = ask(&core, &[&["claims", "demo", "--json"], options].concat()).await.ended(0).json();
        let items = listed.as_array().unwrap().iter();
        items.map(|claim| claim["id"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(of(&["--user", "alice"]).await, [returned.clone(), claim_id("demo", "alice", "b")]);
    assert_eq!(of(&["--user", "alice", "--status", "returned"]).await, std::slice::from_ref(&returned));
    assert_eq!(of(&["--status", "granted"]).await.len(), 2);
    assert!(of(&["--user", "stranger"]).await.is_empty());
    let text = ask(&core, &["claims", "demo"]).await.ended(0);
    assert!(text.out.contains(&returned) && text.out.contains("returned"), "{text:?}");
    ask(&core, &["claims", "nowhere"]).await.ended(1).one_line("campaign_not_found");
    let wrong = ask(&core, &["claims", "demo", "--status", "lost"]).await.ended(2);
    assert!(wrong.err.contains("must be granted, held, returned, expired or revoked"), "{wrong:?}");
}

#[tokio::test]
async fn changed_claims_are_printed_a_line_each() {
    let core = Core::start().await;
    core.create("demo", json!({})).await;
    core.create("other", json!({})).await;
    for user in ["alice", "bob", "carl"] {
        core.claim("demo", user, "k").await.expect(201);
    }
    core.claim("other", "dora", "k").await.expect(201);
    core.sql().until("demo", 3).await;
    core.sql().until("other", 1).await;
    let lines = async |options: &[&str]| -> Vec<Value> {
        let said = ask(&core, &[&["changes"], options].concat()).await.ended(0);
        assert!(said.err.is_empty(), "{said:?}");
        said.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let all = lines(&[]).await;
    assert_eq!(all.len(), 4);
    assert_eq!(lines(&["--json"]).await, all);
    assert_eq!(lines(&["--limit", "3"]).await, all[..3]);
    assert_eq!(lines(&["--follow", "--limit", "3"]).await, all[..3]);
    assert_eq!(lines(&["--after", all[1]["cursor"].as_str().unwrap()]).await, all[2..]);
    let of_other = lines(&["--campaign", "other"]).await;
    assert_eq!((of_other.len(), &of_other[0]["claim"]["user_id"]), (1, &json!("dora")));
    ask(&core, &["changes", "--campaign", "none"]).await.ended(1).one_line("campaign_not_found");
    for after in ["1.2.3", "a b", "#"] {
        ask(&core, &["changes", "--follow", "--after", after]).await.ended(1).one_line("cursor_invalid");
    }
    ask(&core, &["changes", "--limit", "0"]).await.ended(2);
    for options in [&["changes"][..], &["changes", "--follow"]] {
        let said = ask_into([broken_pipe(), Stdio::piped()], &core, options).await.ended(0);
        assert!(said.err.is_empty(), "{said:?}");
    }
    let directory = tempfile::tempdir().unwrap();
    let environment = [("CLAIMGATE_ADMIN_TOKEN", "an-admin-token-for-the-tests-only-of-some-length")];
    let nowhere = free_address().to_string();
    let words = ["changes", "--follow", "--admin-listen", &nowhere];
    run(&words, &environment, directory.path()).await.ended(3).one_line("no answer from http://");
}

#[tokio::test]
async fn changes_are_followed_over_a_restart_of_core() {
    let mut core = CoreOptions::default().admin_at(free_address()).start().await;
    core.create("demo", json!({})).await;
    let out = core.data_dir().join("../changes.jsonl");
    let err = core.data_dir().join("../changes.err");
    let mut command = command(&binary::claimgate());
    command.args(["changes", "--follow"]).current_dir(core.data_dir());
    command.env("CLAIMGATE_ADMIN_LISTEN", core.admin_listen().to_string());
    command.env("CLAIMGATE_DATA_DIR", core.data_dir()).stdin(Stdio::null());
    command.stdout(std::fs::File::create(&out).unwrap()).stderr(std::fs::File::create(&err).unwrap());
    let _follows = Process::start(command);
    let users = async |expected: &[&str]| {
        eventually(SOON, || async {
            let text = std::fs::read_to_string(&out).unwrap();
            let items = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap_or_default());
            let mut users: Vec<_> = items.map(|item| item["claim"]["user_id"].clone()).collect();
            // At least once: what core had committed and not taken off the outbox when it was killed is told again.
            users.dedup();
            holds(users == expected, || text.clone())
        })
        .await;
    };
    core.claim("demo", "alice", "k").await.expect(201);
    users(&["alice"]).await;
    core.kill();
    eventually(SOON, || async {
        let said = std::fs::read_to_string(&err).unwrap();
        holds(said.contains("asking again"), || said.clone())
    })
    .await;
    core = core.restart().await;
    core.claim("demo", "bob", "k").await.expect(201);
    users(&["alice", "bob"]).await;
    core.stop().await;
    let core = core.restart().await;
    core.claim("demo", "carl", "k").await.expect(201);
    users(&["alice", "bob", "carl"]).await;
}

#[tokio::test]
async fn a_call_that_is_safe_to_repeat_is_repeated_and_says_so() {
    let core = Core::start().await;
    let out = core.data_dir().join("../create.json");
    let err = core.data_dir().join("../create.err");
    let mut command = command(&binary::claimgate());
    command.args(["campaign", "create", "demo", "--total", "5", "--json"]).current_dir(core.data_dir());
    command.env("CLAIMGATE_ADMIN_LISTEN", core.admin_listen().to_string());
    command.env("CLAIMGATE_DATA_DIR", core.data_dir()).stdin(Stdio::null());
    command.stdout(std::fs::File::create(&out).unwrap()).stderr(std::fs::File::create(&err).unwrap());
    let redis = core.redis_pid().await;
    signal_pid(redis, Signal::STOP);
    let mut process = Process::start(command);
    let said = eventually(SOON, || async {
        let said = std::fs::read_to_string(&err).unwrap();
        holds(said.contains("asking again for at most 30 s"), || said.clone()).map(|()| said)
    })
    .await;
    signal_pid(redis, Signal::CONT);
    assert!(said.contains("(unavailable)"), "it says what is repeated: {said}");
    assert!(process.wait(SOON).await.success(), "{}", std::fs::read_to_string(&err).unwrap());
    let campaign: Value = serde_json::from_str(&std::fs::read_to_string(&out).unwrap()).unwrap();
    assert_eq!((&campaign["id"], &campaign["version"]), (&json!("demo"), &json!(1)));
    assert_eq!(core.campaign("demo").await["limits"]["total"], 5);
}
