//! The command line as used by people and by scripts.

use std::io::Write as _;
use std::path::Path;
use std::process::{Output, Stdio};

use serde_json::{Value, json};
use support::core_client::campaign;
use support::process::{Process, command, free_address};
use support::signing::claim_id;
use support::stand_in::{Canned, StandIn};
use support::wait::holds;
use support::{Core, CoreOptions, SOON, binary, eventually};

/// The output and exit status of a command.
#[derive(Debug)]
pub(crate) struct CommandOutput {
    pub(crate) status: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl From<Output> for CommandOutput {
    fn from(Output { status, stdout, stderr }: Output) -> Self {
        let [out, err] = [stdout, stderr].map(|text| String::from_utf8(text).unwrap());
        Self { status: status.code().unwrap_or(-1), out, err }
    }
}

impl CommandOutput {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("no JSON ({error}): {self:?}"))
    }

    pub(crate) fn ended(self, status: i32) -> Self {
        assert_eq!(self.status, status, "{self:?}");
        self
    }

    /// Returns the lines of standard error without those about retries, which a slow machine may cause.
    pub(crate) fn error_lines(&self) -> Vec<&str> {
        self.err.lines().filter(|line| !line.contains("retrying for at most 30 s")).collect()
    }

    /// Checks that standard error is one line that contains `part`.
    pub(crate) fn one_line(&self, part: &str) {
        let lines = self.error_lines();
        assert!(lines.len() == 1 && lines[0].contains(part), "not one line with {part}: {self:?}");
    }
}

pub(crate) async fn run(arguments: &[&str], environment: &[(&str, &str)], directory: &Path) -> CommandOutput {
    run_into([Stdio::piped(), Stdio::piped()], arguments, environment, directory).await
}

/// Runs a command with `output` as its standard output and standard error.
async fn run_into(
    output: [Stdio; 2],
    arguments: &[&str],
    environment: &[(&str, &str)],
    directory: &Path,
) -> CommandOutput {
    let [out, err] = output;
    let mut command = command(&binary::claimgate());
    command.args(arguments).envs(environment.iter().copied()).current_dir(directory);
    command.stdin(Stdio::null()).stdout(out).stderr(err);
    tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap().into()
}

/// Runs a command against `core` with `input` as its standard input.
pub(crate) async fn with_input(core: &Core, arguments: &[&str], input: &[u8]) -> CommandOutput {
    let mut command = command(&binary::claimgate());
    command.args(arguments).env("CLAIMGATE_ADMIN_LISTEN", core.admin_listen().to_string());
    command.env("CLAIMGATE_DATA_DIR", core.data_dir());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let input = input.to_owned();
    let output = tokio::task::spawn_blocking(move || {
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(&input).unwrap();
        child.wait_with_output().unwrap()
    });
    output.await.unwrap().into()
}

/// Runs a command against `core`, as on core's machine.
pub(crate) async fn run_against(core: &Core, arguments: &[&str]) -> CommandOutput {
    run_against_into([Stdio::piped(), Stdio::piped()], core, arguments).await
}

/// Runs a command against `core`, with `output` as its standard output and standard error.
async fn run_against_into(output: [Stdio; 2], core: &Core, arguments: &[&str]) -> CommandOutput {
    let (listen, admin) = (core.listen().to_string(), core.admin_listen().to_string());
    let data = core.data_dir();
    let environment = [
        ("CLAIMGATE_LISTEN", listen.as_str()),
        ("CLAIMGATE_ADMIN_LISTEN", admin.as_str()),
        ("CLAIMGATE_DATA_DIR", data.to_str().unwrap()),
    ];
    run_into(output, arguments, &environment, &data).await
}

/// Returns a pipe whose reader has exited, as `head -1` does after one line.
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
    run_against(&core, &import).await.ended(2).one_line("claims.csv: No such file");
    std::fs::write(file, "user_id,quantity\nann,2\nbob,1\n").unwrap();
    run_against(&core, &import).await.ended(1).one_line("campaign_open");
    core.set_admin_state("demo", "pause").await.expect(200);
    let done = run_against(&core, &import).await.ended(0);
    assert_eq!(done.out, "2 claims imported, 0 already existed\n");
    assert!(done.error_lines().is_empty(), "progress is shown only on a terminal: {done:?}");
    let again = run_against(&core, &[&import[..], &["--json"]].concat()).await.ended(0);
    assert_eq!(again.json(), json!({"imported": 0, "already": 2}));
    std::fs::write(file, "user_id,quantity\nann,2\nbob\n").unwrap();
    run_against(&core, &import).await.ended(2).one_line("line 3");
    std::fs::write(file, "user_id,quantity\nann,2\nann,1\n").unwrap();
    run_against(&core, &import).await.ended(1).one_line("user_limit_reached");
}

#[tokio::test]
async fn past_claims_are_imported_from_standard_input() {
    let core = Core::start().await;
    core.create("demo", json!({})).await;
    core.set_admin_state("demo", "pause").await.expect(200);
    let import =
        async |csv: &[u8]| with_input(&core, &["campaign", "import", "demo", "-", "--json"], csv).await;
    let done = import(b"user_id,quantity\rann,2\rbob,1\r").await.ended(0);
    assert_eq!((done.json(), done.err.as_str()), (json!({"imported": 2, "already": 0}), ""));
    for (csv, part) in [
        (&b"user_id;quantity\nann;1\n"[..], "';'"),
        (b"sep=,\nuser_id,quantity\n", "sep="),
        (b"\xff\xfeu\0s\0e\0r\0", "UTF-16"),
        (b"user_id,quantity\rann,1\rbob,none\r", "line 3"),
    ] {
        let refused = import(csv).await.ended(2);
        assert!(refused.err.contains(part), "{part}: {refused:?}");
    }
}

#[tokio::test]
async fn the_audit_shows_changes_to_campaigns_and_claims() {
    let core = Core::start().await;
    let mut body = campaign("demo", json!({}));
    body["hold_seconds"] = json!(600);
    core.create_with(body).await;
    let id = core.claim("demo", "ann", "k").await.expect(201).json()["claim"]["id"].clone();
    let id = id.as_str().unwrap();
    run_against(&core, &["campaign", "update", "demo", "--hold-seconds", "7200"]).await.ended(0);
    let extended = run_against(&core, &["extend", id, "--json"]).await.ended(0).json();
    assert_eq!(extended["claim"]["status"], "held");
    run_against(&core, &["confirm", id]).await.ended(0);
    run_against(&core, &["campaign", "pause", "demo"]).await.ended(0);
    let items = eventually(SOON, || async {
        let items = run_against(&core, &["audit", "demo", "--json"]).await.ended(0).json();
        holds(items.as_array().unwrap().len() == 5, || items.to_string()).map(|()| items)
    })
    .await;
    let confirmed = items.as_array().unwrap().iter().find(|item| item["what"] == "confirm").unwrap();
    assert_eq!((&confirmed["claim_id"], &confirmed["who"]), (&json!(id), &json!("admin")));
    let table = run_against(&core, &["audit", "demo"]).await.ended(0).out;
    for word in [
        "extend",
        "expires_at: 20",
        "confirm",
        "status: held to granted",
        "pause",
        "admin_state: on to paused",
    ] {
        assert!(table.contains(word), "{word}: {table}");
    }
}

#[tokio::test]
async fn every_command_has_help() {
    let directory = tempfile::tempdir().unwrap();
    let commands: [&[&str]; 23] = [
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
        &["extend"],
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
async fn a_campaign_is_created_changed_and_ended() {
    let core = Core::start().await;
    let made = run_against(
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
    let shown = run_against(&core, &["campaign", "show", "demo", "--json"]).await.ended(0).json();
    assert_eq!((&shown["remaining"], &shown["state"]), (&json!(2), &json!("open")));
    let listed = run_against(&core, &["campaign", "list", "--json"]).await.ended(0).json();
    assert_eq!(listed[0]["id"], "demo");
    let changed = run_against(
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
    run_against(&core, &["campaign", "update", "demo", "--name", "Stale", "--version", "1"])
        .await
        .ended(1)
        .one_line("version_conflict");
    let held = run_against(&core, &["campaign", "update", "demo", "--hold-seconds", "600", "--json"])
        .await
        .ended(0)
        .json();
    assert_eq!((&held["hold_seconds"], &held["limits"]["total"]), (&json!(600), &json!(3)));
    let free = run_against(&core, &["campaign", "update", "demo", "--hold-seconds", "none", "--json"]).await;
    assert_eq!(free.ended(0).json()["hold_seconds"], json!(null));
    for (verb, state) in [("pause", "paused"), ("resume", "open"), ("end", "ended")] {
        let confirmed = if verb == "end" { &["--yes"][..] } else { &[] };
        let words = [&["campaign", verb, "demo", "--json"], confirmed].concat();
        assert_eq!(run_against(&core, &words).await.ended(0).json()["state"], state);
    }
    run_against(&core, &["campaign", "resume", "demo"]).await.ended(1).one_line("campaign_ended");
}

#[tokio::test]
async fn units_are_added_and_removed() {
    let core = Core::start().await;
    run_against(&core, &["campaign", "create", "demo", "--total", "0"]).await.ended(0);
    let added =
        run_against(&core, &["campaign", "add", "demo", "5", "--key", "k1", "--json"]).await.ended(0).json();
    assert_eq!((&added["limits"]["total"], &added["idempotency_key"]), (&json!(5), &json!("k1")));
    let again = run_against(&core, &["campaign", "add", "demo", "5", "--key", "k1"]).await.ended(0);
    assert!(again.out.contains("0 / 5") && again.out.contains("k1"), "{again:?}");
    let less = run_against(&core, &["campaign", "add", "demo", "-2", "--json"]).await.ended(0).json();
    assert_eq!(less["limits"]["total"], 3);
    assert_eq!(less["idempotency_key"].as_str().unwrap().len(), 22, "a generated key is printed");
    run_against(&core, &["campaign", "add", "demo", "4", "--key", "k1"])
        .await
        .ended(1)
        .one_line("idempotency_key_reused");
    run_against(&core, &["campaign", "add", "demo", "-4"]).await.ended(1).one_line("quantity_out_of_range");
    run_against(&core, &["campaign", "add", "none", "1"]).await.ended(1).one_line("campaign_not_found");
    for words in [&["campaign", "add", "demo"][..], &["campaign", "add", "demo", "1.5"]] {
        run_against(&core, words).await.ended(2);
    }
}

#[tokio::test]
async fn a_rejection_by_core_is_reported_in_one_line() {
    let core = Core::start().await;
    run_against(&core, &["campaign", "create", "demo", "--total", "2"]).await.ended(0);
    run_against(&core, &["campaign", "end", "demo", "--yes"]).await.ended(0);
    run_against(&core, &["campaign", "show", "none"]).await.ended(1).one_line("campaign_not_found");
    run_against(&core, &["campaign", "create", "demo", "--total", "9"])
        .await
        .ended(1)
        .one_line("campaign_exists");
    run_against(&core, &["campaign", "create", "bad", "--total", "1", "--name", ""])
        .await
        .ended(2)
        .one_line("name");
    for words in [&["campaign", "show", "demo"][..], &["campaign", "list"]] {
        let table = run_against(&core, words).await.ended(0);
        assert!(table.out.contains("demo") && table.out.contains("ended"), "{table:?}");
        assert!(table.out.lines().all(|line| line.chars().count() <= 100), "{table:?}");
    }
}

#[tokio::test]
async fn the_claim_and_token_commands_print_results() {
    let core = Core::start().await;
    core.create("demo", json!({"total": 1})).await;
    let claim = ["claim", "demo", "--user", "alice", "--key", "k1", "--json"];
    let granted = run_against(&core, &claim).await.ended(0).json();
    assert_eq!(granted["claim"]["id"], claim_id("demo", "alice", "k1"));
    assert_eq!(granted["idempotency_key"], "k1");
    let again = run_against(&core, &claim).await.ended(0).json();
    assert_eq!(again["claim"], granted["claim"]);
    let people = run_against(&core, &claim[..6]).await.ended(0);
    assert!(
        people.out.contains("granted") && people.out.contains(&claim_id("demo", "alice", "k1")),
        "{people:?}"
    );
    run_against(&core, &["claim", "demo", "--user", "bob"]).await.ended(1).one_line("sold_out");
    run_against(&core, &["claim", "demo", "--user", "alice", "--key", "k1", "--quantity", "2"])
        .await
        .ended(1)
        .one_line("idempotency_key_reused");
    run_against(&core, &["claim", "demo", "--user", "a b"]).await.ended(2);
    let token = run_against(&core, &["token", "--user", "alice", "--json"]).await.ended(0).json();
    assert_eq!(token["token"].as_str().unwrap().split('.').count(), 3);
    assert_eq!(token["user_id"], "alice");
    let plain = run_against(&core, &["token", "--user", "alice"]).await.ended(0);
    assert_eq!(plain.out.trim().split('.').count(), 3, "the output is only the token");
}

#[tokio::test]
async fn a_closed_pipe_does_not_change_the_exit_status() {
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
        let read = run_against(&core, words).await;
        let unread = run_against_into([broken_pipe(), Stdio::piped()], &core, words).await;
        assert_eq!((unread.status, &unread.err), (read.status, &read.err), "{words:?}");
        run_against_into([broken_pipe(), broken_pipe()], &core, words).await.ended(read.status);
    }
}

#[tokio::test]
async fn output_that_cannot_be_written_is_reported_in_one_line() {
    let core = Core::start().await;
    let full = || std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap().into();
    for words in [&["campaign", "list"][..], &["doctor"], &["token", "--user", "alice", "--json"]] {
        run_against_into([full(), Stdio::piped()], &core, words).await.ended(2).one_line("standard output");
    }
}

#[tokio::test]
async fn a_missing_core_and_a_missing_token_exit_differently() {
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
            "a command that calls core creates no files"
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

/// A fake server replaces core, because only a newer release returns such values.
#[tokio::test]
async fn responses_from_a_newer_core_are_printed_unchanged() {
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
    let existing = json!({"claim": {"id": "demo.alice.x", "quantity": 1, "status": "shipped", "sequence": 4,
        "claimed_at": "2026-01-01T00:00:00.000Z", "parcel": {"of": 2}}, "remaining": 3, "receipt": null});
    core.answers("POST /internal/v1/claims", Canned::json(201, &existing));
    let output = claim(&[]).await.ended(0);
    assert!(output.out.contains("shipped"), "{output:?}");
    let campaign = json!({"id": "demo", "name": "Demo", "state": "lottery", "starts_at": "2026-01-01T00:00:00.000Z",
        "limits": {"total": 0, "per_week": 2}, "version": 3, "more": [1]});
    core.answers("GET /admin/v1/campaigns/demo", Canned::json(200, &campaign));
    let output = run(&["campaign", "show", "demo"], &environment, directory.path()).await.ended(0);
    assert!(output.out.contains("lottery"), "{output:?}");
}

#[tokio::test]
async fn claims_are_listed_by_user_and_status() {
    let core = Core::start().await;
    core.create("demo", json!({})).await;
    for (user, key) in [("alice", "a"), ("bob", "a"), ("alice", "b")] {
        core.claim("demo", user, key).await.expect(201);
    }
    let returned = claim_id("demo", "alice", "a");
    run_against(&core, &["return", &returned, "--reason", "Bought twice"]).await.ended(0);
    core.sql().until("demo", 3).await;
    eventually(SOON, || async {
        let audit = run_against(&core, &["audit", "demo"]).await.ended(0);
        holds(audit.out.contains("reason: Bought twice"), || audit.out)
    })
    .await;
    eventually(SOON, || async {
        let all = run_against(&core, &["claims", "demo", "--json"]).await.ended(0).json();
        let statuses: Vec<_> = all.as_array().unwrap().iter().map(|claim| claim["status"].clone()).collect();
        holds(statuses == ["returned", "granted", "granted"], || all.to_string())
    })
    .await;
    let of = async |options: &[&str]| -> Vec<String> {
        let listed =
            run_against(&core, &[&["claims", "demo", "--json"], options].concat()).await.ended(0).json();
        let items = listed.as_array().unwrap().iter();
        items.map(|claim| claim["id"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(of(&["--user", "alice"]).await, [returned.clone(), claim_id("demo", "alice", "b")]);
    assert_eq!(of(&["--user", "alice", "--status", "returned"]).await, std::slice::from_ref(&returned));
    assert_eq!(of(&["--status", "granted"]).await.len(), 2);
    assert!(of(&["--user", "stranger"]).await.is_empty());
    let text = run_against(&core, &["claims", "demo"]).await.ended(0);
    assert!(text.out.contains(&returned) && text.out.contains("returned"), "{text:?}");
    run_against(&core, &["claims", "nowhere"]).await.ended(1).one_line("campaign_not_found");
    let wrong = run_against(&core, &["claims", "demo", "--status", "lost"]).await.ended(2);
    assert!(wrong.err.contains("must be granted, held, returned, expired or revoked"), "{wrong:?}");
}

/// One in 64 random ids begins with a hyphen.
#[tokio::test]
async fn ids_may_begin_with_a_hyphen() {
    let core = Core::start().await;
    run_against(&core, &["campaign", "create", "--total", "5", "--", "-sale"]).await.ended(0);
    for replayed in [false, true] {
        let claimed = ["claim", "--json", "--user", "-ann", "--key", "-k", "--", "-sale"];
        let claimed = run_against(&core, &claimed).await.ended(0).json();
        assert_eq!(claimed["claim"]["user_id"], "-ann", "replayed: {replayed}");
    }
    core.sql().until("-sale", 1).await;
    for listed in
        [&["claims", "--json", "--user", "-ann", "--", "-sale"][..], &["changes", "--campaign", "-sale"]]
    {
        let listed = run_against(&core, listed).await.ended(0);
        assert!(listed.out.contains("-sale.-ann."), "{listed:?}");
    }
    let unmarked = run_against(&core, &["campaign", "show", "-sale"]).await.ended(2);
    assert!(unmarked.err.contains("-- -s"), "the remedy is not named: {unmarked:?}");
}

#[tokio::test]
async fn changed_claims_are_printed_one_per_line() {
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
        let output = run_against(&core, &[&["changes"], options].concat()).await.ended(0);
        assert!(output.error_lines().is_empty(), "{output:?}");
        output.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let all = lines(&[]).await;
    assert_eq!(all.len(), 4);
    assert_eq!(lines(&["--json"]).await, all);
    assert_eq!(lines(&["--limit", "3"]).await, all[..3]);
    assert_eq!(lines(&["--follow", "--limit", "3"]).await, all[..3]);
    assert_eq!(lines(&["--after", all[1]["cursor"].as_str().unwrap()]).await, all[2..]);
    let of_other = lines(&["--campaign", "other"]).await;
    assert_eq!((of_other.len(), &of_other[0]["claim"]["user_id"]), (1, &json!("dora")));
    run_against(&core, &["changes", "--campaign", "none"]).await.ended(1).one_line("campaign_not_found");
    for after in ["1.2.3", "a b", "#"] {
        run_against(&core, &["changes", "--follow", "--after", after])
            .await
            .ended(1)
            .one_line("cursor_invalid");
    }
    run_against(&core, &["changes", "--limit", "0"]).await.ended(2);
    for options in [&["changes"][..], &["changes", "--follow"]] {
        let output = run_against_into([broken_pipe(), Stdio::piped()], &core, options).await.ended(0);
        assert!(output.err.is_empty(), "{output:?}");
    }
    let directory = tempfile::tempdir().unwrap();
    let environment = [("CLAIMGATE_ADMIN_TOKEN", "an-admin-token-for-the-tests-only-of-some-length")];
    let nowhere = free_address().to_string();
    let words = ["changes", "--follow", "--admin-listen", &nowhere];
    run(&words, &environment, directory.path()).await.ended(3).one_line("no answer from http://");
}

#[tokio::test]
async fn following_changes_continues_after_a_restart_of_core() {
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
            // Changes are reported at least once: changes still in the outbox at the kill are repeated.
            users.dedup();
            holds(users == expected, || text.clone())
        })
        .await;
    };
    core.claim("demo", "alice", "k").await.expect(201);
    users(&["alice"]).await;
    core.kill();
    eventually(SOON, || async {
        let output = std::fs::read_to_string(&err).unwrap();
        holds(output.contains("retrying"), || output.clone())
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
