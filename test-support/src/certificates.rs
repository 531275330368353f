//! Servers behind TLS: a throw-away authority, and what they show for themselves.

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
use crate::postgres::{Postgres, hand_over};
use crate::process::free_address;
use crate::redis_server::Kind;

/// A throw-away authority, the certificate that it gave to the servers, another authority, and `trusted.pem`, a copy
/// of the one that core is told to trust.
#[derive(Debug)]
pub struct Certificates {
    directory: TempDir,
}

impl Certificates {
    /// `Err` where there is no `openssl`.
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
        // For PostgreSQL; root, as which Redis may run here, reads them all the same.
        for file in ["", "server.key"] {
            hand_over(&made.directory.path().join(file))?;
        }
        Ok(made)
    }

    /// The names that are right: tests listen on addresses of their own.
    pub fn own_names() -> String {
        format!("IP:{},IP:127.0.0.1,DNS:localhost", free_address().ip())
    }

    /// The servers' certificate names `names` from their next start on.
    pub fn certify(&self, names: &str) -> Result<(), String> {
        let extensions = self.directory.path().join("names");
        fs::write(extensions, format!("subjectAltName={names}")).map_err(|error| error.to_string())?;
        let by = "-CA ours.pem -CAkey ours.key -CAcreateserial";
        self.openssl(&format!("x509 -req -in server.csr {by} -days 2 -extfile names -out server.pem"))
    }

    /// Core trusts `authority` from its next connection on.
    pub fn trust(&self, authority: &str) {
        fs::copy(self.file(&format!("{authority}.pem")), self.file("trusted.pem")).expect("a copy");
    }

    /// The path of one of its files.
    pub fn file(&self, name: &str) -> String {
        self.directory.path().join(name).display().to_string()
    }

    fn openssl(&self, arguments: &str) -> Result<(), String> {
        let arguments = arguments.split_whitespace();
        let done = Command::new("openssl").args(arguments).current_dir(self.directory.path()).output();
        let done = done.map_err(|error| format!("openssl: {error}"))?;
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "openssl: {said}");
        Ok(())
    }

    /// What shows the servers' certificate to those who connect.
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

    /// A Redis that listens on `address` by TLS alone, for `core` with its `password`, who may what core's own Redis
    /// allows. The test looks past core, by the socket, as the default user.
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

    /// What makes a Redis listen on `address` by TLS, and a replica follow its primary by it.
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

    /// A PostgreSQL that speaks TLS on this process' own address.
    pub async fn postgres(&self) -> Result<Postgres, String> {
        let (ip, certificate, key) =
            (free_address().ip().to_string(), self.file("server.pem"), self.file("server.key"));
        let files = [("ssl_cert_file", certificate.as_str()), ("ssl_key_file", key.as_str())];
        Postgres::start_with(&[("ssl", "on"), ("listen_addresses", &ip), files[0], files[1]]).await
    }
}
