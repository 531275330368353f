//! The hosts that webhooks may call. Operators list these hosts, since core calls them from inside the
//! private network.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use url::{Host, Url};

/// Maximum length of a webhook's URL, in bytes.
const URL_BYTES_MAX: usize = 2048;

/// The hosts that webhooks may call; empty unless configured.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WebhookHosts(Vec<ListedHost>);

/// A listed host: `host[:port]` for HTTPS, or `http://host[:port]` for plain HTTP.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ListedHost {
    is_plain: bool,
    host: Host,
    port: u16,
}

/// The receiver of a webhook, parsed from its URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Receiver {
    /// The whole URL.
    pub url: Url,
    /// True for plain HTTP, without TLS.
    pub is_plain: bool,
    /// The host.
    pub host: Host,
    /// The port.
    pub port: u16,
}

impl Receiver {
    /// Parses the receiver's `url`.
    pub fn parse(url: &str) -> Result<Self, &'static str> {
        const FORM: &str = "must be https://host[:port]/path, or http:// if the host is listed with http://";
        if url.len() > URL_BYTES_MAX {
            return Err("must be at most 2048 characters");
        }
        let url = Url::parse(url).map_err(|_| FORM)?;
        if !url.username().is_empty() || url.password().is_some() {
            return Err("must not contain a user name or password: receivers check the signature");
        }
        if url.fragment().is_some() {
            return Err("must not have a fragment");
        }
        let is_plain = match url.scheme() {
            "https" => false,
            "http" => true,
            _ => return Err(FORM),
        };
        let host = url.host().ok_or(FORM)?.to_owned();
        let port = url.port_or_known_default().ok_or(FORM)?;
        Ok(Self { url, is_plain, host, port })
    }

    /// Returns the host in the form that TLS and the resolver expect.
    pub fn name(&self) -> String {
        match &self.host {
            Host::Domain(name) => name.clone(),
            Host::Ipv4(address) => address.to_string(),
            Host::Ipv6(address) => address.to_string(),
        }
    }
}

impl WebhookHosts {
    /// Returns whether no host is listed, which disables webhooks.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether a listed host is called over TLS.
    pub fn use_tls(&self) -> bool {
        self.0.iter().any(|listed| !listed.is_plain)
    }

    /// Checks that the receiver's scheme, host and port are listed.
    pub fn check(&self, receiver: &Receiver) -> Result<(), &'static str> {
        let matches = |listed: &ListedHost| {
            (listed.is_plain, &listed.host, listed.port) == (receiver.is_plain, &receiver.host, receiver.port)
        };
        if !self.0.iter().any(matches) {
            return Err("its host and port are not listed in CLAIMGATE_WEBHOOK_HOSTS");
        }
        Ok(())
    }

    /// Returns the resolved `addresses` of a receiver that may be called. A private address must itself be
    /// listed, with its port. Call this for each connection, because the name may resolve differently each
    /// time.
    pub fn callable(&self, addresses: impl IntoIterator<Item = SocketAddr>) -> Vec<SocketAddr> {
        addresses.into_iter().filter(|address| !is_private(address.ip()) || self.lists(*address)).collect()
    }

    fn lists(&self, address: SocketAddr) -> bool {
        let ip = canonical(address.ip());
        self.0.iter().filter(|listed| listed.port == address.port()).any(|listed| match listed.host {
            Host::Domain(_) => false,
            Host::Ipv4(listed) => ip == IpAddr::V4(listed),
            Host::Ipv6(listed) => ip == canonical(IpAddr::V6(listed)),
        })
    }
}

impl FromStr for WebhookHosts {
    type Err = String;
    fn from_str(list: &str) -> Result<Self, String> {
        let items = list.split(',').map(str::trim).filter(|item| !item.is_empty());
        items.map(str::parse).collect::<Result<_, _>>().map(Self)
    }
}

impl FromStr for ListedHost {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let is_plain = text.starts_with("http://");
        let url = if is_plain { text.to_owned() } else { format!("https://{text}") };
        let wrong =
            || format!("must be host[:port] or http://host[:port], separated by commas, not '{text}'");
        let receiver = Receiver::parse(&url).map_err(|_| wrong())?;
        if receiver.url.path() != "/"
            || receiver.url.query().is_some()
            || text.ends_with('/')
            || text.contains('*')
        {
            return Err(wrong());
        }
        Ok(Self { is_plain, host: receiver.host, port: receiver.port })
    }
}

/// Returns the IPv4 address that an IPv6 address embeds, if any; otherwise the address itself.
fn canonical(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(address) => embedded(address).map_or(IpAddr::V6(address), IpAddr::V4),
        address @ IpAddr::V4(_) => address,
    }
}

/// Returns the IPv4 address in an IPv4-mapped, IPv4-compatible, NAT64 (RFC 6052) or 6to4 (RFC 3056) address.
fn embedded(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let segments = address.segments();
    let v4 = |high: u16, low: u16| {
        let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
        Ipv4Addr::new(a, b, c, d)
    };
    match segments {
        [0, 0, 0, 0, 0, 0xffff | 0, high, low] if high != 0 || low > 1 => Some(v4(high, low)),
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => Some(v4(high, low)),
        [0x2002, high, low, ..] => Some(v4(high, low)),
        _ => None,
    }
}

/// Returns whether an address is not globally reachable, according to IANA's special-purpose registries (RFC 6890).
fn is_private(address: IpAddr) -> bool {
    match canonical(address) {
        IpAddr::V4(address) => is_private_v4(address),
        IpAddr::V6(address) => is_private_v6(address),
    }
}

fn is_private_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    matches!(
        (a, b, c),
        (0 | 10 | 127 | 224.., _, _)
            | (100, 64..=127, _)
            | (169, 254, _)
            | (172, 16..=31, _)
            | (192, 168, _)
            | (192, 0, 0 | 2)
            | (192, 88, 99)
            | (198, 18 | 19, _)
            | (198, 51, 100)
            | (203, 0, 113)
    )
}

fn is_private_v6(address: Ipv6Addr) -> bool {
    // Global unicast is 2000::/3, except documentation (RFC 3849, RFC 9637) and protocol assignments
    // (2001::/23).
    match address.segments() {
        [0x2001, 0x0db8 | 0..0x0200, ..] | [0x3fff, ..] => true,
        [first, ..] => first & 0xe000 != 0x2000,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receiver(url: &str) -> Receiver {
        Receiver::parse(url).unwrap()
    }

    #[test]
    fn a_receiver_is_listed_by_scheme_host_and_port() {
        let hosts: WebhookHosts =
            "hooks.example, hooks.example:8443,http://10.0.0.5:9000, [2001:db8::1]".parse().unwrap();
        for good in [
            "https://hooks.example/claims",
            "https://HOOKS.example:443/?a=b",
            "https://hooks.example:8443/",
            "http://10.0.0.5:9000/x",
            "http://167772165:9000/", // the same address as a number
            "https://[2001:db8::1]/",
        ] {
            assert_eq!(hosts.check(&receiver(good)), Ok(()), "{good}");
        }
        for bad in [
            "http://hooks.example/",
            "https://hooks.example:444/",
            "https://evil.hooks.example/",
            "https://hooks.example.evil/",
            "https://10.0.0.5:9000/",
            "http://10.0.0.5/",
        ] {
            assert!(hosts.check(&receiver(bad)).is_err(), "{bad}");
        }
        assert!(WebhookHosts::default().check(&receiver("https://hooks.example/")).is_err());
    }

    #[test]
    fn an_invalid_receiver_or_host_list_is_rejected() {
        for bad in [
            "hooks.example",
            "ftp://a/",
            "https://u@a/",
            "https://u:p@a/",
            "https://a/#b",
            "https://",
            "data:,x",
        ] {
            assert!(Receiver::parse(bad).is_err(), "{bad}");
        }
        for bad in ["https://a", "a/b", "a?b", "http://", "a:99999", "*.a", "u@a", "a b"] {
            assert!(bad.parse::<WebhookHosts>().is_err(), "{bad}");
        }
        assert!(" , ".parse::<WebhookHosts>().unwrap().is_empty());
    }

    #[test]
    fn a_private_address_is_called_only_if_it_is_listed() {
        let hosts: WebhookHosts = "hooks.example,http://127.0.0.1:9000".parse().unwrap();
        for private in [
            "0.0.0.0",
            "10.1.2.3",
            "100.64.0.1",
            "127.0.0.2",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.0.1",
            "192.0.0.8",
            "198.18.0.1",
            "203.0.113.7",
            "224.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "fe80::1",
            "fc00::1",
            "fd12::1",
            "ff02::1",
            "2001:db8::1",
            "::ffff:10.0.0.1",
            "::ffff:169.254.169.254",
            "::10.0.0.1",
            "64:ff9b::10.0.0.1",
            "2002:a00:1::1",
            "2001::1",
        ] {
            let address = SocketAddr::new(private.parse().unwrap(), 443);
            assert_eq!(hosts.callable([address]), [], "{private}");
        }
        for public in ["1.1.1.1", "172.32.0.1", "2606:4700::1111", "::ffff:1.1.1.1", "64:ff9b::1.1.1.1"] {
            let address = SocketAddr::new(public.parse().unwrap(), 443);
            assert_eq!(hosts.callable([address]), [address], "{public}");
        }
        for listed in ["127.0.0.1", "::ffff:127.0.0.1"] {
            let address = SocketAddr::new(listed.parse().unwrap(), 9000);
            assert_eq!(hosts.callable([address]), [address], "{listed}");
            let other_port = SocketAddr::new(listed.parse().unwrap(), 443);
            assert_eq!(hosts.callable([other_port]), [], "{listed} is listed with another port");
        }
    }

    #[test]
    fn every_callable_address_of_a_name_is_returned() {
        let hosts: WebhookHosts = "hooks.example".parse().unwrap();
        let all = ["[2606:4700::1111]:443", "10.0.0.1:443", "1.1.1.1:443"];
        let all = all.map(|address| address.parse::<SocketAddr>().unwrap());
        assert_eq!(hosts.callable(all), [all[0], all[2]]);
    }
}
