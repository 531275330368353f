use serde_json::json;

use super::*;
use crate::cli::apply::yaml::parse;

/// 2026-11-27 21:46:05 in Shanghai.
const NOW: &str = "2026-11-27T13:46:05.250Z";

fn read(text: &str) -> Result<Vec<Wanted>, Vec<String>> {
    let root = parse(text).unwrap().unwrap();
    let wanted = campaigns(&root, NOW.parse().unwrap());
    wanted.map_err(|mistakes| mistakes.iter().map(ToString::to_string).collect())
}

#[test]
fn members_are_as_in_the_api_and_times_as_in_the_flags() {
    let yaml = "id: sale\nname: 春节\ntime_zone: Asia/Shanghai\nstarts_at: 2026-12-01 08:00\nends_at: tomorrow 08:00\n\
                limits: {total: 100, per_user: 3, per_claim: none}\nhold_seconds: 600\n\
                pass: {required: until, until: 2026-12-01T10:00:00+08:00}\n";
    let wanted = read(&yaml.replace("tomorrow 08:00", "2026-12-31 08:00")).unwrap();
    assert_eq!(
        json!(wanted[0].campaign),
        json!({
            "id": "sale", "name": "春节", "time_zone": "Asia/Shanghai",
            "starts_at": "2026-12-01T00:00:00.000Z", "ends_at": "2026-12-31T00:00:00.000Z",
            "limits": {"total": 100, "per_user": 3, "per_user_per_day": null, "per_claim": null},
            "hold_seconds": 600, "codes": false,
            "pass": {"required": "until", "until": "2026-12-01T02:00:00.000Z"},
        })
    );
    assert!(wanted[0].relative.is_empty());
    let relative = read(&yaml.replace("starts_at: 2026-12-01 08:00", "starts_at: now")).unwrap();
    assert_eq!(json!(relative[0].campaign.ends_at), json!("2026-11-28T00:00:00.000Z"));
    let members: Vec<_> = relative[0].relative.keys().copied().collect();
    assert_eq!(members, ["ends_at", "starts_at"]);
}

#[test]
fn absent_members_have_the_defaults_of_a_new_campaign() {
    let wanted =
        read("- id: a\n  limits:\n    total: none\n- id: 7\n  codes: true\n  limits: {total: 0}\n").unwrap();
    assert_eq!(
        json!(wanted[0].campaign),
        json!({
            "id": "a", "name": "a", "ends_at": null, "time_zone": "UTC", "hold_seconds": null, "pass": null,
            "limits": {"total": null, "per_user": null, "per_user_per_day": null, "per_claim": null}, "codes": false,
        })
    );
    let codes = &wanted[1].campaign;
    assert_eq!((codes.id.as_str(), codes.limits.per_claim), ("7", Some(PER_CLAIM_MAX)));
}

#[test]
fn each_mistake_names_line_campaign_member_and_value() {
    for (yaml, expected) in [
        ("id: a\nlimits:\n  totl: 5", "3: a: limits.totl: unknown member; did you mean total?"),
        ("id: a\ntotal: 5", "2: a: total: unknown member; did you mean limits.total?"),
        ("id: a\nstate: open", "2: a: state: unknown member; the members are id, name, starts_at"),
        ("id: a\nlimits: {total: -5}", "2: a: limits.total: '-5': -5 is below 0; use 0"),
        ("id: a\nlimits: {per_user: [1]}", "2: a: limits.per_user: must be one value, not a list"),
        ("id: a\nlimits: 5", "2: a: limits: '5': must be an object with total, per_user"),
        ("id: a\nname: A\nname: B\nlimits: {total: 1}", "3: a: name: 'B': is given twice"),
        ("id: a\nname: ''\nlimits: {total: 1}", "2: a: name: '': must be 1 to 200 characters"),
        ("id: a b\nlimits: {total: 1}", "1: campaign 1: id: 'a b': must be 1 to 64 characters"),
        ("name: A\nlimits: {total: 1}", "1: campaign 1: id: is missing"),
        ("- 5", "1: campaign 1: must be an object"),
        ("[]", "1: the list has no campaigns"),
        (
            "- id: a\n  limits: {total: 1}\n- id: a\n  limits: {total: 1}",
            "3: a: id: 'a': is in the file twice",
        ),
        ("id: a", "1: a: limits: no limit is given"),
        ("id: a\nlimits: {per_claim: 1}", "2: a: limits: no limit is given"),
        (
            "id: a\ntime_zone: Shanghai",
            "2: a: time_zone: 'Shanghai': must be an IANA time zone; did you mean Asia/Shanghai?",
        ),
        ("id: a\nstarts_at: soon", "2: a: starts_at: 'soon': must be a time such as"),
        (
            "id: a\ntime_zone: Europe/Berlin\nends_at: 2027-03-28 02:30",
            "3: a: ends_at: '2027-03-28 02:30': 2027-03-28 02:30 does not exist",
        ),
        (
            "id: a\nlimits: {total: 1}\nstarts_at: 2027-01-02 00:00\nends_at: 2027-01-01 00:00",
            "4: a: ends_at: '2027-01-01 00:00': ends_at must be after starts_at",
        ),
        ("id: a\nhold_seconds: 0", "2: a: hold_seconds: '0': 0 is below 1"),
        ("id: a\ncodes: yes", "2: a: codes: must be true or false"),
        (
            "id: a\ncodes: true\nlimits: {total: 0, per_claim: 1001}",
            "3: a: limits.per_claim: '1001': must be at most 1000",
        ),
        ("id: a\npass: always", "2: a: pass: 'always': must be an object with required, until"),
        ("id: a\npass: {required: ever}", "2: a: pass.required: 'ever': must be always or until"),
        ("id: a\npass: {required: until}", "2: a: pass.until: is missing"),
        ("id: a\npass: {required: always, until: +1h}", "2: a: pass.until: '+1h': needs required: until"),
    ] {
        let mistakes = read(yaml).unwrap_err();
        assert!(mistakes[0].starts_with(expected), "{yaml}: {mistakes:?}");
    }
}

#[test]
fn all_mistakes_are_reported_in_their_order() {
    let mistakes = read("- id: a\n  hold: 5\n  limits: {total: x}\n- id: b\n  limit: {}\n").unwrap_err();
    let lines: Vec<_> = mistakes.iter().map(|mistake| mistake.split(':').next().unwrap()).collect();
    assert_eq!(lines, ["2", "3", "5"], "{mistakes:?}");
}

#[test]
fn an_empty_value_is_not_a_written_null() {
    for (yaml, expected) in [
        ("id: a\nlimits:\n  total:", "3: a: limits.total: has no value; write none if that is intended"),
        ("id: a\nlimits: {total}", "2: a: limits.total: has no value; write none"),
        ("id: a\nlimits: {total: 1}\nends_at: # never", "3: a: ends_at: has no value; write none"),
        ("id: a\nlimits: {total: 1}\npass:", "3: a: pass: has no value; write none"),
        ("id: a\nlimits:", "2: a: limits: has no value; write one or remove the member"),
        ("id: a\nname:\nlimits: {total: 1}", "2: a: name: has no value; write one or remove the member"),
        ("id:\nlimits: {total: 1}", "1: campaign 1: id: has no value; write one or remove the member"),
    ] {
        let mistakes = read(yaml).unwrap_err();
        assert!(mistakes.len() == 1 && mistakes[0].starts_with(expected), "{yaml}: {mistakes:?}");
    }
    for none in ["null", "~", "none", "'none'"] {
        let text =
            format!("id: a\nlimits: {{total: {none}}}\nends_at: {none}\nhold_seconds: {none}\npass: {none}");
        let campaign = &read(&text).unwrap()[0].campaign;
        assert!(campaign.limits.total.is_none() && campaign.ends_at.is_none(), "{text}");
        assert!(campaign.hold_seconds.is_none() && campaign.pass.is_none(), "{text}");
    }
}

#[test]
fn messages_hide_secrets_control_characters_and_long_values() {
    let secret =
        "kind: Secret\ndata:\n  password: hunter2\nstringData: {token: hunter2}\ntype: hunter2\nid: a";
    for (yaml, hidden) in [
        (secret, "hunter2"),
        ("id: a\ncodes: SAVE-1\nlimits: {total: 0}", "SAVE-1"),
        ("id: a\nlimits: {totals: hunter2}", "hunter2"),
    ] {
        let mistakes = read(yaml).unwrap_err();
        assert!(mistakes.iter().all(|mistake| !mistake.contains(hidden)), "{mistakes:?}");
    }
    let long = "x".repeat(100_000);
    for yaml in [
        format!("id: {long}\nlimits: {{total: 1}}"),
        format!("id: a\nlimits: {{total: {long}}}"),
        format!("id: a\n\"{}\": 1", &long[..1000]),
    ] {
        let mistakes = read(&yaml).unwrap_err();
        assert!(mistakes[0].len() < 300 && mistakes[0].contains("xxx…"), "{mistakes:?}");
    }
    let escaped = read("id: \"\\e[2J\"\n\"\\x07\": 1\nlimits: {total: \"1\\n\\u202e2\"}").unwrap_err();
    assert!(
        escaped.iter().all(|mistake| !mistake.contains(['\u{1b}', '\u{7}', '\n', '\u{202e}'])),
        "{escaped:?}"
    );
    assert!(escaped[0].contains(r"id: '\u{1b}[2J':"), "{escaped:?}");
    let words = read("id: a\nlimits: {total: \"春节 'a' \\\"b\\\"\"}").unwrap_err();
    assert!(words[0].contains("limits.total: '春节 'a' \"b\"':"), "{words:?}");
}

#[test]
fn a_value_is_read_alike_with_and_without_quotes() {
    let text = "id: a\nlimits: {total: 5, per_user: none}\ncodes: false\nends_at: 2099-12-31 08:00\nhold_seconds: 60";
    let quoted = "id: 'a'\nlimits: {total: \"5\", per_user: 'none'}\ncodes: \"false\"\nends_at: '2099-12-31 08:00'\n\
                  hold_seconds: '60'";
    let [plain, quoted] = [text, quoted].map(|text| json!(read(text).unwrap()[0].campaign));
    assert_eq!(plain, quoted);
}

#[test]
fn other_forms_of_yaml_values_are_rejected() {
    let whole = "must be a whole number from 0 to 4294967295, or none";
    for (value, why) in [
        ("1_000", whole),
        ("1,000", whole),
        ("0o17", whole),
        ("0x1F", whole),
        ("1e3", whole),
        ("5.0", whole),
        ("010", "must be written without a leading zero"),
        ("-010", "must be written without a leading zero"),
    ] {
        let mistakes = read(&format!("id: a\nlimits: {{total: '{value}'}}")).unwrap_err();
        assert_eq!(mistakes, [format!("2: a: limits.total: '{value}': {why}")]);
    }
    let hold = read("id: a\nlimits: {total: 1}\nhold_seconds: 060").unwrap_err();
    assert_eq!(hold, ["3: a: hold_seconds: '060': must be written without a leading zero"]);
    for no in ["no", "off", "False", "0"] {
        let mistakes = read(&format!("id: a\nlimits: {{total: 1}}\ncodes: {no}")).unwrap_err();
        assert_eq!(mistakes, ["3: a: codes: must be true or false"]);
    }
    for time in ["2027-01-01", "2027-01-01T08", "08:00", "1798790400"] {
        let mistakes = read(&format!("id: a\nlimits: {{total: 1}}\nends_at: {time}")).unwrap_err();
        assert!(
            mistakes[0]
                .starts_with(&format!("3: a: ends_at: '{time}': must be a time such as '2026-12-01 08:00'"))
        );
    }
    assert_eq!(json!(read("id: a\nlimits: {total: 0}").unwrap()[0].campaign.limits.total), json!(0));
}
