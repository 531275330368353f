//! URLs with passwords come as files too, as secrets do.

use std::fs;
use std::process::Stdio;

use serde_json::json;
use support::core_process::CoreOptions;
use support::postgres::Postgres;
use support::process::{Process, command};
use support::topology::OWN;
use support::{RedisServer, SOON, Sql, binary, only_on};

const VARIABLES: [&str; 2] = ["CLAIMGATE_REDIS_URL_FILE", "CLAIMGATE_DATABASE_URL_FILE"];

#[tokio::test]
async fn a_core_takes_both_urls_from_files() {
    only_on!(OWN, "it brings its own servers");
    let postgres = match Postgres::start().await {
        Ok(postgres) => postgres,
        Err(why) => {
            eprintln!("SKIPPED URLs in files: {why}");
            assert!(std::env::var_os("CI").is_none(), "skipped: {why}");
            return;
        }
    };
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
async fn a_file_that_is_not_there_or_a_url_given_twice_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let url = directory.path().join("url");
    fs::write(&url, "postgres://nowhere/").unwrap();
    let (url, none) = (url.to_str().unwrap(), "/nowhere/url");
    for (set, part) in [
        (vec![("CLAIMGATE_DATABASE_URL_FILE", none)], "CLAIMGATE_DATABASE_URL: its file /nowhere/url"),
        (vec![("CLAIMGATE_REDIS_URL_FILE", url)], "CLAIMGATE_REDIS_URL: "),
        (
            vec![("CLAIMGATE_DATABASE_URL_FILE", url), ("CLAIMGATE_DATABASE_URL", "postgres://a/")],
            "CLAIMGATE_DATABASE_URL: is given twice",
        ),
        // Else a secret that was changed in the file would go on as it was.
        (
            vec![
                ("CLAIMGATE_API_TOKENS_FILE", url),
                ("CLAIMGATE_API_TOKENS", "shop:one-that-is-long-enough-for-a-token"),
            ],
            "CLAIMGATE_API_TOKENS: is given twice",
        ),
    ] {
        let log = directory.path().join("log");
        let mut serve = command(&binary::claimgate());
        serve.arg("serve").env("CLAIMGATE_DATA_DIR", directory.path().join("data")).envs(set);
        serve.stderr(Stdio::from(fs::File::create(&log).unwrap()));
        let status = Process::start(serve).wait(SOON).await;
        let said = fs::read_to_string(&log).unwrap();
        assert_eq!(status.code(), Some(2), "{said}");
        assert!(said.contains(part) && said.lines().count() == 1, "{said}");
    }
}
