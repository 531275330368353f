//! A reader of the feed that continues from its cursor and keeps the last state of each claim.

use std::collections::BTreeMap;

use reqwest::Method;
use serde_json::Value;

use crate::client::Reply;
use crate::{Core, SqlClaim};

/// A reader of the feed.
#[derive(Debug, Default)]
pub struct Follower {
    /// The campaign to read; `None` reads all.
    pub campaign: Option<String>,
    /// The cursor from which the reader continues.
    pub cursor: Option<String>,
    /// Last status and revision of each claim in the feed.
    pub last_seen: BTreeMap<String, (String, u64)>,
    /// Number of items read.
    pub items: usize,
}

impl Follower {
    /// Creates a reader of one campaign.
    pub fn of(campaign: &str) -> Self {
        Self { campaign: Some(campaign.to_owned()), ..Self::default() }
    }

    /// Returns the path of the reader's next call, for at most `limit` items.
    pub fn path(&self, limit: u32, wait_s: u32) -> String {
        let after = self.cursor.iter().map(|cursor| format!("&after={cursor}"));
        let of = self.campaign.iter().map(|id| format!("&campaign_id={id}"));
        let rest: String = after.chain(of).collect();
        format!("/admin/v1/changes?limit={limit}&wait_s={wait_s}{rest}")
    }

    /// Processes a page; returns its items.
    pub fn take(&mut self, page: &Value) -> Vec<Value> {
        let items = page["items"].as_array().expect("items").clone();
        for item in &items {
            let claim = &item["claim"];
            let id = claim["id"].as_str().expect("an id").to_owned();
            let last_seen = (
                claim["status"].as_str().expect("a status").to_owned(),
                item["revision"].as_u64().expect("1"),
            );
            let before = self.last_seen.insert(id, last_seen.clone());
            let is_later = |before: (String, u64)| {
                before.1 <= last_seen.1 || before.0 == "revoked" || last_seen.0 == "revoked"
            };
            assert!(before.is_none_or(is_later), "{item} is out of order");
        }
        self.items += items.len();
        let next = page["next_cursor"].as_str().expect("a cursor");
        let last = items.last().map(|item| &item["cursor"]);
        assert!(
            last.is_none_or(|last| last == next),
            "next_cursor must be the cursor of the last item: {page}"
        );
        self.cursor = Some(next.to_owned());
        items
    }

    /// Reads everything available, in pages of up to `limit`; returns the items.
    pub async fn read_all(&mut self, core: &Core, limit: u32) -> Vec<Value> {
        let mut all = Vec::new();
        loop {
            let page = core.admin_get(&self.path(limit, 0)).await.expect(200).json();
            let items = self.take(&page);
            if items.is_empty() {
                return all;
            }
            all.extend(items);
        }
    }

    /// Polls `core` once, waiting up to `wait_s`; `None` if core did not answer or was unavailable.
    pub async fn poll(&mut self, core: &CoreAddress, wait_s: u32) -> Option<usize> {
        let request = core.client.request(Method::GET, &format!("{}{}", core.url, self.path(1000, wait_s)));
        let reply: Reply = core.client.send(request.bearer_auth(&core.token)).await.ok()?;
        if reply.status == 503 {
            return None;
        }
        Some(self.take(&reply.expect(200).json()).len())
    }

    /// Checks that the feed reported each of `rows` as SQL has it, and no other claim.
    pub fn matches_sql(&self, rows: &[SqlClaim]) {
        let rows = rows.iter().map(|row| (row.id.clone(), (row.status.clone(), row.revision)));
        let rows: BTreeMap<_, _> = rows.collect();
        let wrong: Vec<_> =
            rows.iter().filter(|(id, row)| self.last_seen.get(*id) != Some(row)).take(5).collect();
        assert!(wrong.is_empty(), "reported differently or not at all, of {} claims: {wrong:?}", rows.len());
        assert_eq!(self.last_seen.len(), rows.len(), "the feed reported claims that SQL does not have");
    }
}

/// The address and token of a core that may be replaced while the reader follows it.
#[derive(Debug, Clone)]
pub struct CoreAddress {
    client: crate::client::Client,
    url: String,
    token: String,
}

impl CoreAddress {
    /// Returns the address and token of `core`.
    pub fn of(core: &Core) -> Self {
        Self { client: core.client().once(), url: core.admin_url(""), token: core.admin_token() }
    }
}
