//! Connects to a primary, and checks that a server is a primary.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, ConnectionAddr, ErrorKind, RedisError};
use tokio::net::lookup_host;
use tokio::time::{Instant, timeout, timeout_at};

const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);

/// The reason why there is no connection to a primary.
#[derive(Debug, Clone, thiserror::Error)]
pub enum NoPrimary {
    /// The server is a replica.
    #[error("this Redis is a replica, which cannot decide claims")]
    Replica,
    /// The server is a Sentinel.
    #[error("this is a Sentinel, not a Redis server")]
    Sentinel,
    /// The server is a node of a cluster.
    #[error("this Redis is a node of a cluster")]
    Cluster,
    /// The server should be a node of a cluster, but is not.
    #[error("this Redis is not a node of a cluster")]
    NotClustered,
    /// No Sentinel watches a service with this name.
    #[error("Sentinel watches no service '{0}'")]
    UnknownService(Arc<str>),
    /// The servers should be Sentinels, but none of them is.
    #[error("no server at this address is a Sentinel")]
    NotASentinel,
    /// Sentinel or the cluster names no available primary, for these reasons.
    #[error("{0}")]
    NotNamed(Arc<str>),
    /// The server does not answer.
    #[error(transparent)]
    Unreachable(#[from] RedisError),
}

impl NoPrimary {
    /// Returns a hint on how to fix the address; `None` if the address may be right and the server is just
    /// unavailable.
    pub fn remedy(&self) -> Option<&'static str> {
        match self {
            Self::Replica => Some(
                "use the address of its primary, or of the Sentinels that watch it: \
                 redis+sentinel://HOST:PORT[,HOST:PORT…]/SERVICE",
            ),
            Self::Sentinel => {
                Some("use redis+sentinel://HOST:PORT[,HOST:PORT…]/SERVICE (rediss+sentinel:// with TLS)")
            }
            Self::Cluster => Some("use redis+cluster://HOST:PORT[,HOST:PORT…] (rediss+cluster:// with TLS)"),
            Self::NotClustered => Some("use redis:// or rediss://"),
            Self::UnknownService(_) => Some(
                "correct the name after the last '/': `SENTINEL MASTERS`, sent to a Sentinel, lists all services",
            ),
            Self::NotASentinel => {
                Some("use the addresses of the Sentinels (usually port 26379), not of the servers")
            }
            Self::NotNamed(_) | Self::Unreachable(_) => None,
        }
    }

    fn timed_out() -> Self {
        Self::Unreachable(io::Error::from(io::ErrorKind::TimedOut).into())
    }

    /// Returns the rank of this error among those of a name's addresses; the highest is reported. A server that
    /// is not a primary has the lowest rank, since a primary that does not answer may be back soon.
    fn rank(&self) -> u8 {
        match self {
            Self::Unreachable(error)
                if error.code().is_some() || error.kind() == ErrorKind::AuthenticationFailed =>
            {
                2
            }
            Self::NotNamed(_) | Self::Unreachable(_) => 1,
            _ => 0,
        }
    }
}

/// A connection to a primary.
#[derive(Debug)]
pub struct Primary {
    /// The connection.
    pub connection: MultiplexedConnection,
    /// The client by whose address the server is known.
    pub(in crate::store::redis) client: Arc<Client>,
    /// The client that makes further connections to the same server. It differs from `client` if that has a name with
    /// several addresses.
    pub(in crate::store::redis) pinned: Arc<Client>,
    /// The server's replication id, which changes when it is promoted; empty if unknown.
    pub(in crate::store::redis) replication_id: Arc<str>,
    /// The server's current run, if known.
    pub(in crate::store::redis) run: Option<Run>,
}

/// One run of a server, from its start to its exit or promotion, identified by the server's own ids.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::store::redis) struct Run {
    run_id: String,
    replication_id: Arc<str>,
}

impl Primary {
    /// Connects to the server behind `client` and checks that it is a primary. If the server's name has several
    /// addresses, returns the first primary that answers at any of them. `response_timeout` limits the wait for
    /// each reply. All of it takes at most [`CONNECT_TIMEOUT`] and `response_timeout` together.
    pub(in crate::store::redis) async fn connect(
        client: Client,
        mode: Mode,
        response_timeout: Duration,
    ) -> Result<Self, NoPrimary> {
        let mut deadline = Instant::now() + CONNECT_TIMEOUT + response_timeout;
        let named = each_address(&client).await?;
        if named.is_empty() {
            let attempt = Self::connect_to(client, mode, response_timeout);
            return timeout_at(deadline, attempt).await.unwrap_or_else(|_| Err(NoPrimary::timed_out()));
        }
        let attempts = named.into_iter().map(|client| Self::connect_to(client, mode, response_timeout));
        let mut attempts = attempts.collect::<FuturesUnordered<_>>();
        let mut failure = NoPrimary::Replica;
        loop {
            let error = match timeout_at(deadline, attempts.next()).await {
                Ok(Some(Ok(primary))) => return Ok(Self { client: Arc::new(client), ..primary }),
                Ok(Some(Err(error))) => error,
                Ok(None) => return Err(failure),
                Err(_) => {
                    attempts.clear();
                    NoPrimary::timed_out()
                }
            };
            if error.rank() >= failure.rank() {
                failure = error;
            }
            // A server that has stopped must not delay the next attempt: another one may become the primary.
            deadline = deadline.min(Instant::now() + CONNECT_TIMEOUT);
        }
    }

    /// Connects to the server behind `client`, whose name has one address, and checks that it is a primary. A
    /// server that does not allow `INFO` is assumed to be a primary.
    async fn connect_to(client: Client, mode: Mode, response_timeout: Duration) -> Result<Self, NoPrimary> {
        let mut connection = connect(&client, response_timeout).await?;
        let info: Result<String, _> =
            redis::cmd("INFO").arg("server").arg("replication").query_async(&mut connection).await;
        let info = match info {
            // Core then cannot detect a failover and warns about that at startup.
            Err(error) if error.code() == Some("NOPERM") => String::new(),
            info => info?,
        };
        role(&info, mode)?;
        let replication_id: Arc<str> = field(&info, "master_replid2:").into();
        let run = match field(&info, "run_id:") {
            "" => None,
            run_id => Some(Run { run_id: run_id.to_owned(), replication_id: Arc::clone(&replication_id) }),
        };
        let client = Arc::new(client);
        Ok(Self { connection, pinned: Arc::clone(&client), client, replication_id, run })
    }
}

/// Returns a client for each address of the server's name if it has several. With TLS, returns none: the
/// certificate has the name. For `localhost`, returns none: its addresses are those of one machine.
async fn each_address(client: &Client) -> Result<Vec<Client>, RedisError> {
    let settings = client.get_connection_info();
    let ConnectionAddr::Tcp(host, port) = settings.addr() else { return Ok(Vec::new()) };
    if host.eq_ignore_ascii_case("localhost") {
        return Ok(Vec::new());
    }
    let found = timeout(CONNECT_TIMEOUT, lookup_host((host.as_str(), *port))).await;
    let found: Vec<_> = found.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))?.collect();
    if found.len() < 2 {
        return Ok(Vec::new());
    }
    let at = |ip: String| Client::open(settings.clone().set_addr(ConnectionAddr::Tcp(ip, *port)));
    found.into_iter().map(|address| at(address.ip().to_string())).collect()
}

/// Connects to the server behind `client`, regardless of its role.
pub(in crate::store::redis) async fn connect(
    client: &Client,
    response_timeout: Duration,
) -> Result<MultiplexedConnection, RedisError> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(CONNECT_TIMEOUT))
        .set_response_timeout(Some(response_timeout));
    // Boxed, since the driver's deeply nested future type brings callers close to rustc's recursion limit.
    let connection: BoxFuture<'_, _> = Box::pin(client.get_multiplexed_async_connection_with_config(&config));
    connection.await
}

/// Whether a server is a node of a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::store::redis) enum Mode {
    /// The server is not part of a cluster.
    Standalone,
    /// The server is a node of a cluster.
    Cluster,
}

/// Checks in the output of `INFO` that a server is a primary in this mode. Missing fields are accepted.
fn role(info: &str, mode: Mode) -> Result<(), NoPrimary> {
    // Valkey calls the field `server_mode`.
    let modes = [field(info, "redis_mode:"), field(info, "server_mode:")];
    if modes.contains(&"sentinel") {
        Err(NoPrimary::Sentinel)
    } else if modes.contains(&"cluster") && mode != Mode::Cluster {
        Err(NoPrimary::Cluster)
    } else if modes.contains(&"standalone") && mode != Mode::Standalone {
        Err(NoPrimary::NotClustered)
    } else if field(info, "role:") == "slave" {
        Err(NoPrimary::Replica)
    } else {
        Ok(())
    }
}

/// Returns the value of the field `name` (with its colon) in `INFO`; empty if it is missing.
pub(in crate::store::redis) fn field<'a>(info: &'a str, name: &str) -> &'a str {
    info.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use redis::ServerErrorKind;

    use super::*;

    #[test]
    fn the_error_of_a_server_that_answered_is_reported() {
        let error = |kind, text| NoPrimary::Unreachable(RedisError::from((kind, text)));
        let answered = [
            error(ErrorKind::Server(ServerErrorKind::BusyLoading), "loading"),
            error(ErrorKind::AuthenticationFailed, "wrong password"),
        ];
        for answer in answered {
            assert!(answer.rank() > NoPrimary::timed_out().rank(), "{answer}");
        }
        assert!(NoPrimary::timed_out().rank() > NoPrimary::Replica.rank());
        assert_eq!(NoPrimary::Sentinel.rank(), NoPrimary::Replica.rank());
    }

    #[tokio::test]
    async fn localhost_is_one_server() {
        let client = Client::open("redis://localhost").unwrap();
        assert!(each_address(&client).await.unwrap().is_empty());
    }

    #[test]
    fn info_shows_whether_a_server_is_a_primary() {
        for (info, standalone, in_cluster) in [
            ("redis_mode:standalone\r\nrole:master\r\n", "Ok(())", "Err(NotClustered)"),
            ("redis_mode:standalone\r\nrole:slave\r\n", "Err(Replica)", "Err(NotClustered)"),
            ("server_mode:cluster\r\nrole:master\r\n", "Err(Cluster)", "Ok(())"),
            ("redis_mode:cluster\r\nrole:slave\r\n", "Err(Cluster)", "Err(Replica)"),
            ("redis_mode:sentinel\r\n", "Err(Sentinel)", "Err(Sentinel)"),
            ("", "Ok(())", "Ok(())"),
        ] {
            let roles = [Mode::Standalone, Mode::Cluster].map(|mode| format!("{:?}", role(info, mode)));
            assert_eq!(roles, [standalone, in_cluster], "{info:?}");
        }
    }
}
