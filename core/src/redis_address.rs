//! The address of Redis, parsed from `CLAIMGATE_REDIS_URL`.

use redis::{Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo as _, RedisConnectionInfo};

/// Default port of a sentinel.
const SENTINEL_PORT: u16 = 26379;
/// Default port of a cluster's node.
const NODE_PORT: u16 = 6379;

/// The address of Redis. Its `Debug` output contains no password.
#[derive(Debug, Clone)]
pub enum RedisAddress {
    /// One server, which must be a primary.
    Server(Client),
    /// The primary that Sentinel names.
    Sentinel(SentinelAddress),
    /// The primaries of a cluster, found through these nodes: one client per node, at least one.
    Cluster(Vec<Client>),
}

/// The addresses of Sentinels, and the service that they watch.
#[derive(Debug, Clone)]
pub struct SentinelAddress {
    /// One client per sentinel; at least one.
    pub clients: Vec<Client>,
    /// The service's name.
    pub service: String,
    /// The connection settings of the service's servers; the address in these settings is replaced.
    pub server: ConnectionInfo,
}

impl From<Client> for RedisAddress {
    fn from(client: Client) -> Self {
        Self::Server(client)
    }
}

impl RedisAddress {
    /// Parses `url`. `sentinel_password` is the password of the sentinels themselves.
    ///
    /// # Errors
    /// A description of the mistake. The description quotes no part of the URL: a malformed URL may have a
    /// password anywhere.
    pub fn parse(url: &str, sentinel_password: Option<&str>) -> Result<Self, String> {
        match url.split_once("://") {
            Some(("redis+sentinel", rest)) => sentinels("redis", rest, sentinel_password).map(Self::Sentinel),
            Some(("rediss+sentinel", rest)) => sentinels("rediss", rest, sentinel_password).map(Self::Sentinel),
            Some(("redis+cluster", rest)) => nodes("redis", rest).map(Self::Cluster),
            Some(("rediss+cluster", rest)) => nodes("rediss", rest).map(Self::Cluster),
            _ => Client::open(url).map(Self::Server).map_err(|_| {
                "must be redis://, rediss:// or unix:// for one primary, \
                 redis+sentinel://HOST:PORT[,HOST:PORT…]/SERVICE or rediss+sentinel:// for the primary that Sentinel names, or \
                 redis+cluster://HOST:PORT[,HOST:PORT…] or rediss+cluster:// for a cluster, with user and password if needed"
                    .to_owned()
            }),
        }
    }
}

/// Returns the address of `host` and `port` with the scheme and TLS settings of `other`.
pub fn same_scheme(other: &ConnectionAddr, host: String, port: u16) -> ConnectionAddr {
    match other {
        ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
            let tls_params = tls_params.clone();
            ConnectionAddr::TcpTls { host, port, insecure: *insecure, tls_params }
        }
        _ => ConnectionAddr::Tcp(host, port),
    }
}

/// Parses `[user:password@]HOST[:PORT][,…]` into nodes with the given `scheme`.
fn nodes(scheme: &str, rest: &str) -> Result<Vec<Client>, String> {
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    let (user, hosts) = rest.rsplit_once('@').map_or(("", rest), |(user, hosts)| (user, hosts));
    if user.contains('/') {
        return Err("has a user or password that is not percent-encoded".to_owned());
    }
    let own = server_settings(scheme, user, "0")?;
    let client = |(number, host): (usize, &str)| {
        let address = host_address(scheme, host, NODE_PORT);
        let client = address.and_then(|address| Client::open(own.clone().set_addr(address)).ok());
        client.ok_or_else(|| format!("node {} must be HOST or HOST:PORT, with nothing after it", number + 1))
    };
    hosts.split(',').enumerate().map(client).collect()
}

/// Returns the connection settings of the servers for `user`, with a placeholder as host.
fn server_settings(scheme: &str, user: &str, db: &str) -> Result<ConnectionInfo, String> {
    let user = if user.is_empty() { String::new() } else { format!("{user}@") };
    let settings = format!("{scheme}://{user}host/{db}").into_connection_info();
    settings.map_err(|_| "has a user or password that is not percent-encoded".to_owned())
}

/// Parses `[user:password@]HOST[:PORT][,…]/SERVICE[?db=N]` into sentinels. `scheme` applies to sentinels and
/// servers.
fn sentinels(scheme: &str, rest: &str, password: Option<&str>) -> Result<SentinelAddress, String> {
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (authority, service) = rest.split_once('/').unwrap_or((rest, ""));
    let (user, hosts) = authority.rsplit_once('@').map_or(("", authority), |(user, hosts)| (user, hosts));
    let is_name = |char: char| char.is_ascii_alphanumeric() || ".-_".contains(char);
    if service.is_empty() || !service.chars().all(is_name) {
        return Err("must end with the name of the service that Sentinel watches (letters, digits, '.', '-' and '_'), \
                    for example redis+sentinel://HOST:PORT/SERVICE"
            .to_owned());
    }
    let db = match query.split_once('=') {
        None if query.is_empty() => "0",
        Some(("db", number)) if number.parse::<u16>().is_ok() => number,
        _ => return Err("may have only ?db=NUMBER after the service".to_owned()),
    };
    let mut found = hosts.split(',').enumerate().map(|(number, host)| {
        host_address(scheme, host, SENTINEL_PORT)
            .ok_or_else(|| format!("sentinel {} must be HOST or HOST:PORT", number + 1))
    });
    let addresses = found.by_ref().collect::<Result<Vec<_>, _>>()?;
    let server = server_settings(scheme, user, db)?;
    let own = password.map_or_else(RedisConnectionInfo::default, |password| {
        RedisConnectionInfo::default().set_password(password)
    });
    let client = |address: ConnectionAddr| {
        let info = address.into_connection_info()?.set_redis_settings(own.clone());
        Client::open(info)
    };
    let clients = addresses.into_iter().map(client).collect::<Result<Vec<_>, _>>();
    let clients = clients.map_err(|_| "has a sentinel with an unusable address".to_owned())?;
    Ok(SentinelAddress { clients, service: service.to_owned(), server })
}

/// Parses one host of a list, with the default port `port`; `None` if the string is malformed.
fn host_address(scheme: &str, host: &str, port: u16) -> Option<ConnectionAddr> {
    if host.is_empty() || host.contains(['@', '/', '#', '?']) {
        return None;
    }
    // Only a colon after the brackets of an IPv6 address separates a port.
    let has_port = host.rsplit(']').next()?.contains(':');
    let port = if has_port { String::new() } else { format!(":{port}") };
    let info: ConnectionInfo = format!("{scheme}://{host}{port}").into_connection_info().ok()?;
    Some(info.addr().clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sentinels_of(url: &str) -> SentinelAddress {
        match RedisAddress::parse(url, Some("their own")) {
            Ok(RedisAddress::Sentinel(sentinels)) => sentinels,
            other => panic!("{url}: {other:?}"),
        }
    }

    #[test]
    fn a_plain_url_means_a_single_server() {
        for url in ["redis://h", "redis://u:p@h:1/2", "rediss://h:1", "unix:///run/redis.sock"] {
            assert!(matches!(RedisAddress::parse(url, None), Ok(RedisAddress::Server(_))), "{url}");
        }
    }

    #[test]
    fn a_sentinel_url_has_hosts_service_and_server_user() {
        let read = sentinels_of("redis+sentinel://u%40:p%2Fw@a:1,b,[::1]:3,[::2]/my-main.1?db=7");
        let addresses: Vec<_> =
            read.clients.iter().map(|client| client.get_connection_info().addr().to_string()).collect();
        assert_eq!(addresses, ["a:1", "b:26379", "::1:3", "::2:26379"]);
        assert_eq!(read.service, "my-main.1");
        let server = read.server.redis_settings();
        assert_eq!((server.username(), server.password(), server.db()), (Some("u@"), Some("p/w"), 7));
        for sentinel in &read.clients {
            let own = sentinel.get_connection_info().redis_settings();
            assert_eq!((own.username(), own.password(), own.db()), (None, Some("their own"), 0));
        }
        assert!(matches!(read.server.addr(), ConnectionAddr::Tcp(..)));
        let read = sentinels_of("rediss+sentinel://:secret@a/main");
        assert!(matches!(read.server.addr(), ConnectionAddr::TcpTls { insecure: false, .. }));
        let sentinel = read.clients[0].get_connection_info().addr();
        assert!(matches!(sentinel, ConnectionAddr::TcpTls { insecure: false, .. }));
        assert!(!format!("{read:?}").contains("secret") && !format!("{read:?}").contains("their own"));
    }

    #[test]
    fn all_nodes_of_a_cluster_share_one_user() {
        let Ok(RedisAddress::Cluster(nodes)) =
            RedisAddress::parse("rediss+cluster://u:secret@a:1,[::1],c", None)
        else {
            panic!("not a cluster");
        };
        let addresses: Vec<_> =
            nodes.iter().map(|client| client.get_connection_info().addr().to_string()).collect();
        assert_eq!(addresses, ["a:1", "::1:6379", "c:6379"]);
        for client in &nodes {
            let info = client.get_connection_info();
            assert_eq!(
                (info.redis_settings().username(), info.redis_settings().password()),
                (Some("u"), Some("secret"))
            );
            assert!(matches!(info.addr(), ConnectionAddr::TcpTls { .. }));
        }
        assert!(!format!("{nodes:?}").contains("secret"));
    }

    #[test]
    fn errors_never_quote_the_url() {
        for (url, part) in [
            ("redis+sentinel://", "name of the service"),
            ("redis+sentinel://a:1", "name of the service"),
            ("redis+sentinel://a:1/", "name of the service"),
            ("redis+sentinel://a:1/ma in", "name of the service"),
            ("redis+sentinel:///main", "sentinel 1"),
            ("redis+sentinel://u:secret@/main", "sentinel 1"),
            ("redis+sentinel://a:1,/main", "sentinel 2"),
            ("redis+sentinel://a:1,b:x/main", "sentinel 2"),
            ("redis+sentinel://a:1,b:65536/main", "sentinel 2"),
            ("redis+sentinel://u:secret/@a:1/main", "name of the service"),
            ("redis+sentinel://a/main?database=1", "?db=NUMBER"),
            ("redis+sentinel://a/main?db=x", "?db=NUMBER"),
            ("redis+cluster://", "node 1"),
            ("redis+cluster://a,b:x", "node 2"),
            ("redis+cluster://a/1", "node 1"),
            ("redis+cluster://a?db=1", "node 1"),
            ("redis+cluster://u:secret/@a", "percent-encoded"),
            ("redis-sentinel://a/main", "redis+sentinel://"),
            ("http://u:secret@a", "redis://"),
            ("", "redis://"),
        ] {
            let problem = RedisAddress::parse(url, None).unwrap_err();
            assert!(problem.contains(part) && !problem.contains("secret"), "{url}: {problem}");
        }
    }
}
