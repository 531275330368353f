//! The last hour in core's memory: what core samples, and that the dashboard's charts begin with it.

use serde_json::{Value, json};
use support::available::available;
use support::pair::Pair;
use support::wait::holds;
use support::{Core, CoreOptions, SOON, eventually};

use super::{LiveStream, VIEWER, in_browser, with_roles};
use crate::dashboard::page::{sign_in, visit};

/// Interval between two samples, in seconds.
const SAMPLE_PERIOD_S: f64 = 5.0;

/// Expression for whether each line of the claims' chart was above 0 at any time.
const WERE_ABOVE_0: &str = "[...document.querySelectorAll('#chart-claims .legend li')]
    .map(({ textContent }) => parseFloat(textContent.match(/([\\d.]+) max/)?.[1]) > 0)";
/// Expression for whether the trend line of the campaign `sale` was above its bottom at any time.
const TREND_WAS_ABOVE_0: &str =
    "(document.querySelector('[data-id=sale] polyline')?.getAttribute('points') ?? '')
    .split(' ').some((point) => parseFloat(point.split(',')[1]) < 15)";

/// Returns the last hour in the memory of `core`, as a new watcher gets it. Also waits for a snapshot: core notices
/// only when it sends one that an earlier watcher has left, and the number of watchers is limited.
async fn last_hour(core: &Core) -> Value {
    let mut stream = LiveStream::open(core, &core.admin_token()).await;
    let mut trends = Value::Null;
    loop {
        let (name, data) = stream.next().await.expect("further events");
        match name.as_str() {
            "trends" => trends = data,
            "snapshot" => return trends,
            _ => {}
        }
    }
}

/// Waits until `wanted` holds for the last hour in the memory of `core`.
async fn until_sampled(core: &Core, wanted: impl Fn(&Value) -> bool) -> Value {
    eventually(SOON, || async {
        let trends = last_hour(core).await;
        holds(wanted(&trends), || trends.to_string()).map(|()| trends)
    })
    .await
}

/// Returns whether any sample has a `figure` above 0.
fn was_above_0(trends: &Value, figure: &str) -> bool {
    let mut samples = trends["samples"].as_array().unwrap().iter();
    samples.any(|sample| sample[figure].as_f64().is_some_and(|value| value > 0.0))
}

/// Claims `count` units of the campaign `sale`, each for another user.
async fn claim_units(core: &Core, count: usize) {
    for user in 0..count {
        core.claim("sale", &format!("user-{user}"), "k").await.expect(201);
    }
}

/// Grants 5 claims of the campaign `sale`, refuses 5, and waits until both are sampled.
async fn sell_out(core: &Core) {
    core.create("sale", json!({"total": 5})).await;
    claim_units(core, 5).await;
    for user in 0..5 {
        core.claim("sale", &format!("late-{user}"), "k").await.refused(409, "sold_out");
    }
    until_sampled(core, |trends| {
        let is_complete = was_above_0(trends, "claims_per_s") && was_above_0(trends, "refusals_per_s");
        is_complete && trends["campaigns"]["sale"].is_array()
    })
    .await;
}

#[test]
fn charts_begin_with_the_last_hour_in_cores_memory() {
    in_browser("charts_begin_with_the_last_hour_in_cores_memory", async {
        let core = with_roles().start().await;
        sell_out(&core).await;
        let page = visit(&core, "dashboard-trends").await;
        sign_in(&page, VIEWER).await;
        for _ in 0..2 {
            // Nothing was claimed since the page was opened.
            page.until(WERE_ABOVE_0, json!([true, true])).await;
            page.until(TREND_WAS_ABOVE_0, true).await;
            page.until("document.querySelector('[data-figure=claims] b').textContent", "0").await;
            page.reload().await;
        }
        let button = "document.querySelector('#chart-claims button')?.textContent";
        for (shown, pressed) in [
            ("Show the last 5 minutes", true),
            ("Show the last hour", true),
            ("Show the last 5 minutes", false),
        ] {
            page.until(button, shown).await;
            if pressed {
                page.press("#chart-claims button").await;
            }
        }
        page.assert_accessible("charts").await;
        page.close().await;
    });
}

#[test]
fn cores_memory_fills_only_the_gaps_of_the_page() {
    in_browser("cores_memory_fills_only_the_gaps_of_the_page", async {
        let core = Core::start().await;
        let page = visit(&core, "dashboard-gaps").await;
        let merged = "import('/dashboard/trends.js').then(({ record, recordPast, shownSeries, switchSpan }) => {
            const time = (second) => new Date(second * 1000).toISOString();
            const sample = (second) => ({ at: time(second), claims_per_s: 5, refusals_per_s: 1, outbox_events: 0 });
            for (const second of [1000, 1001, 1002, 1060, 1068]) record(time(second), { granted: 7, refused: 2 }, []);
            recordPast({ samples: [995, 1000, 1005, 1010, 1030].map(sample), campaigns: {} });
            const merged = shownSeries(['granted', 'refused']);
            record(time(1000 + 3600), { granted: 8 }, []);
            const hour = shownSeries(['granted'])[0];
            switchSpan();
            return [...merged, hour, shownSeries(['granted'])[0]];
        })";
        let expected = json!([
            [995, 1000, 1001, 1002, 1005, 1010, 1011, 1030, 1031, 1060, 1061, 1068],
            [5, 7, 7, 7, 5, 5, null, 5, null, 7, null, 7],
            [1, 2, 2, 2, 1, 1, null, 1, null, 2, null, 2],
            [1000, 1001, 1002, 1005, 1010, 1011, 1030, 1031, 1060, 1061, 1068, 1069, 4600],
            [4600],
        ]);
        assert_eq!(page.eval(merged).await, expected);
        page.close().await;
    });
}

#[test]
fn trend_lines_have_only_known_rates() {
    in_browser("trend_lines_have_only_known_rates", async {
        let core = Core::start().await;
        let page = visit(&core, "dashboard-trend-lines").await;
        let lines = "import('/dashboard/trends.js').then(({ record, recordPast, trendOf }) => {
            const time = (second) => new Date(second * 1000).toISOString();
            const sample = (second, claims_per_s) => ({ at: time(second), claims_per_s });
            const samples = [sample(940, 9), sample(945, null), sample(950, 9)];
            recordPast({ samples, campaigns: { a: [5, 6, 7], b: [8] } });
            record(time(1060), {}, [['a', 0], ['b', 1], ['c', null]]);
            return ['a', 'b', 'c'].map(trendOf).map(({ trend, peak }) => [[...trend.values()], peak]);
        })";
        let expected = json!([[[5, 7, 0], 0], [[0, 8, 1], 1], [[], 0]]);
        assert_eq!(page.eval(lines).await, expected);
        page.close().await;
    });
}

#[tokio::test]
async fn a_restarted_core_samples_only_new_claims() {
    let mut core = Core::start().await;
    core.create("sale", json!({})).await;
    let sql = core.sql();
    let held = sql.hold().await;
    claim_units(&core, 20).await;
    core.kill();
    held.release().await;
    core = core.restart().await;
    for user in ["late-0", "late-1"] {
        core.claim("sale", user, "k").await.expect(201);
    }
    core.redis().await.relayed("sale", SOON).await;
    // Core learns within a second what SQL has.
    let count = |trends: &Value| trends["samples"].as_array().unwrap().len();
    let known = count(&last_hour(&core).await);
    let trends = until_sampled(&core, |trends| count(trends) >= known + 2).await;
    let rates = trends["campaigns"]["sale"].as_array().expect("new claims").iter();
    let claims = rates.map(|per_s| per_s.as_f64().unwrap()).sum::<f64>() * SAMPLE_PERIOD_S;
    assert!(claims > 0.0 && claims < 4.0, "{trends}");
}

#[tokio::test]
async fn a_core_samples_the_claims_of_another_core() {
    let pair = Pair::start(CoreOptions::default()).await;
    let Some(pair) = available("samples of two cores", pair) else { return };
    let [one, other] = &pair.cores;
    one.create("sale", json!({"total": 5})).await;
    eventually(SOON, || async {
        let sale = other.admin_get("/admin/v1/campaigns/sale").await;
        holds(sale.status == 200 && sale.json()["ready"] == true, || sale.text())
    })
    .await;
    claim_units(one, 5).await;
    one.claim("sale", "late", "k").await.refused(409, "sold_out");
    until_sampled(one, |trends| was_above_0(trends, "refusals_per_s")).await;
    let trends = until_sampled(other, |trends| trends["campaigns"]["sale"].is_array()).await;
    assert!(was_above_0(&trends, "claims_per_s") && !was_above_0(&trends, "refusals_per_s"), "{trends}");
}
