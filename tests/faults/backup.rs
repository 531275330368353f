//! Backup and restore with the exact commands of docs/operations.md. The backup is taken while claims
//! continue, and restored after a total loss.

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
use support::storm::{ClaimAttempt, ClaimOutcome, claim_attempts};
use support::topology::OWN;
use support::{Core, CoreOptions, RedisServer, SOON, Servers, eventually};
use tempfile::TempDir;

use crate::fixture::Fixture;
use crate::tally::Row;

/// The document with the commands.
const OPERATIONS: &str = include_str!("../../docs/operations.md");
/// Secrets that core generated and that the edge and users depend on.
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

    /// Checks for programs; `Err` names the first missing one.
    async fn has(&self, programs: &[&str]) -> Result<(), String> {
        for program in programs {
            self.try_run(&format!("command -v {program}")).await.map_err(|_| format!("no {program}"))?;
        }
        Ok(())
    }

    /// Runs a command from the document, with `added` appended.
    async fn run(&self, written: &str, added: &str) {
        let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(
            words(OPERATIONS).contains(&words(written)),
            "docs/operations.md does not contain: {written}"
        );
        let done = self.try_run(&format!("{written} {added}")).await;
        done.unwrap_or_else(|error| panic!("{written}: {error}"));
    }

    /// Creates a directory to restore into, as on another machine: it has only `backup` and the secrets.
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

/// The callers' responses before the total loss.
struct CallerRecords {
    checker: Checker,
    /// Outcomes of the claims that SQL had when the backup began.
    acknowledged: Vec<(ClaimAttempt, ClaimOutcome)>,
    /// A claim acknowledged after the backup.
    after_backup: String,
    admin: String,
}

impl CallerRecords {
    /// Makes claims of every kind, runs `backup` while claims continue, then makes one more claim.
    async fn then(fixture: &Fixture, backup: impl Future<Output = ()>) -> Self {
        let mut body = campaign("demo", LIMITS.json());
        body["hold_seconds"] = json!(3600);
        fixture.core.create_with(body).await;
        let checker = Checker::new("demo", LIMITS);
        checker.win(&fixture.core, 0..20).await;
        for user in ["u0", "u1", "u2"] {
            checker.claim(&fixture.core, user, "k2").await;
        }
        let acknowledged = checker.outcomes().into_iter().collect();
        let mut before =
            Self { checker, acknowledged, after_backup: String::new(), admin: fixture.core.admin_token() };
        fixture.core.transition(before.id_of("u0"), "confirm").await.expect(200);
        fixture.core.transition(before.id_of("u1"), "return").await.expect(200);
        before.checker.ended(before.id_of("u1"));
        fixture.relayed("demo").await;
        before.meanwhile(&fixture.core, backup).await;
        let after_backup = before.checker.decided(SOON, &fixture.core, "after_backup", "k").await;
        let ClaimOutcome::Claimed { id, .. } = after_backup else { panic!("{after_backup:?}") };
        before.after_backup = id;
        before
    }

    async fn meanwhile(&self, core: &Core, backup: impl Future<Output = ()>) {
        let over = AtomicBool::new(false);
        let claims = async {
            // Few enough users to leave units for later claims.
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

    /// Returns the claim of `user` by the key `k`.
    fn id_of(&self, user: &str) -> &str {
        match self.acknowledged.iter().find(|(attempt, _)| attempt.user == user && attempt.key == "k") {
            Some((_, ClaimOutcome::Claimed { id, .. })) => id,
            other => panic!("{user} has no claim: {other:?}"),
        }
    }

    /// Checks that everything in the backup exists and counts, later claims are gone, and nothing is granted
    /// twice.
    async fn judge(self, row: Row, fixture: Fixture) {
        let (core, checker) = (&fixture.core, &self.checker);
        assert_eq!(core.admin_token(), self.admin);
        self.replays_meet_their_claims(core).await;
        core.look_up(&self.after_backup).await.refused(404, "claim_not_found");
        let at_limit = ClaimOutcome::Denied { code: "user_limit_reached".to_owned(), remaining: Some(0) };
        for user in ["u0", "u2"] {
            assert_eq!(checker.decided(SOON, core, user, "k3").await, at_limit, "{user} already has two");
        }
        let room = checker.decided(SOON, core, "u1", "k3").await;
        assert!(
            matches!(room, ClaimOutcome::Claimed { replayed: false, .. }),
            "u1 had returned one: {room:?}"
        );
        assert_eq!(checker.decided(SOON, core, "u1", "k4").await, at_limit);
        // Claims that were confirmed, are still held, and were returned.
        core.transition(self.id_of("u0"), "confirm").await.expect(200);
        core.transition(self.id_of("u3"), "confirm").await.expect(200);
        core.transition(self.id_of("u1"), "confirm").await.refused(409, "claim_returned");
        checker.storm(core.client(), || core.url("/internal/v1/claims"), &claim_attempts(400, 1), 64).await;
        checker.resolve_unknown(core).await;
        fixture.relayed("demo").await;
        let rows = fixture.sql.claims("demo").await;
        let active: u64 = rows.iter().filter(|row| row.is_active()).map(|row| row.quantity).sum();
        assert_eq!(Some(active), LIMITS.total, "exactly the total");
        fixture.judge(row, checker, Expect { promise: Promise::Persisted, differences: &[] }).await;
    }

    async fn replays_meet_their_claims(&self, core: &Core) {
        let url = core.url("/internal/v1/claims");
        for (attempt, acknowledged) in &self.acknowledged {
            // The campaign is not ready while it is being loaded.
            let outcome = eventually(SOON, || async {
                let outcome = self.checker.send(core.client(), &url, attempt).await;
                if outcome == ClaimOutcome::Unknown { Err(core.log()) } else { Ok(outcome) }
            })
            .await;
            let (
                ClaimOutcome::Claimed { id, sequence, replayed: true, .. },
                ClaimOutcome::Claimed { id: known, sequence: place, .. },
            ) = (&outcome, acknowledged)
            else {
                panic!("{attempt:?} got {acknowledged:?} before the loss and {outcome:?} after it");
            };
            assert_eq!((id, sequence), (known, place), "{attempt:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restored_sqlite_backup_has_all_its_claims() {
    only_on!(OWN, "it starts its own servers");
    let row = Row::begin("backup: SQLite, managed Redis");
    let mut fixture = Fixture::managed().await;
    let there = Shell::beside(&fixture.core.data_dir());
    let Some(()) = row.needs(there.has(&["sqlite3"]).await) else { return };
    let before = CallerRecords::then(&fixture, there.run(FROM_SQLITE, "")).await;
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
async fn a_restored_postgres_backup_has_all_its_claims() {
    only_on!(OWN, "it starts its own servers");
    let row = Row::begin("backup: PostgreSQL, external Redis");
    let Some(postgres) = row.needs(Postgres::start().await) else { return };
    let address = free_address();
    let port = address.port().to_string();
    let server = RedisServer::start_with(&[("bind", &address.ip().to_string()), ("port", &port)], &[]).await;
    let redis = format!("redis://{address}");
    // The second sorts strings in a different order.
    let urls = [
        postgres.database_sorted("claimgate", "en-US").await,
        postgres.database_sorted("restored", "en-US-u-kf-upper").await,
    ];
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
    let Some(()) = row.needs(there.has(&["pg_dump", "pg_restore", "redis-cli"]).await) else { return };
    let before = CallerRecords::then(&fixture, there.run(FROM_POSTGRES, "")).await;
    let directory = there.carry("backup.dump").await;
    row.kill();
    fixture.core.kill();
    let here = shell(&directory.path().join("data"), &urls[1]);
    here.run(EMPTY_REDIS, "").await;
    assert_eq!(fixture.redis().await.query::<u64>(&["DBSIZE"]).await, 0, "Redis must be empty");
    here.run(TO_POSTGRES, "").await;
    fixture.core = restored.start_in(directory).await;
    fixture.sql = Sql::open(&urls[1]);
    before.judge(row, fixture).await;
}
