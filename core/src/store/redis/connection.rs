//! Connections to Redis: made when needed, dropped when they break, counted by generations.
//!
//! Each thread that decides claims has one of its own. Those that are proven to lead to the same run of the same server
//! are of one generation, which ends for all of them when one breaks, or when Sentinel names another server.

use std::future::pending;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Client, ConnectionAddr, ErrorKind, RedisError, ServerErrorKind};
use tokio::sync::{Mutex, mpsc};
use tokio::time::Instant;

use super::address::Address;
use super::primary::{NoPrimary, Primary, Run, connect};
use crate::domain::counters::Generation;

/// The longest a call waits for Redis; the edge gives core 2 s in all.
pub(super) const RESPONSE_TIMEOUT: Duration = Duration::from_secs(1);
/// After a failed attempt to connect, calls fail at once for this long, without a further attempt.
const CONNECT_PAUSE: Duration = Duration::from_millis(50);

/// A connection and its generation: the first is 1.
#[derive(Debug, Clone)]
pub struct Session {
    pub(super) connection: MultiplexedConnection,
    pub(super) generation: Generation,
    /// The server's replication id, which changes when it is promoted.
    pub(super) replication_id: Arc<str>,
    client: Arc<Client>,
}

impl Session {
    /// The connection's generation: behind a connection of another generation may be another server.
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// A separate connection to the same server, for calls that wait.
    pub(super) async fn another(&self) -> Result<MultiplexedConnection, RedisError> {
        connect(&self.client, RESPONSE_TIMEOUT).await
    }
}

/// The connection of one thread.
#[derive(Debug)]
pub(super) struct Connection {
    server: Arc<Server>,
    /// The last session, which counts as long as its generation is current.
    session: RwLock<Option<Session>>,
}

/// What all connections share.
#[derive(Debug)]
struct Server {
    address: Address,
    /// The current generation; 0 while there is none.
    current: AtomicU64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The last generation.
    generation: Generation,
    /// What the connections of the current generation lead to.
    target: Option<Target>,
    /// Where that is.
    at: Option<ConnectionAddr>,
    /// When the last attempt to connect failed, and its error.
    failed: Option<(Instant, NoPrimary)>,
}

/// What the connections of a generation lead to.
#[derive(Debug)]
enum Target {
    /// This run of a server; a further connection to it is of the same generation.
    Run(Run),
    /// A server that does not tell its run. Whether a further connection leads to the same one is unknown, so all share
    /// this one.
    Unknown(Session),
}

impl Server {
    /// The session of a new connection: of the current generation if it leads to the same run, of a new one otherwise.
    fn begin_or_join(&self, state: &mut State, primary: Primary) -> Session {
        let Primary { connection, client, replication_id, run } = primary;
        let joins =
            matches!((&state.target, &run), (Some(Target::Run(current)), Some(run)) if current == run);
        if !joins {
            state.generation = state.generation.next();
            state.at = Some(client.get_connection_info().addr().clone());
        }
        let session = Session { connection, generation: state.generation, replication_id, client };
        if !joins {
            state.target = Some(run.map_or_else(|| Target::Unknown(session.clone()), Target::Run));
            self.current.store(state.generation.get(), Ordering::Release);
        }
        session
    }

    /// Ends the current generation, if there is one.
    fn end(&self, state: &mut State) {
        self.current.store(0, Ordering::Release);
        state.target = None;
    }

    /// Ends the current generation, unless it is of the server at `primary`.
    async fn end_unless_at(&self, primary: &ConnectionAddr) {
        let mut state = self.state.lock().await;
        if state.target.is_some() && state.at.as_ref() != Some(primary) {
            tracing::warn!(%primary, "Sentinel names another primary; connecting to it");
            self.end(&mut state);
        }
    }
}

impl Connection {
    pub(super) fn new(address: Address) -> Self {
        let server = Server { address, current: AtomicU64::new(0), state: Mutex::default() };
        Self { server: Arc::new(server), session: RwLock::default() }
    }

    /// A further connection to the same server.
    pub(super) fn another(&self) -> Self {
        Self { server: Arc::clone(&self.server), session: RwLock::default() }
    }

    /// The current session, or a new one. Callers of all connections wait for the attempt in progress.
    pub(super) async fn session(&self) -> Result<Session, NoPrimary> {
        if let Some(session) = self.current() {
            return Ok(session);
        }
        let mut state = self.server.state.lock().await;
        if let Some(session) = self.current() {
            return Ok(session);
        }
        if let Some(Target::Unknown(session)) = &state.target {
            return Ok(self.keep(session));
        }
        if let Some((at, error)) = &state.failed
            && at.elapsed() < CONNECT_PAUSE
        {
            return Err(error.clone());
        }
        match self.server.address.connect(RESPONSE_TIMEOUT).await {
            Ok(primary) => {
                state.failed = None;
                Ok(self.keep(&self.server.begin_or_join(&mut state, primary)))
            }
            Err(error) => {
                state.failed = Some((Instant::now(), error.clone()));
                Err(error)
            }
        }
    }

    /// The session, if it is of the current generation.
    fn current(&self) -> Option<Session> {
        let session = self.session.read().unwrap_or_else(PoisonError::into_inner);
        let generation = self.server.current.load(Ordering::Acquire);
        session.as_ref().filter(|session| session.generation.get() == generation).cloned()
    }

    fn keep(&self, session: &Session) -> Session {
        *self.session.write().unwrap_or_else(PoisonError::into_inner) = Some(session.clone());
        session.clone()
    }

    /// Ends the generation whenever Sentinel names another server than it leads to, also when that one is silent only or
    /// answers still. Never returns.
    pub(super) async fn follow_switches(&self) {
        let Address::Sentinel(sentinels) = &self.server.address else { return pending().await };
        let (heard, mut primaries) = mpsc::unbounded_channel();
        let end = async {
            while let Some(primary) = primaries.recv().await {
                self.server.end_unless_at(&primary).await;
            }
        };
        tokio::join!(sentinels.listen(&heard), end);
    }

    /// Ends `generation`, if `error` shows that a connection of it is broken or leads to a server that is no primary any
    /// more. All connections are then made again.
    pub(super) async fn note(&self, error: &RedisError, generation: Generation) {
        let of_redis = matches!(error.kind(), ErrorKind::Server(_) | ErrorKind::Extension);
        if of_redis && error.kind() != ErrorKind::Server(ServerErrorKind::ReadOnly) {
            return;
        }
        let mut state = self.server.state.lock().await;
        if state.generation == generation {
            self.server.end(&mut state);
        }
    }
}
