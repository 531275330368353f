//! Calendar days in the campaign's time zone, by Redis' clock, which the test moves.

use jiff::civil::{Weekday, date};
use jiff::tz::TimeZone;
use serde_json::json;
use support::clock::Clock;
use support::core_client::campaign;
use support::times::{ms, now_ms};
use support::{Core, CoreOptions, Reply, Servers};

const SECOND: i64 = 1000;
const HOUR: i64 = 3600 * SECOND;
const DAY: i64 = 24 * HOUR;

/// A core whose Redis has its clock in the test's hands.
struct Timed {
    clock: Clock,
    core: Core,
    redis: Servers,
    asked: u32,
}

impl Timed {
    /// With the campaign `demo`: one unit a user and day in `zone`, open for a year past.
    async fn start(zone: &str) -> Self {
        let clock = Clock::new();
        let redis = Servers::start_on(&clock).await;
        let core = CoreOptions::default().with("CLAIMGATE_REDIS_URL", redis.url()).start().await;
        let mut body = campaign("demo", json!({"per_user_per_day": 1}));
        body["time_zone"] = json!(zone);
        body["starts_at"] = json!(support::times::from_now(-365 * 86_400));
        core.create_with(body).await;
        Self { clock, core, redis, asked: 0 }
    }

    /// One claim of `user`, by a new key, with Redis' clock set to `at_ms`.
    async fn claim_at(&mut self, user: &str, at_ms: i64) -> Reply {
        self.redis.move_clock(&self.clock, at_ms - now_ms()).await;
        self.asked += 1;
        let reply = self.core.claim("demo", user, &format!("k{}", self.asked)).await;
        if reply.status == 201 {
            let claimed_at = ms(reply.json()["claim"]["claimed_at"].as_str().unwrap());
            let late = claimed_at - at_ms;
            assert!((-5..900).contains(&late), "Redis was {late} ms off the time set");
        }
        reply
    }

    async fn granted_at(&mut self, user: &str, at_ms: i64) {
        self.claim_at(user, at_ms).await.expect(201);
    }

    /// Refused for today; `resets_at` is the given midnight.
    async fn refused_at(&mut self, user: &str, at_ms: i64, midnight_ms: i64) {
        let refused = self.claim_at(user, at_ms).await.refused(409, "user_daily_limit_reached").json();
        assert_eq!(ms(refused["resets_at"].as_str().unwrap()), midnight_ms);
        assert_eq!(refused["remaining"], 0);
    }

    /// The days on which SQL has the user's claims, as dates.
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
async fn a_minute_to_midnight_and_a_minute_past_are_two_days_in_shanghai() {
    let mut timed = Timed::start("Asia/Shanghai").await;
    let today = jiff::Timestamp::now().to_zoned(TimeZone::UTC).date();
    // Midnight in Shanghai is 16:00 in UTC, all year round.
    let midnight = utc_ms(today.tomorrow().unwrap(), 16);
    timed.granted_at("alice", midnight - SECOND).await;
    timed.refused_at("alice", midnight - SECOND / 2, midnight).await;
    timed.granted_at("alice", midnight + SECOND).await;
    timed.refused_at("alice", midnight + 2 * SECOND, midnight + DAY).await;
    // Midnight in UTC is the middle of the morning there.
    timed.granted_at("bob", midnight + 8 * HOUR - SECOND).await;
    timed.refused_at("bob", midnight + 8 * HOUR + SECOND, midnight + DAY).await;
    let (first, second) = (today.tomorrow().unwrap(), today.tomorrow().unwrap().tomorrow().unwrap());
    assert_eq!(timed.days("alice", 3).await, [first.to_string(), second.to_string()]);
    assert_eq!(timed.days("bob", 3).await, [second.to_string()]);
}

/// The next day on which New York's clocks go forward (`month` 3, `sunday` 2) or back (11, 1), from tomorrow on.
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
async fn the_day_new_york_goes_to_summer_time_has_23_hours() {
    let mut timed = Timed::start("America/New_York").await;
    let day = next_step(3, 2);
    let (begins, step, ends) = (utc_ms(day, 5), utc_ms(day, 7), utc_ms(day.tomorrow().unwrap(), 4));
    assert_eq!(ends - begins, 23 * HOUR);
    timed.granted_at("alice", begins - SECOND).await;
    timed.granted_at("alice", begins + SECOND).await;
    timed.refused_at("alice", step - SECOND, ends).await;
    timed.refused_at("alice", step + SECOND, ends).await;
    timed.refused_at("alice", ends - SECOND, ends).await;
    timed.granted_at("alice", ends + SECOND).await;
    timed.refused_at("alice", ends + HOUR + SECOND, ends + DAY).await;
    let days = [day.yesterday().unwrap(), day, day.tomorrow().unwrap()].map(|day| day.to_string());
    assert_eq!(timed.days("alice", 3).await, days);
}

#[tokio::test]
async fn the_day_new_york_goes_back_has_25_hours() {
    let mut timed = Timed::start("America/New_York").await;
    let day = next_step(11, 1);
    let (begins, step, ends) = (utc_ms(day, 4), utc_ms(day, 6), utc_ms(day.tomorrow().unwrap(), 5));
    assert_eq!(ends - begins, 25 * HOUR);
    timed.granted_at("alice", begins - SECOND).await;
    timed.granted_at("alice", begins + SECOND).await;
    timed.refused_at("alice", step - SECOND, ends).await;
    timed.refused_at("alice", step + SECOND, ends).await;
    timed.refused_at("alice", ends - HOUR + SECOND, ends).await;
    timed.refused_at("alice", ends - SECOND, ends).await;
    timed.granted_at("alice", ends + SECOND).await;
    let days = [day.yesterday().unwrap(), day, day.tomorrow().unwrap()].map(|day| day.to_string());
    assert_eq!(timed.days("alice", 3).await, days);
}

#[tokio::test]
async fn a_clock_set_back_gives_no_second_allowance_and_moves_no_count() {
    let mut timed = Timed::start("UTC").await;
    let today = jiff::Timestamp::now().to_zoned(TimeZone::UTC).date();
    let midnight = utc_ms(today.tomorrow().unwrap(), 0);
    timed.granted_at("alice", midnight + HOUR).await;
    let before = timed.core.admin_get("/admin/v1/campaigns/demo").await.json()["taken"].clone();
    for back in [HOUR + SECOND, 3 * HOUR, DAY, 30 * DAY] {
        let reply = timed.claim_at("alice", midnight + HOUR - back).await;
        let refused = reply.refused(409, "user_daily_limit_reached").json();
        assert_eq!(ms(refused["resets_at"].as_str().unwrap()), midnight + DAY, "{back} ms back");
        assert_eq!(
            timed.core.claim("demo", "alice", "k1").await.status,
            200,
            "the first claim is still there"
        );
    }
    assert_eq!(timed.core.admin_get("/admin/v1/campaigns/demo").await.json()["taken"], before);
    timed.refused_at("alice", midnight + 2 * HOUR, midnight + DAY).await;
    timed.granted_at("alice", midnight + DAY + HOUR).await;
    assert_eq!(timed.days("alice", 2).await.len(), 2, "SQL hears of claims on a clock that was set back");
    timed.granted_at("bob", midnight - 10 * DAY).await;
    assert_eq!(timed.days("bob", 3).await.len(), 1, "SQL hears of claims on a clock set back");
}

#[tokio::test]
async fn the_window_moves_with_redis_clock() {
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
async fn past_the_calendar_nothing_is_decided() {
    let mut timed = Timed::start("Asia/Shanghai").await;
    timed.granted_at("alice", now_ms() + 400 * DAY).await;
    timed.redis.move_clock(&timed.clock, 3 * 366 * DAY).await;
    timed.core.once().claim("demo", "alice", "late").await.refused(503, "campaign_not_ready");
    timed.redis.move_clock(&timed.clock, 0).await;
    timed.core.claim("demo", "bob", "now").await.expect(201);
}

#[tokio::test]
async fn cores_own_clock_changes_no_decision() {
    for moved in [-HOUR, HOUR] {
        let clock = Clock::new();
        clock.move_by_ms(moved);
        let redis = Servers::start().await;
        let mut options = CoreOptions::default().with("CLAIMGATE_REDIS_URL", redis.url());
        for (name, value) in clock.environment() {
            options = options.with(name, value.to_str().unwrap());
        }
        let core = options.start().await;
        let mut body = campaign("demo", json!({"per_user_per_day": 1}));
        body["ends_at"] = json!(support::times::from_now(1800));
        core.create_with(body).await;
        let granted = core.claim("demo", "alice", "k").await.expect(201).json();
        let claimed_at = ms(granted["claim"]["claimed_at"].as_str().unwrap());
        assert!((claimed_at - now_ms()).abs() < 10 * SECOND, "dated by core's clock");
        core.claim("demo", "alice", "k2").await.refused(409, "user_daily_limit_reached");
        let view = core.campaign("demo").await;
        assert_eq!(view["state"], "open", "core's clock is {moved} ms off");
        assert!((ms(view["server_time"].as_str().unwrap()) - now_ms()).abs() < 10 * SECOND);
        core.patch("demo", json!({"ends_at": support::times::from_now(-1)})).await.expect(200);
        core.claim("demo", "bob", "k").await.refused(403, "ended");
        let signed = support::signing::Signed::claim(&core, "demo", "alice", "k");
        signed.send(&core).await.refused(401, "unauthenticated");
    }
}
