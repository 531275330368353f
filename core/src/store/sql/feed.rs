//! Reads the feed: the changed claims in commit order, each in its current state.
//!
//! A position in the feed is a row and a claim in that row. After a restore from a backup, row numbers are
//! used again for other claims. Since a cursor contains its claim, a cursor from before the restore is
//! detected.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;
use std::str::FromStr;

use claimgate_shared::ids::parse_digest;
use claimgate_shared::{CampaignId, UserId};
use sqlx::Row as _;
use sqlx::any::AnyRow;

use super::claims::{ClaimRow, parse_row};
use super::numbers::{to_i64, unreadable, unsigned};
use super::{SqlError, SqlStore, statements};

/// The first field of every cursor.
const CURSOR_VERSION: &str = "1";

/// Maximum number of feed rows in one read. Each row has up to 32 claims.
const ROWS_MAX: u32 = 128;

/// Reads the feed's id and last number, and the row with the number `$1`, if there is one.
const POSITION: &str = "SELECT feed_id, last_number, number, campaign_id, claims \
    FROM feed_position LEFT JOIN feed ON number = $1";

const AFTER: &str = "SELECT number, campaign_id, claims FROM feed WHERE number > $1 ORDER BY number LIMIT $2";

const AFTER_OF_CAMPAIGN: &str = "SELECT number, campaign_id, claims FROM feed \
    WHERE campaign_id = $3 AND number > $1 ORDER BY number LIMIT $2";

/// A position in a feed: before the first claim, or after a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeedCursor {
    feed_id: String,
    number: u64,
    /// The claim's key in the row, as `user.digest`. `None` at the start of the feed (`number` 0).
    claim: Option<String>,
}

/// A changed claim in its current state.
#[derive(Debug)]
pub struct FeedItem {
    /// The position after this item.
    pub cursor: FeedCursor,
    /// The claim.
    pub row: ClaimRow,
}

/// A page of the feed. A page may have fewer items than requested, but is empty only at the end of the feed.
#[derive(Debug)]
pub struct FeedPage {
    /// The claims, without duplicates.
    pub items: Vec<FeedItem>,
    /// The position after this page.
    pub next: FeedCursor,
    /// The feed's last number. After an empty page, there are new items only once this number rises.
    pub last: u64,
}

#[derive(Debug)]
struct FeedRow {
    number: u64,
    campaign: CampaignId,
    part: Part,
}

/// The unread claims of a row.
#[derive(Debug)]
enum Part {
    /// The listed claims, as `user.digest`.
    Claims(Vec<String>),
    /// All claims of the campaign, ordered by user; if `user.digest` is given, only claims after this claim.
    Campaign(Option<String>),
}

/// A claim in a row: the row's number, the campaign, and `user.digest`.
type Position = (u64, CampaignId, String);

impl fmt::Display for FeedCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{CURSOR_VERSION}.{}.{}", self.feed_id, self.number)?;
        self.claim.iter().try_for_each(|claim| write!(f, ".{claim}"))
    }
}

impl FromStr for FeedCursor {
    type Err = &'static str;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let fields: Vec<_> = text.split('.').collect();
        let (feed_id, number, claim) = match fields[..] {
            [CURSOR_VERSION, feed_id, "0"] => (feed_id, "0", None),
            [CURSOR_VERSION, feed_id, number, user, digest]
                if user.parse::<UserId>().is_ok() && parse_digest(digest).is_ok() =>
            {
                (feed_id, number, Some(format!("{user}.{digest}")))
            }
            _ => return Err("is not a cursor"),
        };
        let number = number.parse().map_err(|_| "is not a cursor")?;
        let cursor = Self { feed_id: feed_id.to_owned(), number, claim };
        // Each position has exactly one text, so `+7` and `07` are rejected.
        if cursor.to_string() == text { Ok(cursor) } else { Err("is not a cursor") }
    }
}

impl FeedCursor {
    /// Returns the position before the first claim.
    pub(super) fn begin(feed_id: String) -> Self {
        Self { feed_id, number: 0, claim: None }
    }

    /// Returns the position after `claim` (`user.digest`) in the row `number`.
    pub(super) fn after(feed_id: String, number: u64, claim: String) -> Self {
        Self { feed_id, number, claim: Some(claim) }
    }
}

impl FeedRow {
    /// Reads a row that [`AFTER`] returns.
    fn read(row: &AnyRow) -> Result<Self, SqlError> {
        let claims: Option<String> = row.try_get("claims")?;
        let part = claims.map(|claims| Part::Claims(claims.split(' ').map(str::to_owned).collect()));
        Ok(Self {
            number: unsigned(row.try_get("number")?)?,
            campaign: row.try_get::<String, _>("campaign_id")?.try_into().map_err(unreadable)?,
            part: part.unwrap_or(Part::Campaign(None)),
        })
    }

    /// Returns the rest of the row after `claim`; `None` if the row does not have this claim.
    fn after(self, claim: &str) -> Option<Self> {
        let part = match self.part {
            Part::Claims(mut claims) => {
                let at = claims.iter().position(|one| one == claim)?;
                Part::Claims(claims.split_off(at + 1))
            }
            Part::Campaign(_) => Part::Campaign(Some(claim.to_owned())),
        };
        Some(Self { part, ..self })
    }
}

impl SqlStore {
    /// Returns the feed's last number.
    pub(crate) async fn feed_end(&self) -> Result<u64, SqlError> {
        let query = sqlx::query("SELECT last_number FROM feed_position");
        unsigned(self.pool.one("sql:feed_end", query).await?.try_get(0)?)
    }

    /// Returns up to `limit` changed claims of one campaign or of all campaigns, after the position `after`,
    /// or from the beginning. Returns `None` if `after` is not a position in this feed.
    pub(crate) async fn feed(
        &self,
        campaign: Option<&CampaignId>,
        after: Option<&FeedCursor>,
        limit: u32,
    ) -> Result<Option<FeedPage>, SqlError> {
        let mut number = after.map_or(0, |after| after.number);
        let position = self.pool.one("sql:feed", sqlx::query(POSITION).bind(to_i64(number))).await?;
        let (feed_id, last) = (position.try_get("feed_id")?, unsigned(position.try_get("last_number")?)?);
        let begin = FeedCursor::begin(feed_id);
        let mut rows = VecDeque::new();
        if let Some(FeedCursor { feed_id, claim: Some(claim), .. }) = after {
            let is_ours =
                *feed_id == begin.feed_id && position.try_get::<Option<i64>, _>("number")?.is_some();
            let row = if is_ours { FeedRow::read(&position)?.after(claim) } else { None };
            let Some(row) = row else { return Ok(None) };
            rows.extend(Some(row).filter(|row| campaign.is_none_or(|id| row.campaign == *id)));
        } else if after.is_some_and(|after| *after != begin) {
            return Ok(None);
        }
        let mut items = Vec::new();
        while items.is_empty() {
            if rows.is_empty() {
                rows = self.feed_rows(campaign, number, limit).await?;
            }
            let Some(end) = rows.back() else { break };
            number = end.number;
            items = self.next_items(&mut rows, limit, &begin.feed_id).await?;
        }
        let next = items.last().map(|item: &FeedItem| &item.cursor).or(after).unwrap_or(&begin).clone();
        Ok(Some(FeedPage { items, next, last }))
    }

    /// Reads rows of the feed with numbers above `after`.
    async fn feed_rows(
        &self,
        campaign: Option<&CampaignId>,
        after: u64,
        limit: u32,
    ) -> Result<VecDeque<FeedRow>, SqlError> {
        let query = sqlx::query(if campaign.is_some() { AFTER_OF_CAMPAIGN } else { AFTER });
        // No row is empty, so `limit` rows are enough.
        let query = query.bind(to_i64(after)).bind(i64::from(limit.min(ROWS_MAX)));
        let query = campaign.iter().fold(query, |query, id| query.bind(id.as_str()));
        query.fetch_all(&mut self.pool.lease().await?).await?.iter().map(FeedRow::read).collect()
    }

    /// Takes rows from the front of `rows`, and reads up to `limit` claims of these rows. A row for a whole
    /// campaign is read separately; otherwise all rows up to the next such row are read together.
    async fn next_items(
        &self,
        rows: &mut VecDeque<FeedRow>,
        limit: u32,
        feed_id: &str,
    ) -> Result<Vec<FeedItem>, SqlError> {
        let limit_len = usize::try_from(limit).unwrap_or(usize::MAX);
        let mut positions: Vec<Position> = Vec::new();
        while positions.len() < limit_len
            && let Some(row) = rows.pop_front()
        {
            match row.part {
                Part::Claims(claims) => {
                    positions
                        .extend(claims.into_iter().map(|claim| (row.number, row.campaign.clone(), claim)));
                }
                Part::Campaign(_) if !positions.is_empty() => {
                    rows.push_front(row);
                    break;
                }
                Part::Campaign(after) => {
                    return self.whole_campaign(row.number, &row.campaign, after, limit, feed_id).await;
                }
            }
        }
        let mut items = self.named_claims(last_of_each(positions), feed_id).await?;
        items.truncate(limit_len);
        Ok(items)
    }

    async fn whole_campaign(
        &self,
        number: u64,
        campaign: &CampaignId,
        after: Option<String>,
        limit: u32,
        feed_id: &str,
    ) -> Result<Vec<FeedItem>, SqlError> {
        let after = after.unwrap_or_default();
        let (user, digest) = after.split_once('.').unwrap_or_default();
        let found = sqlx::query(statements::FEED_OF_CAMPAIGN)
            .bind(campaign.as_str())
            .bind(user)
            .bind(digest)
            .bind(i64::from(limit))
            .fetch_all(&mut self.pool.lease().await?)
            .await?;
        let rows = found.iter().map(|row| parse_row(campaign, row.try_get(0)?));
        rows.map(|row| Ok(item(feed_id, number, row?))).collect()
    }

    async fn named_claims(&self, positions: Vec<Position>, feed_id: &str) -> Result<Vec<FeedItem>, SqlError> {
        let keys: Vec<_> = (0..).zip(&positions).filter_map(statement_row).collect();
        let found = self
            .with_rows(statements::FEED_OF_CLAIMS, &keys, keys.len())
            .fetch_all(&mut self.pool.lease().await?)
            .await?;
        let mut rows = HashMap::new();
        for row in &found {
            rows.insert(unsigned(row.try_get(0)?)?, row.try_get::<Option<String>, _>(1)?);
        }
        let mut items = Vec::new();
        for (at, (number, campaign, _)) in (0..).zip(&positions) {
            // The text is `None` if SQL has lost the claim.
            if let Some(text) = rows.remove(&at).flatten() {
                items.push(item(feed_id, *number, parse_row(campaign, &text)?));
            }
        }
        Ok(items)
    }
}

/// Returns a position in the format of [`statements::FEED_OF_CLAIMS`].
fn statement_row((at, (_, campaign, claim)): (u64, &Position)) -> Option<(u64, &str, &str, &str)> {
    let (user, digest) = claim.split_once('.')?;
    Some((at, campaign.as_str(), user, digest))
}

/// Keeps only the last position of each claim, since every position would show the same current state.
fn last_of_each(mut positions: Vec<Position>) -> Vec<Position> {
    let mut seen = HashSet::new();
    positions.reverse();
    positions.retain(|(_, campaign, claim)| seen.insert((campaign.clone(), claim.clone())));
    positions.reverse();
    positions
}

fn item(feed_id: &str, number: u64, row: ClaimRow) -> FeedItem {
    let id = row.claim.id.to_string();
    let claim = id.split_once('.').map(|(_, claim)| claim.to_owned());
    FeedItem { cursor: FeedCursor { feed_id: feed_id.to_owned(), number, claim }, row }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_well_formed_text_is_parsed_as_a_cursor() {
        for text in ["1.42.0", "1.42.7.ann.aHSIRPhRB6fDKajWWhFLtQ"] {
            assert_eq!(text.parse::<FeedCursor>().unwrap().to_string(), text);
        }
        for wrong in [
            "",
            "0",
            "1.42",
            "1.42.7",
            "1.42.7.ann",
            "1.42.7.ann.short",
            "1.42.-7.ann.aHSIRPhRB6fDKajWWhFLtQ",
            "1.42.x.ann.aHSIRPhRB6fDKajWWhFLtQ",
            "1.42.+7.ann.aHSIRPhRB6fDKajWWhFLtQ",
            "1.42.07.ann.aHSIRPhRB6fDKajWWhFLtQ",
            "1.42.7.ann.aHSIRPhRB6fDKajWWhFLtQ.1",
            "2.42.0",
        ] {
            assert_eq!(wrong.parse::<FeedCursor>(), Err("is not a cursor"), "{wrong}");
        }
    }

    #[test]
    fn only_the_last_position_of_each_claim_is_kept() {
        let position =
            |number, claim: &str| (number, "demo".parse::<CampaignId>().unwrap(), claim.to_owned());
        let positions = vec![position(1, "a.x"), position(1, "b.x"), position(2, "a.x")];
        assert_eq!(last_of_each(positions), [position(1, "b.x"), position(2, "a.x")]);
    }
}
