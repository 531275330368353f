//! The addresses of a PostgreSQL server. The driver waits for each address of a name in turn, for as long as the system
//! does: minutes, if the first one swallows packets. It looks up an IPv6 address in brackets as if it were a name.

use std::borrow::Cow;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::time::Duration;

use futures_util::future::{Either, select};
use sqlx::{AnyConnection, Connection as _, Error};
use tokio::net::lookup_host;
use tokio::time::timeout;
use url::{Host, Url};

use crate::connect::connect;

/// The port of PostgreSQL if the URL names none.
const PORT: u16 = 5432;
/// The time after which the other addresses of the name are tried as well. The driver itself has to begin: it
/// presents the name to the server, which some servers need and `sslmode=verify-full` compares with the
/// certificate.
const NAME_ONLY: Duration = Duration::from_millis(500);

/// Opens a connection to the database at `url`. If the server's name has several addresses and the driver is
/// still waiting for one of them, opens a connection at the first address that answers.
pub(super) async fn open(url: &str) -> Result<AnyConnection, Error> {
    let url = without_brackets(url);
    let mut by_name = pin!(AnyConnection::connect(&url));
    if let Ok(opened) = timeout(NAME_ONLY, &mut by_name).await {
        return opened;
    }
    match select(by_name, pin!(by_address(&url))).await {
        Either::Left((opened, _)) | Either::Right((Some(opened @ Ok(_)), _)) => opened,
        Either::Right((_, by_name)) => by_name.await,
    }
}

/// Opens a connection at the first address that answers; `None` if none answers, or if it is the one that the driver
/// tries first.
async fn by_address(url: &str) -> Option<Result<AnyConnection, Error>> {
    let url = Url::parse(url).ok()?;
    let addresses = addresses(&url).await?;
    let address = connect(&addresses).await.and_then(|stream| stream.peer_addr()).ok()?;
    if address == addresses[0] {
        return None;
    }
    Some(AnyConnection::connect(&url_at(url, address.ip())).await)
}

/// Returns a URL for each address of the server's name, if it has several: the servers may have different roles.
pub(super) async fn each_address(url: &str) -> Vec<String> {
    let Ok(url) = Url::parse(url) else { return Vec::new() };
    let addresses = addresses(&url).await.unwrap_or_default();
    addresses.into_iter().map(|address| url_at(url.clone(), address.ip())).collect()
}

/// Returns the addresses of the server's name; `None` if there is only one.
async fn addresses(url: &Url) -> Option<Vec<SocketAddr>> {
    let Some(Host::Domain(name)) = host(url) else { return None };
    let addresses: Vec<_> = lookup_host((name, url.port().unwrap_or(PORT))).await.ok()?.collect();
    (addresses.len() > 1).then_some(addresses)
}

/// Returns a URL whose host the driver connects to, even if it is an IPv6 address.
fn without_brackets(url: &str) -> Cow<'_, str> {
    let Ok(parsed) = Url::parse(url) else { return url.into() };
    let Some(Host::Ipv6(address)) = host(&parsed) else { return url.into() };
    url_at(parsed, address.into()).into()
}

/// Returns the host of a PostgreSQL server; `None` if the query of the URL names another one.
fn host(url: &Url) -> Option<Host<&str>> {
    let is_named_elsewhere = || url.query_pairs().any(|(key, _)| key.starts_with("host"));
    url.host().filter(|_| url.scheme().starts_with("postgres") && !is_named_elsewhere())
}

fn url_at(mut url: Url, address: IpAddr) -> String {
    url.query_pairs_mut().append_pair("hostaddr", &address.to_string());
    url.into()
}

#[cfg(test)]
mod tests {
    use sqlx::postgres::PgConnectOptions;

    use super::*;

    #[test]
    fn the_driver_gets_an_ipv6_address_without_brackets() {
        for (url, expected) in [
            ("postgres://u@[2001:db8::1]/claims", "2001:db8::1"),
            ("postgresql://u:p@[::1]:5433/claims?sslmode=disable", "::1"),
            ("postgres://u@[::1]/claims?hostaddr=::2", "::2"),
            ("postgres://u@10.0.0.1/claims", "10.0.0.1"),
            ("postgres://u@db.example:5433/claims", "db.example"),
        ] {
            let options: PgConnectOptions = without_brackets(url).parse().unwrap();
            assert_eq!(options.get_host(), expected, "{url}");
        }
    }
}
