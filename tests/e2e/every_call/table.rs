//! The calls of openapi.json, with their requests and expected responses.

use reqwest::Method;
use serde_json::{Value, json};
use support::claim_body;

use self::Role::{Admin, Operator};
use crate::every_call::place::Fixture;

/// A request without credentials.
#[derive(Debug, Clone)]
pub struct CallRequest {
    pub method: Method,
    pub path: String,
    pub body: Body,
}

/// The body of a request.
#[derive(Debug, Clone)]
pub enum Body {
    None,
    Json(Value),
    Csv(&'static str),
    /// A media type and any string.
    Raw(&'static str, &'static str),
}

/// The status of a response, and the code of a problem.
pub type Answer = (u16, &'static str);

/// The user ids of every fixture.
pub const USER_IDS: &str = "verbatim:VRBHvs";

/// A role of a named admin, in ascending order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    Viewer,
    Operator,
    Admin,
}

/// A call of openapi.json.
#[derive(Debug)]
pub struct Call {
    /// Method and path as in openapi.json.
    pub name: &'static str,
    /// Whether the campaign is paused before the call.
    pub paused: bool,
    /// Query and body of a valid call.
    pub good: fn(&Fixture) -> (String, Body),
    /// Status of the response.
    pub answer: u16,
    /// Response to the repeated call.
    pub again: Answer,
    /// Whether a repeated call takes effect a second time.
    pub counts_again: bool,
    /// Lowest role that may make the call.
    pub role: Role,
    /// Invalid variants specific to this call, with their responses.
    pub bad: &'static [(&'static str, Answer)],
}

impl Call {
    pub fn method(&self) -> Method {
        self.name.split_once(' ').expect("a method").0.parse().expect("a method")
    }

    pub fn template(&self) -> &'static str {
        self.name.split_once(' ').expect("a path").1
    }

    /// Returns the valid request of this call for `fixture`.
    pub fn request(&self, fixture: &Fixture) -> CallRequest {
        let (query, body) = (self.good)(fixture);
        CallRequest { method: self.method(), path: fixture.fill(self.template()) + &query, body }
    }

    /// Returns whether the call only reads.
    pub fn reads(&self) -> bool {
        self.method() == Method::GET
    }
}

/// Defaults of a call: no query, no body, and 200 for the first and any repeated call.
const PLAIN: Call = Call {
    name: "",
    paused: false,
    good: |_| (String::new(), Body::None),
    answer: 200,
    again: (200, ""),
    counts_again: false,
    role: Role::Viewer,
    bad: &[],
};

const INVALID: Answer = (400, "invalid_request");

/// Calls that are not in [`CALLS`], with the module that tests them.
pub const ELSEWHERE: [(&str, &str); 14] = [
    ("GET /admin/v1/campaigns/{id}/codes", "faults codes"),
    ("GET /admin/v1/live", "dashboard::live"),
    ("GET /livez", "watching"),
    ("GET /metrics", "watching"),
    ("GET /openapi.json", "watching"),
    ("GET /readyz", "faults readiness"),
    ("GET /v1/campaigns/{id}", "edge::claims"),
    ("GET /v1/campaigns/{id}/claims", "edge::own_claims"),
    ("GET /v1/campaigns/{id}/challenge", "edge::challenges"),
    ("POST /admin/v1/campaigns/{id}/codes", "faults codes"),
    ("POST /internal/v1/refusals", "report"),
    ("POST /v1/campaigns/{id}/claims", "edge::claims"),
    ("POST /v1/campaigns/{id}/pass", "edge::challenges"),
    ("GET /v1/claims/{claim_id}", "edge::claims"),
];

/// All other calls. A `bad` row is a query, or a body in JSON or CSV.
pub const CALLS: &[Call] = &[
    Call {
        name: "GET /admin/v1/audit",
        bad: &[("?after=x", INVALID), ("?limit=0", INVALID), ("?claims=x", INVALID), ("?more=1", INVALID)],
        good: |fixture| (format!("?campaign_id={}", fixture.campaign), Body::None),
        ..PLAIN
    },
    Call {
        name: "GET /admin/v1/campaigns",
        bad: &[
            ("?limit=0", INVALID),
            ("?limit=x", INVALID),
            ("?cursor=%00", INVALID),
            ("?cursor=a.b", INVALID),
            ("?more=1", INVALID),
        ],
        ..PLAIN
    },
    Call {
        name: "POST /admin/v1/campaigns",
        role: Admin,
        good: |fixture| (String::new(), Body::Json(fixture.another())),
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
        role: Admin,
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
        role: Operator,
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
            ("?cursor=1~%00.aHSIRPhRB6fDKajWWhFLtQ", INVALID),
            ("?cursor=1~anna.%00", INVALID),
            ("?user_id=", INVALID),
            ("?more=1", INVALID),
        ],
        ..PLAIN
    },
    Call {
        name: "POST /admin/v1/campaigns/{id}/import",
        role: Admin,
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
    Call {
        name: "POST /admin/v1/claims/{claim_id}/return",
        role: Operator,
        good: |_| (String::new(), Body::Json(json!({"reason": "Refunded order 17"}))),
        bad: &[
            ("{}", INVALID),
            (r#"{"reason":""}"#, INVALID),
            (r#"{"reason":"\u202e"}"#, INVALID),
            (r#"{"reason":1}"#, INVALID),
            (r#"{"reason":"x","more":1}"#, INVALID),
        ],
        ..PLAIN
    },
    Call { name: "POST /admin/v1/campaigns/{id}/pause", role: Operator, ..PLAIN },
    Call { name: "POST /admin/v1/campaigns/{id}/resume", role: Operator, paused: true, ..PLAIN },
    Call { name: "POST /admin/v1/campaigns/{id}/end", role: Admin, ..PLAIN },
    Call { name: "POST /admin/v1/campaigns/{id}/archive", role: Admin, ..PLAIN },
    Call { name: "POST /admin/v1/campaigns/{id}/unarchive", role: Admin, ..PLAIN },
    Call { name: "POST /admin/v1/campaigns/{id}/warm-up", role: Admin, ..PLAIN },
    Call { name: "GET /admin/v1/campaigns/{id}/reconciliation", ..PLAIN },
    Call { name: "POST /admin/v1/campaigns/{id}/reconciliation", role: Admin, ..PLAIN },
    Call { name: "GET /admin/v1/campaigns/{id}/report", ..PLAIN },
    Call {
        name: "GET /admin/v1/changes",
        good: |fixture| (format!("?campaign_id={}&limit=5", fixture.campaign), Body::None),
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
        role: Admin,
        good: |_| (String::new(), Body::Json(json!({"replicas_min": 0}))),
        bad: &[
            ("{}", INVALID),
            (r#"{"replicas_min":-1}"#, INVALID),
            (r#"{"replicas_min":1}"#, INVALID),
            (r#"{"replicas_min":0,"more":1}"#, INVALID),
        ],
        ..PLAIN
    },
    Call { name: "POST /admin/v1/replication/accept-loss", role: Admin, ..PLAIN },
    Call { name: "GET /admin/v1/user-ids", ..PLAIN },
    Call {
        name: "POST /admin/v1/user-ids",
        role: Admin,
        good: |_| (String::new(), Body::Json(json!({"user_ids": USER_IDS}))),
        bad: &[
            ("{}", INVALID),
            (r#"{"user_ids":"VRBHvs"}"#, INVALID),
            (r#"{"user_ids":null}"#, INVALID),
            (r#"{"user_ids":"verbatim:VRBHvs","more":1}"#, INVALID),
            (r#"{"user_ids":"hmac:VR1TK4"}"#, (409, "campaign_open")),
        ],
        ..PLAIN
    },
    Call { name: "GET /admin/v1/webhooks", ..PLAIN },
    Call {
        name: "POST /admin/v1/webhooks",
        role: Admin,
        good: |fixture| (String::new(), Body::Json(fixture.webhook_body())),
        answer: 201,
        again: (201, ""),
        counts_again: true,
        bad: &[
            ("{}", INVALID),
            (r#"{"url":"https://elsewhere.example/"}"#, INVALID),
            (r#"{"url":"no url"}"#, INVALID),
            (r#"{"url":"https://elsewhere.example/","secret":"mine"}"#, INVALID),
        ],
        ..PLAIN
    },
    Call { name: "GET /admin/v1/webhooks/{id}", ..PLAIN },
    Call { name: "DELETE /admin/v1/webhooks/{id}", role: Admin, again: (404, "webhook_not_found"), ..PLAIN },
    Call {
        name: "GET /admin/v1/webhooks/{id}/deliveries",
        bad: &[("?limit=0", INVALID), ("?cursor=-1", INVALID), ("?cursor=%00", INVALID)],
        ..PLAIN
    },
    Call { name: "POST /admin/v1/webhooks/{id}/enable", role: Admin, ..PLAIN },
    Call { name: "POST /admin/v1/webhooks/{id}/rotate-secret", role: Admin, counts_again: true, ..PLAIN },
    Call { name: "POST /admin/v1/webhooks/{id}/test", role: Admin, ..PLAIN },
    Call { name: "GET /internal/v1/campaigns/{id}", ..PLAIN },
    Call {
        name: "GET /internal/v1/campaigns/{id}/users/{user_id}",
        bad: &[
            ("?limit=0", INVALID),
            ("?cursor=x", INVALID),
            ("?cursor=1.%00", INVALID),
            ("?more=1", INVALID),
        ],
        ..PLAIN
    },
    Call {
        name: "POST /internal/v1/claims",
        role: Admin,
        good: |fixture| (String::new(), Body::Json(claim_body(&fixture.campaign, "anna", "k", 2))),
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
        role: Admin,
        good: |fixture| {
            let claim = |user: &str| claim_body(&fixture.campaign, user, "k", 1);
            (String::new(), Body::Json(json!({"claims": [claim("anna"), claim("bert"), claim("anna")]})))
        },
        bad: &[("{}", INVALID), (r#"{"claims":[]}"#, INVALID), (r#"{"claims":[],"more":1}"#, INVALID)],
        ..PLAIN
    },
    Call { name: "GET /internal/v1/claims/{claim_id}", ..PLAIN },
    Call { name: "POST /internal/v1/claims/{claim_id}/confirm", role: Operator, ..PLAIN },
    Call { name: "POST /internal/v1/claims/{claim_id}/extend", role: Operator, ..PLAIN },
    Call { name: "POST /internal/v1/claims/{claim_id}/return", role: Operator, ..PLAIN },
];
