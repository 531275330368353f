//! Servers behind TLS, with certificates of a throw-away authority.

use std::fs;
use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;

use tempfile::TempDir;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::RedisServer;
use crate::postgres::{Postgres, change_owner};
use crate::process::free_address;
use crate::redis_server::Kind;

/// A throw-away authority, the servers' certificate issued by it, a second authority, and `trusted.pem`: a
/// copy of the authority that core trusts.
#[derive(Debug)]
pub struct Certificates {
    directory: TempDir,
}

impl Certificates {
    /// Creates the certificates; `Err` if there is no `openssl`.
    pub fn make() -> Result<Self, String> {
        let directory =
            tempfile::Builder::new().prefix("cgt-").tempdir().map_err(|error| error.to_string())?;
        let made = Self { directory };
        let key = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -noenc";
        for authority in ["ours", "other"] {
            let files = format!("-keyout {authority}.key -out {authority}.pem");
            made.openssl(&format!("req -x509 {key} -subj /CN={authority} -days 2 {files}"))?;
        }
        made.openssl(&format!("req -new {key} -subj /CN=server -keyout server.key -out server.csr"))?;
        made.certify(&Self::own_names())?;
        made.trust("ours");
        // PostgreSQL must own its key. Redis can read it anyway, since it may run as root here.
        for file in ["", "server.key"] {
            change_owner(&made.directory.path().join(file))?;
        }
        Ok(made)
    }

    /// Returns the correct subject names: each test process listens on its own address.
    pub fn own_names() -> String {
        format!("IP:{},IP:127.0.0.1,DNS:localhost", free_address().ip())
    }

    /// Issues a certificate for `names`, which the servers use from their next start.
    pub fn certify(&self, names: &str) -> Result<(), String> {
        let extensions = self.directory.path().join("names");
        fs::write(extensions, format!("subjectAltName={names}")).map_err(|error| error.to_string())?;
        let by = "-CA ours.pem -CAkey ours.key -CAcreateserial";
        self.openssl(&format!("x509 -req -in server.csr {by} -days 2 -extfile names -out server.pem"))
    }

    /// Makes core trust `authority` from its next connection.
    pub fn trust(&self, authority: &str) {
        fs::copy(self.file(&format!("{authority}.pem")), self.file("trusted.pem")).expect("a copy");
    }

    /// Returns the path of a file in the directory.
    pub fn file(&self, name: &str) -> String {
        self.directory.path().join(name).display().to_string()
    }

    fn openssl(&self, arguments: &str) -> Result<(), String> {
        let arguments = arguments.split_whitespace();
        let done = Command::new("openssl").args(arguments).current_dir(self.directory.path()).output();
        let done = done.map_err(|error| format!("openssl: {error}"))?;
        let stderr = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "openssl: {stderr}");
        Ok(())
    }

    /// Returns a TLS acceptor that presents the servers' certificate.
    pub fn acceptor(&self) -> TlsAcceptor {
        let chain = CertificateDer::pem_file_iter(self.file("server.pem")).expect("a certificate");
        let chain = chain.collect::<Result<Vec<_>, _>>().expect("a certificate");
        let key = PrivateKeyDer::from_pem_file(self.file("server.key")).expect("its key");
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("TLS")
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .expect("a certificate with its key");
        TlsAcceptor::from(Arc::new(config))
    }

    /// Starts a Redis that listens on `address` over TLS only, with the account `core`, which has the same
    /// rights as on core's own Redis. The test connects over the socket as the default user.
    pub async fn redis(&self, address: SocketAddr, password: &str) -> RedisServer {
        let core = format!("on >{password} ~cg:* &* +@all -@dangerous -@admin +info +config|get");
        let accounts = format!("user default on nopass ~* &* +@all\nuser core {core}\n");
        fs::write(self.file("accounts"), accounts).expect("the accounts");
        let mut settings = self.redis_settings(address);
        settings.push(("aclfile", self.file("accounts")));
        let settings: Vec<_> = settings.iter().map(|(name, value)| (*name, value.as_str())).collect();
        // The tests' Valkey is built without TLS.
        RedisServer::start_as(Kind::Redis, &settings, &[]).await
    }

    /// Returns the settings that make a Redis server listen on `address` and replicate, both over TLS.
    pub fn redis_settings(&self, address: SocketAddr) -> Vec<(&'static str, String)> {
        vec![
            ("bind", address.ip().to_string()),
            ("tls-port", address.port().to_string()),
            ("tls-cert-file", self.file("server.pem")),
            ("tls-key-file", self.file("server.key")),
            ("tls-ca-cert-file", self.file("ours.pem")),
            ("tls-auth-clients", "no".to_owned()),
            ("tls-replication", "yes".to_owned()),
        ]
    }

    /// Starts a PostgreSQL server with TLS on this test process's loopback address.
    pub async fn postgres(&self) -> Result<Postgres, String> {
        let (ip, certificate, key) =
            (free_address().ip().to_string(), self.file("server.pem"), self.file("server.key"));
        let files = [("ssl_cert_file", certificate.as_str()), ("ssl_key_file", key.as_str())];
        Postgres::start_with(&[("ssl", "on"), ("listen_addresses", &ip), files[0], files[1]]).await
    }
}
