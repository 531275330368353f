//! Reads of the feed: the claims that have changed, in the order of commits, each as it stands.
//!
//! A place in it is a row and a claim in that row. A database that was restored from a copy numbers its rows again: the claim
//! tells its places from those of before.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;
use std::str::FromStr;

use claimgate_shared::ids::parse_digest;
use claimgate_shared::{CampaignId, UserId};
use sqlx::Row as _;
use sqlx::any::AnyRow;

use super::claims::{ClaimRow, parse_row};
use super::numbers::{big, unreadable, unsigned};
use super::{SqlError, SqlStore, statements};
use crate::step;

/// The first field of every cursor.
const CURSOR_VERSION: &str = "1";

/// Rows of the feed that are read at once, of up to 32 claims each.
const ROWS_MAX: u32 = 128;

/// The feed's id and last number, and the row `$1`, if there is one.
const PLACE: &str = "SELECT feed_id, last_number, number, campaign_id, claims \
    FROM feed_position LEFT JOIN feed ON number = $1";

const AFTER: &str = "SELECT number, campaign_id, claims FROM feed WHERE number > $1 ORDER BY number LIMIT $2";

const AFTER_OF_CAMPAIGN: &str = "SELECT number, campaign_id, claims FROM feed \
    WHERE campaign_id = $3 AND number > $1 ORDER BY number LIMIT $2";

/// A place in a feed: before everything, or behind a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeedCursor {
    feed_id: String,
    number: u64,
    /// `user.digest`; `None` before everything, where the number is 0.
    claim: Option<String>,
}

/// A changed claim, as it stands.
#[derive(Debug)]
pub struct FeedItem {
    /// The place behind it.
    pub cursor: FeedCursor,
    /// The claim.
    pub row: ClaimRow,
}

/// A part of the feed. It may have fewer items than were asked for, but has none only where none is left.
#[derive(Debug)]
pub struct FeedPage {
    /// The claims, each once.
    pub items: Vec<FeedItem>,
    /// Where to go on.
    pub next: FeedCursor,
    /// The feed's last number: nothing comes behind this page before there is a higher one.
    pub last: u64,
}

/// A row of the feed.
#[derive(Debug)]
struct FeedRow {
    number: u64,
    campaign: CampaignId,
    part: Part,
}

/// What a row tells of.
#[derive(Debug)]
enum Part {
    /// These claims, `user.digest` each.
    Claims(Vec<String>),
    /// All claims of the campaign that come behind this one, `user.digest`, or all of them.
    Campaign(Option<String>),
}

/// A claim in a row: the row's number, the campaign, and `user.digest`.
type Place = (u64, CampaignId, String);

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
            _ => return Err("is no cursor"),
        };
        let number = number.parse().map_err(|_| "is no cursor")?;
        let cursor = Self { feed_id: feed_id.to_owned(), number, claim };
        // One text for each place: no `+7` and no `07`.
        if cursor.to_string() == text { Ok(cursor) } else { Err("is no cursor") }
    }
}

impl FeedCursor {
    /// Before everything in a feed.
    pub(super) fn begin(feed_id: String) -> Self {
        Self { feed_id, number: 0, claim: None }
    }

    /// Behind `claim`, `user.digest`, in the row `number`.
    pub(super) fn behind(feed_id: String, number: u64, claim: String) -> Self {
        Self { feed_id, number, claim: Some(claim) }
    }
}

impl FeedRow {
    /// As [`AFTER`] returns it.
    fn read(row: &AnyRow) -> Result<Self, SqlError> {
        let claims: Option<String> = row.try_get("claims")?;
        let part = claims.map(|claims| Part::Claims(claims.split(' ').map(str::to_owned).collect()));
        Ok(Self {
            number: unsigned(row.try_get("number")?)?,
            campaign: row.try_get::<String, _>("campaign_id")?.try_into().map_err(unreadable)?,
            part: part.unwrap_or(Part::Campaign(None)),
        })
    }

    /// What comes in it behind `claim`; `None` when that is not one of its claims.
    fn behind(self, claim: &str) -> Option<Self> {
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
    /// The feed's last number.
    pub(crate) async fn feed_end(&self) -> Result<u64, SqlError> {
        step::before("sql:feed_end").await;
        let row = sqlx::query("SELECT last_number FROM feed_position").fetch_one(&self.pool).await;
        unsigned(step::after(row)?.try_get(0)?)
    }

    /// Up to `limit` claims of one campaign or of all that have changed after the place `after`, or ever. `None` when `after`
    /// is no place of this feed.
    ///
    /// # Errors
    /// [`SqlError::Unreadable`] for a row that this version cannot read, [`SqlError::Sql`] when the database does not
    /// answer.
    pub(crate) async fn feed(
        &self,
        campaign: Option<&CampaignId>,
        after: Option<&FeedCursor>,
        limit: u32,
    ) -> Result<Option<FeedPage>, SqlError> {
        step::before("sql:feed").await;
        let mut number = after.map_or(0, |after| after.number);
        let place = sqlx::query(PLACE).bind(big(number)).fetch_one(&self.pool).await;
        let place = step::after(place)?;
        let (feed_id, last) = (place.try_get("feed_id")?, unsigned(place.try_get("last_number")?)?);
        let begin = FeedCursor::begin(feed_id);
        let mut rows = VecDeque::new();
        if let Some(FeedCursor { feed_id, claim: Some(claim), .. }) = after {
            let is_ours = *feed_id == begin.feed_id && place.try_get::<Option<i64>, _>("number")?.is_some();
            let row = if is_ours { FeedRow::read(&place)?.behind(claim) } else { None };
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

    /// Rows of the feed after the number `after`.
    async fn feed_rows(
        &self,
        campaign: Option<&CampaignId>,
        after: u64,
        limit: u32,
    ) -> Result<VecDeque<FeedRow>, SqlError> {
        let query = sqlx::query(if campaign.is_some() { AFTER_OF_CAMPAIGN } else { AFTER });
        // None of them is empty.
        let query = query.bind(big(after)).bind(i64::from(limit.min(ROWS_MAX)));
        let query = match campaign {
            Some(campaign) => query.bind(campaign.as_str()),
            None => query,
        };
        query.fetch_all(&self.pool).await?.iter().map(FeedRow::read).collect()
    }

    /// Takes `rows` from the front on, and reads up to `limit` of their claims: of one whole campaign, or those that are named
    /// before the next such row.
    async fn next_items(
        &self,
        rows: &mut VecDeque<FeedRow>,
        limit: u32,
        feed_id: &str,
    ) -> Result<Vec<FeedItem>, SqlError> {
        let limit_len = usize::try_from(limit).unwrap_or(usize::MAX);
        let mut places: Vec<Place> = Vec::new();
        while places.len() < limit_len
            && let Some(row) = rows.pop_front()
        {
            match row.part {
                Part::Claims(claims) => {
                    places.extend(claims.into_iter().map(|claim| (row.number, row.campaign.clone(), claim)));
                }
                Part::Campaign(_) if !places.is_empty() => {
                    rows.push_front(row);
                    break;
                }
                Part::Campaign(behind) => {
                    return self.whole_campaign(row.number, &row.campaign, behind, limit, feed_id).await;
                }
            }
        }
        let mut items = self.named_claims(last_of_each(places), feed_id).await?;
        items.truncate(limit_len);
        Ok(items)
    }

    async fn whole_campaign(
        &self,
        number: u64,
        campaign: &CampaignId,
        behind: Option<String>,
        limit: u32,
        feed_id: &str,
    ) -> Result<Vec<FeedItem>, SqlError> {
        let behind = behind.unwrap_or_default();
        let (user, digest) = behind.split_once('.').unwrap_or_default();
        let found = sqlx::query(statements::FEED_OF_CAMPAIGN)
            .bind(campaign.as_str())
            .bind(user)
            .bind(digest)
            .bind(i64::from(limit))
            .fetch_all(&self.pool)
            .await?;
        let rows = found.iter().map(|row| parse_row(campaign, row.try_get(0)?));
        rows.map(|row| Ok(item(feed_id, number, row?))).collect()
    }

    async fn named_claims(&self, places: Vec<Place>, feed_id: &str) -> Result<Vec<FeedItem>, SqlError> {
        let asked: Vec<_> = (0..).zip(&places).filter_map(asked_for).collect();
        let found =
            self.with_rows(statements::FEED_OF_CLAIMS, &asked, asked.len()).fetch_all(&self.pool).await?;
        let mut rows = HashMap::new();
        for row in &found {
            rows.insert(unsigned(row.try_get(0)?)?, row.try_get::<Option<String>, _>(1)?);
        }
        let mut items = Vec::new();
        for (at, (number, campaign, _)) in (0..).zip(&places) {
            // None where SQL has lost the claim.
            if let Some(text) = rows.remove(&at).flatten() {
                items.push(item(feed_id, *number, parse_row(campaign, &text)?));
            }
        }
        Ok(items)
    }
}

/// A place as [`statements::FEED_OF_CLAIMS`] takes it.
fn asked_for((at, (_, campaign, claim)): (u64, &Place)) -> Option<(u64, &str, &str, &str)> {
    let (user, digest) = claim.split_once('.')?;
    Some((at, campaign.as_str(), user, digest))
}

/// The last place of each claim: it stands as its last change has made it.
fn last_of_each(mut places: Vec<Place>) -> Vec<Place> {
    let mut seen = HashSet::new();
    places.reverse();
    places.retain(|(_, campaign, claim)| seen.insert((campaign.clone(), claim.clone())));
    places.reverse();
    places
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
    fn a_cursor_is_read_as_it_was_written_and_nothing_else_is_one() {
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
            assert_eq!(wrong.parse::<FeedCursor>(), Err("is no cursor"), "{wrong}");
        }
    }

    #[test]
    fn of_each_claim_the_last_place_is_told() {
        let place = |number, claim: &str| (number, "demo".parse::<CampaignId>().unwrap(), claim.to_owned());
        let places = vec![place(1, "a.x"), place(1, "b.x"), place(2, "a.x")];
        assert_eq!(last_of_each(places), [place(1, "b.x"), place(2, "a.x")]);
    }
}
