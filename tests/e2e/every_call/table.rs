//! Each call of openapi.json: where it is made, and what it is answered.

use reqwest::Method;
use serde_json::{Value, json};
use support::claim_body;

use crate::every_call::place::Place;

/// A request, without who sends it.
#[derive(Debug, Clone)]
pub struct Ask {
    pub method: Method,
    pub path: String,
    pub body: Body,
}

/// What a request brings.
#[derive(Debug, Clone)]
pub enum Body {
    None,
    Json(Value),
    Csv(&'static str),
    /// Anything at all, under a media type of any kind.
    Raw(&'static str, &'static str),
}

/// What a call's answer is: its status, and the code where it is a problem.
pub type Answer = (u16, &'static str);

/// A call of the document.
#[derive(Debug)]
pub struct Call {
    /// Method and path as openapi.json has them.
    pub name: &'static str,
    /// Made in a campaign that is paused.
    pub paused: bool,
    /// The query and the body of the call as it should be.
    pub good: fn(&Place) -> (String, Body),
    /// The status that it is answered with.
    pub answer: u16,
    /// What the very same call is answered afterwards.
    pub again: Answer,
    /// Whether the same call once more changes more.
    pub adds_up: bool,
    /// What is wrong with it, beside what can be wrong with every call.
    pub bad: &'static [(&'static str, Answer)],
}

impl Call {
    pub fn method(&self) -> Method {
        self.name.split_once(' ').expect("a method").0.parse().expect("a method")
    }

    pub fn template(&self) -> &'static str {
        self.name.split_once(' ').expect("a path").1
    }

    /// The good call at `place`.
    pub fn ask(&self, place: &Place) -> Ask {
        let (query, body) = (self.good)(place);
        Ask { method: self.method(), path: place.fill(self.template()) + &query, body }
    }

    /// Reads alone.
    pub fn reads(&self) -> bool {
        self.method() == Method::GET
    }
}

/// A call that says nothing of itself: no query, no body, 200 as often as it is made.
const PLAIN: Call = Call {
    name: "",
    paused: false,
    good: |_| (String::new(), Body::None),
    answer: 200,
    again: (200, ""),
    adds_up: false,
    bad: &[],
};

const INVALID: Answer = (400, "invalid_request");

/// Calls that have tests of their own alone, and where.
pub const ELSEWHERE: [(&str, &str); 2] =
    [("GET /admin/v1/live", "dashboard::live"), ("GET /readyz", "faults readiness")];

/// All others. A bad row is a query, or a body in JSON or CSV.
pub const CALLS: &[Call] = &[
    Call {
        name: "GET /admin/v1/audit",
        bad: &[("?after=x", INVALID), ("?limit=0", INVALID), ("?limit=1001", INVALID), ("?more=1", INVALID)],
        good: |place| (format!("?campaign_id={}", place.campaign), Body::None),
        ..PLAIN
    },
    Call {
        name: "GET /admin/v1/campaigns",
        bad: &[("?limit=0", INVALID), ("?limit=x", INVALID), ("?more=1", INVALID)],
        ..PLAIN
    },
    Call {
        name: "POST /admin/v1/campaigns",
        good: |place| (String::new(), Body::Json(place.another())),
        answer: 201,
        bad: &[
            ("{}", INVALID),
            (r#"{"id":"NO!","name":"x","starts_at":"2026-01-01T00:00:00Z","limits":{}}"#, INVALID),
            (r#"{"id":"x","name":"x","starts_at":"yesterday","limits":{}}"#, INVALID),
            (r#"{"id":"x","name":"x","starts_at":"2026-01-01T00:00:00Z","limits":{"total":-1}}"#, INVALID),
        ],
        ..PLAIN
    },
    Call { name: "GET /admin/v1/campaigns/{id}", ..PLAIN },
    Call {
        name: "PATCH /admin/v1/campaigns/{id}",
        good: |_| {
            (String::new(), Body::Json(json!({"version": 1, "name": "renamed", "limits": {"total": 7}})))
        },
        again: (409, "version_conflict"),
        bad: &[
            ("{}", INVALID),
            (r#"{"version":1,"limits":{"total":4294967296}}"#, INVALID),
            (r#"{"version":1,"hold_seconds":-1}"#, INVALID),
            (r#"{"version":9,"name":"x"}"#, (409, "version_conflict")),
        ],
        ..PLAIN
    },
    Call {
        name: "POST /admin/v1/campaigns/{id}/add",
        good: |_| (String::new(), Body::Json(json!({"units": 50, "idempotency_key": "delivery-1"}))),
        bad: &[
            ("{}", INVALID),
            (r#"{"units":1}"#, INVALID),
            (r#"{"units":1.5,"idempotency_key":"k"}"#, INVALID),
            (r#"{"units":1,"idempotency_key":""}"#, INVALID),
            (r#"{"units":-11,"idempotency_key":"k"}"#, (422, "quantity_out_of_range")),
            (r#"{"units":4294967295,"idempotency_key":"k"}"#, (422, "quantity_out_of_range")),
        ],
        ..PLAIN
    },
    Call {
        name: "GET /admin/v1/campaigns/{id}/claims",
        good: |_| ("?user_id=holder&status=held".to_owned(), Body::None),
        bad: &[
            ("?status=lost", INVALID),
            ("?limit=0", INVALID),
            ("?cursor=x", INVALID),
            ("?user_id=", INVALID),
            ("?more=1", INVALID),
        ],
        ..PLAIN
    },
    Call {
        name: "POST /admin/v1/campaigns/{id}/import",
        paused: true,
        good: |_| (String::new(), Body::Csv("user_id,quantity\nanna,2\nbert,1\nanna,1\n")),
        bad: &[
            ("", INVALID),
            ("user,quantity\nanna,1\n", INVALID),
            ("user_id,quantity\nanna,0\n", INVALID),
            ("user_id,quantity\nanna,1,2\n", INVALID),
            ("user_id,quantity,claimed_at\nanna,1,2999-01-01T00:00:00Z\n", INVALID),
            ("user_id,quantity\nanna,6\n", (422, "quantity_out_of_range")),
            ("user_id,quantity\nanna,5\nanna,1\n", (409, "user_limit_reached")),
            ("user_id,quantity\nanna,5\nbert,5\n", (409, "sold_out")),
        ],
        ..PLAIN
    },
    Call { name: "POST /admin/v1/campaigns/{id}/pause", ..PLAIN },
    Call { name: "POST /admin/v1/campaigns/{id}/resume", paused: true, ..PLAIN },
    Call { name: "POST /admin/v1/campaigns/{id}/end", ..PLAIN },
    Call { name: "POST /admin/v1/campaigns/{id}/warm-up", ..PLAIN },
    Call { name: "GET /admin/v1/campaigns/{id}/reconciliation", ..PLAIN },
    Call { name: "POST /admin/v1/campaigns/{id}/reconciliation", ..PLAIN },
    Call {
        name: "GET /admin/v1/changes",
        good: |place| (format!("?campaign_id={}&limit=5", place.campaign), Body::None),
        bad: &[
            ("?limit=0", INVALID),
            ("?wait_s=31", INVALID),
            ("?campaign_id=NO!", INVALID),
            ("?after=x", (410, "cursor_invalid")),
            ("?more=1", INVALID),
        ],
        ..PLAIN
    },
    Call { name: "GET /admin/v1/replication", ..PLAIN },
    Call {
        name: "POST /admin/v1/replication",
        good: |_| (String::new(), Body::Json(json!({"replicas_min": 0}))),
        bad: &[
            ("{}", INVALID),
            (r#"{"replicas_min":-1}"#, INVALID),
            (r#"{"replicas_min":1}"#, INVALID),
            (r#"{"replicas_min":0,"more":1}"#, INVALID),
        ],
        ..PLAIN
    },
    Call { name: "POST /admin/v1/replication/accept-loss", ..PLAIN },
    Call { name: "GET /admin/v1/webhooks", ..PLAIN },
    Call {
        name: "POST /admin/v1/webhooks",
        good: |place| (String::new(), Body::Json(place.webhook_body())),
        answer: 201,
        again: (201, ""),
        adds_up: true,
        bad: &[
            ("{}", INVALID),
            (r#"{"url":"https://elsewhere.example/"}"#, INVALID),
            (r#"{"url":"no url"}"#, INVALID),
            (r#"{"url":"https://elsewhere.example/","secret":"mine"}"#, INVALID),
        ],
        ..PLAIN
    },
    Call { name: "GET /admin/v1/webhooks/{id}", ..PLAIN },
    Call { name: "DELETE /admin/v1/webhooks/{id}", again: (404, "webhook_not_found"), ..PLAIN },
    Call { name: "GET /admin/v1/webhooks/{id}/deliveries", bad: &[("?limit=0", INVALID)], ..PLAIN },
    Call { name: "POST /admin/v1/webhooks/{id}/enable", ..PLAIN },
    Call { name: "POST /admin/v1/webhooks/{id}/rotate-secret", adds_up: true, ..PLAIN },
    Call { name: "POST /admin/v1/webhooks/{id}/test", ..PLAIN },
    Call { name: "GET /internal/v1/campaigns/{id}", ..PLAIN },
    Call {
        name: "GET /internal/v1/campaigns/{id}/users/{user_id}",
        bad: &[("?limit=0", INVALID), ("?cursor=x", INVALID), ("?more=1", INVALID)],
        ..PLAIN
    },
    Call {
        name: "POST /internal/v1/claims",
        good: |place| (String::new(), Body::Json(claim_body(&place.campaign, "anna", "k", 2))),
        answer: 201,
        bad: &[
            ("{}", INVALID),
            (r#"{"campaign_id":"x","user_id":"","idempotency_key":"k","quantity":1}"#, INVALID),
            (r#"{"campaign_id":"x","user_id":"u","idempotency_key":"","quantity":1}"#, INVALID),
            (
                r#"{"campaign_id":"x","user_id":"u","idempotency_key":"k","quantity":0}"#,
                (422, "quantity_out_of_range"),
            ),
        ],
        ..PLAIN
    },
    Call {
        name: "POST /internal/v1/claims/batch",
        good: |place| {
            let claim = |user: &str| claim_body(&place.campaign, user, "k", 1);
            (String::new(), Body::Json(json!({"claims": [claim("anna"), claim("bert"), claim("anna")]})))
        },
        bad: &[("{}", INVALID), (r#"{"claims":[]}"#, INVALID), (r#"{"claims":[],"more":1}"#, INVALID)],
        ..PLAIN
    },
    Call { name: "GET /internal/v1/claims/{claim_id}", ..PLAIN },
    Call { name: "POST /internal/v1/claims/{claim_id}/confirm", ..PLAIN },
    Call { name: "POST /internal/v1/claims/{claim_id}/return", ..PLAIN },
];
