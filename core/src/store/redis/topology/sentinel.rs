//! Sentinel: finds the current primary.
//!
//! All sentinels are queried in parallel. A sentinel that does not answer is ignored if another sentinel
//! answers. No sentinel is trusted blindly: the server that it names must itself report that it is a primary.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use parking_lot::Mutex;
use redis::{Client, ConnectionAddr, ErrorKind, RedisError};
use tokio::time::{Instant, sleep, timeout};

use super::primary::{Mode, NoPrimary, Primary, connect};
use crate::redis_address::{SentinelAddress, same_scheme};

/// Timeout for one sentinel.
pub(super) const QUERY_TIMEOUT: Duration = Duration::from_millis(300);
/// Time limit of the search while no named server is a primary: a failover may be in progress.
const FIND_MAX: Duration = Duration::from_millis(500);
const FIND_PAUSE: Duration = Duration::from_millis(50);
/// Time for which core waits for the successor of a primary that Sentinel is replacing. Longer than a usual promotion,
/// which takes up to 1 s.
pub(super) const LEAVE_MAX: Duration = Duration::from_secs(3);

/// The Sentinels of one service, and the latest failover that they agreed on.
#[derive(Debug)]
pub struct Sentinels {
    pub(super) address: SentinelAddress,
    /// The epoch of the latest failover on which most sentinels agreed and whose primary accepted a
    /// connection. A sentinel with an earlier epoch is ignored unless most sentinels agree with it.
    latest: AtomicU64,
    /// The primary that is being replaced, and when core may connect to it again.
    leaving: Mutex<Option<Box<(ConnectionAddr, Instant)>>>,
}

/// The primary as named by a sentinel.
#[derive(Debug, Clone, PartialEq, Eq)]
struct NamedPrimary {
    /// Raised by every failover: a sentinel with a lower epoch has missed a failover.
    epoch: u64,
    host: String,
    port: u16,
}

/// The reason why a sentinel named no primary.
#[derive(Debug, PartialEq)]
enum SentinelError {
    /// The sentinel does not monitor this service.
    UnknownService,
    /// The server is not a Sentinel.
    NotASentinel,
    /// The sentinel has missed a failover that core has followed.
    Outdated,
    /// The sentinel did not answer, or answered with an error.
    Failed(RedisError),
}

impl From<RedisError> for SentinelError {
    fn from(error: RedisError) -> Self {
        match error.detail() {
            Some(detail) if detail.starts_with("No such master") => Self::UnknownService,
            Some(detail) if detail.starts_with("unknown command") => Self::NotASentinel,
            _ => Self::Failed(error),
        }
    }
}

impl Sentinels {
    /// Creates the Sentinels at `address` without connecting to them.
    pub fn new(address: SentinelAddress) -> Self {
        Self { address, latest: AtomicU64::new(0), leaving: Mutex::default() }
    }

    /// Keeps core from connecting, for [`LEAVE_MAX`], to a primary that Sentinel is replacing. By then, it either has a
    /// successor, or Sentinel could not promote the replica.
    pub(super) fn leave(&self, primary: ConnectionAddr) {
        *self.leaving.lock() = Some(Box::new((primary, Instant::now() + LEAVE_MAX)));
    }

    fn is_leaving(&self, primary: &ConnectionAddr, now: Instant) -> bool {
        self.leaving.lock().as_deref().is_some_and(|(left, until)| left == primary && now < *until)
    }

    /// Connects to the primary; `response_timeout` limits the wait for each reply.
    ///
    /// # Errors
    /// If for half a second no sentinel names an available primary; immediately if no sentinel watches the
    /// service or no server is a Sentinel.
    pub(in crate::store::redis) async fn connect(
        &self,
        response_timeout: Duration,
    ) -> Result<Primary, NoPrimary> {
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

    /// Connects to the first named server that is a primary.
    pub(super) async fn try_connect(&self, response_timeout: Duration) -> Result<Primary, NoPrimary> {
        let mut reasons = Vec::new();
        let (named, agreed) = self.query_all().await?;
        for named in named {
            if self.is_leaving(&self.address(&named), Instant::now()) {
                reasons.push(format!("Sentinel is replacing {}:{}", named.host, named.port));
                continue;
            }
            match Primary::connect(self.client(&named)?, Mode::Standalone, response_timeout).await {
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

    /// Queries all sentinels for the primary. Returns the named servers in the order in which to try them,
    /// and the server that most sentinels agree on, if there is one. Stops early once a majority agrees.
    async fn query_all(&self) -> Result<(Vec<NamedPrimary>, Option<NamedPrimary>), NoPrimary> {
        let query = |sentinel| async move { (sentinel, self.query_primary(sentinel).await) };
        let mut replies: FuturesUnordered<_> = self.address.clients.iter().map(query).collect();
        let (mut answers, mut failures, mut agreed) = (Vec::new(), Vec::new(), None);
        while let Some((sentinel, answer)) = replies.next().await {
            match answer {
                Ok(answer) => {
                    let votes = 1 + answers.iter().filter(|(_, other)| *other == answer).count();
                    answers.push((sentinel, answer.clone()));
                    if votes * 2 > self.address.clients.len() {
                        agreed = Some(answer);
                        break;
                    }
                }
                Err(error) => failures.push((sentinel, error)),
            }
        }
        let latest = self.latest.load(Ordering::Relaxed);
        let mut named: Vec<_> = agreed.iter().cloned().collect();
        for (sentinel, answer) in answers {
            if answer.epoch >= latest {
                named.push(answer);
            } else {
                failures.push((sentinel, SentinelError::Outdated));
            }
        }
        if named.is_empty() {
            Err(self.no_primary(&failures))
        } else {
            Ok((in_order(named, agreed.as_ref()), agreed))
        }
    }

    /// Queries one sentinel for the primary.
    async fn query_primary(&self, sentinel: &Client) -> Result<NamedPrimary, SentinelError> {
        let mut command = redis::cmd("SENTINEL");
        command.arg("MASTER").arg(&self.address.service);
        let reply = async {
            let mut connection = connect(sentinel, QUERY_TIMEOUT).await?;
            command.query_async::<HashMap<String, String>>(&mut connection).await
        };
        let fields = within(reply).await?;
        let number = |name: &str| fields.get(name).and_then(|number| number.parse::<u64>().ok());
        let host = fields.get("ip").filter(|host| !host.is_empty()).cloned();
        let port = number("port").and_then(|port| u16::try_from(port).ok());
        let epoch = number("config-epoch").unwrap_or(0);
        match host.zip(port) {
            Some((host, port)) => Ok(NamedPrimary { epoch, host, port }),
            None => Err(SentinelError::Failed(io::Error::from(io::ErrorKind::InvalidData).into())),
        }
    }

    /// Builds the error for the case that no sentinel named a primary.
    fn no_primary(&self, failures: &[(&Client, SentinelError)]) -> NoPrimary {
        if failures.iter().all(|(_, error)| *error == SentinelError::UnknownService) {
            return NoPrimary::UnknownService(self.address.service.as_str().into());
        }
        if failures.iter().all(|(_, error)| *error == SentinelError::NotASentinel) {
            return NoPrimary::NotASentinel;
        }
        let reasons: Vec<_> = failures.iter().map(|(sentinel, error)| self.reason(sentinel, error)).collect();
        NoPrimary::NotNamed(reasons.join("; ").into())
    }

    /// Describes why one sentinel named no primary.
    fn reason(&self, sentinel: &Client, error: &SentinelError) -> String {
        let address = address_of(sentinel);
        match error {
            SentinelError::UnknownService => {
                format!("Sentinel {address} watches no service '{}'", self.address.service)
            }
            SentinelError::NotASentinel => format!("{address} is not a Sentinel"),
            SentinelError::Outdated => format!("Sentinel {address} missed the last failover"),
            SentinelError::Failed(error)
                if error.code() == Some("NOAUTH") || error.kind() == ErrorKind::AuthenticationFailed =>
            {
                format!("Sentinel {address} requires a different CLAIMGATE_REDIS_SENTINEL_PASSWORD: {error}")
            }
            SentinelError::Failed(error) => format!("Sentinel {address}: {error}"),
        }
    }

    /// Creates a client for the named server.
    fn client(&self, named: &NamedPrimary) -> Result<Client, RedisError> {
        Client::open(self.address.server.clone().set_addr(self.address(named)))
    }

    fn address(&self, named: &NamedPrimary) -> ConnectionAddr {
        same_scheme(self.address.server.addr(), named.host.clone(), named.port)
    }

    /// Checks all sentinels. Returns one line for each sentinel that does not name the primary.
    pub(crate) async fn examine(&self) -> Vec<String> {
        let query = |sentinel| async move {
            let error = self.query_primary(sentinel).await.err()?;
            Some(self.reason(sentinel, &error))
        };
        join_all(self.address.clients.iter().map(query)).await.into_iter().flatten().collect()
    }
}

/// Removes duplicates and sorts: the server `agreed` on first, then by the latest failover.
fn in_order(mut named: Vec<NamedPrimary>, agreed: Option<&NamedPrimary>) -> Vec<NamedPrimary> {
    named.sort_by_key(|named| (Some(named) != agreed, std::cmp::Reverse(named.epoch)));
    let mut unique: Vec<NamedPrimary> = Vec::new();
    for named in named {
        if !unique.iter().any(|other| (&other.host, other.port) == (&named.host, named.port)) {
            unique.push(named);
        }
    }
    unique
}

pub(super) fn address_of(client: &Client) -> &ConnectionAddr {
    client.get_connection_info().addr()
}

/// Limits a call to a sentinel to [`QUERY_TIMEOUT`].
pub(super) async fn within<T>(call: impl Future<Output = Result<T, RedisError>>) -> Result<T, RedisError> {
    timeout(QUERY_TIMEOUT, call).await.map_err(io::Error::from)?
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redis_address::RedisAddress;

    fn named(epoch: u64, port: u16) -> NamedPrimary {
        NamedPrimary { epoch, host: "10.0.0.1".to_owned(), port }
    }

    #[test]
    fn a_primary_that_is_replaced_is_left_for_a_limited_time() {
        let address = RedisAddress::parse("redis+sentinel://192.0.2.1/main", None).unwrap();
        let RedisAddress::Sentinel(address) = address else { panic!("{address:?}") };
        let sentinels = Sentinels::new(address);
        let [old, other] = [1, 2].map(|port| sentinels.address(&named(1, port)));
        let before = Instant::now();
        sentinels.leave(old.clone());
        assert!(sentinels.is_leaving(&old, before) && !sentinels.is_leaving(&other, before));
        let later = Instant::now() + LEAVE_MAX;
        assert!(!sentinels.is_leaving(&old, later), "a failed promotion must not keep core away");
        sentinels.leave(other);
        assert!(!sentinels.is_leaving(&old, before), "the old primary may be promoted again");
    }

    #[test]
    fn the_agreed_primary_is_tried_first_then_the_latest_failover() {
        let answers = || vec![named(3, 1), named(4, 2), named(3, 1), named(2, 2), named(1, 3)];
        assert_eq!(in_order(answers(), None), [named(4, 2), named(3, 1), named(1, 3)]);
        assert_eq!(in_order(answers(), Some(&named(3, 1))), [named(3, 1), named(4, 2), named(1, 3)]);
    }
}
