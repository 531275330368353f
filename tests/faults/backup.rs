//! Backup and restore by the very commands of docs/operations.md: taken while claims go on, restored where nothing is left.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::json;
use support::checker::{Checker, Expect, Limits, Promise};
use support::core_client::campaign;
use support::only_on;
use support::postgres::Postgres;
use support::process::{command, free_address};
use support::sql::Sql;
use support::storm::{Seen, Wish, wishes};
use support::topology::OWN;
use support::{Core, CoreOptions, RedisServer, SOON, Servers, eventually};
use tempfile::TempDir;

use crate::fixture::Fixture;
use crate::flow::transition;
use crate::tally::Row;

/// Where the commands are documented.
const OPERATIONS: &str = include_str!("../../docs/operations.md");
/// What core has generated once, and the edge and users hold against it.
const SECRETS: &str = "cp data/admin.token data/edge.key data/user-jwt.key";
const FROM_SQLITE: &str = "sqlite3 data/claimgate.sqlite \".backup backup.sqlite\"";
const TO_SQLITE: [&str; 2] =
    ["rm -rf data/redis data/claimgate.sqlite*", "cp backup.sqlite data/claimgate.sqlite"];
const FROM_POSTGRES: &str = "pg_dump --format=custom --file=backup.dump \"$CLAIMGATE_DATABASE_URL\"";
const TO_POSTGRES: &str = "pg_restore --no-owner --dbname=\"$CLAIMGATE_DATABASE_URL\" backup.dump";
const EMPTY_REDIS: &str = "redis-cli -u \"$CLAIMGATE_REDIS_URL\" --scan --pattern 'cg:*' | \
                           xargs -r redis-cli -u \"$CLAIMGATE_REDIS_URL\" unlink";

const LIMITS: Limits = Limits { total: Some(300), per_user: Some(2), per_user_per_day: None };

/// A shell beside a data directory.
struct Shell {
    directory: PathBuf,
    environment: Vec<(&'static str, String)>,
}

impl Shell {
    fn beside(data: &Path) -> Self {
        Self { directory: data.parent().expect("a directory").to_owned(), environment: vec![] }
    }

    fn with(mut self, variable: &'static str, value: impl Into<String>) -> Self {
        self.environment.push((variable, value.into()));
        self
    }

    /// `Err` names the first of `programs` that is not there.
    async fn has(&self, programs: &[&str]) -> Result<(), String> {
        for program in programs {
            self.try_run(&format!("command -v {program}")).await.map_err(|_| format!("no {program}"))?;
        }
        Ok(())
    }

    /// Runs what the document says, with what a test has to add.
    async fn run(&self, written: &str, added: &str) {
        let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words(OPERATIONS).contains(&words(written)), "docs/operations.md does not say: {written}");
        let done = self.try_run(&format!("{written} {added}")).await;
        done.unwrap_or_else(|error| panic!("{written}: {error}"));
    }

    /// A directory to restore into, as far away as another machine: all that is there is `backup` and the secrets.
    async fn carry(&self, backup: &str) -> TempDir {
        let directory = tempfile::Builder::new().prefix("cgb-").tempdir().expect("a temporary directory");
        std::fs::create_dir(directory.path().join("data")).expect("a data directory");
        self.run(SECRETS, &format!("{}/data", directory.path().display())).await;
        std::fs::copy(self.directory.join(backup), directory.path().join(backup)).expect("the backup");
        directory
    }

    async fn try_run(&self, script: &str) -> Result<(), String> {
        let mut shell = command(Path::new("sh"));
        shell.args(["-ec", script]).envs(self.environment.iter().map(|(name, value)| (name, value)));
        shell.current_dir(&self.directory).stdin(Stdio::null());
        let done = tokio::task::spawn_blocking(move || shell.output()).await.unwrap().unwrap();
        if done.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&done.stderr).into_owned()) }
    }
}

/// What callers know before all is lost.
struct Before {
    checker: Checker,
    /// What they were told of claims that SQL had heard of when the backup was begun.
    told: Vec<(Wish, Seen)>,
    /// A claim acknowledged after the backup.
    younger: String,
    admin: String,
}

impl Before {
    /// Claims of every kind; then `backup`, while claims go on; then one more.
    async fn then(fixture: &Fixture, backup: impl Future<Output = ()>) -> Self {
        let mut body = campaign("demo", LIMITS.json());
        body["hold_seconds"] = json!(3600);
        fixture.core.create_with(body).await;
        let checker = Checker::new("demo", LIMITS);
        checker.win(&fixture.core, 0..20).await;
        for user in ["u0", "u1", "u2"] {
            checker.claim(&fixture.core, user, "k2").await;
        }
        let told = checker.seen().into_iter().collect();
        let mut before = Self { checker, told, younger: String::new(), admin: fixture.core.admin_token() };
        transition(&fixture.core, before.id_of("u0"), "confirm").await.expect(200);
        transition(&fixture.core, before.id_of("u1"), "return").await.expect(200);
        before.checker.ended(before.id_of("u1"));
        fixture.relayed("demo").await;
        before.meanwhile(&fixture.core, backup).await;
        let younger = before.checker.claim(&fixture.core, "younger", "k").await;
        let Seen::Claimed { id, .. } = younger else { panic!("{younger:?}") };
        before.younger = id;
        before
    }

    async fn meanwhile(&self, core: &Core, backup: impl Future<Output = ()>) {
        let over = AtomicBool::new(false);
        let claims = async {
            // As many as leave something for afterwards.
            for user in 0..200 {
                if !over.load(Ordering::Relaxed) {
                    self.checker.claim(core, &format!("meanwhile-{user}"), "k").await;
                }
            }
        };
        let backup = async {
            backup.await;
            over.store(true, Ordering::Relaxed);
        };
        tokio::join!(claims, backup);
    }

    /// The claim of `user` by the key `k`.
    fn id_of(&self, user: &str) -> &str {
        match self.told.iter().find(|(wish, _)| wish.user == user && wish.key == "k") {
            Some((_, Seen::Claimed { id, .. })) => id,
            other => panic!("{user} has no claim: {other:?}"),
        }
    }

    /// All that the backup has is there and counts; what is younger is gone, and nothing is given twice.
    async fn judge(self, row: Row, fixture: Fixture) {
        let (core, checker) = (&fixture.core, &self.checker);
        assert_eq!(core.admin_token(), self.admin);
        self.replays_meet_their_claims(core).await;
        core.look_up(&self.younger).await.refused(404, "claim_not_found");
        let at_limit = Seen::Denied { code: "user_limit_reached".to_owned(), remaining: Some(0) };
        for user in ["u0", "u2"] {
            assert_eq!(checker.claim(core, user, "k3").await, at_limit, "{user} has two");
        }
        let room = checker.claim(core, "u1", "k3").await;
        assert!(matches!(room, Seen::Claimed { replayed: false, .. }), "u1 had given one back: {room:?}");
        assert_eq!(checker.claim(core, "u1", "k4").await, at_limit);
        // Confirmed before, held until now, returned before.
        transition(core, self.id_of("u0"), "confirm").await.expect(200);
        transition(core, self.id_of("u3"), "confirm").await.expect(200);
        transition(core, self.id_of("u1"), "confirm").await.refused(409, "claim_returned");
        checker.storm(core.client(), || core.url("/internal/v1/claims"), &wishes(400, 1), 64).await;
        fixture.relayed("demo").await;
        let rows = fixture.sql.claims("demo").await;
        let standing: u64 = rows.iter().filter(|row| row.stands()).map(|row| row.quantity).sum();
        assert_eq!(Some(standing), LIMITS.total, "exactly what there is");
        fixture.judge(row, checker, Expect { promise: Promise::Persisted, differences: &[] }).await;
    }

    async fn replays_meet_their_claims(&self, core: &Core) {
        let url = core.url("/internal/v1/claims");
        for (wish, told) in &self.told {
            // Not ready while the campaign is being loaded.
            let seen = eventually(SOON, || async {
                let seen = self.checker.ask(core.client(), &url, wish).await;
                if seen == Seen::Unknown { Err(core.log()) } else { Ok(seen) }
            })
            .await;
            let (
                Seen::Claimed { id, sequence, replayed: true, .. },
                Seen::Claimed { id: known, sequence: place, .. },
            ) = (&seen, told)
            else {
                panic!("{wish:?} was told {told:?}, and now {seen:?}");
            };
            assert_eq!((id, sequence), (known, place), "{wish:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite() {
    only_on!(OWN, "it brings its own servers");
    let row = Row::begin("backup: SQLite, managed Redis");
    let mut fixture = Fixture::managed().await;
    let there = Shell::beside(&fixture.core.data_dir());
    if let Err(why) = there.has(&["sqlite3"]).await {
        return row.skip(&why);
    }
    let before = Before::then(&fixture, there.run(FROM_SQLITE, "")).await;
    let directory = there.carry("backup.sqlite").await;
    row.kill();
    fixture.core.kill();
    let here = Shell::beside(&directory.path().join("data"));
    for written in TO_SQLITE {
        here.run(written, "").await;
    }
    fixture.core = CoreOptions::default().start_in(directory).await;
    fixture.sql = Sql::in_directory(&fixture.core.data_dir());
    before.judge(row, fixture).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres() {
    only_on!(OWN, "it brings its own servers");
    let row = Row::begin("backup: PostgreSQL, external Redis");
    let postgres = match Postgres::start().await {
        Ok(postgres) => postgres,
        Err(why) => return row.skip(&why),
    };
    let address = free_address();
    let port = address.port().to_string();
    let server = RedisServer::start_with(&[("bind", &address.ip().to_string()), ("port", &port)], &[]).await;
    let redis = format!("redis://{address}");
    let urls = [postgres.database("claimgate").await, postgres.database("restored").await];
    let [options, restored] = urls.each_ref().map(|url| {
        CoreOptions::default().with("CLAIMGATE_REDIS_URL", &redis).with("CLAIMGATE_DATABASE_URL", url)
    });
    let programs = format!("{}:{}", postgres.programs().display(), std::env::var("PATH").unwrap_or_default());
    let shell = |data: &Path, url: &str| {
        let shell = Shell::beside(data).with("PATH", &programs).with("CLAIMGATE_REDIS_URL", &redis);
        shell.with("CLAIMGATE_DATABASE_URL", url)
    };
    let mut fixture = Fixture::managed_with(options).await;
    (fixture.server, fixture.postgres, fixture.sql) =
        (Some(Servers::One(server)), Some(postgres), Sql::open(&urls[0]));
    let there = shell(&fixture.core.data_dir(), &urls[0]);
    if let Err(why) = there.has(&["pg_dump", "pg_restore", "redis-cli"]).await {
        return row.skip(&why);
    }
    let before = Before::then(&fixture, there.run(FROM_POSTGRES, "")).await;
    let directory = there.carry("backup.dump").await;
    row.kill();
    fixture.core.kill();
    let here = shell(&directory.path().join("data"), &urls[1]);
    here.run(EMPTY_REDIS, "").await;
    assert_eq!(fixture.redis().await.query::<u64>(&["DBSIZE"]).await, 0, "keys are left");
    here.run(TO_POSTGRES, "").await;
    fixture.core = restored.start_in(directory).await;
    fixture.sql = Sql::open(&urls[1]);
    before.judge(row, fixture).await;
}
