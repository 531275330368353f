//! Campaigns are created, edited and copied in the dashboard's form.

use serde_json::{Value, json};
use support::Core;
use support::browser::{Browser, DESKTOP, TOO_FAINT};
use support::core_client::campaign;

use super::{OPERATOR, VIEWER, in_browser, with_roles};
use crate::dashboard::page::{sign_in, visit};

const OPEN: &str = "document.getElementById('edit').open";
const DONE: &str = "document.getElementById('done').textContent";
const PROBLEM: &str = "document.getElementById('edit-problem').textContent";
const MAY_CREATE: &str = "!document.getElementById('new').hidden";

/// Opens the page of `core` as the admin, and presses `button` once it is there.
async fn open(core: &Core, name: &str, button: &str) -> Browser {
    let page = visit(core, name).await;
    sign_in(&page, &core.admin_token()).await;
    press(&page, button).await;
    page
}

/// Presses `button` once it is there, and waits for the form's values.
pub async fn press(page: &Browser, button: &str) {
    page.until(&format!("document.querySelector('{button}')?.checkVisibility()"), true).await;
    page.press(button).await;
    page.until("!document.getElementById('edit-send').disabled", true).await;
}

pub async fn set(page: &Browser, field: &str, value: &str) {
    let set = format!(
        "(() => {{ const field = document.getElementById('edit-{field}'); field.value = '{value}'; field.dispatchEvent(new Event('change')); }})()"
    );
    page.eval(&set).await;
}

pub async fn save(page: &Browser) {
    page.press("#edit-send").await;
}

/// Returns an expression for the value of a field.
fn value(field: &str) -> String {
    format!("document.getElementById('edit-{field}').value")
}

/// Returns an expression for the problem at a field.
fn problem_at(field: &str) -> String {
    format!("document.getElementById('edit-{field}-problem').textContent")
}

async fn view(core: &Core, id: &str) -> Value {
    core.admin_get(&format!("/admin/v1/campaigns/{id}")).await.expect(200).json()
}

/// Sets fields to `values`, saves, and waits until the API's problem is at `field`.
async fn is_refused(page: &Browser, values: &[(&str, &str)], field: &str, part: &str) {
    for (field, value) in values {
        set(page, field, value).await;
    }
    save(page).await;
    page.until(&format!("{}.includes('{part}')", problem_at(field)), true).await;
    page.until("document.activeElement.id", format!("edit-{field}")).await;
    assert_eq!(page.eval(PROBLEM).await, "");
}

#[test]
fn cores_problems_are_shown_at_the_fields_of_a_new_campaign() {
    in_browser("cores_problems_are_shown_at_the_fields_of_a_new_campaign", async {
        let core = with_roles().start().await;
        core.create("taken", json!({"total": 1})).await;
        let page = open(&core, "dashboard-create", "#new").await;
        is_refused(&page, &[], "limits-total", "--unlimited").await;
        is_refused(&page, &[("limits-per_user", "5")], "id", "1 to 64").await;
        is_refused(&page, &[("id", "taken")], "name", "1 to 200").await;
        is_refused(&page, &[("name", "Spring sale"), ("limits-total", "many")], "limits-total", "many").await;
        is_refused(&page, &[("limits-total", "100")], "id", "already exists").await;
        let times = [("id", "spring"), ("starts_at", "2030-05-01T10:00"), ("ends_at", "2030-04-01T10:00")];
        is_refused(&page, &times, "ends_at", "after").await;
        let pass = [("ends_at", "2030-06-01T10:00"), ("pass", "until")];
        is_refused(&page, &pass, "pass-until", "is missing").await;
        for (field, value) in [
            ("limits-per_user", "4"),
            ("limits-per_user_per_day", "2"),
            ("limits-per_claim", "1"),
            ("time_zone", "Asia/Shanghai"),
            ("hold_seconds", "600"),
            ("pass-until", "2030-05-02T10:00"),
        ] {
            set(&page, field, value).await;
        }
        page.screenshot("dashboard/form-desktop").await;
        save(&page).await;
        page.until(DONE, "“Spring sale” is created.").await;
        page.until(OPEN, false).await;
        let created = view(&core, "spring").await;
        let limits = json!({"total": 100, "per_user": 4, "per_user_per_day": 2, "per_claim": 1});
        assert_eq!((&created["name"], &created["limits"]), (&json!("Spring sale"), &limits));
        assert_eq!((&created["time_zone"], &created["hold_seconds"]), (&json!("Asia/Shanghai"), &json!(600)));
        let at = async |time: &str| page.eval(&format!("new Date('{time}').toISOString()")).await;
        assert_eq!(created["starts_at"], at("2030-05-01T10:00").await);
        assert_eq!(created["ends_at"], at("2030-06-01T10:00").await);
        assert_eq!(created["pass"], json!({"required": "until", "until": at("2030-05-02T10:00").await}));
        page.until("document.querySelector('[data-id=spring] .state')?.textContent", "Scheduled").await;
        page.close().await;
    });
}

/// Script that delays reads of campaigns until `release` is called.
const DELAY_READS: &str = "(() => {
    const real = fetch;
    const released = new Promise((resolve) => { window.release = resolve; });
    window.fetch = async (url, options) => {
        if (!options.method && /campaigns\\/\\w+$/.test(url)) await released;
        return real(url, options);
    };
})()";

#[test]
fn an_edit_changes_only_the_edited_fields() {
    in_browser("an_edit_changes_only_the_edited_fields", async {
        let core = with_roles().start().await;
        let mut body = campaign("sale", json!({"total": 10, "per_user": 2}));
        body["starts_at"] = json!("2026-01-01T00:00:00.123Z");
        core.create_with(body).await;
        let page = open(&core, "dashboard-edit", "[data-id=sale] .edit").await;
        let fixed = "document.getElementById('edit-id').disabled";
        assert_eq!(page.eval(fixed).await, true);
        set(&page, "name", "Winter sale").await;
        set(&page, "limits-per_user", "").await;
        save(&page).await;
        page.until(DONE, "“Winter sale” is changed.").await;
        let edited = view(&core, "sale").await;
        assert_eq!((&edited["name"], &edited["version"]), (&json!("Winter sale"), &json!(2)));
        assert_eq!(edited["starts_at"], "2026-01-01T00:00:00.123Z", "it was not edited");
        assert_eq!((&edited["limits"]["total"], &edited["limits"]["per_user"]), (&json!(10), &Value::Null));

        // Another admin changes the total while the form is open.
        press(&page, "[data-id=sale] .edit").await;
        set(&page, "name", "Sale").await;
        core.patch("sale", json!({"limits": {"total": 50}})).await.expect(200);
        page.eval(DELAY_READS).await;
        save(&page).await;
        page.until(PROBLEM, "Reading the campaign…").await;
        let is_enabled = "['name', 'send'].map((id) => !document.getElementById(`edit-${id}`).disabled)";
        assert_eq!(
            page.eval(is_enabled).await,
            json!([false, false]),
            "the fields are about to be filled in"
        );
        page.eval("window.release()").await;
        page.until(
            &format!("{PROBLEM}.startsWith('The campaign has changed since you opened the form.')"),
            true,
        )
        .await;
        assert_eq!(page.eval(is_enabled).await, json!([true, true]));
        assert_eq!(page.eval(&value("limits-total")).await, "50");
        assert_eq!(page.eval(&value("name")).await, "Sale");
        save(&page).await;
        page.until(DONE, "“Sale” is changed.").await;
        let merged = view(&core, "sale").await;
        assert_eq!((&merged["name"], &merged["limits"]["total"]), (&json!("Sale"), &json!(50)));

        // A field that is no longer shown does not prevent saving.
        press(&page, "[data-id=sale] .edit").await;
        set(&page, "pass", "until").await;
        page.press("#edit-pass-until").await;
        page.key('1').await;
        save(&page).await;
        page.until(&problem_at("pass-until"), "Please enter a complete date and time.").await;
        set(&page, "pass", "never").await;
        set(&page, "name", "Summer sale").await;
        save(&page).await;
        page.until(DONE, "“Summer sale” is changed.").await;

        // A start can be changed, but not removed.
        press(&page, "[data-id=sale] .edit").await;
        is_refused(&page, &[("starts_at", "")], "starts_at", "RFC 3339").await;
        page.press("#edit-cancel").await;
        page.until(OPEN, false).await;
        assert_eq!(view(&core, "sale").await["version"], 5);
        page.close().await;
    });
}

#[test]
fn a_copy_has_the_rules_but_no_id_past_times_or_codes() {
    in_browser("a_copy_has_the_rules_but_no_id_past_times_or_codes", async {
        let core = with_roles().start().await;
        core.run_out_of_codes("sale").await;
        let original = view(&core, "sale").await;
        let page = open(&core, "dashboard-copy", "[data-id=sale] .clone").await;
        for (field, copied) in [("id", ""), ("name", "sale"), ("starts_at", ""), ("limits-total", "0")] {
            assert_eq!(page.eval(&value(field)).await, copied, "{field}");
        }
        set(&page, "id", "sale-2").await;
        save(&page).await;
        page.until(DONE, "“sale” is created.").await;
        let copy = view(&core, "sale-2").await;
        for member in ["codes", "time_zone", "hold_seconds", "ends_at"] {
            assert_eq!(copy[member], original[member], "{member}");
        }
        assert_eq!(copy["limits"]["per_claim"], original["limits"]["per_claim"]);

        // Times in the future are copied to the millisecond. The end of a presale that is over is asked for.
        let mut body = campaign("presale", json!({"total": 5}));
        body["ends_at"] = json!("2099-12-31T23:59:59.999Z");
        body["pass"] = json!({"required": "until", "until": "2026-01-02T00:00:00Z"});
        core.create_with(body).await;
        press(&page, "[data-id=presale] .clone").await;
        is_refused(&page, &[("id", "presale-2")], "pass-until", "is missing").await;
        set(&page, "pass-until", "2099-01-01T10:00").await;
        save(&page).await;
        page.until(DONE, "“presale” is created.").await;
        assert_eq!(view(&core, "presale-2").await["ends_at"], "2099-12-31T23:59:59.999Z");
        page.close().await;
    });
}

/// Script that drops the responses to changes while `lost` is set.
pub const LOSE_ANSWERS: &str = "(() => {
    const real = fetch;
    window.fetch = async (url, options) => {
        const reply = await real(url, options);
        if (window.lost && options.method) throw new TypeError('no answer came');
        return reply;
    };
})()";

#[test]
fn saving_again_after_a_lost_response_creates_one_campaign() {
    in_browser("saving_again_after_a_lost_response_creates_one_campaign", async {
        let core = with_roles().start().await;
        let page = open(&core, "dashboard-form-lost", "#new").await;
        page.eval(LOSE_ANSWERS).await;
        for (field, value) in [("id", "once"), ("name", "Once"), ("limits-total", "5")] {
            set(&page, field, value).await;
        }
        let in_doubt =
            "There was no answer, so the outcome is unknown. Sending it again does not apply it twice.";
        for done in ["“Once” is created.", "“Twice” is changed."] {
            page.eval("window.lost = true").await;
            save(&page).await;
            page.until(PROBLEM, in_doubt).await;
            page.eval("window.lost = false").await;
            save(&page).await;
            page.until(DONE, done).await;
            press(&page, "[data-id=once] .edit").await;
            set(&page, "name", "Twice").await;
        }
        assert_eq!(view(&core, "once").await["version"], 2, "the change was made once");
        page.close().await;
    });
}

#[test]
fn only_an_admin_creates_and_edits() {
    in_browser("only_an_admin_creates_and_edits", async {
        let core = with_roles().start().await;
        core.create("sale", json!({"total": 10})).await;
        let page = visit(&core, "dashboard-form-roles").await;
        let edit = "document.querySelector('[data-id=sale] .edit')?.checkVisibility()";
        let note = "document.getElementById('role-note').textContent.split(',')[1] ?? ''";
        let admin = core.admin_token();
        for (token, may, role) in
            [(VIEWER, false, " viewer"), (OPERATOR, false, " operator"), (&admin, true, "")]
        {
            sign_in(&page, token).await;
            page.until(edit, may).await;
            assert_eq!(page.eval(MAY_CREATE).await, may);
            assert_eq!(page.eval(note).await, role);
            page.press("#sign-out").await;
        }
        sign_in(&page, &core.admin_token()).await;
        press(&page, "#new").await;
        for (size, name) in [((360, 800), "phone"), (DESKTOP, "empty")] {
            page.resize(size).await;
            let wide = page.eval("document.scrollingElement.scrollWidth - innerWidth").await;
            assert!(wide.as_i64().unwrap() <= 0, "{wide} pixels too wide");
            assert_eq!(page.eval(TOO_FAINT).await, json!([]));
            page.screenshot(&format!("dashboard/form-{name}")).await;
        }
        page.assert_accessible("the form").await;
        page.close().await;
    });
}
