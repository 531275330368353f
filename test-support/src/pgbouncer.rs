//! A PgBouncer in front of a [`Postgres`].

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Stdio;

use tempfile::TempDir;
use tokio::net::TcpStream;

use crate::postgres::{self, Postgres};
use crate::process::{Process, free_address};
use crate::time_limits::SOON;
use crate::wait::eventually;

/// The path in Debian's package.
const PROGRAM: &str = "/usr/sbin/pgbouncer";

/// A running PgBouncer; dropping it kills the process.
#[derive(Debug)]
pub struct PgBouncer {
    address: SocketAddr,
    _process: Process,
    directory: TempDir,
}

impl PgBouncer {
    /// Starts a PgBouncer for `postgres` with additional settings (`("pool_mode", "session")`); `Err`
    /// explains why this machine cannot run it.
    pub async fn start(postgres: &Postgres, settings: &[(&str, &str)]) -> Result<Self, String> {
        let program = find().ok_or("no pgbouncer")?;
        let directory = postgres::private()?;
        let file = |name: &str| directory.path().join(name);
        let address = free_address();
        let users = file("users");
        fs::write(&users, "\"claimgate\" \"\"\n").map_err(|error| error.to_string())?;
        let (host, port) = (postgres.directory().display(), postgres.port());
        let mut text = format!(
            "[databases]\n* = host={host} port={port}\n[pgbouncer]\nlisten_addr = {}\nlisten_port = {}\n\
             unix_socket_dir =\nauth_type = trust\nauth_file = {}\n",
            address.ip(),
            address.port(),
            users.display(),
        );
        text.extend(settings.iter().map(|(name, value)| format!("{name} = {value}\n")));
        fs::write(file("ini"), text).map_err(|error| error.to_string())?;
        let log = fs::File::create(file("log")).map_err(|error| error.to_string())?;
        // PgBouncer refuses to run as root, as PostgreSQL does.
        let mut command = postgres::as_unprivileged(&program)?;
        command.arg(file("ini")).current_dir(directory.path());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let server = Self { address, _process: Process::start(command), directory };
        eventually(SOON, || async {
            TcpStream::connect(address).await.map(drop).map_err(|error| format!("{error}; {}", server.log()))
        })
        .await;
        Ok(server)
    }

    /// Returns the URL of the database `name` through PgBouncer.
    pub fn url(&self, name: &str) -> String {
        Postgres::url_at(self.address, name)
    }

    fn log(&self) -> String {
        fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }
}

fn find() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let on_path = std::env::split_paths(&path).map(|directory| directory.join("pgbouncer"));
    on_path.chain([PathBuf::from(PROGRAM)]).find(|file| file.is_file())
}
