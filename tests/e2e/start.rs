//! How `claimgate serve` starts: with values that are wrong, at addresses that are taken, and with secrets of its own
//! making.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use serde_json::json;
use support::process::free_address;
use support::{Core, CoreOptions};

use crate::command_line::{ask, run};

#[tokio::test]
async fn a_wrong_value_ends_the_start_with_one_line_that_names_it() {
    let sample = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8";
    let sample_key = format!("k1:{sample}");
    let file = tempfile::NamedTempFile::new().unwrap();
    let no_directory = file.path().join("data");
    for (variable, value) in [
        ("CLAIMGATE_LISTEN", "8080"),
        ("CLAIMGATE_LISTEN", "nowhere:x"),
        ("CLAIMGATE_ADMIN_LISTEN", "127.0.0.1:99999"),
        ("CLAIMGATE_DATA_DIR", no_directory.to_str().unwrap()),
        ("CLAIMGATE_REDIS_URL", "http://127.0.0.1:6379"),
        ("CLAIMGATE_REDIS_URL", "redis+sentinel://127.0.0.1:26379"),
        ("CLAIMGATE_REDIS_URL", "redis-cluster://127.0.0.1:7000"),
        ("CLAIMGATE_REDIS_URL", ""),
        ("CLAIMGATE_DATABASE_URL", "mysql://127.0.0.1/claims"),
        ("CLAIMGATE_ADMIN_TOKEN", "short"),
        ("CLAIMGATE_ADMIN_TOKEN", ""),
        ("CLAIMGATE_ADMIN_TOKEN_FILE", "nowhere/admin.token"),
        ("CLAIMGATE_API_TOKENS", "shop"),
        ("CLAIMGATE_API_TOKENS", "shop:short"),
        ("CLAIMGATE_API_TOKENS_FILE", "nowhere/tokens"),
        ("CLAIMGATE_ADMIN_TOKENS", "an-admins-token-without-anything-else"),
        ("CLAIMGATE_ADMIN_TOKENS", "ann:boss:an-admins-token-that-is-long-enough"),
        ("CLAIMGATE_ADMIN_TOKENS", "ann:an-admins-token-that-is-long-enough:admin"),
        ("CLAIMGATE_ADMIN_TOKENS", "ann:admin:short"),
        ("CLAIMGATE_ADMIN_TOKENS_FILE", "nowhere/admins"),
        ("CLAIMGATE_EDGE_KEYS", "k1"),
        ("CLAIMGATE_EDGE_KEYS", "k1:c2hvcnQ"),
        ("CLAIMGATE_EDGE_KEYS", sample_key.as_str()),
        ("CLAIMGATE_EDGE_KEYS", "k1:not base64url at all, though it is quite long"),
        ("CLAIMGATE_EDGE_KEYS_FILE", "nowhere/keys"),
        ("CLAIMGATE_USER_JWT_KEY", "c2hvcnQ"),
        ("CLAIMGATE_USER_JWT_KEY", sample),
        ("CLAIMGATE_USER_JWT_KEY_FILE", "nowhere/key"),
        ("CLAIMGATE_REDIS_MAXMEMORY_MIB", "0"),
        ("CLAIMGATE_OUTBOX_MAX", "many"),
        ("CLAIMGATE_CONCURRENCY_MAX", "-1"),
        ("CLAIMGATE_BATCH_MAX", "257"),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let (listen, admin) = (free_address().to_string(), free_address().to_string());
        let mut environment =
            vec![("CLAIMGATE_LISTEN", listen.as_str()), ("CLAIMGATE_ADMIN_LISTEN", admin.as_str())];
        environment.retain(|(name, _)| *name != variable);
        environment.push((variable, value));
        let serving = run(&["serve"], &environment, directory.path());
        let said = tokio::time::timeout(support::SOON, serving).await;
        let said = said.unwrap_or_else(|_| panic!("{variable}={value:?} is taken, and core serves")).ended(2);
        said.one_line(variable.trim_end_matches("_FILE"));
        let is_secret = variable.contains("KEY") || variable.contains("TOKENS");
        let parts = value.split(':').filter(|part| part.len() > 5);
        let shown = is_secret
            && !variable.ends_with("_FILE")
            && parts.into_iter().any(|part| said.err.contains(part));
        assert!(!shown, "a secret is shown: {said:?}");
    }
}

#[tokio::test]
async fn an_address_in_use_is_named() {
    let core = Core::start().await;
    let directory = tempfile::tempdir().unwrap();
    let (taken, free) = (core.listen().to_string(), free_address().to_string());
    for (variable, other) in
        [("CLAIMGATE_LISTEN", "CLAIMGATE_ADMIN_LISTEN"), ("CLAIMGATE_ADMIN_LISTEN", "CLAIMGATE_LISTEN")]
    {
        let said =
            run(&["serve"], &[(variable, taken.as_str()), (other, free.as_str())], directory.path()).await;
        assert!(said.status > 0, "{said:?}");
        said.one_line(variable);
    }
}

#[tokio::test]
async fn secrets_are_made_once_for_the_owner_alone_and_never_shown() {
    let core = CoreOptions::default().with("RUST_LOG", "trace").start().await;
    core.create("demo", json!({"total": 5})).await;
    core.claim("demo", "alice", "k").await.expect(201);
    support::signing::Signed::claim(&core, "demo", "bob", "k").send(&core).await.expect(201);
    ask(&core, &["token", "--user", "alice"]).await.ended(0);
    core.sql().until("demo", 2).await;
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&core.data_dir()), 0o700);
    let names = ["admin.token", "edge.key", "user-jwt.key", "redis.password"];
    let secrets = names.map(|name| core.data_file(name));
    for (name, secret) in names.iter().zip(&secrets) {
        assert_eq!(mode(&core.data_dir().join(name)), 0o600, "{name}");
        let secret = secret.rsplit(':').next().unwrap();
        assert!(secret.len() >= 43, "{name} has {} characters", secret.len());
        assert!(!core.log().contains(secret), "{name} stands in the log");
    }
    assert!(!core.log().contains(support::core_client::API_TOKEN), "an API token stands in the log");
    assert!(core.log().contains("answered"), "the log says too little to tell");
    let mut core = core;
    core.kill();
    let again = core.restart().await;
    assert_eq!(names.map(|name| again.data_file(name)), secrets, "made once");
    again.claim("demo", "alice", "k").await.expect(200);
}
