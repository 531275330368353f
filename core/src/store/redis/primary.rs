//! Connecting to a primary, and why a server is none.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, RedisError};

const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);

/// Why there is no connection to a primary.
#[derive(Debug, Clone, thiserror::Error)]
pub enum NoPrimary {
    /// The server is a replica.
    #[error("this Redis is a replica: no claim can be decided there")]
    Replica,
    /// The server is a Sentinel.
    #[error("this is a Sentinel, not a Redis")]
    Sentinel,
    /// The server is a node of a cluster.
    #[error("this Redis is a node of a cluster")]
    Cluster,
    /// The server that should be a node of a cluster is none.
    #[error("this Redis is no node of a cluster")]
    NotClustered,
    /// No Sentinel watches a service of this name.
    #[error("Sentinel watches no service '{0}'")]
    UnknownService(Arc<str>),
    /// The servers that should be Sentinels are none.
    #[error("no server of this address is a Sentinel")]
    NotASentinel,
    /// Sentinel names no server that is a primary and answers, for these reasons.
    #[error("{0}")]
    NotNamed(Arc<str>),
    /// The server does not answer.
    #[error(transparent)]
    Unreachable(#[from] RedisError),
}

impl NoPrimary {
    /// What to do; `None` where the address may be right and the server just does not answer.
    pub fn remedy(&self) -> Option<&'static str> {
        match self {
            Self::Replica => Some(
                "give the address of its primary, or that of the Sentinels that watch it: \
                 redis+sentinel://HOST:PORT[,HOST:PORT…]/SERVICE",
            ),
            Self::Sentinel => Some(
                "give it as redis+sentinel://HOST:PORT[,HOST:PORT…]/SERVICE (rediss+sentinel:// with TLS)",
            ),
            Self::Cluster => {
                Some("give it as redis+cluster://HOST:PORT[,HOST:PORT…] (rediss+cluster:// with TLS)")
            }
            Self::NotClustered => Some("give it as redis:// or rediss://"),
            Self::UnknownService(_) => Some(
                "correct the name behind the last '/': `SENTINEL MASTERS`, asked of a Sentinel, lists those there are",
            ),
            Self::NotASentinel => {
                Some("give the addresses of Sentinels, usually at port 26379, not of the servers")
            }
            Self::NotNamed(_) | Self::Unreachable(_) => None,
        }
    }
}

/// A connection to a primary.
#[derive(Debug)]
pub struct Primary {
    /// The connection.
    pub connection: MultiplexedConnection,
    /// What further connections to the same server are made by.
    pub(super) client: Arc<Client>,
    /// The server's replication id, which changes when it is promoted; empty when it does not tell.
    pub(super) replication_id: Arc<str>,
    /// Its run, where it tells.
    pub(super) run: Option<Run>,
}

/// One run of a server, from its start to its end or promotion, by its own ids.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Run {
    run_id: String,
    replication_id: Arc<str>,
}

impl Primary {
    /// Connects to the server behind `client`, whose replies are waited for for `response_timeout` at most. A server that
    /// does not allow INFO is taken for a primary.
    ///
    /// # Errors
    /// When it does not answer, or says that it is no primary.
    pub(super) async fn connect(
        client: Client,
        mode: Mode,
        response_timeout: Duration,
    ) -> Result<Self, NoPrimary> {
        let mut connection = connect(&client, response_timeout).await?;
        let info: Result<String, _> =
            redis::cmd("INFO").arg("server").arg("replication").query_async(&mut connection).await;
        let info = match info {
            // A failover cannot be noticed then, which the start has warned of.
            Err(error) if error.code() == Some("NOPERM") => String::new(),
            info => info?,
        };
        role(&info, mode)?;
        let replication_id: Arc<str> = field(&info, "master_replid2:").into();
        let run = match field(&info, "run_id:") {
            "" => None,
            run_id => Some(Run { run_id: run_id.to_owned(), replication_id: Arc::clone(&replication_id) }),
        };
        Ok(Self { connection, client: Arc::new(client), replication_id, run })
    }
}

/// A connection to the server behind `client`, whatever that is.
pub(super) async fn connect(
    client: &Client,
    response_timeout: Duration,
) -> Result<MultiplexedConnection, RedisError> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(CONNECT_TIMEOUT))
        .set_response_timeout(Some(response_timeout));
    // As a trait object: the driver's own type is so deep that callers' types come near rustc's limit of recursion.
    let connection: BoxFuture<'_, _> = Box::pin(client.get_multiplexed_async_connection_with_config(&config));
    connection.await
}

/// Whether a server is a node of a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// It is in no cluster.
    Alone,
    /// It is in one.
    Cluster,
}

/// Whether a server with this INFO is a primary of this mode; so is one that does not tell.
fn role(info: &str, mode: Mode) -> Result<(), NoPrimary> {
    // Valkey has its own name for it.
    let told = [field(info, "redis_mode:"), field(info, "server_mode:")];
    if told.contains(&"sentinel") {
        Err(NoPrimary::Sentinel)
    } else if told.contains(&"cluster") && mode != Mode::Cluster {
        Err(NoPrimary::Cluster)
    } else if told.contains(&"standalone") && mode != Mode::Alone {
        Err(NoPrimary::NotClustered)
    } else if field(info, "role:") == "slave" {
        Err(NoPrimary::Replica)
    } else {
        Ok(())
    }
}

/// What `INFO` says behind `name`, which ends with a colon; empty when it does not say.
pub(super) fn field<'a>(info: &'a str, name: &str) -> &'a str {
    info.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_is_no_primary_is_told_by_its_info() {
        for (info, alone, in_cluster) in [
            ("redis_mode:standalone\r\nrole:master\r\n", "Ok(())", "Err(NotClustered)"),
            ("redis_mode:standalone\r\nrole:slave\r\n", "Err(Replica)", "Err(NotClustered)"),
            ("server_mode:cluster\r\nrole:master\r\n", "Err(Cluster)", "Ok(())"),
            ("redis_mode:cluster\r\nrole:slave\r\n", "Err(Cluster)", "Err(Replica)"),
            ("redis_mode:sentinel\r\n", "Err(Sentinel)", "Err(Sentinel)"),
            ("", "Ok(())", "Ok(())"),
        ] {
            let roles = [Mode::Alone, Mode::Cluster].map(|mode| format!("{:?}", role(info, mode)));
            assert_eq!(roles, [alone, in_cluster], "{info:?}");
        }
    }
}
