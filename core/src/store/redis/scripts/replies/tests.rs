use claimgate_shared::ClaimStatus;

use super::*;
use crate::domain::claim_record::put_be;

fn text(text: &str) -> Value {
    Value::BulkString(text.as_bytes().to_vec())
}

/// Builds a reply of `claim.lua` with these packed answers, after sequence number 5 and 40 units taken.
fn reply(answers: &[u8]) -> Value {
    let mut packed = Vec::new();
    let numbers = [(1_700_000_000_000, 6), (3, 6), (17, 6), (100, 5), (0, 1), (5, 6), (40, 6), (0, 6)];
    for (number, width) in numbers {
        put_be(&mut packed, number, width);
    }
    packed.extend_from_slice(answers);
    Value::BulkString(packed)
}

fn verdicts(answers: &[u8], quantities: &[u32]) -> Result<Vec<Verdict>, Malformed> {
    let decided = decided(reply(answers), &TimeZone::default(), quantities.iter().copied())?;
    Ok(decided.expect("ready").verdicts)
}

#[test]
fn each_grant_continues_from_the_previous_one() {
    let granted = |sequence, taken| Verdict::Granted { sequence, expires_at: None, taken };
    assert_eq!(verdicts(&[1, 1], &[2, 3]).unwrap(), [granted(6, 42), granted(7, 45)]);
    let decided = decided(reply(&[1, 1]), &TimeZone::default(), [2, 3].into_iter()).unwrap().unwrap();
    assert_eq!((decided.version, decided.events, decided.total), (Version::new(3), 17, Some(100)));
    assert_eq!(decided.high_water_mark(), HighWaterMark { sequence: 7, events: 17 });
}

#[test]
fn reply_codes_are_decoded_with_their_remaining_units() {
    let answers = [&[4][..], &[10, 0, 0, 0, 0, 1], &[11, 0, 0, 0, 0, 0], &[12], &[13]].concat();
    assert_eq!(
        verdicts(&answers, &[1; 5]).unwrap(),
        [
            Verdict::Denied(Denial::Paused),
            Verdict::Denied(Denial::UserLimitReached { remaining: 1 }),
            Verdict::Denied(Denial::SoldOut { remaining: 0 }),
            Verdict::RetryAfterSweep,
            Verdict::OutboxFull,
        ]
    );
}

#[test]
fn an_unknown_reply_is_malformed() {
    assert!(verdicts(&[1], &[1, 1]).is_err(), "an answer is missing");
    assert!(verdicts(&[1, 1], &[1]).is_err(), "one answer too many");
    assert!(verdicts(&[14], &[1]).is_err(), "no such answer");
    assert!(verdicts(&[2, 0], &[1]).is_err(), "a truncated record");
    assert!(decided(Value::Okay, &TimeZone::default(), [].into_iter()).is_err());
    assert!(decided(text("short"), &TimeZone::default(), [].into_iter()).is_err());
    assert!(decided(Value::Array(vec![text("decided")]), &TimeZone::default(), [].into_iter()).is_err());
    assert!(index_of(Value::Array(vec![text("tired")]), &["changed", "newer"]).is_err());
}

#[test]
fn a_not_ready_reply_carries_its_reason() {
    let reply = |reason| Value::Array(vec![text("not_ready"), text(reason)]);
    let claims = decided(reply("epoch"), &TimeZone::default(), [1].into_iter());
    assert_eq!(claims.unwrap().err(), Some(NotReadyReason::Epoch));
    assert_eq!(read(reply("behind")).unwrap().err(), Some(NotReadyReason::Behind));
    assert_eq!(sold_out(reply("epoch")).unwrap().err(), Some(NotReadyReason::Epoch));
    assert_eq!(transitioned(reply("missing")).unwrap().err(), Some(NotReadyReason::Missing));
    assert!(read(reply("tired")).is_err());
}

#[test]
fn a_transition_replies_with_the_claim_as_it_is_now() {
    let record = ClaimRecord {
        digest: [9; 16],
        status: ClaimStatus::Held,
        revision: 65,
        quantity: 1,
        sequence: 3,
        claimed_at: timestamp(1_700_000_000_000).unwrap(),
        expires_at: timestamp(1_700_000_600_000),
        day: 19_675,
    };
    let mut packed = Vec::new();
    record.write(&mut packed);
    for (word, rejected) in [
        ("transitioned", None),
        ("extended_too_often", Some(RejectedExtension::TooOften)),
        ("outbox_full", Some(RejectedExtension::OutboxFull)),
    ] {
        let reply = Value::Array(vec![text(word), Value::BulkString(packed.clone()), Value::Int(70)]);
        let expected = TransitionReply { record, events: 70, rejected };
        assert_eq!(transitioned(reply).unwrap().unwrap(), Some(expected));
    }
    assert!(transitioned(Value::Array(vec![text("extended")])).is_err());
}
