//! A Redis that refuses writes or scripts, or cannot rewrite its file.

use std::fs;

use support::only_on;
use support::redis_server::RedisServer;
use support::topology::OWN;

use super::{directory, doctor};

#[tokio::test]
async fn a_redis_that_accepts_no_writes_is_reported() {
    only_on!(OWN, "it starts its own servers");
    let server = RedisServer::start_with(&[("maxmemory", "64mb")], &[]).await;
    let (data, url, view) = (directory(), server.url(), server.view().await);
    let environment = [("CLAIMGATE_REDIS_URL", url.as_str())];
    for (setting, fault, end) in [("min-replicas-to-write", "1", "0"), ("maxmemory", "1", "64mb")] {
        view.query::<String>(&["CONFIG", "SET", setting, fault]).await;
        doctor(data.path(), &environment).await.breaks(&["redis.writes"]);
        view.query::<String>(&["CONFIG", "SET", setting, end]).await;
        doctor(data.path(), &environment).await.breaks(&[]).warns(&["redis.replicas"]);
    }
    for command in ["fcall", "function|load", "evalsha", "script|load", "xadd", "xgroup|create"] {
        let rights = async |right: String| {
            view.query::<String>(&["ACL", "SETUSER", "default", &right]).await;
        };
        rights(format!("-{command}")).await;
        doctor(data.path(), &environment).await.breaks(&["redis.scripts"]);
        rights(format!("+{command}")).await;
        doctor(data.path(), &environment).await.breaks(&[]).warns(&["redis.replicas"]);
    }
}

#[tokio::test]
async fn a_failed_rewrite_of_redis_file_is_a_warning() {
    only_on!(OWN, "it starts its own server");
    let server = RedisServer::start_with(&[("maxmemory", "64mb")], &[]).await;
    let (data, url, view) = (directory(), server.url(), server.view().await);
    let environment = [("CLAIMGATE_REDIS_URL", url.as_str())];
    let blocked = view.block_rewrites().await;
    view.rewrite("err").await;
    doctor(data.path(), &environment).await.breaks(&[]).warns(&["redis.replicas", "redis.rewrite"]);
    fs::remove_dir(blocked).unwrap();
    view.rewrite("ok").await;
    doctor(data.path(), &environment).await.breaks(&[]).warns(&["redis.replicas"]);
}
