//! The fixture of one call: its own campaign with a held claim and a webhook, and their observable state.

use reqwest::Method;
use serde_json::{Value, json};
use support::core_client::{HOLD_S_PROLONGED, campaign};
use support::signing::Signed;
use support::wait::holds;
use support::{Core, SOON, Sql, eventually};

use crate::every_call::table::{Call, USER_IDS};

/// Resources that are used by only one call.
#[derive(Debug, Clone)]
pub struct Fixture {
    pub campaign: String,
    held: String,
    webhook: String,
    receiver: String,
}

impl Fixture {
    /// Creates the campaign `name`, in which `holder` has 2 of 10 units on hold, and, for calls on webhooks,
    /// a webhook with the URL `receiver`.
    pub async fn make(core: &Core, name: String, receiver: &str, call: &Call) -> Self {
        let mut body = campaign(&name, json!({"total": 10, "per_user": 5, "per_claim": 5}));
        body["hold_seconds"] = json!(3600);
        core.create_with(body).await;
        let held = core.claim_units(&name, "holder", "k", 2).await.expect(201).json();
        if call.paused {
            core.set_admin_state(&name, "pause").await.expect(200);
        }
        if call.template().ends_with("archive") {
            core.set_admin_state(&name, "end").await.expect(200);
        }
        if call.template().ends_with("/unarchive") {
            core.admin_post(&format!("/admin/v1/campaigns/{name}/archive")).await.expect(200);
        }
        if call.template().ends_with("/extend") {
            core.patch(&name, json!({"hold_seconds": HOLD_S_PROLONGED})).await.expect(200);
        }
        if call.template() == "/admin/v1/user-ids" {
            // Pins the user ids that the call sets: others cannot be set before the fixtures' campaigns have ended.
            let claim = Signed::claim(core, &name, "pins", "k");
            Signed { user_ids: USER_IDS.to_owned(), ..claim }.send(core).await.expect(201);
        }
        let mut fixture = Self {
            campaign: name,
            held: held["claim"]["id"].as_str().expect("an id").to_owned(),
            webhook: String::new(),
            receiver: receiver.to_owned(),
        };
        if call.template().contains("/webhooks/{id}") {
            let body = fixture.webhook_body();
            let made = core.admin(Method::POST, "/admin/v1/webhooks", &body).await.expect(201).json();
            made["id"].as_str().expect("an id").clone_into(&mut fixture.webhook);
        }
        fixture
    }

    /// Removes the webhooks, because core allows only a hundred.
    pub async fn clean_up(self, core: &Core) {
        for webhook in self.webhooks(core).await {
            let path = format!("/admin/v1/webhooks/{}", webhook["id"].as_str().expect("an id"));
            core.admin(Method::DELETE, &path, &Value::Null).await.expect(200);
        }
    }

    /// Returns the body of a webhook that belongs only to this fixture.
    pub fn webhook_body(&self) -> Value {
        json!({"url": format!("{}/{}", self.receiver, self.campaign), "campaign_id": self.campaign})
    }

    /// Returns the body of a second campaign that only this fixture creates.
    pub fn another(&self) -> Value {
        let mut body = campaign(&self.another_id(), json!({"total": 3}));
        // A fixed time, so that a repeated call has the same body.
        body["starts_at"] = json!("2026-01-01T00:00:00Z");
        body
    }

    fn another_id(&self) -> String {
        format!("{}-more", self.campaign)
    }

    /// Fills a path template of openapi.json with the ids of this fixture.
    pub fn fill(&self, template: &str) -> String {
        let id = if template.contains("/webhooks/") { &self.webhook } else { &self.campaign };
        template.replace("{id}", id).replace("{user_id}", "holder").replace("{claim_id}", &self.held)
    }

    /// Waits until the campaign is ready and relayed, and returns its state from the API and SQL, without
    /// values that differ between fixtures: ids, times and secrets.
    pub async fn state(&self, core: &Core, sql: &Sql) -> Value {
        let redis = core.redis().await;
        let reconciliation = format!("/admin/v1/campaigns/{}/reconciliation", self.campaign);
        let compared = eventually(SOON, || async {
            let entries = redis.outbox_entries(&self.campaign).await;
            // After an import, even a rejected one, the campaign is loaded with a delay.
            let compared = core.admin_get(&reconciliation).await.expect(200).json();
            let is_ready = !compared["differences"].to_string().contains("not_ready");
            holds(entries == 1 && is_ready, || {
                format!("{entries} entries in the outbox of {}: {compared}", self.campaign)
            })
            .map(|()| compared)
        })
        .await;
        let mut claims: Vec<_> = sql.claims(&self.campaign).await;
        claims.sort_by(|one, other| one.user_id.cmp(&other.user_id).then(one.sequence.cmp(&other.sequence)));
        let claims: Vec<_> = claims
            .into_iter()
            .map(|claim| json!([claim.user_id, claim.quantity, claim.status, claim.revision]))
            .collect();
        let view = core.admin_get(&format!("/admin/v1/campaigns/{}", self.campaign)).await.expect(200).json();
        let changes: Vec<_> =
            sql.audit(&self.campaign).await.into_iter().map(|row| json!([row.1, row.2])).collect();
        let mut of_claims: Vec<_> =
            sql.claim_audit(&self.campaign).await.into_iter().map(|row| json!([row.1, row.2])).collect();
        of_claims.sort_by_key(Value::to_string);
        json!({
            "campaign": {
                "name": if view["name"] == self.campaign { json!("its id") } else { view["name"].clone() },
                "limits": view["limits"], "state": view["state"], "version": view["version"],
                "remaining": core.campaign(&self.campaign).await["remaining"], "archived": view["archived"],
            },
            "another": core.admin_get(&format!("/admin/v1/campaigns/{}", self.another_id())).await.status,
            "claims": claims,
            "differences": compared["differences"],
            "audit": changes,
            "audit of claims": of_claims,
            "webhooks": self.webhooks(core).await.iter().map(|one| one["enabled"].clone()).collect::<Value>(),
        })
    }

    async fn webhooks(&self, core: &Core) -> Vec<Value> {
        let all = core.admin_get("/admin/v1/webhooks").await.expect(200).json();
        let all = all["items"].as_array().unwrap_or_else(|| panic!("{all}")).clone();
        all.into_iter().filter(|webhook| webhook["campaign_id"] == *self.campaign).collect()
    }
}
