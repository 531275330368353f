//! `claimgate drill` against real installations: drills that pass, drills that expect one unit too many, and
//! drills that cannot run.

use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};
use support::available::available;
use support::certificates::Certificates;
use support::lossy_proxy::LossyProxy;
use support::process::{Process, Signal, command, free_address};
use support::wait::holds;
use support::{Core, CoreOptions, SOON, binary, eventually};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};

use super::command_line::{CommandOutput, run, run_against};
use crate::on_postgres::on_postgres;

/// Options of a small storm.
const SMALL: [&str; 5] = ["--units", "40", "--users", "120", "--json"];

/// Runs a drill directly against `core`.
async fn drill(core: &Core, arguments: &[&str]) -> CommandOutput {
    let url = core.url("");
    run_against(core, &[&["drill", &url], arguments].concat()).await
}

fn failed(report: &Value) -> Vec<&str> {
    let checks = report["checks"].as_array().unwrap().iter();
    checks.filter(|check| check["passed"] == false).map(|check| check["name"].as_str().unwrap()).collect()
}

/// Checks a passing drill: its report, its campaign and its page.
async fn passes_all_checks(core: &Core) {
    let page = core.data_dir().join("drill.html");
    let page = page.to_str().unwrap();
    let report = drill(core, &[&SMALL[..], &["--report", page]].concat()).await.ended(0).json();
    assert_eq!((&report["passed"], &report["through"]), (&json!(true), &json!("core")), "{report:#}");
    assert_eq!(report["checks"].as_array().unwrap().len(), 10);
    // At most all units plus the returned one. A grant whose connection was cut is counted as a replay.
    assert!((1..=41).contains(&report["answers"]["granted"].as_u64().unwrap()), "{report:#}");
    assert!(
        report["answers"]["sold_out"].as_u64().unwrap() > 0
            && report["answers"]["replayed"].as_u64().unwrap() > 0
    );
    assert!(report["latency_ms"]["p99"].as_f64().unwrap() > 0.0);

    let campaign = report["campaign_id"].as_str().unwrap();
    assert!(campaign.starts_with("drill-"), "{campaign}");
    let view = core.admin_get(&format!("/admin/v1/campaigns/{campaign}")).await.expect(200).json();
    assert_eq!((&view["state"], &view["taken"]), (&json!("ended"), &json!(40)));

    let html = std::fs::read_to_string(page).unwrap();
    assert!(html.contains("passed: all 10 checks") && html.contains("<svg"), "{html}");
    assert!(
        !html.contains("http-equiv") && !html.contains("src=") && !html.contains("href="),
        "the page loads nothing"
    );
    drill(core, &[&SMALL[..], &["--report", page]].concat()).await.ended(2).one_line("drill.html");
}

#[tokio::test]
async fn a_correct_core_passes_on_sqlite() {
    passes_all_checks(&Core::start().await).await;
}

#[tokio::test]
async fn a_correct_core_passes_on_postgres() {
    if let Some((core, _sql, _postgres)) = on_postgres("a drill on PostgreSQL", CoreOptions::default()).await
    {
        passes_all_checks(&core).await;
    }
}

#[tokio::test]
async fn a_drill_with_codes_checks_each_code() {
    let core = Core::start().await;
    let report = drill(&core, &[&SMALL[..], &["--codes"]].concat()).await.ended(0).json();
    let checks = report["checks"].as_array().unwrap();
    let of_codes = checks.iter().find(|check| check["name"] == "each granted unit has its own code");
    assert_eq!(of_codes.unwrap()["detail"], "40 codes", "{report:#}");
    assert_eq!(checks.len(), 11);
}

#[tokio::test]
async fn expecting_one_unit_too_many_fails_with_the_reason() {
    let core = Core::start().await;
    let report = drill(&core, &[&SMALL[..], &["--expect", "41"]].concat()).await.ended(1).json();
    assert_eq!(failed(&report), ["exactly the expected units are granted"]);
    let output = drill(&core, &["--units", "9", "--users", "30", "--expect", "10"]).await.ended(1);
    // The table may wrap lines.
    let words = output.out.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("9 units granted, 10"), "{output:?}");
    assert!(output.out.contains("FAILED: 1 of 10 checks"), "{output:?}");
    assert!(output.out.lines().all(|line| line.chars().count() <= 80), "{output:?}");
}

#[tokio::test]
async fn a_drill_passes_with_few_users_and_several_units_each() {
    let core = Core::start().await;
    let few = ["--units", "50", "--users", "20", "--duplicates", "50", "--json"];
    let report = drill(&core, &few).await.ended(0).json();
    assert!(report["answers"]["user_limit_reached"].as_u64().unwrap() >= 2, "{report:#}");
    let several = ["--units", "50", "--users", "30", "--per-user", "3", "--duplicates", "0", "--json"];
    let report = drill(&core, &several).await.ended(0).json();
    assert_eq!(report["answers"].get("cut off by the drill"), None, "{report:#}");
}

#[tokio::test]
async fn a_kept_campaign_stays_open() {
    let core = Core::start().await;
    let output = drill(&core, &["--units", "5", "--users", "5", "--json", "--keep"]).await.ended(0);
    output.one_line("is kept");
    let path = format!("/admin/v1/campaigns/{}", output.json()["campaign_id"].as_str().unwrap());
    let view = core.admin_get(&path).await.expect(200).json();
    assert_eq!(view["state"], "sold_out");
}

#[tokio::test]
async fn a_drill_that_cannot_run_says_why_in_one_line() {
    let core = CoreOptions::default()
        .with("CLAIMGATE_ADMIN_TOKENS", "olga:operator:an-operators-token-for-the-tests-only")
        .start()
        .await;
    let nowhere = format!("http://{}", free_address());
    for (url, part) in [
        (nowhere.as_str(), "no answer from"),
        (&core.admin_url(""), "accepts no claims"),
        ("ftp://claims.example.com", "must be http://HOST:PORT or https://HOST"),
        ("127.0.0.1:8080", "must be http://HOST:PORT"),
    ] {
        run_against(&core, &["drill", url]).await.ended(2).one_line(part);
    }
    for wrong in [&["--units", "0"][..], &["--users", "0"], &["--duplicates", "51"], &["--connections", "0"]]
    {
        drill(&core, wrong).await.ended(2);
    }
    let (url, listen, admin) = (core.url(""), core.listen().to_string(), core.admin_listen().to_string());
    let data = core.data_dir();
    for (token, part) in [
        ("not-the-token-but-long-enough-to-be-one", "unauthenticated"),
        ("an-operators-token-for-the-tests-only", "forbidden"),
    ] {
        let environment = [
            ("CLAIMGATE_LISTEN", listen.as_str()),
            ("CLAIMGATE_ADMIN_LISTEN", admin.as_str()),
            ("CLAIMGATE_ADMIN_TOKEN", token),
        ];
        run(&["drill", &url], &environment, &data).await.ended(2).one_line(part);
    }
    let campaigns = core.admin_get("/admin/v1/campaigns").await.expect(200).json();
    assert!(
        campaigns["items"].as_array().unwrap().iter().all(|campaign| campaign["state"] == "ended"),
        "{campaigns}"
    );
}

/// Starts a proxy that terminates TLS for `core`, and returns its address.
async fn tls_proxy_for(core: &Core, certificates: &Certificates) -> SocketAddr {
    let (address, to) = (free_address(), core.listen());
    let (acceptor, listener) = (certificates.acceptor(), TcpListener::bind(address).await.unwrap());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(mut there) = acceptor.accept(stream).await else { return };
                let mut here = TcpStream::connect(to).await.unwrap();
                // The drill cuts some connections on purpose.
                let _ = copy_bidirectional(&mut there, &mut here).await;
            });
        }
    });
    address
}

#[tokio::test]
async fn tls_requires_a_trusted_certificate() {
    let Some(certificates) = available("the drill by TLS", Certificates::make()) else { return };
    let core = Core::start().await;
    let url = format!("https://{}", tls_proxy_for(&core, &certificates).await);
    let (listen, admin) = (core.listen().to_string(), core.admin_listen().to_string());
    let data = core.data_dir();
    let drill = async |authority: &str| {
        let authority = certificates.file(authority);
        let environment = [
            ("CLAIMGATE_LISTEN", listen.as_str()),
            ("CLAIMGATE_ADMIN_LISTEN", admin.as_str()),
            ("CLAIMGATE_DATA_DIR", data.to_str().unwrap()),
            ("SSL_CERT_FILE", authority.as_str()),
        ];
        run(&[&["drill", url.as_str()], &SMALL[..]].concat(), &environment, &data).await
    };
    let report = drill("ours.pem").await.ended(0).json();
    assert_eq!((&report["passed"], &report["url"]), (&json!(true), &json!(url)), "{report:#}");
    drill("other.pem").await.ended(2).one_line("UnknownIssuer");
}

#[tokio::test]
async fn the_drill_rejects_a_core_of_another_installation() {
    let (core, other) = (Core::start().await, Core::start().await);
    run_against(&core, &["drill", &other.url("")]).await.ended(2).one_line("unauthenticated");
}

#[tokio::test]
async fn a_core_killed_during_the_storm_still_passes() {
    let core = Core::start().await;
    let (internal, admin) = (LossyProxy::to(core.listen()), LossyProxy::to(core.admin_listen()));
    let (listen, admin_listen) = (internal.listen.to_string(), admin.listen.to_string());
    let (url, data) = (format!("http://{listen}"), core.data_dir());
    let storm = async {
        let environment = [
            ("CLAIMGATE_LISTEN", listen.as_str()),
            ("CLAIMGATE_ADMIN_LISTEN", admin_listen.as_str()),
            ("CLAIMGATE_DATA_DIR", data.to_str().unwrap()),
        ];
        let size = ["drill", &url, "--units", "3000", "--users", "4000", "--json"];
        run(&size, &environment, &data).await
    };
    let fault = async {
        let mut core = core;
        until_storming(&core).await;
        core.kill();
        let core = core.restart().await;
        internal.forward_to(core.listen());
        admin.forward_to(core.admin_listen());
        core
    };
    let (output, _core) = tokio::join!(storm, fault);
    let report = output.ended(0).json();
    let lost =
        ["no answer", "unavailable", "campaign_not_ready"].map(|what| report["answers"][what].as_u64());
    assert!(lost.iter().flatten().sum::<u64>() > 0, "the storm was over before core was killed: {report:#}");
}

/// Waits until a drill has made more than 100 claims.
async fn until_storming(core: &Core) {
    eventually(SOON, || async {
        let campaigns = core.admin_get("/admin/v1/campaigns").await.expect(200).json();
        let taken = campaigns["items"][0]["taken"].as_u64().unwrap_or_default();
        holds(taken > 100, || format!("only {taken} units are taken"))
    })
    .await;
}

#[tokio::test]
async fn a_drill_cannot_run_if_core_stays_down() {
    let mut core = Core::start().await;
    let data = core.data_dir();
    let url = core.url("");
    let (listen, admin) = (core.listen().to_string(), core.admin_listen().to_string());
    let storm = async {
        let environment = [
            ("CLAIMGATE_LISTEN", listen.as_str()),
            ("CLAIMGATE_ADMIN_LISTEN", admin.as_str()),
            ("CLAIMGATE_DATA_DIR", data.to_str().unwrap()),
        ];
        run(&["drill", &url, "--units", "3000", "--users", "4000", "--patience", "2"], &environment, &data)
            .await
    };
    let fault = async {
        until_storming(&core).await;
        core.kill();
    };
    let (output, ()) = tokio::join!(storm, fault);
    let output = output.ended(2);
    assert!(output.err.contains("could not be run"), "{output:?}");
}

#[tokio::test]
async fn a_storm_that_takes_too_long_is_aborted() {
    let core = Core::start().await;
    let output = drill(&core, &["--users", "100000", "--storm-max", "1"]).await.ended(2);
    output.one_line("not over after 1 s");
    assert_eq!(only_campaign(&core).await.unwrap()["state"], "ended");
}

/// Returns the only campaign, or `None` if there is none yet.
async fn only_campaign(core: &Core) -> Option<Value> {
    core.admin_get("/admin/v1/campaigns").await.expect(200).json()["items"].get(0).cloned()
}

/// Starts a large drill of `core` that uses the admin API at `admin`.
fn start_large_drill(core: &Core, admin: SocketAddr) -> Process {
    let mut drill = command(&binary::claimgate());
    drill
        .args(["drill", &core.url(""), "--users", "100000"])
        .env("CLAIMGATE_LISTEN", core.listen().to_string())
        .env("CLAIMGATE_ADMIN_LISTEN", admin.to_string())
        .env("CLAIMGATE_DATA_DIR", core.data_dir())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    Process::start(drill)
}

#[tokio::test]
async fn a_signal_during_the_storm_ends_the_campaign() {
    for (signal, core) in [(Signal::TERM, Core::start().await), (Signal::INT, Core::start().await)] {
        let mut drill = start_large_drill(&core, core.admin_listen());
        until_storming(&core).await;
        drill.signal(signal);
        assert_eq!(drill.wait(SOON).await.code(), Some(2), "{signal:?}");
        assert_eq!(only_campaign(&core).await.unwrap()["state"], "ended", "{signal:?}");
    }
}

#[tokio::test]
async fn a_signal_during_creation_also_ends_the_campaign() {
    for (signal, core) in [(Signal::TERM, Core::start().await), (Signal::INT, Core::start().await)] {
        let admin = LossyProxy::to(core.admin_listen());
        admin.delay_answers(Duration::from_secs(3));
        let mut drill = start_large_drill(&core, admin.listen);
        eventually(SOON, || async {
            only_campaign(&core).await.map(drop).ok_or_else(|| "no campaign yet".to_owned())
        })
        .await;
        drill.signal(signal);
        assert_eq!(drill.wait(SOON).await.code(), Some(2), "{signal:?}");
        assert_eq!(only_campaign(&core).await.unwrap()["state"], "ended", "{signal:?}");
    }
}

#[tokio::test]
async fn help_fits_in_80_columns() {
    let directory = tempfile::tempdir().unwrap();
    let help = run(&["drill", "--help"], &[("COLUMNS", "80")], directory.path()).await.ended(0);
    assert!(help.out.lines().all(|line| line.chars().count() <= 80), "{}", help.out);
    for flag in ["--units", "--users", "--expect", "--report", "--keep", "--json", "Exit status"] {
        assert!(help.out.contains(flag), "{flag}: {}", help.out);
    }
}
