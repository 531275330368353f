//! A reader of the feed: goes on where it was, and keeps what it was told of each claim last.

use std::collections::BTreeMap;

use reqwest::Method;
use serde_json::Value;

use crate::client::Reply;
use crate::{Core, SqlClaim};

/// A reader of the feed.
#[derive(Debug, Default)]
pub struct Follower {
    /// Of this campaign alone, or of all.
    pub campaign: Option<String>,
    /// Where it goes on.
    pub cursor: Option<String>,
    /// Of each claim that it was told of: its last status and revision.
    pub told: BTreeMap<String, (String, u64)>,
    /// Items that it was told.
    pub items: usize,
}

impl Follower {
    /// A reader of one campaign.
    pub fn of(campaign: &str) -> Self {
        Self { campaign: Some(campaign.to_owned()), ..Self::default() }
    }

    /// The path of its next call, for `limit` items at most.
    pub fn path(&self, limit: u32, wait_s: u32) -> String {
        let after = self.cursor.iter().map(|cursor| format!("&after={cursor}"));
        let of = self.campaign.iter().map(|id| format!("&campaign_id={id}"));
        let rest: String = after.chain(of).collect();
        format!("/admin/v1/changes?limit={limit}&wait_s={wait_s}{rest}")
    }

    /// Takes a page; returns its items.
    pub fn take(&mut self, page: &Value) -> Vec<Value> {
        let items = page["items"].as_array().expect("items").clone();
        for item in &items {
            let claim = &item["claim"];
            let id = claim["id"].as_str().expect("an id").to_owned();
            let told = (
                claim["status"].as_str().expect("a status").to_owned(),
                item["revision"].as_u64().expect("1"),
            );
            let before = self.told.insert(id, told.clone());
            let is_later =
                |before: (String, u64)| before.1 <= told.1 || before.0 == "revoked" || told.0 == "revoked";
            assert!(before.is_none_or(is_later), "{item} came too late");
        }
        self.items += items.len();
        let next = page["next_cursor"].as_str().expect("a cursor");
        let last = items.last().map(|item| &item["cursor"]);
        assert!(last.is_none_or(|last| last == next), "the last item is not where to go on: {page}");
        self.cursor = Some(next.to_owned());
        items
    }

    /// Reads what there is now, by pages of up to `limit`; returns the items.
    pub async fn to_the_end(&mut self, core: &Core, limit: u32) -> Vec<Value> {
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

    /// Asks `core` once, waiting for `wait_s`; `None` when it did not answer, or could not.
    pub async fn ask(&mut self, core: &CoreAddress, wait_s: u32) -> Option<usize> {
        let request = core.client.request(Method::GET, &format!("{}{}", core.url, self.path(1000, wait_s)));
        let reply: Reply = core.client.send(request.bearer_auth(&core.token)).await.ok()?;
        if reply.status == 503 {
            return None;
        }
        Some(self.take(&reply.expect(200).json()).len())
    }

    /// Fails unless it was told of each of `rows` as SQL has it, and of no other claim.
    pub fn knows(&self, rows: &[SqlClaim]) {
        let rows = rows.iter().map(|row| (row.id.clone(), (row.status.clone(), row.revision)));
        let rows: BTreeMap<_, _> = rows.collect();
        let wrong: Vec<_> = rows.iter().filter(|(id, row)| self.told.get(*id) != Some(row)).take(5).collect();
        assert!(wrong.is_empty(), "told otherwise or not at all, of {}: {wrong:?}", rows.len());
        assert_eq!(self.told.len(), rows.len(), "told of claims that SQL does not have");
    }
}

/// Where a core is asked that may be replaced meanwhile.
#[derive(Debug, Clone)]
pub struct CoreAddress {
    client: crate::client::Client,
    url: String,
    token: String,
}

impl CoreAddress {
    /// The admin API of `core`.
    pub fn of(core: &Core) -> Self {
        Self { client: core.client().once(), url: core.admin_url(""), token: core.admin_token() }
    }
}
