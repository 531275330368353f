//! The pass rule's cost in Redis: batches of claims by the present script and by the script of layout 6,
//! which has no such rule, alternating in one Redis; and `pass_required` denials compared with other denials.

use anyhow::ensure;
use redis::Value;
use support::RedisView;

use super::Group;
use crate::budget::Cost;
use crate::figures::{Definition, Unit};
use crate::median::median;
use crate::redis::{self as server, Fsync};
use crate::session::Session;

pub const GROUP: Group = Group {
    name: "passes",
    about: "Redis' CPU time per claim with and without the pass rule, and per `pass_required` denial",
    figures: &[WITH_RULE, DENIAL, CLAIM],
    parts: &[Cost::of(0.5, 5.0, 0.0)],
    run: |session| Box::pin(run(session)),
};

const WITH_RULE: &Definition =
    &Definition::at_most("Redis CPU per claim, script with ÷ without the pass rule", Unit::Ratio, 1.03);
const DENIAL: &Definition =
    &Definition::at_most("Redis CPU per denial, without a pass ÷ sold out", Unit::Ratio, 1.0);
const CLAIM: &Definition = &Definition::info("Redis CPU per claim in batches of 64", Unit::CpuMicroseconds);

/// Number of turns of each script in one round; the ratio of each pair of turns counts.
const TURNS: usize = 20;
const CALLS: usize = 100;
const CLAIMS: usize = 64;

const PRELUDE: &str = include_str!("../../../lua/prelude.lua");
const SCRIPT: &str = include_str!("../../../lua/claim.lua");
const PRELUDE_6: &str = include_str!("../../../tests/faults/layout6/prelude.lua");
const SCRIPT_6: &str = include_str!("../../../tests/faults/layout6/claim.lua");

const UNLIMITED: u64 = (1 << 40) - 1;
const NEVER: u64 = (1 << 48) - 1;

async fn run(session: &mut Session) -> anyhow::Result<()> {
    let redis = server::start(Fsync::EverySecond).await;
    let view = redis.view().await;
    let scripts = [load(&view, PRELUDE, SCRIPT).await?, load(&view, PRELUDE_6, SCRIPT_6).await?];
    let [with, without] = [
        Campaign::open(&view, "with", 7, UNLIMITED, 0).await?,
        Campaign::open(&view, "without", 6, UNLIMITED, 0).await?,
    ];
    let [passes, sold_out] = [
        Campaign::open(&view, "passes", 7, UNLIMITED, NEVER).await?,
        Campaign::open(&view, "sold-out", 7, 0, 0).await?,
    ];
    // The first turns are only warm-up.
    let mut users = 0;
    for (campaign, script) in [(&with, &scripts[0]), (&without, &scripts[1])] {
        campaign.turn(&view, script, &mut users).await?;
    }
    while session.next_round().is_some() {
        session.begin_round();
        let mut claim_us = Vec::new();
        let mut pairs = async |pair: [(&Campaign, &String); 2]| {
            let mut ratios = Vec::new();
            for turn in 0..TURNS {
                let mut us = [0.0; 2];
                for at in [turn % 2, 1 - turn % 2] {
                    us[at] = pair[at].0.turn(&view, pair[at].1, &mut users).await?;
                }
                claim_us.push(us[0]);
                ratios.push(us[0] / us[1]);
            }
            anyhow::Ok(median(&ratios))
        };
        let with_rule = session.measure(pairs([(&with, &scripts[0]), (&without, &scripts[1])])).await?;
        let denial = session.measure(pairs([(&passes, &scripts[0]), (&sold_out, &scripts[0])])).await?;
        session.add(WITH_RULE, with_rule);
        session.add(DENIAL, denial);
        session.add(CLAIM, median(&claim_us[..TURNS]));
    }
    for campaign in [&passes, &sold_out] {
        ensure!(view.counter(campaign.id, "taken").await == 0, "{} granted a claim", campaign.id);
    }
    Ok(())
}

/// Loads a script; returns its hash.
async fn load(view: &RedisView, prelude: &str, script: &str) -> anyhow::Result<String> {
    server::query(view, &["SCRIPT", "LOAD", &[prelude, script].concat()]).await
}

/// A campaign of one layout, without claims.
#[derive(Debug)]
struct Campaign {
    id: &'static str,
    layout: u8,
    identity: Vec<u8>,
}

impl Campaign {
    async fn open(
        view: &RedisView,
        id: &'static str,
        layout: u8,
        total: u64,
        pass_until: u64,
    ) -> anyhow::Result<Self> {
        let text = format!("{layout} register {}", "0".repeat(40));
        let length = u64::try_from(5 + text.len())?;
        let identity = [&number(length, 1)[..], &number(1, 5), text.as_bytes()].concat();
        let campaign = Self { id, layout, identity };
        // Admin state, counters, epoch of the load, and when the next hold is due.
        let counters = [number(1, 1), vec![0; 24], number(1, 5), number(NEVER, 6)].concat();
        let limits = [total, UNLIMITED, UNLIMITED, UNLIMITED].map(|limit| number(limit, 5)).concat();
        let rules = [number(0, 6), number(NEVER, 6), limits, number(0, 6)].concat();
        let (version, offsets_until) = (number(1, 6), number(NEVER, 6));
        let more = match layout {
            6 => [offsets_until, version].concat(),
            _ => [number(pass_until, 6), version, offsets_until].concat(),
        };
        // One UTC offset of 0 seconds.
        let state = [&campaign.identity[..], &counters, &rules, &more, &[0; 9]].concat();
        let [key, users, claims, holds, outbox] = campaign.keys();
        view.query::<Value>(&["HSET", &key, "phase", "open"]).await;
        view.run::<Value>(::redis::cmd("HSET").arg(users).arg(".").arg(state)).await;
        view.query::<Value>(&["HSET", &claims, ".", "1"]).await;
        view.query::<Value>(&["ZADD", &holds, "-1", "."]).await;
        view.query::<Value>(&["XADD", &outbox, "0-1", "begins", "1"]).await;
        Ok(campaign)
    }

    fn keys(&self) -> [String; 5] {
        ["campaign", "users", "claims", "holds", "outbox"].map(|what| format!("cg:{{{}}}:{what}", self.id))
    }

    /// Sends claims of new users, and returns microseconds of Redis' CPU time per claim. `users` is the
    /// number of the last user.
    async fn turn(&self, view: &RedisView, script: &str, users: &mut u64) -> anyhow::Result<f64> {
        let before = server::cpu_seconds(view).await?;
        for _ in 0..CALLS {
            let mut claims = Vec::new();
            for _ in 0..CLAIMS {
                *users += 1;
                // As long as a UUID.
                claims.push(36);
                claims.extend_from_slice(format!("{users:036}").as_bytes());
                claims.extend([number(*users, 16), number(1, 4)].concat());
            }
            let mut call = ::redis::cmd("EVALSHA");
            call.arg(script).arg(5).arg(&self.keys()).arg(&self.identity).arg(0).arg(NEVER);
            call.arg(claims);
            if self.layout > 6 {
                call.arg(vec![0_u8; 4 * CLAIMS]);
            }
            let reply: Value = view.run(&call).await;
            ensure!(matches!(reply, Value::BulkString(_)), "{}: {reply:?}", self.id);
        }
        let us = (server::cpu_seconds(view).await? - before) * 1e6;
        Ok(us / (CALLS * CLAIMS) as f64)
    }
}

/// Packs a number, big endian.
fn number(value: u64, width: usize) -> Vec<u8> {
    u128::from(value).to_be_bytes()[16 - width..].to_vec()
}
