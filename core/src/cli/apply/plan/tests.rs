use super::*;
use crate::cli::apply::{file, yaml};

const NOW: &str = "2026-11-27T13:46:05.250Z";

/// An existing campaign, changed by `more`.
fn found(more: &Value) -> Found {
    let mut view = json!({
        "id": "sale", "name": "Sale", "state": "open", "starts_at": "2026-11-01T00:00:00.000Z", "ends_at": null,
        "time_zone": "UTC", "hold_seconds": null, "pass": null, "codes": false, "taken": 3, "version": 7,
        "limits": {"total": 100, "per_user": 2, "per_user_per_day": null, "per_claim": null},
        "server_time": NOW, "import_unfinished": false,
    });
    for (member, value) in more.as_object().unwrap() {
        view[member] = value.clone();
    }
    Found { view, codes_added: 50 }
}

fn step(more: &str, found: Option<&Found>) -> Result<Step, Vec<String>> {
    let text = format!("id: sale\n{more}\n");
    let root = yaml::parse(&text).unwrap().unwrap();
    let wanted = file::campaigns(&root, NOW.parse().unwrap()).unwrap().pop().unwrap();
    let step = Step::of(wanted, found, NOW.parse().unwrap());
    step.map_err(|mistakes| mistakes.iter().map(ToString::to_string).collect())
}

fn patch(step: &Step) -> &Value {
    match &step.action {
        Action::Change(patch) => patch,
        action => panic!("{action:?}"),
    }
}

#[test]
fn an_equal_campaign_is_unchanged() {
    for more in [
        "limits: {total: 100, per_user: 2}",
        "limits: {total: 100, per_user: 2}\nname: Sale\nstarts_at: 2026-11-01T08:00:00+08:00\nends_at: none\npass: null",
    ] {
        let step = step(more, Some(&found(&json!({})))).unwrap();
        assert!(matches!(step.action, Action::Keep(_)) && step.changes.is_empty(), "{step:?}");
        assert_eq!(step.text(), "sale: unchanged");
    }
}

#[test]
fn a_change_names_each_member_before_and_after() {
    let existing = found(&json!({"hold_seconds": 60, "ends_at": "2026-12-01T00:00:00.000Z"}));
    let more = "name: Sale 2\nlimits: {total: 200}\nends_at: 2026-12-02 00:00\npass: {required: always}";
    let step = step(more, Some(&existing)).unwrap();
    assert_eq!(
        step.text().lines().collect::<Vec<_>>(),
        [
            "sale: change",
            "  name: Sale -> Sale 2",
            "  ends_at: 2026-12-01 00:00+00:00 -> 2026-12-02 00:00+00:00",
            "  limits.total: 100 -> 200",
            "  limits.per_user: 2 -> none",
            "  hold_seconds: 60 -> none",
            "  pass: not required -> required always",
            "  warning: hold_seconds: claims are granted immediately from now on, without a confirmation",
        ]
    );
    assert_eq!(
        patch(&step),
        &json!({
            "version": 7, "name": "Sale 2", "ends_at": "2026-12-02T00:00:00.000Z",
            "limits": {"total": 200, "per_user": null},
            "hold_seconds": null, "pass": {"required": "always"},
        }),
        "members that are equal are not sent"
    );
    assert_eq!(
        step.json()["changes"][2],
        json!({"member": "limits.total", "before": 100, "after": 200}),
        "{}",
        step.json()
    );
}

#[test]
fn a_new_campaign_is_created_as_in_the_file() {
    let step = step("name: Sale\nlimits: {total: 5, per_user: 9}", None).unwrap();
    assert_eq!(
        step.text().lines().collect::<Vec<_>>(),
        [
            "sale: create",
            "  name: Sale",
            "  starts_at: now",
            "  time_zone: UTC",
            "  limits.total: 5",
            "  limits.per_user: 9",
            "  warning: limits.per_user 9 is never reached: limits.total 5 is lower",
        ]
    );
}

#[test]
fn times_relative_to_the_run_are_only_for_new_campaigns() {
    let more = "limits: {total: 100, per_user: 2}\nstarts_at: now\nends_at: +30d";
    let open_end = step(more, Some(&found(&json!({})))).unwrap();
    assert_eq!(patch(&open_end), &json!({"version": 7, "ends_at": "2026-12-27T13:46:05.000Z"}));
    let existing = found(&json!({"ends_at": "2026-12-01T00:00:00.000Z"}));
    let again = step(more, Some(&existing)).unwrap();
    assert!(matches!(again.action, Action::Keep(_)), "{again:?}");
    assert!(
        again.warnings[0].contains("'+30d'") && again.warnings[0].contains("2026-12-01 00:00+00:00 stays")
    );
    let more = "limits: {total: 100, per_user: 2}\npass: {required: until, until: +1h}";
    let presale = json!({"pass": {"required": "until", "until": "2026-12-01T00:00:00.000Z"}});
    assert!(matches!(step(more, Some(&found(&presale))).unwrap().action, Action::Keep(_)));
    assert!(matches!(step(more, Some(&found(&json!({})))).unwrap().action, Action::Change(_)));
}

#[test]
fn changes_that_core_would_reject_are_mistakes() {
    let limits = "limits: {total: 100, per_user: 2}";
    for (more, existing, part) in [
        (
            format!("{limits}\ntime_zone: Asia/Tokyo"),
            json!({}),
            "time_zone: 'Asia/Tokyo': is UTC in the existing",
        ),
        (format!("{limits}\ncodes: true"), json!({}), "codes: is false in the existing"),
        (format!("{limits}\nends_at: 2026-10-01 00:00"), json!({}), "ends_at must be after starts_at"),
        ("limits: {total: 9}".to_owned(), json!({"import_unfinished": true}), "an import is unfinished"),
        (
            "codes: true\nlimits: {total: 101}".to_owned(),
            json!({"codes": true}),
            "'101': the campaign has 50 codes",
        ),
        ("codes: true\nlimits: {total: none}".to_owned(), json!({"codes": true}), "'none': must be a number"),
    ] {
        let mistakes = step(&more, Some(&found(&existing))).unwrap_err();
        assert!(mistakes.len() == 1 && mistakes[0].contains(part), "{more}: {mistakes:?}");
    }
    let lowered = step("codes: true\nlimits: {total: 60}", Some(&found(&json!({"codes": true})))).unwrap();
    assert_eq!(patch(&lowered)["limits"]["total"], 60, "only a raised total needs codes");
    let no_codes = step("codes: true\nlimits: {total: 1}", None).unwrap_err();
    assert!(no_codes[0].contains("limits.total: '1': a new campaign has no codes yet"), "{no_codes:?}");
    let past = step("limits: {total: 1}\nends_at: 2026-10-01 00:00", None).unwrap_err();
    assert!(past[0].contains("ends_at: '2026-10-01 00:00': ends_at must be after"), "{past:?}");
}

#[test]
fn dangerous_changes_are_warned_about() {
    let limits = "limits: {total: 100, per_user: 2}";
    for (more, existing, warning) in [
        (
            format!("{limits}\nname: New"),
            json!({"taken": 103}),
            "103 units are taken, more than the total of 100",
        ),
        (format!("{limits}\nends_at: 2026-11-27 13:00"), json!({}), "this ends the campaign"),
        (format!("{limits}\nhold_seconds: 5"), json!({"state": "ended"}), "was ended permanently"),
    ] {
        let step = step(&more, Some(&found(&existing))).unwrap();
        assert!(step.warnings.len() == 1 && step.warnings[0].contains(warning), "{more}: {step:?}");
    }
    let hold = json!({"hold_seconds": 60});
    for (more, existing, warning) in [
        ("limits: {total: 60, per_user: 2}", json!({}), "limits.total: 40 units fewer than now"),
        (
            "limits: {total: none, per_user: 2}",
            json!({}),
            "limits.total: the number of units becomes unlimited",
        ),
        (limits, hold.clone(), "hold_seconds: claims are granted immediately from now on"),
    ] {
        let step = step(more, Some(&found(&existing))).unwrap();
        assert!(step.warnings.len() == 1 && step.warnings[0].contains(warning), "{more}: {step:?}");
    }
    for (more, existing) in
        [("limits: {total: 101, per_user: 2}", json!({})), ("limits: {total: 100}\nhold_seconds: 5", hold)]
    {
        let step = step(more, Some(&found(&existing))).unwrap();
        assert!(step.warnings.is_empty() && matches!(step.action, Action::Change(_)), "{step:?}");
    }
}

#[test]
fn a_file_with_a_relative_start_is_unchanged_after_its_end() {
    for start in ["now", "+1h", "tomorrow 08:00"] {
        let more =
            format!("limits: {{total: 100, per_user: 2}}\nstarts_at: {start}\nends_at: 2026-11-20 00:00");
        let ended = found(&json!({"ends_at": "2026-11-20T00:00:00.000Z", "state": "ended"}));
        let again = step(&more, Some(&ended)).unwrap();
        assert!(matches!(again.action, Action::Keep(_)), "{again:?}");
        assert!(
            again.warnings.len() == 1 && again.warnings[0].contains("2026-11-01 00:00+00:00 stays"),
            "{again:?}"
        );
        let new = step(&more, None).unwrap_err();
        assert!(new[0].contains("ends_at: '2026-11-20 00:00': ends_at must be after"), "{new:?}");
    }
    let late = "limits: {total: 100, per_user: 2}\nstarts_at: 2026-12-01 00:00\nends_at: +1h";
    let existing = json!({"starts_at": "2026-12-01T00:00:00.000Z", "ends_at": "2026-12-02T00:00:00.000Z"});
    assert!(matches!(step(late, Some(&found(&existing))).unwrap().action, Action::Keep(_)));
    assert!(step(late, None).unwrap_err()[0].contains("ends_at: '+1h': ends_at must be after"));
}
