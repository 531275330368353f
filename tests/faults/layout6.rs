//! Keys of layout 6, which earlier versions wrote. The scripts in the directory `layout6` write keys as those versions
//! did.

use claimgate_shared::ClaimId;
use support::RedisView;
use support::checker::Checker;
use support::inspect::key;
use support::signing::claim_id;
use support::storm::{ClaimAttempt, ClaimOutcome};

/// A byte of a claim's record that layout 6 lacks.
const HIGH_BYTE_OF_REVISION: usize = 26;
const CLAIM_BYTES: usize = 43;

/// A campaign of layout 6, and the scripts of that layout.
#[derive(Debug)]
pub struct Layout6 {
    redis: RedisView,
    identity: Vec<u8>,
    epoch: String,
    register_id: String,
    pub token: String,
}

impl Layout6 {
    /// Replaces the keys of the idle campaign `demo` by keys of layout 6 with the same claims. Its core must
    /// have been stopped.
    pub async fn replace(redis: RedisView) -> Self {
        let [register_id, token, epoch]: [String; 3] =
            redis.query(&["HMGET", &key("demo", "campaign"), "register_id", "token", "epoch"]).await;
        let mut users: Vec<(Vec<u8>, Vec<u8>)> = redis.query(&["HGETALL", &key("demo", "users")]).await;
        let at = users.iter().position(|(user, _)| user == b".").expect("a state");
        let state = users.remove(at).1;
        let packed = &state[1 + usize::from(state[0]) + 36..];
        // Layout 6 has no pass rule, and the end of the UTC offsets before the version.
        let rules = [&packed[..38], &packed[50..56], &packed[44..50], &packed[56..]];
        let counters = redis.state("demo").await.expect("a state");
        for what in ["campaign", "users", "claims", "holds", "outbox"] {
            redis.query::<u64>(&["DEL", &key("demo", what)]).await;
        }
        redis.query::<()>(&["SET", "cg:layout", "6"]).await;
        let number = |bytes: u64, width: usize| bytes.to_be_bytes()[8 - width..].to_vec();
        let text = format!("6 {register_id} {}", "0".repeat(40));
        let epoch_bytes = number(epoch.parse().unwrap(), 5);
        let length = u8::try_from(5 + text.len()).unwrap();
        let identity = [&[length], &epoch_bytes[..], text.as_bytes()].concat();
        let old = Self { redis, identity, epoch, register_id, token };
        let suspended = old.suspend(
            include_str!("layout6/prelude.lua"),
            include_str!("layout6/suspend.lua"),
            "6",
            &old.token,
        );
        assert_eq!(suspended.await, "suspended");
        old.load(&[b"begin"]).await;
        for (user, record) in &users {
            let record: Vec<u8> = record
                .chunks(CLAIM_BYTES)
                .flat_map(|claim| {
                    [&claim[..HIGH_BYTE_OF_REVISION], &claim[HIGH_BYTE_OF_REVISION + 1..]].concat()
                })
                .collect();
            old.load(&[b"users", user, &record]).await;
        }
        let [sequence, events, units] =
            ["sequence", "events", "taken"].map(|name| counters[name].to_string().into_bytes());
        old.load(&[b"open", &sequence, &events, &units, &events, b"1", &rules.concat()]).await;
        old
    }

    async fn run(&self, script: &str, arguments: &[&[u8]]) -> redis::Value {
        let text = [include_str!("layout6/prelude.lua"), script].concat();
        let mut command = redis::cmd("EVAL");
        // The name of the outbox in layout 6, not that of `key`.
        let keys =
            ["campaign", "users", "claims", "holds", "outbox"].map(|what| format!("cg:{{demo}}:{what}"));
        command.arg(text).arg(5).arg(&keys).arg(arguments);
        self.redis.run(&command).await
    }

    /// Suspends the campaign with the scripts of either layout.
    pub async fn suspend(&self, prelude: &str, script: &str, layout: &str, token: &str) -> String {
        let keys = ["campaign", "users", "claims", "holds", "outbox"].map(|what| key("demo", what));
        let mut command = redis::cmd("EVAL");
        command
            .arg([prelude, script].concat())
            .arg(5)
            .arg(&keys)
            .arg(layout)
            .arg(&self.register_id)
            .arg(token);
        let reply: Vec<redis::Value> = self.redis.run(&command).await;
        redis::from_redis_value(reply[0].clone()).unwrap()
    }

    async fn load(&self, step: &[&[u8]]) {
        let arguments = [&[&self.identity[..], self.epoch.as_bytes(), self.token.as_bytes()], step].concat();
        let reply = self.run(include_str!("layout6/load.lua"), &arguments).await;
        assert_eq!(redis::from_redis_value::<Vec<String>>(reply).unwrap(), ["done"]);
    }

    /// Decides a claim of one unit, which must be granted.
    pub async fn claim(&self, checker: &Checker, user: &str, idempotency_key: &str) {
        let id: ClaimId = claim_id("demo", user, idempotency_key).parse().unwrap();
        let length = u8::try_from(user.len()).unwrap();
        let claim = [&[length], user.as_bytes(), &id.digest, &[0, 0, 0, 1]].concat();
        let reply =
            self.run(include_str!("layout6/claim.lua"), &[&self.identity, b"0", b"1000", &claim]).await;
        let reply: Vec<u8> = redis::from_redis_value(reply).unwrap();
        assert_eq!(reply[42..], [1], "{user} must get a claim");
        let sequence = reply[30..36].iter().fold(0, |number, byte| number << 8 | u64::from(*byte)) + 1;
        let attempt = ClaimAttempt { user: user.to_owned(), key: idempotency_key.to_owned(), units: 1 };
        let id = id.to_string();
        checker.record(&attempt, ClaimOutcome::Claimed { id, sequence, replayed: false, remaining: None });
    }

    /// Returns a claim.
    pub async fn return_claim(&self, checker: &Checker, user: &str, idempotency_key: &str) {
        let id: ClaimId = claim_id("demo", user, idempotency_key).parse().unwrap();
        let arguments = [&self.identity[..], b"0", b"return", user.as_bytes(), &id.digest, b"shop"];
        let reply = self.run(include_str!("layout6/transition.lua"), &arguments).await;
        let reply: Vec<redis::Value> = redis::from_redis_value(reply).unwrap();
        assert_eq!(redis::from_redis_value::<String>(reply[0].clone()).unwrap(), "transitioned");
        checker.ended(&id.to_string());
    }
}
