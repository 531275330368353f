//! Failover with Sentinel: as soon as Sentinel is about to promote a replica, or names another primary, calls in
//! flight to the old server are aborted. This also applies if the old server is only silent, or still answers. With
//! a cluster, a failover is detected by the slot map (`cluster`). A restart is detected by the server's run
//! (`server`).
//!
//! If clients went on writing until the switch, the other replicas would get ahead of the promoted one. They would then
//! have to copy all of its data, and no claim is acknowledged until required replicas have done so.

use std::convert::Infallible;
use std::future::pending;
use std::io;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::join_all;
use redis::{Client, ConnectionAddr, Msg, RedisError, Value};
use tokio::sync::mpsc::{self, UnboundedSender};
use tokio::time::{sleep, timeout};

use super::connections::Connections;
use super::sentinel::{QUERY_TIMEOUT, Sentinels, address_of, within};
use crate::redis_address::same_scheme;

/// The channel on which a sentinel announces that it considers another server the primary.
const SWITCH_CHANNEL: &str = "+switch-master";
/// The channel on which the sentinel that leads a failover announces which replica it is about to promote. The
/// promotion follows after at least 50 ms.
const PROMOTION_CHANNEL: &str = "+failover-state-send-slaveof-noone";
/// Time without a message after which a subscription is checked.
const SILENCE_MAX: Duration = Duration::from_secs(3);
/// Pause before a broken subscription is renewed.
const SUBSCRIBE_PAUSE: Duration = Duration::from_secs(1);

/// What a sentinel announces.
#[derive(Debug)]
enum Announcement {
    /// A replica of this primary is about to be promoted.
    Replaces(ConnectionAddr),
    /// This server is the primary.
    Primary(ConnectionAddr),
}

impl Connections {
    /// Ends the current generation whenever Sentinel is about to replace the connected server, or names another one,
    /// even if the connected server still answers. Never returns.
    pub(in crate::store::redis) async fn follow_failovers(&self) {
        let Self::One(connection) = self else { return pending().await };
        let Some(sentinels) = connection.sentinels() else { return pending().await };
        let (sender, mut announcements) = mpsc::unbounded_channel();
        let end = async {
            while let Some(announcement) = announcements.recv().await {
                match announcement {
                    Announcement::Replaces(primary) => connection.leave(&primary).await,
                    Announcement::Primary(primary) => connection.retire_unless_at(&primary).await,
                }
            }
        };
        tokio::join!(sentinels.listen(&sender), end);
    }
}

impl Sentinels {
    /// Sends to `sender` whenever a sentinel announces a promotion or a switch, and after each new subscription. Never
    /// returns.
    async fn listen(&self, sender: &UnboundedSender<Announcement>) {
        join_all(self.address.clients.iter().map(|sentinel| self.listen_to(sentinel, sender))).await;
    }

    async fn listen_to(&self, sentinel: &Client, sender: &UnboundedSender<Announcement>) -> Infallible {
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
        sender: &UnboundedSender<Announcement>,
    ) -> Result<Infallible, RedisError> {
        let subscribed = async {
            let mut subscription = sentinel.get_async_pubsub().await?;
            subscription.subscribe(&[SWITCH_CHANNEL, PROMOTION_CHANNEL]).await?;
            Ok(subscription)
        };
        let (mut sink, mut messages) = within(subscribed).await?.split();
        // A switch before the subscription was not announced on this connection.
        self.send_primary(sender).await;
        loop {
            match timeout(SILENCE_MAX, messages.next()).await {
                Ok(Some(message)) => self.follow(&message, sender).await,
                Ok(None) => return Err(io::Error::from(io::ErrorKind::BrokenPipe).into()),
                Err(_) => drop(within(sink.ping::<Value>()).await?),
            }
        }
    }

    async fn follow(&self, message: &Msg, sender: &UnboundedSender<Announcement>) {
        if message.get_channel_name() == SWITCH_CHANNEL {
            return self.send_primary(sender).await;
        }
        let text = message.get_payload::<String>().unwrap_or_default();
        if let Some((host, port)) = primary_of_promotion(&text, &self.address.service) {
            let primary = same_scheme(self.address.server.addr(), host.to_owned(), port);
            // Sending fails only while core is shutting down.
            let _ = sender.send(Announcement::Replaces(primary));
        }
    }

    /// Sends the primary's address if it can be connected to: switching to a server that is not a primary
    /// would only break a working connection.
    async fn send_primary(&self, sender: &UnboundedSender<Announcement>) {
        if let Ok(primary) = self.try_connect(QUERY_TIMEOUT).await {
            // Sending fails only while core is shutting down.
            let _ = sender.send(Announcement::Primary(address_of(&primary.client).clone()));
        }
    }
}

/// Returns the primary of a replica that is about to be promoted, from `slave NAME HOST PORT @ SERVICE HOST PORT`;
/// `None` for another service.
fn primary_of_promotion<'a>(text: &'a str, service: &str) -> Option<(&'a str, u16)> {
    let mut words = text.split_once(" @ ")?.1.split(' ');
    let is_ours = words.next()? == service;
    let (host, port) = (words.next()?, words.next()?.parse().ok()?);
    is_ours.then_some((host, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_promotions_of_the_service_are_followed() {
        let text = "slave 10.0.0.2:6379 10.0.0.2 6379 @ main db.example 6380";
        assert_eq!(primary_of_promotion(text, "main"), Some(("db.example", 6380)));
        assert_eq!(primary_of_promotion(text, "other"), None);
        for text in ["", "master main db.example 6380", "slave a 10.0.0.2 6379 @ main db.example"] {
            assert_eq!(primary_of_promotion(text, "main"), None, "{text}");
        }
    }
}
