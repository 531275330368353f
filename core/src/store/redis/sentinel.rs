//! Sentinel: which server is the primary, and when another one is.
//!
//! All sentinels are asked at once. One that does not answer is no failure while another does, and none is taken at its
//! word: the server that it names must say itself that it is a primary.

use std::collections::HashMap;
use std::convert::Infallible;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use redis::{Client, ConnectionAddr, ErrorKind, RedisError, Value};
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::{Instant, sleep, timeout};

use super::primary::{Mode, NoPrimary, Primary, connect};
use crate::redis_address::{SentinelAddress, at};

/// The longest that one sentinel is waited for.
const ASK_MAX: Duration = Duration::from_millis(300);
/// How long a primary is looked for while no server that is named is one: a failover may be under way.
const FIND_MAX: Duration = Duration::from_millis(500);
const FIND_PAUSE: Duration = Duration::from_millis(50);
/// The channel on which a sentinel tells that it takes another server for the primary.
const SWITCHED: &str = "+switch-master";
/// A subscription that has been silent for this long is checked.
const SILENCE_MAX: Duration = Duration::from_secs(3);
/// How long after a broken subscription the next one begins.
const SUBSCRIBE_PAUSE: Duration = Duration::from_secs(1);

/// Sentinels, and what they are believed.
#[derive(Debug)]
pub struct Sentinels {
    address: SentinelAddress,
    /// The epoch of the latest failover that most of them agreed on and whose primary was connected to: a sentinel that names the
    /// primary of an earlier one is not believed, unless most of them do.
    latest: AtomicU64,
}

/// What a sentinel says of the primary.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Named {
    /// Raised by every failover: a sentinel with a lower one has missed some.
    epoch: u64,
    host: String,
    port: u16,
}

/// Why a sentinel named no primary.
#[derive(Debug, PartialEq)]
enum Unnamed {
    /// It watches no such service.
    UnknownService,
    /// It is another kind of server.
    NotASentinel,
    /// It has missed a failover that core has followed.
    Outdated,
    /// It gave no answer, or refused to.
    Failed(RedisError),
}

impl From<RedisError> for Unnamed {
    fn from(error: RedisError) -> Self {
        match error.detail() {
            Some(detail) if detail.starts_with("No such master") => Self::UnknownService,
            Some(detail) if detail.starts_with("unknown command") => Self::NotASentinel,
            _ => Self::Failed(error),
        }
    }
}

impl Sentinels {
    /// The Sentinels at `address`, none of which was asked yet.
    pub fn new(address: SentinelAddress) -> Self {
        Self { address, latest: AtomicU64::new(0) }
    }

    /// Connects to the primary, whose replies are waited for for `response_timeout` at most.
    ///
    /// # Errors
    /// When for half a second no sentinel names a server that is a primary and answers; at once when all sentinels say that
    /// they watch no such service.
    pub(super) async fn connect(&self, response_timeout: Duration) -> Result<Primary, NoPrimary> {
        let deadline = Instant::now() + FIND_MAX;
        loop {
            match self.try_connect(response_timeout).await {
                Err(error) if error.remedy().is_none() && Instant::now() < deadline => {
                    sleep(FIND_PAUSE).await;
                }
                result => return result,
            }
        }
    }

    /// Connects to the first of the named servers that is a primary.
    async fn try_connect(&self, response_timeout: Duration) -> Result<Primary, NoPrimary> {
        let mut reasons = Vec::new();
        let (named, agreed) = self.ask_all().await?;
        for named in named {
            match Primary::connect(self.client(&named)?, Mode::Alone, response_timeout).await {
                Ok(primary) => {
                    if agreed.as_ref() == Some(&named) {
                        self.latest.store(named.epoch, Ordering::Relaxed);
                    }
                    return Ok(primary);
                }
                Err(error) => reasons.push(format!("Sentinel names {}:{}: {error}", named.host, named.port)),
            }
        }
        Err(NoPrimary::NotNamed(reasons.join("; ").into()))
    }

    /// The primaries that are named, each once: the one that most sentinels name, then the one of the latest failover first.
    /// And the one that most of them name, if they agree; then no further sentinel is waited for.
    async fn ask_all(&self) -> Result<(Vec<Named>, Option<Named>), NoPrimary> {
        let ask = |sentinel| async move { (sentinel, self.ask(sentinel).await) };
        let mut asked: FuturesUnordered<_> = self.address.clients.iter().map(ask).collect();
        let (mut answers, mut unnamed, mut agreed) = (Vec::new(), Vec::new(), None);
        while let Some((sentinel, answer)) = asked.next().await {
            match answer {
                Ok(answer) => {
                    let alike = 1 + answers.iter().filter(|(_, other)| *other == answer).count();
                    answers.push((sentinel, answer.clone()));
                    if alike * 2 > self.address.clients.len() {
                        agreed = Some(answer);
                        break;
                    }
                }
                Err(why) => unnamed.push((sentinel, why)),
            }
        }
        let latest = self.latest.load(Ordering::Relaxed);
        let mut named: Vec<_> = agreed.iter().cloned().collect();
        for (sentinel, answer) in answers {
            if answer.epoch >= latest {
                named.push(answer);
            } else {
                unnamed.push((sentinel, Unnamed::Outdated));
            }
        }
        if named.is_empty() {
            Err(self.no_primary(&unnamed))
        } else {
            Ok((in_order(named, agreed.as_ref()), agreed))
        }
    }

    /// What one sentinel says.
    async fn ask(&self, sentinel: &Client) -> Result<Named, Unnamed> {
        let mut command = redis::cmd("SENTINEL");
        command.arg("MASTER").arg(&self.address.service);
        let asked = async {
            let mut connection = connect(sentinel, ASK_MAX).await?;
            command.query_async::<HashMap<String, String>>(&mut connection).await
        };
        let fields = within(asked).await?;
        let number = |name: &str| fields.get(name).and_then(|number| number.parse::<u64>().ok());
        let host = fields.get("ip").filter(|host| !host.is_empty()).cloned();
        let port = number("port").and_then(|port| u16::try_from(port).ok());
        let epoch = number("config-epoch").unwrap_or(0);
        match host.zip(port) {
            Some((host, port)) => Ok(Named { epoch, host, port }),
            None => Err(Unnamed::Failed(io::Error::from(io::ErrorKind::InvalidData).into())),
        }
    }

    /// Why there is no primary when no sentinel named one.
    fn no_primary(&self, unnamed: &[(&Client, Unnamed)]) -> NoPrimary {
        if unnamed.iter().all(|(_, why)| *why == Unnamed::UnknownService) {
            return NoPrimary::UnknownService(self.address.service.as_str().into());
        }
        if unnamed.iter().all(|(_, why)| *why == Unnamed::NotASentinel) {
            return NoPrimary::NotASentinel;
        }
        let reasons: Vec<_> = unnamed.iter().map(|(sentinel, why)| self.reason(sentinel, why)).collect();
        NoPrimary::NotNamed(reasons.join("; ").into())
    }

    /// Why one sentinel named no primary, in words.
    fn reason(&self, sentinel: &Client, why: &Unnamed) -> String {
        let address = address_of(sentinel);
        match why {
            Unnamed::UnknownService => {
                format!("Sentinel {address} watches no service '{}'", self.address.service)
            }
            Unnamed::NotASentinel => format!("{address} is no Sentinel"),
            Unnamed::Outdated => format!("Sentinel {address} has missed the last failover"),
            Unnamed::Failed(error)
                if error.code() == Some("NOAUTH") || error.kind() == ErrorKind::AuthenticationFailed =>
            {
                format!("Sentinel {address} wants another CLAIMGATE_REDIS_SENTINEL_PASSWORD: {error}")
            }
            Unnamed::Failed(error) => format!("Sentinel {address}: {error}"),
        }
    }

    /// A client of the server that is named.
    fn client(&self, named: &Named) -> Result<Client, RedisError> {
        Client::open(self.address.server.clone().set_addr(self.address(named)))
    }

    fn address(&self, named: &Named) -> ConnectionAddr {
        at(self.address.server.addr(), named.host.clone(), named.port)
    }

    /// Sends the primary's address to `heard` whenever a sentinel tells of a switch, and whenever one can be heard again. Never
    /// returns.
    pub(super) async fn listen(&self, heard: &UnboundedSender<ConnectionAddr>) {
        join_all(self.address.clients.iter().map(|sentinel| self.listen_to(sentinel, heard))).await;
    }

    async fn listen_to(&self, sentinel: &Client, heard: &UnboundedSender<ConnectionAddr>) -> Infallible {
        loop {
            let Err(error) = self.subscribe(sentinel, heard).await;
            tracing::debug!(%error, sentinel = %address_of(sentinel), "not subscribed; trying again");
            sleep(SUBSCRIBE_PAUSE).await;
        }
    }

    /// Listens to one sentinel until the connection breaks.
    async fn subscribe(
        &self,
        sentinel: &Client,
        heard: &UnboundedSender<ConnectionAddr>,
    ) -> Result<Infallible, RedisError> {
        let subscribed = async {
            let mut subscription = sentinel.get_async_pubsub().await?;
            subscription.subscribe(SWITCHED).await?;
            Ok(subscription)
        };
        let (mut sink, mut messages) = within(subscribed).await?.split();
        // There may have been a switch before.
        self.tell(heard).await;
        loop {
            match timeout(SILENCE_MAX, messages.next()).await {
                Ok(Some(_)) => self.tell(heard).await,
                Ok(None) => return Err(io::Error::from(io::ErrorKind::BrokenPipe).into()),
                Err(_) => drop(within(sink.ping::<Value>()).await?),
            }
        }
    }

    /// Sends the primary's address, if there is one: a server that is named and is none would only break what works.
    async fn tell(&self, heard: &UnboundedSender<ConnectionAddr>) {
        if let Ok(primary) = self.try_connect(ASK_MAX).await {
            // Without a receiver core is stopping.
            let _ = heard.send(address_of(&primary.client).clone());
        }
    }

    /// Why sentinels do not name the primary, one line for each that does not.
    pub(crate) async fn examine(&self) -> Vec<String> {
        let ask = |sentinel| async move {
            let why = self.ask(sentinel).await.err()?;
            Some(self.reason(sentinel, &why))
        };
        join_all(self.address.clients.iter().map(ask)).await.into_iter().flatten().collect()
    }
}

/// Each primary once: the one that is `agreed` on, then the one of the latest failover first.
fn in_order(mut named: Vec<Named>, agreed: Option<&Named>) -> Vec<Named> {
    named.sort_by_key(|named| (Some(named) != agreed, std::cmp::Reverse(named.epoch)));
    let mut first: Vec<Named> = Vec::new();
    for named in named {
        if !first.iter().any(|other| (&other.host, other.port) == (&named.host, named.port)) {
            first.push(named);
        }
    }
    first
}

fn address_of(client: &Client) -> &ConnectionAddr {
    client.get_connection_info().addr()
}

/// The result of a call to a sentinel, if it comes in time.
async fn within<T>(call: impl Future<Output = Result<T, RedisError>>) -> Result<T, RedisError> {
    timeout(ASK_MAX, call).await.map_err(io::Error::from)?
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(epoch: u64, port: u16) -> Named {
        Named { epoch, host: "10.0.0.1".to_owned(), port }
    }

    #[test]
    fn the_primary_that_most_name_is_tried_first_then_that_of_the_latest_failover_and_each_once() {
        let said = || vec![named(3, 1), named(4, 2), named(3, 1), named(2, 2), named(1, 3)];
        assert_eq!(in_order(said(), None), [named(4, 2), named(3, 1), named(1, 3)]);
        assert_eq!(in_order(said(), Some(&named(3, 1))), [named(3, 1), named(4, 2), named(1, 3)]);
    }
}
