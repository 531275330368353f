//! First steps on the command line: mistakes are reported with the flag, the value and the remedy;
//! irreversible actions need a confirmation; ids and times are never truncated.

use reqwest::Method;
use serde_json::{Value, json};
use support::core_client::{API_TOKEN, campaign};
use support::edge::{built, root};
use support::process::free_address;
use support::signing::claim_id;
use support::times::from_now;
use support::{Core, CoreOptions, SOON};

use crate::command_line::{run, run_against};
use crate::terminal::on_a_terminal;

/// A mistake: the command, its exit status, and parts of its message.
type Mistake<'a> = (&'a [&'a str], i32, &'a [&'a str]);

/// Mistakes on a core that has the campaign `tickets` with 3 of 100 units taken.
const MISTAKES: &[Mistake<'_>] = &[
    // Without limits.
    (&["campaign", "create", "x"], 2, &["no limit is given", "--total", "--unlimited"]),
    (&["campaign", "create", "x", "--per-claim", "1"], 2, &["no limit is given", "--unlimited"]),
    (&["campaign", "create", "x", "--total", "none"], 2, &["no limit is given", "--unlimited"]),
    (&["campaign", "create", "x", "--total", "5", "--unlimited"], 2, &["--unlimited", "--total"]),
    // Created again with different settings.
    (&["campaign", "create", "tickets", "--total", "9"], 1, &["campaign_exists", "limits.total"]),
    // Values out of range.
    (
        &["campaign", "create", "x", "--total", "-5"],
        2,
        &["--total", "-5 is below 0; use 0 for a campaign that starts empty"],
    ),
    (&["campaign", "create", "x", "--per-user", "0"], 2, &["--per-user", "0 is below 1; use none"]),
    (
        &["campaign", "create", "x", "--total", "4294967296"],
        2,
        &["--total", "4294967296 is above 4294967295"],
    ),
    (
        &["campaign", "create", "x", "--total", "1", "--hold-seconds", "-1"],
        2,
        &["--hold-seconds", "-1 is below 1"],
    ),
    (&["campaign", "update", "tickets", "--total", "many"], 2, &["--total", "'many'", "whole number from 0"]),
    (&["campaign", "update", "tickets", "--version", "-1"], 2, &["--version", "-1 is not in 1.."]),
    (&["claim", "tickets", "--user", "ann", "--quantity", "-1"], 2, &["--quantity", "-1 is not in 1.."]),
    (&["claim", "tickets", "--user", "ann", "--quantity", "0"], 2, &["--quantity", "0 is not in 1.."]),
    (&["token", "--user", "ann", "--ttl", "-1"], 2, &["--ttl", "-1 is not in 1.."]),
    (&["changes", "--limit", "-1"], 2, &["--limit", "-1 is not in 1.."]),
    // Zones and times.
    (
        &["campaign", "create", "x", "--total", "1", "--time-zone", "Shanghai"],
        2,
        &["--time-zone", "'Shanghai'", "did you mean Asia/Shanghai?"],
    ),
    (
        &["campaign", "create", "x", "--total", "1", "--starts-at", "soon"],
        2,
        &["--starts-at", "'soon'", "'tomorrow 08:00'", "+10m"],
    ),
    (
        &[
            "campaign",
            "create",
            "x",
            "--total",
            "1",
            "--time-zone",
            "Europe/Berlin",
            "--starts-at",
            "2027-03-28 02:30",
        ],
        2,
        &["--starts-at", "2027-03-28 02:30 does not exist in Europe/Berlin"],
    ),
    (
        &[
            "campaign",
            "create",
            "x",
            "--total",
            "1",
            "--time-zone",
            "Europe/Berlin",
            "--ends-at",
            "2027-10-31 02:30",
        ],
        2,
        &["--ends-at", "twice in Europe/Berlin", "'2027-10-31 02:30+02:00' or '2027-10-31 02:30+01:00'"],
    ),
    // Updates without a change.
    (&["campaign", "update", "tickets"], 2, &["nothing to change", "--name", "--total", "--ends-at"]),
    (&["campaign", "update", "tickets", "--version", "1"], 2, &["nothing to change", "--name"]),
    // Unknown ids.
    (&["claim", "tickts", "--user", "ann"], 1, &["no campaign tickts; did you mean tickets?"]),
    (&["campaign", "show", "Tickets"], 1, &["no campaign Tickets; did you mean tickets?"]),
    (&["campaign", "update", "tickts", "--total", "1"], 1, &["no campaign tickts; did you mean tickets?"]),
    (&["campaign", "add", "tickts", "1"], 1, &["no campaign tickts; did you mean tickets?"]),
    (&["campaign", "end", "tickts", "--yes"], 1, &["no campaign tickts; did you mean tickets?"]),
    (&["claims", "tickts"], 1, &["no campaign tickts; did you mean tickets?"]),
    (&["changes", "--campaign", "tickts"], 1, &["no campaign tickts; did you mean tickets?"]),
    (&["audit", "tickts"], 1, &["no campaign tickts; did you mean tickets?"]),
    (&["reconcile", "tickts"], 1, &["no campaign tickts; did you mean tickets?"]),
    (&["campaign", "show", "else"], 1, &["no campaign else"]),
    // Irreversible actions.
    (&["campaign", "end", "tickets"], 2, &["ends tickets", "--yes"]),
    (&["replication", "accept-loss"], 2, &["acknowledged claims", "--yes"]),
    (&["webhooks", "remove", "w1"], 2, &["removes w1", "--yes"]),
    (&["drop-foreign", "tickets", "--export", "file.csv"], 2, &["removes tickets", "--yes"]),
    // Addresses.
    (
        &["campaign", "list", "--admin-listen", "http://127.0.0.1:8081"],
        2,
        &["--admin-listen", "'http://127.0.0.1:8081'", "HOST:PORT", "without http://"],
    ),
    (
        &["claim", "tickets", "--user", "ann", "--listen", "127.0.0.1"],
        2,
        &["--listen", "'127.0.0.1'", "HOST:PORT"],
    ),
];

/// Starts a core with the campaign `tickets` and 3 of its 100 units taken.
async fn core_with_tickets() -> Core {
    let core = Core::start().await;
    core.create("tickets", json!({"total": 100})).await;
    core.claim_units("tickets", "ann", "k", 3).await.expect(201);
    core
}

#[tokio::test]
async fn each_mistake_is_reported_with_its_remedy() {
    let core = core_with_tickets().await;
    let mut wrong = Vec::new();
    for (words, status, parts) in MISTAKES {
        let output = run_against(&core, words).await;
        let has_parts = parts.iter().all(|part| output.err.contains(part)) && !output.err.contains("use '--");
        if output.status != *status || !has_parts {
            wrong.push(format!("{words:?}: {status} {parts:?} expected: {output:?}"));
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), MISTAKES.len(), wrong.join("\n"));
    let view = core.admin_get("/admin/v1/campaigns/tickets").await.expect(200).json();
    assert_eq!((&view["version"], &view["state"]), (&json!(1), &json!("open")), "a mistake changes nothing");
    let all = run_against(&core, &["campaign", "list", "--all", "--json"]).await.ended(0).json();
    assert_eq!(all.as_array().unwrap().len(), 1, "a mistake creates nothing: {all}");
}

#[tokio::test]
async fn implausible_limits_cause_a_warning() {
    let core = core_with_tickets().await;
    let create = ["campaign", "create", "x", "--per-user", "10", "--total", "5"];
    run_against(&core, &create).await.ended(0).one_line("--per-user 10 is never reached: --total 5 is lower");
    let update = ["campaign", "update", "tickets", "--total", "1"];
    run_against(&core, &update).await.ended(0).one_line("3 units are taken, more than the total of 1");
    let add = run_against(&core, &["campaign", "add", "tickets", "1"]).await.ended(0);
    add.one_line("3 units are taken, more than the total of 2");
    let right = run_against(&core, &["campaign", "update", "tickets", "--total", "10"]).await.ended(0);
    assert!(right.err.is_empty(), "{right:?}");
    let unlimited = run_against(&core, &["campaign", "create", "y", "--unlimited", "--json"]).await.ended(0);
    assert_eq!(unlimited.json()["limits"]["total"], Value::Null);
}

#[tokio::test]
async fn repeating_the_create_command_changes_nothing() {
    let core = Core::start().await;
    let words = ["campaign", "create", "tickets", "--total", "100", "--per-user", "3", "--json"];
    let first = run_against(&core, &words).await.ended(0);
    assert!(first.error_lines().is_empty(), "{first:?}");
    let again = run_against(&core, &words).await.ended(0);
    again.one_line("tickets already exists with the same settings");
    for member in ["starts_at", "version", "limits"] {
        assert_eq!(again.json()[member], first.json()[member], "{member}");
    }
    let other = [&words[..], &["--starts-at", "2027-01-01 00:00"]].concat();
    run_against(&core, &other).await.ended(1).one_line("starts_at");
}

#[tokio::test]
async fn one_of_many_concurrent_creations_wins() {
    let core = Core::start().await;
    let body = json!({"id": "demo", "name": "Demo", "limits": {"total": 5}});
    let create = async || core.admin(Method::POST, "/admin/v1/campaigns", &body).await;
    let replies = futures_util::future::join_all((0..16).map(|_| create())).await;
    let statuses: Vec<_> = replies.iter().map(|reply| reply.status).collect();
    let created = statuses.iter().filter(|status| **status == 201).count();
    // The 201 may be among the lost responses.
    let is_repeated = replies.iter().any(|reply| reply.repeats > 0);
    assert!(created == 1 || (created == 0 && is_repeated), "{statuses:?}");
    assert_eq!(statuses.iter().filter(|status| **status == 200).count(), 16 - created, "{statuses:?}");
    for reply in &replies {
        assert_eq!(reply.header("idempotent-replayed") == "true", reply.status == 200, "{}", reply.text());
        assert_eq!(reply.json()["state"], "open", "{}", reply.text());
    }
    let mut ended = body.clone();
    ended["ends_at"] = json!(from_now(-60));
    let refused =
        core.admin(Method::POST, "/admin/v1/campaigns", &ended).await.refused(409, "campaign_exists");
    assert!(refused.json()["detail"].as_str().unwrap().contains("ends_at"), "{}", refused.text());
    ended["id"] = json!("other");
    let refused =
        core.admin(Method::POST, "/admin/v1/campaigns", &ended).await.refused(400, "invalid_request");
    assert_eq!(refused.json()["field"], "ends_at");
}

#[tokio::test]
async fn recreating_a_closed_campaign_returns_it() {
    let core = Core::start().await;
    let mut body = campaign("late", json!({"total": 5}));
    body["ends_at"] = json!(from_now(-10));
    core.create_with(body.clone()).await;
    body.as_object_mut().unwrap().remove("starts_at");
    let again = core.admin(Method::POST, "/admin/v1/campaigns", &body).await.expect(200).json();
    assert_eq!(again["state"], "ended");
}

#[tokio::test]
async fn each_mistake_over_http_is_reported_with_its_remedy() {
    let core = core_with_tickets().await;
    let admin = format!("Bearer {}", core.admin_token());
    let send = async |url: String, authorization: Option<&str>, body: &str| {
        let request = core.client().request(Method::POST, &url).header("Content-Type", "application/json");
        let request =
            authorization.iter().fold(request, |request, value| request.header("Authorization", *value));
        core.client().send(request.body(body.to_owned())).await.unwrap()
    };
    let claims = core.url("/internal/v1/claims");
    for (body, field, detail) in [
        (r#"{"user_id":"ann","idempotency_key":"k"}"#, "campaign_id", "campaign_id: is missing"),
        (r#"{"campaign_id":"tickets","user_id":"ann"}"#, "idempotency_key", "idempotency_key: is missing"),
        (
            r#"{"campaign_id":"tickets","user_id":"ann","idempotency_key":"k",}"#,
            "body",
            "body: is not JSON: trailing comma at line 1 column 64",
        ),
        ("{\n\"campaign_id\": tickets}", "body", "body: is not JSON: expected ident at line 2 column 17"),
        (r#"{"campaign":"tickets"}"#, "campaign", "expected one of `campaign_id`, `user_id`"),
    ] {
        let refused = send(claims.clone(), Some(&admin), body).await.refused(400, "invalid_request").json();
        assert_eq!(refused["field"], field, "{refused}");
        assert!(refused["detail"].as_str().unwrap().contains(detail), "{refused}");
    }
    let campaigns = core.admin_url("/admin/v1/campaigns");
    for (body, field, parts) in [
        (
            r#"{"id":"x","name":"X","limits":{"total":5,}}"#,
            "body",
            &["trailing comma at line 1 column 42"][..],
        ),
        (r#"{"id":"x","limits":{"total":5}}"#, "name", &["is missing"]),
        (r#"{"id":"x","name":"X","limits":{"totl":5}}"#, "limits.totl", &["expected one of `total`"]),
        (r#"{"id":"x","name":"X","time_zone":"Shanghai"}"#, "time_zone", &["did you mean Asia/Shanghai?"]),
    ] {
        let refused =
            send(campaigns.clone(), Some(&admin), body).await.refused(400, "invalid_request").json();
        let detail = refused["detail"].as_str().unwrap();
        assert_eq!(refused["field"], field, "{refused}");
        assert!(parts.iter().all(|part| detail.contains(part)), "{refused}");
        assert!(field == "body" || !detail.contains("column"), "a named member needs no position: {refused}");
    }
    let claim = r#"{"campaign_id":"tickets","user_id":"ann","idempotency_key":"k"}"#;
    for (authorization, detail) in [
        (None, "the Authorization header is missing"),
        (Some("Basic YTpi"), "does not begin with `Bearer `"),
        (Some("no-scheme-but-a-token"), "does not begin with `Bearer `"),
        (Some("Bearer unknown"), "does not recognize this token"),
    ] {
        let refused = send(claims.clone(), authorization, claim).await.refused(401, "unauthenticated").text();
        assert!(refused.contains(detail) && !refused.contains("no-scheme"), "{authorization:?}: {refused}");
    }
    // RFC 9110, 11.1: the scheme's case does not matter.
    let claim = r#"{"campaign_id":"tickets","user_id":"ann","idempotency_key":"any-case"}"#;
    for scheme in ["Bearer", "bearer", "BEARER "] {
        let answer = send(claims.clone(), Some(&format!("{scheme} {API_TOKEN}")), claim).await;
        assert!(matches!(answer.status, 200 | 201), "{scheme}: {}", answer.text());
    }
}

#[tokio::test]
async fn the_error_for_another_listeners_path_names_that_listener() {
    let core = Core::start().await;
    for (url, there) in [
        (core.url("/admin/v1/campaigns"), Some("core's admin listener (CLAIMGATE_ADMIN_LISTEN)")),
        (core.url("/metrics"), Some("core's admin listener (CLAIMGATE_ADMIN_LISTEN)")),
        (core.url("/"), Some("core's admin listener (CLAIMGATE_ADMIN_LISTEN)")),
        (core.url("/v1/campaigns/demo"), Some("call the edge instead")),
        (core.admin_url("/internal/v1/claims"), Some("core's internal listener (CLAIMGATE_LISTEN)")),
        (core.admin_url("/v1/campaigns/demo/claims"), Some("call the edge instead")),
        (core.url("/internal/v1/nothing"), None),
        (core.admin_url("/admin/v1x"), None),
    ] {
        let reply = core.client().call(Method::GET, &url, "", &Value::Null).await.refused(404, "not_found");
        let detail = reply.json()["detail"].as_str().unwrap().to_owned();
        match there {
            Some(there) => assert!(detail.contains(there), "{url}: {detail}"),
            None => assert!(
                detail.starts_with("no such path on core's") && !detail.contains("instead"),
                "{url}: {detail}"
            ),
        }
    }
    let swapped = core.listen().to_string();
    let list = run_against(&core, &["campaign", "list", "--admin-listen", &swapped]).await.ended(1);
    list.one_line("core's admin listener");
}

#[tokio::test]
async fn irreversible_commands_ask_for_confirmation_on_a_terminal() {
    let core = core_with_tickets().await;
    let end = ["campaign", "end", "tickets"];
    for typed in ["\n", "yes\n", "ticket\n"] {
        let output = on_a_terminal(&core, 80, &end, typed).await.ended(1);
        assert!(
            output.out.contains("Type tickets to continue") && output.out.contains("nothing was done"),
            "{output:?}"
        );
    }
    let state = async || core.admin_get("/admin/v1/campaigns/tickets").await.json()["state"].clone();
    assert_eq!(state().await, "open");
    let output = on_a_terminal(&core, 80, &end, "tickets\n").await.ended(0);
    assert!(output.out.contains("ended"), "{output:?}");
    assert_eq!(state().await, "ended");
    run_against(&core, &["campaign", "end", "tickets", "--yes"]).await.ended(0);
}

#[tokio::test]
async fn ids_and_times_are_not_truncated_at_80_columns() {
    let core = Core::start().await;
    let long = format!("spring-sale-{}", "2026".repeat(13));
    for id in ["tickets", long.as_str()] {
        let mut body = campaign(id, json!({"total": 100, "per_user": 50}));
        body["time_zone"] = json!("Asia/Shanghai");
        body["ends_at"] = json!("2099-11-30T16:30:15Z");
        core.create_with(body).await;
    }
    let user = format!("customer-{}", "x".repeat(50));
    core.claim(&long, &user, "k").await.expect(201);
    core.sql().until(&long, 1).await;
    let claim = claim_id(&long, &user, "k");
    let end = "2099-12-01 00:30:15+08:00";
    let shown: &[(&[&str], &[&str])] = &[
        (&["campaign", "list"], &["tickets", &long, end]),
        (&["campaign", "show", &long], &[&long, end]),
        (&["claims", &long], &[&claim, &user]),
        (&["claim", &long, "--user", &user, "--key", "k"], &[&claim]),
        (&["audit"], &["tickets", &long]),
    ];
    for (words, whole) in shown {
        let output = on_a_terminal(&core, 80, words, "").await.ended(0);
        for text in *whole {
            assert!(output.out.contains(text), "{words:?} truncates {text}: {}", output.out);
        }
        // Only values that are wider than the terminal may overflow.
        let wide = |line: &&str| line.chars().count() > 80 && !whole.iter().any(|text| line.contains(text));
        assert_eq!(output.out.lines().find(wide), None, "{words:?}");
        let piped = run_against(&core, words).await.ended(0).out;
        assert!(whole.iter().all(|text| piped.contains(text)), "{words:?}: {piped}");
    }
}

#[tokio::test]
async fn a_single_campaign_is_listed_as_a_table_in_80_columns() {
    let core = Core::start().await;
    run_against(
        &core,
        &[
            "campaign",
            "create",
            "tickets",
            "--time-zone",
            "Asia/Shanghai",
            "--total",
            "100",
            "--ends-at",
            "+30d",
        ],
    )
    .await
    .ended(0);
    let output = on_a_terminal(&core, 80, &["campaign", "list"], "").await.ended(0);
    let lines: Vec<_> = output.out.lines().collect();
    assert_eq!(lines.len(), 2, "a header and a row: {output:?}");
    for name in ["id", "state", "taken", "opens", "closes"] {
        assert!(lines[0].contains(name), "{name}: {output:?}");
    }
    assert!(
        lines[1].contains("tickets")
            && lines[1].contains("0 / 100")
            && lines[1].matches("+08:00").count() == 2,
        "{output:?}"
    );
    assert!(lines[1].chars().count() <= 80, "{output:?}");
}

#[tokio::test]
async fn times_are_read_and_shown_in_the_campaigns_time_zone() {
    let core = Core::start().await;
    let create = [
        "campaign",
        "create",
        "tickets",
        "--time-zone",
        "Asia/Shanghai",
        "--total",
        "100",
        "--hold-seconds",
        "600",
        "--starts-at",
        "2026-01-01 08:00",
        "--ends-at",
        "2099-12-01 08:00",
    ];
    let output = run_against(&core, &create).await.ended(0).out;
    assert!(
        output.contains("2026-01-01 08:00+08:00") && output.contains("2099-12-01 08:00+08:00"),
        "{output}"
    );
    let json = run_against(&core, &["campaign", "show", "tickets", "--json"]).await.ended(0).json();
    assert_eq!(
        (&json["starts_at"], &json["ends_at"]),
        (&json!("2026-01-01T00:00:00.000Z"), &json!("2099-12-01T00:00:00.000Z")),
        "times in JSON are in UTC"
    );
    // Flags accept times in the format that is shown.
    let update = async |time: &str| {
        run_against(&core, &["campaign", "update", "tickets", "--ends-at", time, "--json"])
            .await
            .ended(0)
            .json()["ends_at"]
            .clone()
    };
    assert_eq!(update("2099-12-02 08:00+08:00").await, "2099-12-02T00:00:00.000Z");
    assert_eq!(update("2099-12-03 08:00").await, "2099-12-03T00:00:00.000Z");
    assert!(update("tomorrow 08:00").await.as_str().unwrap().ends_with("T00:00:00.000Z"));
    assert_eq!(update("none").await, Value::Null);

    let claim = run_against(&core, &["claim", "tickets", "--user", "ann", "--key", "k"]).await.ended(0).out;
    let id = claim_id("tickets", "ann", "k");
    let returned = run_against(&core, &["return", &id]).await.ended(0).out;
    assert_eq!(claim.matches("+08:00").count(), 2, "two times, claimed and expires: {claim}");
    assert!(returned.contains("+08:00"), "{returned}");
    core.sql().until("tickets", 1).await;
    let claims = run_against(&core, &["claims", "tickets"]).await.ended(0).out;
    let audit = run_against(&core, &["audit", "tickets"]).await.ended(0).out;
    for text in [&claims, &audit] {
        assert!(text.contains("+08:00") && !text.contains("Z\n"), "{text}");
    }
    assert!(claims.lines().next().unwrap().contains("user") && claims.contains(" ann "), "{claims}");

    run_against(&core, &["campaign", "update", "tickets", "--starts-at", "2099-01-01 08:00"]).await.ended(0);
    run_against(&core, &["claim", "tickets", "--user", "bob"])
        .await
        .ended(1)
        .one_line("opens at 2099-01-01 08:00+08:00");
    let rules = ["--starts-at", "now", "--per-user-per-day", "1"]; // on any day
    run_against(&core, &[&["campaign", "update", "tickets"][..], &rules].concat()).await.ended(0);
    run_against(&core, &["claim", "tickets", "--user", "bob", "--quantity", "2"])
        .await
        .ended(1)
        .one_line("00:00+08:00");
}

#[tokio::test]
async fn drills_are_listed_only_on_request() {
    let core = core_with_tickets().await;
    // Named like a drill, but created manually.
    core.create("drill-of-ours", json!({"total": 1})).await;
    let address = format!("http://{}", core.listen());
    run_against(&core, &["drill", &address, "--units", "5", "--users", "10"]).await.ended(0);
    let ids = async |words: &[&str]| -> Vec<String> {
        let all = run_against(&core, &[words, &["--json"]].concat()).await.ended(0).json();
        all.as_array().unwrap().iter().map(|campaign| campaign["id"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(ids(&["campaign", "list"]).await, ["drill-of-ours", "tickets"]);
    run_against(&core, &["campaign", "list"])
        .await
        .ended(0)
        .one_line("drill campaigns not listed: 1; use --all to list them");
    let all = ids(&["campaign", "list", "--all"]).await;
    assert_eq!(all.len(), 3, "{all:?}");
}

#[tokio::test]
async fn serve_logs_the_path_of_the_admin_token_not_the_token() {
    let core = Core::start().await;
    let token = core.admin_token();
    let file = core.data_dir().join("admin.token");
    core.until_logged(SOON, &[&format!("the admin token is in {}", file.display())]).await;
    assert!(!core.log().contains(&token));
    let given = "an-admin-token-for-the-tests-only-of-some-length";
    let core = CoreOptions::default().with("CLAIMGATE_ADMIN_TOKEN", given).start().await;
    core.until_logged(SOON, &["the admin token is in CLAIMGATE_ADMIN_TOKEN"]).await;
    assert!(!core.log().contains(given));
}

#[tokio::test]
async fn suggestions_are_skipped_if_the_admin_api_is_down() {
    let core = core_with_tickets().await;
    // The internal API rejects the claim, and the admin API, which lists the ids, is down.
    let nowhere = free_address().to_string();
    let output =
        run_against(&core, &["claim", "tickts", "--user", "ann", "--admin-listen", &nowhere]).await.ended(1);
    output.one_line("there is no campaign tickts");
    let directory = tempfile::tempdir().unwrap();
    run(&["campaign", "create", "x"], &[], directory.path()).await.ended(2).one_line("no limit is given");
}

/// docs/performance.md states the size of the built Worker.
#[tokio::test]
async fn the_documented_worker_size_matches_the_build() {
    let kb = |text: &str| text.split_whitespace().next().unwrap().parse::<f64>().unwrap();
    let document = std::fs::read_to_string(root().join("docs/performance.md")).unwrap();
    let row = document.lines().find_map(|line| line.strip_prefix("| the Worker, gzipped | ")).unwrap();
    built().await;
    let mut script = std::process::Command::new("scripts/build-worker.sh");
    script.current_dir(root());
    let output = tokio::task::spawn_blocking(move || script.output()).await.unwrap().unwrap();
    let output = String::from_utf8(output.stdout).unwrap();
    let size =
        output.lines().find_map(|line| line.strip_prefix("edge: ")).unwrap_or_else(|| panic!("{output}"));
    let (documented, measured) = (kb(row), kb(size));
    let is_near = (documented - measured).abs() <= measured / 50.0;
    assert!(is_near, "{documented} KB are documented, but the build has {measured} KB");
}
