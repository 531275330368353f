//! Retries of the command line while core's responses leave the outcome of a call unknown.

use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use support::process::{Process, Signal, command, signal_pid};
use support::wait::holds;
use support::{Core, SOON, binary, eventually, promised};

use crate::command_line::run_against;

/// Time limit of a command whose call is retried for 30 s.
const RETRIED_MAX: Duration = Duration::from_secs(35);

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
        holds(said.contains("retrying for at most 30 s"), || said.clone()).map(|()| said)
    })
    .await;
    signal_pid(redis, Signal::CONT);
    assert!(said.contains("(unavailable)"), "it says what is retried: {said}");
    assert!(process.wait(SOON).await.success(), "{}", std::fs::read_to_string(&err).unwrap());
    let campaign: Value = serde_json::from_str(&std::fs::read_to_string(&out).unwrap()).unwrap();
    assert_eq!((&campaign["id"], &campaign["version"]), (&json!("demo"), &json!(1)));
    assert_eq!(core.campaign("demo").await["limits"]["total"], 5);
}

#[tokio::test]
async fn an_unanswered_call_is_retried_for_thirty_seconds() {
    let core = Core::start().await;
    let redis = core.redis_pid().await;
    signal_pid(redis, Signal::STOP);
    let began = Instant::now();
    let failed = run_against(&core, &["campaign", "create", "demo", "--total", "5"]).await;
    let took = began.elapsed();
    signal_pid(redis, Signal::CONT);
    let failed = failed.ended(3);
    assert!(failed.err.contains("retrying for at most 30 s"), "{}", failed.err);
    assert!(took.as_secs() >= 20 && took < promised(RETRIED_MAX), "ended after {took:?}, not 30 s");
}
