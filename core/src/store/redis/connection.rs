//! The connection to Redis: made when needed, dropped when it breaks, counted.

use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, ErrorKind, RedisError, ServerErrorKind};
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::domain::counters::Generation;

/// The longest a call waits for Redis; the edge gives core 2 s in all.
pub(super) const RESPONSE_TIMEOUT: Duration = Duration::from_secs(1);
const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);
/// After a failed attempt to connect, calls fail at once for this long, without a further attempt.
const CONNECT_PAUSE: Duration = Duration::from_millis(50);

/// A connection and its generation: the first is 1.
#[derive(Debug, Clone)]
pub struct Session {
    pub(super) connection: MultiplexedConnection,
    pub(super) generation: Generation,
    /// The server's replication id, which changes when it is promoted.
    pub(super) replication_id: Arc<str>,
}

impl Session {
    /// The connection's generation: behind a connection of another generation may be another server.
    pub fn generation(&self) -> Generation {
        self.generation
    }
}

#[derive(Debug)]
pub(super) struct Connection {
    client: Client,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    session: Option<Session>,
    /// When the last attempt to connect failed, and its error.
    failed: Option<(Instant, RedisError)>,
    generation: Generation,
}

impl Connection {
    pub(super) fn new(client: Client) -> Self {
        Self { client, state: Mutex::default() }
    }

    /// The current connection, or a new one.
    pub(super) async fn session(&self) -> Result<Session, RedisError> {
        let mut state = self.state.lock().await;
        if let Some(session) = &state.session {
            return Ok(session.clone());
        }
        if let Some((at, error)) = &state.failed
            && at.elapsed() < CONNECT_PAUSE
        {
            return Err(error.clone());
        }
        match self.connect_to_primary().await {
            Ok((connection, replication_id)) => {
                state.generation = state.generation.next();
                state.failed = None;
                let session = Session { connection, generation: state.generation, replication_id };
                state.session = Some(session.clone());
                Ok(session)
            }
            Err(error) => {
                state.failed = Some((Instant::now(), error.clone()));
                Err(error)
            }
        }
    }

    /// A connection to a primary, and the primary's replication id.
    async fn connect_to_primary(&self) -> Result<(MultiplexedConnection, Arc<str>), RedisError> {
        let mut connection = self.connect(RESPONSE_TIMEOUT).await?;
        let info: Result<String, _> =
            redis::cmd("INFO").arg("replication").query_async(&mut connection).await;
        let info = match info {
            // INFO is not allowed: a failover cannot be noticed then, which the start has warned of.
            Err(error) if error.code() == Some("NOPERM") => String::new(),
            info => info?,
        };
        let field = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
        if field("role:") == "slave" {
            return Err((ErrorKind::Io, "this server is a replica").into());
        }
        Ok((connection, field("master_replid2:").into()))
    }

    /// A separate connection, for calls that wait.
    pub(super) async fn connect(
        &self,
        response_timeout: Duration,
    ) -> Result<MultiplexedConnection, RedisError> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_TIMEOUT))
            .set_response_timeout(Some(response_timeout));
        self.client.get_multiplexed_async_connection_with_config(&config).await
    }

    /// Drops the connection of `generation`, if `error` shows that it is broken or leads to a server that is no primary
    /// any more.
    pub(super) async fn note(&self, error: &RedisError, generation: Generation) {
        let of_redis = matches!(error.kind(), ErrorKind::Server(_) | ErrorKind::Extension);
        if of_redis && error.kind() != ErrorKind::Server(ServerErrorKind::ReadOnly) {
            return;
        }
        let mut state = self.state.lock().await;
        if state.generation == generation {
            state.session = None;
        }
    }
}
