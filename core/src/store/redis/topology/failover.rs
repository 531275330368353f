//! Failover with Sentinel: as soon as Sentinel names another primary, calls in flight to the old server are
//! aborted. This also applies if the old server is only silent, or still answers. With a cluster, a failover
//! is detected by the slot map (`cluster`). A restart is detected by the server's run (`server`).

use std::convert::Infallible;
use std::future::pending;
use std::io;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::join_all;
use redis::{Client, ConnectionAddr, RedisError, Value};
use tokio::sync::mpsc::{self, UnboundedSender};
use tokio::time::{sleep, timeout};

use super::connections::Connections;
use super::sentinel::{QUERY_TIMEOUT, Sentinels, address_of, within};

/// The channel on which a sentinel announces that it considers another server the primary.
const SWITCH_CHANNEL: &str = "+switch-master";
/// Time without a message after which a subscription is checked.
const SILENCE_MAX: Duration = Duration::from_secs(3);
/// Pause before a broken subscription is renewed.
const SUBSCRIBE_PAUSE: Duration = Duration::from_secs(1);

impl Connections {
    /// Ends the current generation whenever Sentinel names a server other than the connected one, even if
    /// that server only stopped answering or still answers. Never returns.
    pub(in crate::store::redis) async fn follow_failovers(&self) {
        let Self::One(connection) = self else { return pending().await };
        let Some(sentinels) = connection.sentinels() else { return pending().await };
        let (sender, mut primaries) = mpsc::unbounded_channel();
        let end = async {
            while let Some(primary) = primaries.recv().await {
                connection.retire_unless_at(&primary).await;
            }
        };
        tokio::join!(sentinels.listen(&sender), end);
    }
}

impl Sentinels {
    /// Sends the primary's address to `sender` whenever a sentinel announces a switch, and after each new
    /// subscription. Never returns.
    async fn listen(&self, sender: &UnboundedSender<ConnectionAddr>) {
        join_all(self.address.clients.iter().map(|sentinel| self.listen_to(sentinel, sender))).await;
    }

    async fn listen_to(&self, sentinel: &Client, sender: &UnboundedSender<ConnectionAddr>) -> Infallible {
        loop {
            let Err(error) = self.subscribe(sentinel, sender).await;
            tracing::debug!(%error, sentinel = %address_of(sentinel), "subscription to Sentinel failed; retrying");
            sleep(SUBSCRIBE_PAUSE).await;
        }
    }

    /// Listens to one sentinel until the connection breaks.
    async fn subscribe(
        &self,
        sentinel: &Client,
        sender: &UnboundedSender<ConnectionAddr>,
    ) -> Result<Infallible, RedisError> {
        let subscribed = async {
            let mut subscription = sentinel.get_async_pubsub().await?;
            subscription.subscribe(SWITCH_CHANNEL).await?;
            Ok(subscription)
        };
        let (mut sink, mut messages) = within(subscribed).await?.split();
        // A switch before the subscription was not announced on this connection.
        self.send_primary(sender).await;
        loop {
            match timeout(SILENCE_MAX, messages.next()).await {
                Ok(Some(_)) => self.send_primary(sender).await,
                Ok(None) => return Err(io::Error::from(io::ErrorKind::BrokenPipe).into()),
                Err(_) => drop(within(sink.ping::<Value>()).await?),
            }
        }
    }

    /// Sends the primary's address if it can be connected to: switching to a server that is not a primary
    /// would only break a working connection.
    async fn send_primary(&self, sender: &UnboundedSender<ConnectionAddr>) {
        if let Ok(primary) = self.try_connect(QUERY_TIMEOUT).await {
            // Sending fails only while core is shutting down.
            let _ = sender.send(address_of(&primary.client).clone());
        }
    }
}
