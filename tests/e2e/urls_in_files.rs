//! URLs with passwords can be read from files, like secrets.

use std::fs;
use std::process::Stdio;

use serde_json::json;
use support::available::available;
use support::core_process::CoreOptions;
use support::postgres::Postgres;
use support::process::{Process, command};
use support::topology::OWN;
use support::{RedisServer, SOON, Sql, binary, only_on};

const VARIABLES: [&str; 2] = ["CLAIMGATE_REDIS_URL_FILE", "CLAIMGATE_DATABASE_URL_FILE"];

#[tokio::test]
async fn core_reads_both_urls_from_files() {
    only_on!(OWN, "it starts its own servers");
    let Some(postgres) = available("URLs in files", Postgres::start().await) else { return };
    let redis = RedisServer::start().await;
    let directory = tempfile::tempdir().unwrap();
    let database = postgres.database("claimgate").await;
    let mut options = CoreOptions::default();
    for (variable, url) in VARIABLES.into_iter().zip([redis.url(), database.clone()]) {
        let file = directory.path().join(variable);
        fs::write(&file, format!("{url}\n")).unwrap();
        options = options.with(variable, file.to_str().unwrap());
    }
    let core = options.start().await;
    core.create("demo", json!({"total": 1})).await;
    core.claim("demo", "alice", "k").await.expect(201);
    Sql::open(&database).until("demo", 1).await;
    assert!(!core.data_dir().join("claimgate.sqlite").exists());
}

#[tokio::test]
async fn the_error_names_a_missing_file_or_a_duplicate_url() {
    let directory = tempfile::tempdir().unwrap();
    let url = directory.path().join("url");
    fs::write(&url, "postgres://nowhere/").unwrap();
    let (url, none) = (url.to_str().unwrap(), "/nowhere/url");
    for (set, part) in [
        (vec![("CLAIMGATE_DATABASE_URL_FILE", none)], "CLAIMGATE_DATABASE_URL: its file /nowhere/url"),
        (vec![("CLAIMGATE_REDIS_URL_FILE", url)], "CLAIMGATE_REDIS_URL: "),
        (
            vec![("CLAIMGATE_DATABASE_URL_FILE", url), ("CLAIMGATE_DATABASE_URL", "postgres://a/")],
            "CLAIMGATE_DATABASE_URL: is set twice",
        ),
        // Otherwise a change of the file would have no effect.
        (
            vec![
                ("CLAIMGATE_API_TOKENS_FILE", url),
                ("CLAIMGATE_API_TOKENS", "shop:one-that-is-long-enough-for-a-token"),
            ],
            "CLAIMGATE_API_TOKENS: is set twice",
        ),
    ] {
        let log = directory.path().join("log");
        let mut serve = command(&binary::claimgate());
        serve.arg("serve").env("CLAIMGATE_DATA_DIR", directory.path().join("data")).envs(set);
        serve.stderr(Stdio::from(fs::File::create(&log).unwrap()));
        let status = Process::start(serve).wait(SOON).await;
        let output = fs::read_to_string(&log).unwrap();
        assert_eq!(status.code(), Some(2), "{output}");
        assert!(output.contains(part) && output.lines().count() == 1, "{output}");
    }
}
