//! Calendar days in the campaign's time zone, which follow Redis' clock. The tests set that clock.

use jiff::civil::{Weekday, date};
use jiff::tz::TimeZone;
use serde_json::json;
use support::clock::{Clock, FrozenClock};
use support::core_client::campaign;
use support::times::{ms, now_ms};
use support::{Core, CoreOptions, Reply, Servers};

const SECOND: i64 = 1000;
const HOUR: i64 = 3600 * SECOND;
const DAY: i64 = 24 * HOUR;

/// A core with a Redis server whose clock stands still until the test moves it, so that a slow machine cannot
/// carry a claim past midnight.
struct ClockFixture {
    clock: FrozenClock,
    core: Core,
    redis: Servers,
    claims_sent: u32,
}

impl ClockFixture {
    /// Starts core with the campaign `demo` in `zone`: one unit per user and day, open for the past year.
    async fn start(zone: &str) -> Self {
        let clock = FrozenClock::at(now_ms());
        let redis = Servers::start_frozen(&clock).await;
        let core = CoreOptions::default().with("CLAIMGATE_REDIS_URL", redis.url()).start().await;
        let mut body = campaign("demo", json!({"per_user_per_day": 1}));
        body["time_zone"] = json!(zone);
        body["starts_at"] = json!(support::times::from_now(-365 * 86_400));
        core.create_with(body).await;
        Self { clock, core, redis, claims_sent: 0 }
    }

    async fn set_clock(&mut self, at_ms: i64) {
        self.redis.set_frozen_clock(&mut self.clock, at_ms).await;
    }

    /// Sets Redis' clock to `at_ms` and makes one claim of `user` with a new key.
    async fn claim_at(&mut self, user: &str, at_ms: i64) -> Reply {
        self.set_clock(at_ms).await;
        self.claims_sent += 1;
        let reply = self.core.claim("demo", user, &format!("k{}", self.claims_sent)).await;
        if reply.is_created() {
            let claimed_at = ms(reply.json()["claim"]["claimed_at"].as_str().unwrap());
            assert_eq!(claimed_at, at_ms, "the claim has the time of Redis");
        }
        reply
    }

    async fn granted_at(&mut self, user: &str, at_ms: i64) {
        self.claim_at(user, at_ms).await.expect(201);
    }

    /// Checks that the daily limit denies the claim and that `resets_at` is the given midnight.
    async fn refused_at(&mut self, user: &str, at_ms: i64, midnight_ms: i64) {
        let refused = self.claim_at(user, at_ms).await.refused(409, "user_daily_limit_reached").json();
        assert_eq!(ms(refused["resets_at"].as_str().unwrap()), midnight_ms);
        assert_eq!(refused["remaining"], 0);
    }

    /// Waits for `count` rows in SQL and returns the dates of the user's claims.
    async fn days(&self, user: &str, count: usize) -> Vec<String> {
        let rows = self.core.sql().until("demo", count).await;
        let mine = rows.iter().filter(|row| row.user_id == user);
        mine.map(|row| (date(1970, 1, 1) + jiff::Span::new().days(row.day.cast_signed())).to_string())
            .collect()
    }
}

fn utc_ms(day: jiff::civil::Date, hour: i8) -> i64 {
    day.at(hour, 0, 0, 0).to_zoned(TimeZone::UTC).unwrap().timestamp().as_millisecond()
}

#[tokio::test]
async fn the_day_changes_at_midnight_in_shanghai() {
    let mut fixture = ClockFixture::start("Asia/Shanghai").await;
    let today = jiff::Timestamp::now().to_zoned(TimeZone::UTC).date();
    // Midnight in Shanghai is 16:00 in UTC, all year round.
    let midnight = utc_ms(today.tomorrow().unwrap(), 16);
    fixture.granted_at("alice", midnight - SECOND).await;
    fixture.refused_at("alice", midnight - SECOND / 2, midnight).await;
    fixture.granted_at("alice", midnight + SECOND).await;
    fixture.refused_at("alice", midnight + 2 * SECOND, midnight + DAY).await;
    // Midnight in UTC is 8:00 in Shanghai.
    fixture.granted_at("bob", midnight + 8 * HOUR - SECOND).await;
    fixture.refused_at("bob", midnight + 8 * HOUR + SECOND, midnight + DAY).await;
    let (first, second) = (today.tomorrow().unwrap(), today.tomorrow().unwrap().tomorrow().unwrap());
    assert_eq!(fixture.days("alice", 3).await, [first.to_string(), second.to_string()]);
    assert_eq!(fixture.days("bob", 3).await, [second.to_string()]);
}

/// Returns the next day after tomorrow on which New York's clocks go forward (`month` 3, `sunday` 2) or back
/// (11, 1).
fn next_step(month: i8, sunday: i8) -> jiff::civil::Date {
    let tomorrow = jiff::Timestamp::now().to_zoned(TimeZone::UTC).date().tomorrow().unwrap();
    (0..2)
        .map(|year| {
            date(tomorrow.year() + year, month, 1).nth_weekday_of_month(sunday, Weekday::Sunday).unwrap()
        })
        .find(|day| *day > tomorrow)
        .unwrap()
}

#[tokio::test]
async fn the_day_summer_time_starts_has_23_hours() {
    let mut fixture = ClockFixture::start("America/New_York").await;
    let day = next_step(3, 2);
    let (begins, step, ends) = (utc_ms(day, 5), utc_ms(day, 7), utc_ms(day.tomorrow().unwrap(), 4));
    assert_eq!(ends - begins, 23 * HOUR);
    fixture.granted_at("alice", begins - SECOND).await;
    fixture.granted_at("alice", begins + SECOND).await;
    fixture.refused_at("alice", step - SECOND, ends).await;
    fixture.refused_at("alice", step + SECOND, ends).await;
    fixture.refused_at("alice", ends - SECOND, ends).await;
    fixture.granted_at("alice", ends + SECOND).await;
    fixture.refused_at("alice", ends + HOUR + SECOND, ends + DAY).await;
    let days = [day.yesterday().unwrap(), day, day.tomorrow().unwrap()].map(|day| day.to_string());
    assert_eq!(fixture.days("alice", 3).await, days);
}

#[tokio::test]
async fn the_day_summer_time_ends_has_25_hours() {
    let mut fixture = ClockFixture::start("America/New_York").await;
    let day = next_step(11, 1);
    let (begins, step, ends) = (utc_ms(day, 4), utc_ms(day, 6), utc_ms(day.tomorrow().unwrap(), 5));
    assert_eq!(ends - begins, 25 * HOUR);
    fixture.granted_at("alice", begins - SECOND).await;
    fixture.granted_at("alice", begins + SECOND).await;
    fixture.refused_at("alice", step - SECOND, ends).await;
    fixture.refused_at("alice", step + SECOND, ends).await;
    fixture.refused_at("alice", ends - HOUR + SECOND, ends).await;
    fixture.refused_at("alice", ends - SECOND, ends).await;
    fixture.granted_at("alice", ends + SECOND).await;
    let days = [day.yesterday().unwrap(), day, day.tomorrow().unwrap()].map(|day| day.to_string());
    assert_eq!(fixture.days("alice", 3).await, days);
}

#[tokio::test]
async fn a_clock_set_back_does_not_renew_the_daily_allowance() {
    let mut fixture = ClockFixture::start("UTC").await;
    let today = jiff::Timestamp::now().to_zoned(TimeZone::UTC).date();
    let midnight = utc_ms(today.tomorrow().unwrap(), 0);
    fixture.granted_at("alice", midnight + HOUR).await;
    let before = fixture.core.admin_get("/admin/v1/campaigns/demo").await.json()["taken"].clone();
    for back in [HOUR + SECOND, 3 * HOUR, DAY] {
        let reply = fixture.claim_at("alice", midnight + HOUR - back).await;
        let refused = reply.refused(409, "user_daily_limit_reached").json();
        assert_eq!(ms(refused["resets_at"].as_str().unwrap()), midnight + DAY, "{back} ms back");
        assert_eq!(
            fixture.core.claim("demo", "alice", "k1").await.status,
            200,
            "the first claim is still there"
        );
    }
    assert_eq!(fixture.core.admin_get("/admin/v1/campaigns/demo").await.json()["taken"], before);
    fixture.refused_at("alice", midnight + 2 * HOUR, midnight + DAY).await;
    fixture.granted_at("alice", midnight + DAY + HOUR).await;
    assert_eq!(fixture.days("alice", 2).await.len(), 2, "both claims are relayed despite the clock set back");
    fixture.granted_at("bob", midnight - 10 * DAY).await;
    assert_eq!(fixture.days("bob", 3).await.len(), 1, "the claim is relayed although the clock was set back");
}

#[tokio::test]
async fn a_clock_far_ahead_does_not_lock_users_into_that_day() {
    let mut fixture = ClockFixture::start("UTC").await;
    let today = jiff::Timestamp::now().to_zoned(TimeZone::UTC).date();
    let (midnight, far) = (utc_ms(today.tomorrow().unwrap(), 0), 30 * DAY);
    // All of Alice's claims fit in her record. Bob has more claims than a record holds.
    for back in (1..=9).rev() {
        fixture.granted_at("bob", midnight + HOUR - back * DAY).await;
    }
    for user in ["alice", "bob"] {
        fixture.granted_at(user, midnight + HOUR + far).await;
    }
    fixture.granted_at("alice", midnight + HOUR).await;
    fixture.refused_at("alice", midnight + 2 * HOUR, midnight + DAY).await;
    // Redis does not know the days of claims outside the user's record, so Bob's claim also counts against
    // the next day's limit.
    fixture.granted_at("bob", midnight + HOUR).await;
    fixture.refused_at("bob", midnight + 2 * HOUR, midnight + 2 * DAY).await;
    let left = fixture.core.get("/internal/v1/campaigns/demo/users/bob").await.expect(200).json();
    assert_eq!(left["allowance"]["per_user_per_day"], 0, "{left}");
    assert_eq!(ms(left["allowance"]["resets_at"].as_str().unwrap()), midnight + 2 * DAY);
    fixture.granted_at("alice", midnight + DAY + HOUR).await;
    fixture.refused_at("bob", midnight + DAY + HOUR, midnight + 2 * DAY).await;
    fixture.granted_at("bob", midnight + 2 * DAY + HOUR).await;
    // Once that day arrives, the claim made on it counts.
    fixture.refused_at("alice", midnight + HOUR + far, midnight + far + DAY).await;
}

#[tokio::test]
async fn a_reload_does_not_lock_users_into_a_future_day() {
    let mut fixture = ClockFixture::start("UTC").await;
    let today = jiff::Timestamp::now().to_zoned(TimeZone::UTC).date();
    let midnight = utc_ms(today.tomorrow().unwrap(), 0);
    for back in (1..=9).rev() {
        fixture.granted_at("bob", midnight - HOUR - back * DAY).await;
    }
    fixture.granted_at("bob", midnight - HOUR + 30 * DAY).await;
    fixture.granted_at("bob", midnight - HOUR).await;
    fixture.core.sql().until("demo", 11).await;
    fixture.redis.view().await.query::<i64>(&["DEL", "cg:{demo}:users"]).await;
    fixture.core.admin_post("/admin/v1/campaigns/demo/warm-up").await.expect(200);
    fixture.refused_at("bob", midnight - HOUR + SECOND, midnight + DAY).await;
    fixture.granted_at("bob", midnight + DAY + HOUR).await;
}

#[tokio::test]
async fn the_window_follows_the_clock_of_redis() {
    let clock = Clock::new();
    let redis = Servers::start_on(&clock).await;
    let core = CoreOptions::default().with("CLAIMGATE_REDIS_URL", redis.url()).start().await;
    let mut body = campaign("demo", json!({}));
    body["starts_at"] = json!(support::times::from_now(3600));
    body["ends_at"] = json!(support::times::from_now(7200));
    core.create_with(body).await;
    core.claim("demo", "a", "1").await.refused(403, "not_started");
    redis.move_clock(&clock, HOUR + 60 * SECOND).await;
    core.claim("demo", "a", "1").await.expect(201);
    assert_eq!(core.campaign("demo").await["state"], "open");
    redis.move_clock(&clock, 2 * HOUR + 60 * SECOND).await;
    core.claim("demo", "a", "2").await.refused(403, "ended");
    core.claim("demo", "a", "1").await.expect(200);
    redis.move_clock(&clock, 0).await;
    core.claim("demo", "a", "2").await.refused(403, "not_started");
}

#[tokio::test]
async fn no_claim_is_decided_past_the_last_loaded_day() {
    let mut fixture = ClockFixture::start("Asia/Shanghai").await;
    let now_ms = now_ms();
    fixture.granted_at("alice", now_ms + 400 * DAY).await;
    fixture.set_clock(now_ms + 3 * 366 * DAY).await;
    fixture.core.claim_once_available("demo", "alice", "late").await.refused(503, "campaign_not_ready");
    fixture.set_clock(now_ms).await;
    fixture.core.claim("demo", "bob", "now").await.expect(201);
}

#[tokio::test]
async fn moving_the_clock_of_core_does_not_change_decisions() {
    for moved in [-HOUR, HOUR] {
        let clock = Clock::new();
        clock.move_by_ms(moved);
        let redis = Servers::start().await;
        let options = CoreOptions::default().with("CLAIMGATE_REDIS_URL", redis.url());
        let core = options.with_all(&clock.environment()).start().await;
        let mut body = campaign("demo", json!({"per_user_per_day": 1}));
        body["ends_at"] = json!(support::times::from_now(1800));
        core.create_with(body).await;
        let granted = core.claim("demo", "alice", "k").await.expect(201).json();
        let claimed_at = ms(granted["claim"]["claimed_at"].as_str().unwrap());
        assert!((claimed_at - now_ms()).abs() < HOUR / 2, "the claim has core's time");
        core.claim("demo", "alice", "k2").await.refused(409, "user_daily_limit_reached");
        let view = core.campaign("demo").await;
        assert_eq!(view["state"], "open", "core's clock is {moved} ms off");
        assert!((ms(view["server_time"].as_str().unwrap()) - now_ms()).abs() < HOUR / 2);
        core.patch("demo", json!({"ends_at": support::times::from_now(-1)})).await.expect(200);
        core.claim("demo", "bob", "k").await.refused(403, "ended");
        let signed = support::signing::Signed::claim(&core, "demo", "alice", "k");
        signed.send(&core).await.refused(401, "unauthenticated");
    }
}
