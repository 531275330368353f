//! `claimgate campaign apply`: campaigns from a file.

use std::path::Path;

use serde_json::{Value, json};
use support::core_client::campaign;
use support::stand_in::{Canned, StandIn};
use support::topology::OWN;
use support::wait::holds;
use support::{Core, CoreOptions, RedisServer, SOON, eventually, only_on};

use crate::command_line::{CommandOutput, run, run_against, with_input};
use crate::terminal::{answered, asking};

const TWO: &str = "\
- id: spring
  name: Spring sale
  time_zone: Asia/Shanghai
  starts_at: 2026-12-01 08:00
  ends_at: 2099-12-31 08:00
  limits:
    total: 100
    per_user: 2
- id: vouchers
  limits: {total: 50}
  hold_seconds: 600
";

const TWO_AS_JSON: &str = r#"[
	{"id": "spring", "name": "Spring sale", "time_zone": "Asia/Shanghai", "starts_at": "2026-12-01T08:00:00+08:00",
	 "ends_at": "2099-12-31T08:00:00+08:00", "limits": {"total": 100, "per_user": 2, "per_claim": null}},
	{"id": "vouchers", "limits": {"total": 50}, "hold_seconds": 600}
]"#;

/// Applies a file with `text`.
async fn apply(core: &Core, text: &str, options: &[&str]) -> CommandOutput {
    let file = core.data_dir().join("campaigns.txt");
    std::fs::write(&file, text).unwrap();
    run_against(core, &[&["campaign", "apply", file.to_str().unwrap()], options].concat()).await
}

/// Returns all campaigns, without what changes by itself.
async fn all(core: &Core) -> Value {
    let mut all = core.admin_get("/admin/v1/campaigns").await.expect(200).json()["items"].take();
    for campaign in all.as_array_mut().unwrap() {
        campaign
            .as_object_mut()
            .unwrap()
            .retain(|name, _| !["server_time", "backlog", "ready"].contains(&name.as_str()));
    }
    all
}

#[tokio::test]
async fn campaigns_of_a_file_are_created_changed_and_kept() {
    let core = Core::start().await;
    let created = apply(&core, TWO, &["--yes"]).await.ended(0);
    assert!(created.error_lines().is_empty(), "{created:?}");
    for line in [
        "spring: create",
        "  starts_at: 2026-12-01 08:00+08:00",
        "  limits.total: 100",
        "vouchers: create",
        "  hold_seconds: 600",
        "spring: created, version 1",
        "vouchers: created, version 1",
    ] {
        assert!(created.out.lines().any(|shown| shown == line), "no line {line}: {}", created.out);
    }
    let spring = core.admin_get("/admin/v1/campaigns/spring").await.expect(200).json();
    assert_eq!((&spring["name"], &spring["time_zone"]), (&json!("Spring sale"), &json!("Asia/Shanghai")));
    let before = all(&core).await;
    for same in [TWO, TWO_AS_JSON] {
        let again = apply(&core, same, &[]).await.ended(0);
        assert_eq!(again.out, "spring: unchanged\nvouchers: unchanged\n");
        assert!(again.error_lines().is_empty(), "{again:?}");
        apply(&core, same, &["--dry-run"]).await.ended(0);
    }
    assert_eq!(all(&core).await, before, "the second run changes nothing");

    let changed = TWO.replace("total: 50", "total: 60").replace("  hold_seconds: 600\n", "");
    let output = apply(&core, &changed, &["--yes"]).await.ended(0).out;
    let expected = "spring: unchanged\nvouchers: change\n  limits.total: 50 -> 60\n  hold_seconds: 600 -> none\n  \
                    warning: hold_seconds: claims are granted immediately from now on, without a confirmation\n\
                    vouchers: changed, version 2\n";
    assert_eq!(output, expected);
    let vouchers = core.admin_get("/admin/v1/campaigns/vouchers").await.expect(200).json();
    assert_eq!((&vouchers["limits"]["total"], &vouchers["hold_seconds"]), (&json!(60), &Value::Null));
    assert_eq!(all(&core).await[0], before[0]);
}

#[tokio::test]
async fn changes_are_printed_for_programs() {
    let core = Core::start().await;
    core.create("vouchers", json!({"total": 50})).await;
    let text = "[{id: new, limits: {total: 1}}, {id: vouchers, limits: {total: 60, per_user: 90}}]";
    let preview = apply(&core, text, &["--dry-run", "--json"]).await.ended(1).json();
    assert_eq!(preview["dry_run"], true);
    let done = apply(&core, text, &["--yes", "--json"]).await.ended(0).json();
    for (answer, is_done, versions) in
        [(&preview, false, [json!(null), json!(null)]), (&done, true, [json!(1), json!(2)])]
    {
        let [new, vouchers] = [0, 1].map(|at| &answer["campaigns"][at]);
        assert_eq!(
            (&new["id"], &new["action"], &new["done"]),
            (&json!("new"), &json!("create"), &json!(is_done))
        );
        assert_eq!([&new["version"], &vouchers["version"]], [&versions[0], &versions[1]]);
        let total = json!({"member": "limits.total", "before": 50, "after": 60});
        assert!(vouchers["changes"].as_array().unwrap().contains(&total), "{vouchers}");
        assert!(
            vouchers["warnings"][0].as_str().unwrap().contains("limits.per_user 90 is never reached"),
            "{vouchers}"
        );
        assert_eq!((&vouchers["action"], &vouchers["problem"]), (&json!("change"), &Value::Null));
    }
    let again = apply(&core, text, &["--json"]).await.ended(0).json();
    assert!(
        again["campaigns"]
            .as_array()
            .unwrap()
            .iter()
            .all(|one| one["action"] == "none" && one["done"] == true)
    );
}

#[tokio::test]
async fn a_mistake_in_one_campaign_changes_none() {
    let core = Core::start().await;
    apply(&core, TWO, &["--yes"]).await.ended(0);
    let before = all(&core).await;
    let with = |last: &str| {
        format!("- id: new\n  limits: {{total: 5}}\n{}{last}\n", TWO.replace("total: 100", "total: 101"))
    };
    for (last, status, parts) in [
        (
            "  hold_secs: 5",
            2,
            &["campaigns.txt:14: vouchers: hold_secs: unknown member; did you mean hold_seconds?"][..],
        ),
        ("- id: x\n  limits: {total: -5}", 2, &["campaigns.txt:15: x: limits.total: '-5': -5 is below 0"]),
        ("- id: x\n  limits: {total: [", 2, &["campaigns.txt:1"]),
        ("- id: x", 2, &["x: limits: no limit is given"]),
        ("  time_zone: UTC\n- id: x\n  time_zone: Mars", 2, &["x: time_zone: 'Mars'"]),
        (
            "  time_zone: Asia/Tokyo",
            2,
            &["campaigns.txt:14: vouchers: time_zone: 'Asia/Tokyo': is UTC in the existing campaign"],
        ),
        (
            "- id: x\n  limits: {total: 1}\n  ends_at: 2026-01-01 00:00",
            2,
            &["x: ends_at: '2026-01-01 00:00': ends_at must be after"],
        ),
        (
            "- {id: x, limits: {total: y}}\n- {id: z, limits: {total: z}}",
            2,
            &["x: limits.total", "z: limits.total", "campaigns.txt: 2"],
        ),
    ] {
        for options in [&["--yes"][..], &["--dry-run"], &["--yes", "--json"]] {
            let output = apply(&core, &with(last), options).await.ended(status);
            assert!(parts.iter().all(|part| output.err.contains(part)), "{last}: {output:?}");
            assert!(
                output.err.contains("nothing was changed") && output.out.is_empty(),
                "{last}: {output:?}"
            );
        }
        assert_eq!(all(&core).await, before, "{last}");
    }
    for (text, part) in [("", "is empty"), ("[]", "no campaigns"), ("5", "must be an object")] {
        let output = apply(&core, text, &["--yes"]).await.ended(2);
        assert!(output.err.contains(part), "{output:?}");
    }
    let too_large = format!("id: a # {}", "x".repeat(1 << 20));
    for (content, part) in [
        (&b"id: a\nname: \xff\xfe\n"[..], "campaigns.txt: is not in UTF-8; save it as UTF-8"),
        (too_large.as_bytes(), "campaigns.txt: is larger than 1 MiB; split it"),
    ] {
        std::fs::write(core.data_dir().join("campaigns.txt"), content).unwrap();
        run_against(&core, &["campaign", "apply", "campaigns.txt"]).await.ended(2).one_line(part);
    }
    for (file, part) in [("nowhere.yaml", "nowhere.yaml: No such file"), (".", ".: Is a directory")] {
        run_against(&core, &["campaign", "apply", file]).await.ended(2).one_line(part);
    }
    run_against(&core, &["campaign", "apply", "x.yaml", "--yes", "--dry-run"]).await.ended(2);
}

#[tokio::test]
async fn a_dry_run_prints_the_changes_and_makes_none() {
    let core = Core::start().await;
    let mut vouchers = campaign("vouchers", json!({"total": 50}));
    vouchers["starts_at"] = json!("2026-01-01T00:00:00Z");
    core.create_with(vouchers).await;
    core.claim("vouchers", "ann", "k").await.expect(201);
    let before = all(&core).await;
    let text =
        "- {id: vouchers, limits: {total: 0}, ends_at: 2026-02-01 00:00}\n- {id: new, limits: {total: 1}}\n";
    let output = apply(&core, text, &["--dry-run"]).await.ended(1);
    for part in [
        "limits.total: 50 -> 0",
        "warning: 1 units are taken, more than the total of 0",
        "warning: this ends the campaign",
        "new: create",
    ] {
        assert!(output.out.contains(part), "{part}: {output:?}");
    }
    output.one_line("nothing was changed; campaigns that differ: 2 of 2");
    assert_eq!(all(&core).await, before);
}

#[tokio::test]
async fn campaigns_are_read_from_standard_input() {
    let core = Core::start().await;
    let unconfirmed = with_input(&core, &["campaign", "apply", "-"], TWO.as_bytes()).await.ended(2);
    unconfirmed
        .one_line("campaigns to create: 2, to change: 0. There is no terminal to confirm on: give --yes");
    assert_eq!(all(&core).await, json!([]));
    with_input(&core, &["campaign", "apply", "-", "--yes"], TWO_AS_JSON.as_bytes()).await.ended(0);
    assert_eq!(all(&core).await.as_array().unwrap().len(), 2);
    let wrong = with_input(&core, &["campaign", "apply", "-", "--yes"], b"id: x\nnam: y\n").await.ended(2);
    assert!(wrong.err.contains("standard input:2: x: nam: unknown member"), "{wrong:?}");
    with_input(&core, &["campaign", "apply", "-"], TWO.as_bytes()).await.ended(0);
}

#[tokio::test]
async fn a_terminal_is_asked_before_the_first_change() {
    let core = Core::start().await;
    let file = core.data_dir().join("campaigns.yaml");
    std::fs::write(&file, TWO).unwrap();
    let apply = ["campaign", "apply", file.to_str().unwrap()];
    for typed in ["\n", "no\n", "y\n"] {
        let (child, preview) = asking(&core, &apply).await;
        assert!(preview.contains("spring: create") && preview.contains("Type yes to continue"), "{preview}");
        let refused = answered(child, typed).await.ended(1);
        assert!(refused.out.contains("nothing was done"), "{refused:?}");
        assert_eq!(all(&core).await, json!([]));
    }
    let (child, preview) = asking(&core, &[&apply[..], &["--json"]].concat()).await;
    assert!(preview.contains("spring: create\n  name: Spring sale\n"), "with --json too: {preview}");
    let done = answered(child, "no\n").await.ended(1);
    assert!(!done.out.contains('{'), "{done:?}");
    let (child, _) = asking(&core, &apply).await;
    let done = answered(child, "yes\n").await.ended(0);
    assert!(done.out.contains("vouchers: created, version 1"), "{done:?}");
}

#[tokio::test]
async fn a_concurrent_change_stops_only_its_campaign() {
    let core = Core::start().await;
    core.create("first", json!({"total": 1})).await;
    core.create("second", json!({"total": 1})).await;
    let file = core.data_dir().join("campaigns.yaml");
    let text = "- {id: first, limits: {total: 9}}\n- {id: late, limits: {total: 9}}\n\
                - {id: second, limits: {total: 9}}\n- {id: new, limits: {total: 9}}\n";
    std::fs::write(&file, text).unwrap();
    let apply = ["campaign", "apply", file.to_str().unwrap()];
    let (child, _) = asking(&core, &apply).await;
    core.patch("first", json!({"limits": {"per_user": 5}})).await.expect(200);
    core.create("late", json!({"total": 2})).await;
    let rest = answered(child, "yes\n").await.ended(1).out;
    let mut after = rest.as_str();
    for part in [
        "first: another caller changed it in the meantime (version_conflict, now version 2)",
        "late: Campaign exists (campaign_exists)",
        "nothing was created",
        "second: changed, version 2",
        "new: created, version 1",
        "campaigns that do not match the file: 2 of 4",
    ] {
        after = after.split_once(part).unwrap_or_else(|| panic!("no {part} in this order: {rest}")).1;
    }
    let first = core.campaign("first").await;
    assert_eq!((&first["limits"]["total"], &first["limits"]["per_user"]), (&json!(1), &json!(5)));
    assert_eq!(core.campaign("late").await["limits"]["total"], 2);
    run_against(&core, &[&apply[..], &["--yes"]].concat()).await.ended(0);
    assert_eq!(
        core.campaign("first").await["limits"],
        json!({"total": 9, "per_user": null, "per_user_per_day": null, "per_claim": null})
    );
}

/// Returns a campaign with a total of 1, as core shows it while Redis is available.
fn canned_campaign(id: &str, state: &str) -> Value {
    json!({"id": id, "name": id, "state": state, "starts_at": "2026-01-01T00:00:00.000Z", "ends_at": null,
        "time_zone": "UTC", "limits": {"total": 1}, "version": 3, "codes": false, "ready": true,
        "import_unfinished": false})
}

/// Returns the variables with which the command calls the core at `address`.
fn environment_of<'a>(address: &'a str, directory: &'a Path) -> [(&'static str, &'a str); 3] {
    [
        ("CLAIMGATE_ADMIN_LISTEN", address),
        ("CLAIMGATE_ADMIN_TOKEN", "an-admin-token-for-the-tests-only-of-some-length"),
        ("CLAIMGATE_DATA_DIR", directory.to_str().unwrap()),
    ]
}

/// A fake server replaces core: its campaigns have the rules of the file in SQL, but the first has not in Redis.
#[tokio::test]
async fn an_unchanged_campaign_that_is_not_ready_has_status_3() {
    let directory = tempfile::tempdir().unwrap();
    let core = StandIn::start();
    let address = core.listen.to_string();
    let environment = environment_of(&address, directory.path());
    let file = directory.path().join("campaigns.json");
    std::fs::write(&file, r#"[{"id":"a","limits":{"total":1}},{"id":"b","limits":{"total":1}}]"#).unwrap();
    let apply = ["campaign", "apply", file.to_str().unwrap()];
    for id in ["a", "b"] {
        let path = format!("/admin/v1/campaigns/{id}");
        core.answers(&format!("GET {path}"), Canned::json(200, &canned_campaign(id, "open")));
        core.answers(&format!("PATCH {path}"), Canned::json(200, &canned_campaign(id, "open")));
    }
    let first = run(&apply, &environment, directory.path()).await.ended(0);
    assert_eq!(first.out, "a: unchanged\nb: unchanged\n");
    let not_ready_code = "campaign_not_ready";
    let detail = "the change is stored";
    let not_ready = json!({"title": "Not ready", "status": 503, "detail": detail, "code": not_ready_code});
    core.answers("PATCH /admin/v1/campaigns/a", Canned::problem(503, &not_ready));
    run(&[&apply[..], &["--dry-run"]].concat(), &environment, directory.path()).await.ended(0);
    let output = run(&[&apply[..], &["--json"]].concat(), &environment, directory.path()).await.ended(3);
    assert!(output.err.contains("stored as in the file, but Redis may have its former rules"), "{output:?}");
    let campaigns = output.json()["campaigns"].take();
    assert_eq!(
        (&campaigns[0]["done"], &campaigns[0]["problem"]["code"]),
        (&json!(false), &json!(not_ready_code))
    );
    assert_eq!((&campaigns[1]["done"], &campaigns[1]["version"]), (&json!(true), &Value::Null), "confirmed");
}

/// Redis is out of memory: SQL stores the change, and Redis keeps the former rules and returns its counters.
#[tokio::test]
async fn a_stored_change_that_is_not_in_force_has_status_3() {
    only_on!(OWN, "it starts its own server");
    let server = RedisServer::start_with(&[("maxmemory", "64mb")], &[]).await;
    let core = CoreOptions::default().with("CLAIMGATE_REDIS_URL", server.url()).start().await;
    core.create("vouchers", json!({"total": 50})).await;
    let redis = server.view().await;
    redis.query::<String>(&["CONFIG", "SET", "maxmemory", "1mb"]).await;
    let file = "id: vouchers\nlimits: {total: 60}\n";
    for _ in 0..2 {
        apply(&core, file, &["--yes"]).await.ended(3);
    }
    assert_eq!(core.campaign("vouchers").await["limits"]["total"], 60, "stored");
    assert_eq!(redis.counter("vouchers", "total").await, 50, "not in force");
    redis.query::<String>(&["CONFIG", "SET", "maxmemory", "64mb"]).await;
    eventually(SOON, || async {
        let output = apply(&core, file, &[]).await;
        holds(output.status == 0, || format!("{output:?}"))
    })
    .await;
    assert_eq!(redis.counter("vouchers", "total").await, 60);
}

/// A fake server replaces core: it is up for the comparison, and down for the first change.
#[tokio::test]
async fn no_further_campaign_is_tried_at_an_unavailable_core() {
    let directory = tempfile::tempdir().unwrap();
    let core = StandIn::start();
    let address = core.listen.to_string();
    let environment = environment_of(&address, directory.path());
    for id in ["a", "b"] {
        core.answers(
            &format!("GET /admin/v1/campaigns/{id}"),
            Canned::json(200, &canned_campaign(id, "open")),
        );
        let down = json!({"title": "Unavailable", "status": 503, "detail": "no SQL", "code": "unavailable"});
        core.answers(&format!("PATCH /admin/v1/campaigns/{id}"), Canned::problem(503, &down));
    }
    let file = directory.path().join("campaigns.json");
    std::fs::write(&file, r#"[{"id":"a","limits":{"total":2}},{"id":"b","limits":{"total":2}}]"#).unwrap();
    let apply = ["campaign", "apply", file.to_str().unwrap(), "--yes", "--json"];
    let output = run(&apply, &environment, directory.path()).await.ended(3);
    let campaigns = output.json()["campaigns"].take();
    assert_eq!(campaigns[0]["problem"]["code"], "unavailable", "{campaigns}");
    assert_eq!((&campaigns[1]["done"], &campaigns[1]["problem"]), (&json!(false), &Value::Null), "not tried");
    assert!(
        output.err.contains("a: Unavailable (unavailable): no SQL; the change may have been made"),
        "{output:?}"
    );
    assert!(
        output.err.contains("do not match the file: 2 of 2") && !output.err.contains("b: "),
        "{output:?}"
    );
}

#[tokio::test]
async fn a_campaign_with_codes_is_raised_up_to_its_codes() {
    let core = Core::start().await;
    let file = |total: u32| format!("id: coupons\ncodes: true\nlimits: {{total: {total}, per_user: 1}}\n");
    let early = apply(&core, &file(2), &["--yes"]).await.ended(2);
    assert!(early.err.contains("limits.total: '2': a new campaign has no codes yet"), "{early:?}");
    apply(&core, &file(0), &["--yes"]).await.ended(0);
    let codes = core.data_dir().join("codes.txt");
    std::fs::write(&codes, "SAVE-1\nSAVE-2\n").unwrap();
    run_against(&core, &["campaign", "codes", "add", "coupons", codes.to_str().unwrap()]).await.ended(0);
    let missing = apply(&core, &file(3), &["--yes"]).await.ended(2);
    assert!(missing.err.contains("limits.total: '3': the campaign has 2 codes"), "{missing:?}");
    apply(&core, &file(2), &["--yes"]).await.ended(0);
    assert_eq!(core.campaign("coupons").await["limits"]["total"], 2);
    apply(&core, &file(2), &[]).await.ended(0);
}

#[tokio::test]
async fn an_operator_may_compare_but_not_change() {
    const OPERATOR: &str = "the-operators-token-for-the-tests-only";
    let core = CoreOptions::default()
        .with("CLAIMGATE_ADMIN_TOKENS", format!("olga:operator:{OPERATOR}"))
        .start()
        .await;
    core.create("vouchers", json!({"total": 50})).await;
    let (address, data) = (core.admin_listen().to_string(), core.data_dir());
    let environment = [
        ("CLAIMGATE_ADMIN_LISTEN", address.as_str()),
        ("CLAIMGATE_ADMIN_TOKEN", OPERATOR),
        ("CLAIMGATE_DATA_DIR", data.to_str().unwrap()),
    ];
    let file = data.join("campaigns.yaml");
    std::fs::write(&file, "id: vouchers\nlimits: {total: 60}\n").unwrap();
    let apply = ["campaign", "apply", file.to_str().unwrap()];
    let preview = run(&[&apply[..], &["--dry-run"]].concat(), &environment, &data).await.ended(1);
    assert!(preview.out.contains("limits.total: 50 -> 60"), "{preview:?}");
    let refused = run(&[&apply[..], &["--yes"]].concat(), &environment, &data).await.ended(1);
    assert!(refused.err.contains("vouchers: Not allowed (forbidden)"), "{refused:?}");
    assert_eq!(core.campaign("vouchers").await["limits"]["total"], 50);
}

#[tokio::test]
async fn the_help_names_the_members_and_the_exit_status() {
    let directory = tempfile::tempdir().unwrap();
    let help = run(&["campaign", "apply", "--help"], &[], directory.path()).await.ended(0).out;
    for part in ["--dry-run", "--yes", "--json", "hold_seconds", "Exit status"] {
        assert!(help.contains(part), "{part}: {help}");
    }
}
