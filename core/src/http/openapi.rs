//! The description of all three listeners (`openapi.json`), generated from the handlers.

mod edge;
mod finish;

use std::sync::LazyLock;

use axum::http::StatusCode;
use claimgate_shared::problem::ProblemFields;
use serde_json::Value;
use utoipa::openapi::security::{ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::{Modify, OpenApi};

use super::error::ApiResult;
use super::extract::json;
use super::health;
use super::routes::{admin_routes, internal_routes, long_poll_routes};

/// Generated once: it never changes while core runs.
static DOCUMENT: LazyLock<Value> = LazyLock::new(document);

#[derive(OpenApi)]
#[openapi(
    info(title = "claimgate", description = "Decides claims, exactly up to their limits. docs/api.md adds what no schema can express."),
    tags(
        (name = "edge", description = "For browsers, with a user's token, at the edge"),
        (name = "internal", description = "For back ends (API token) and the edge (signed), on core's internal listener"),
        (name = "admin", description = "For admins (tokens by role: viewer, operator, admin), on core's admin listener"),
        (name = "health", description = "For supervisors and load balancers (no token)"),
    ),
    paths(
        edge::view_campaign,
        edge::create_claim,
        edge::list_claims,
        edge::get_challenge,
        edge::create_pass,
        edge::get_claim,
        health::alive,
        health::ready,
        health::metrics,
        show,
    ),
    components(schemas(ProblemFields)),
    modifiers(&SecuritySchemes),
)]
struct Document;

fn document() -> Value {
    let mut document = Document::openapi();
    document.merge(internal_routes().into_openapi());
    document.merge(admin_routes().into_openapi());
    document.merge(long_poll_routes().into_openapi());
    finish::finished(document)
}

/// Returns the OpenAPI description of the API.
#[utoipa::path(
    get, path = "/openapi.json", tag = "admin", operation_id = "getDescription",
    responses((status = 200, description = "An OpenAPI document", body = Object)),
    extensions(("x-codes" = json!(["unavailable", "overloaded"]))),
)]
pub(super) async fn show() -> ApiResult {
    json(StatusCode::OK, &*DOCUMENT)
}

struct SecuritySchemes;

impl Modify for SecuritySchemes {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let bearer = |format: &str, description: &str| {
            let scheme = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).bearer_format(format);
            SecurityScheme::Http(scheme.description(Some(description)).build())
        };
        let signature = "The edge's signature, sent with `X-Claimgate-Key`, `X-Claimgate-Timestamp`, `X-Claimgate-User` \
                         and `X-Claimgate-Client-Ip`: docs/api.md, Signature between edge and core";
        let signature = ApiKeyValue::with_description("X-Claimgate-Signature", signature);
        let components = document.components.get_or_insert_default();
        for (name, scheme) in [
            ("userToken", bearer("JWT", "A user's token: `sub`, `exp`, issuer and audience")),
            ("apiToken", bearer("opaque", "A back end's token (`CLAIMGATE_API_TOKENS`)")),
            (
                "adminToken",
                bearer("opaque", "An admin's token, with at least the role that the call requires"),
            ),
            ("edgeSignature", SecurityScheme::ApiKey(ApiKey::Header(signature))),
        ] {
            components.add_security_scheme(name, scheme);
        }
    }
}
