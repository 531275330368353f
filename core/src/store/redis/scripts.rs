//! The scripts of `lua/`, compiled in, and how they are called; `replies` reads what they answer.

use std::sync::LazyLock;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, ErrorKind, RedisError, ServerErrorKind, ToRedisArgs, Value};

/// The layout of the keys that this core reads and writes; another one is refused by the scripts.
pub const LAYOUT: u32 = 6;

/// A script that Redis runs, after it was brought there: an unnamed one, called by its hash, or a function.
#[derive(Debug)]
pub struct Script {
    /// The command that runs it.
    runs: &'static str,
    /// What that command calls it.
    name: String,
    /// What brings it to a server: `SCRIPT LOAD` or `FUNCTION LOAD`, and its text.
    loads: &'static str,
    text: String,
}

impl Script {
    /// An unnamed one.
    fn new(text: String) -> Self {
        Self { runs: "EVALSHA", name: hash(&text), loads: "SCRIPT", text }
    }

    /// A function of a library of its own: its prelude is run once, not at each call. Its name has the text's hash, so that cores
    /// of two versions do not call each other's.
    fn function(prelude: &str, body: &str) -> Self {
        let name = format!("claimgate_{}", hash(&[prelude, body].concat()));
        let prelude = prelude.replacen("#!lua\n", "", 1);
        let text = format!(
            "#!lua name={name}\nlocal KEYS, ARGV = {{}}, {{}}\n{prelude}\n\
             redis.register_function('{name}', function(keys, arguments)\n\
             KEYS, ARGV = keys, arguments\n\
             campaign_key, users_key, claims_key, holds_key, outbox_key = unpack(KEYS)\n\
             {body}\nend)\n"
        );
        Self { runs: "FCALL", name, loads: "FUNCTION", text }
    }

    /// What Redis calls it: the hash of its text, or the name of the function.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A call on `keys`, without arguments yet.
    pub fn call(&'static self, keys: &[&str]) -> ScriptCall {
        let mut command = redis::cmd(self.runs);
        command.arg(&self.name).arg(keys.len()).arg(keys);
        ScriptCall { script: self, command }
    }

    /// Brings it to the server of `connection`, where another core may just have done so.
    ///
    /// # Errors
    /// When the server does not answer, or refuses: a library is refused by one that is out of memory.
    pub async fn load(&self, connection: &mut MultiplexedConnection) -> Result<(), RedisError> {
        match redis::cmd(self.loads).arg("LOAD").arg(&self.text).query_async::<Value>(connection).await {
            Err(error) if error.detail().is_some_and(|why| why.ends_with("already exists")) => Ok(()),
            loaded => loaded.map(drop),
        }
    }
}

/// Whether a script was not run because the server does not have it, or has no more.
pub fn is_missing(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
        || error.detail() == Some("Function not found")
}

/// The SHA-1 of a text: what Redis calls a script.
fn hash(text: &str) -> String {
    redis::Script::new(text).get_hash().to_owned()
}

/// A call of a script.
#[derive(Debug)]
pub struct ScriptCall {
    script: &'static Script,
    command: Cmd,
}

impl ScriptCall {
    /// Appends an argument, or several.
    pub fn arg(&mut self, argument: impl ToRedisArgs) -> &mut Self {
        self.command.arg(argument);
        self
    }

    /// Runs the script, which is brought there first if the server does not have it.
    ///
    /// # Errors
    /// Those of Redis. Unless the server itself says why, the script may have run.
    pub async fn send(&self, connection: &mut MultiplexedConnection) -> Result<Value, RedisError> {
        match self.command.query_async(connection).await {
            Err(error) if is_missing(&error) => {
                self.script.load(connection).await?;
                self.command.query_async(connection).await
            }
            reply => reply,
        }
    }
}

macro_rules! script {
    ($(#[$doc:meta])* $name:ident, $($file:literal),+) => {
        $(#[$doc])*
        pub static $name: LazyLock<Script> =
            LazyLock::new(|| Script::new(concat!($(include_str!(concat!("../../../../lua/", $file))),+).to_owned()));
    };
}

/// Decides a list of claims. A function, since to make what is in the prelude takes a tenth of a call of one claim. The others stay
/// scripts: a server that is out of memory takes no library, and some of them free memory.
pub static CLAIM: LazyLock<Script> = LazyLock::new(|| {
    Script::function(include_str!("../../../../lua/prelude.lua"), include_str!("../../../../lua/claim.lua"))
});
script! {
    /// Confirms or returns a claim.
    TRANSITION, "prelude.lua", "transition.lua"
}
/// Stops every decision until the campaign has been loaded again.
pub static SUSPEND: LazyLock<Script> =
    LazyLock::new(|| with_flags("allow-oom", include_str!("../../../../lua/suspend.lua")));
script! {
    /// Loads a campaign from SQL.
    LOAD, "prelude.lua", "load.lua"
}
script! {
    /// Removes a suspended campaign's keys.
    DROP, "drop.lua"
}
script! {
    /// Moves a malformed entry out of the relay's way.
    DEAD_LETTER, "dead_letter.lua"
}
script! {
    /// A write that replicas have to confirm.
    BARRIER, "barrier.lua"
}
script! {
    /// Leases.
    LEASE, "lease.lua"
}
script! {
    /// Applies a version of a campaign's rules.
    SET_RULES, "prelude.lua", "set_rules.lua"
}
/// Reads a claim and the campaign's counters.
pub static READ: LazyLock<Script> =
    LazyLock::new(|| with_flags(READS, include_str!("../../../../lua/read.lua")));
/// Reads what a user has of a campaign.
pub static USER: LazyLock<Script> =
    LazyLock::new(|| with_flags(READS, include_str!("../../../../lua/user.lua")));
/// Tells whether nothing is left.
pub static SOLD_OUT: LazyLock<Script> =
    LazyLock::new(|| with_flags(READS, include_str!("../../../../lua/sold_out.lua")));
/// Takes relayed entries off the outbox.
pub static ACK: LazyLock<Script> =
    LazyLock::new(|| with_flags("allow-oom", include_str!("../../../../lua/ack.lua")));

/// The flags of a script that writes nothing, and so runs without memory too, as Redis takes "no-writes": a campaign is
/// relayed, which frees memory, only once it has been found to be ready.
const READS: &str = "no-writes";

/// A script behind the prelude that Redis runs under `flags`.
fn with_flags(flags: &str, text: &str) -> Script {
    let text = [include_str!("../../../../lua/prelude.lua"), text].concat();
    Script::new(text.replacen("#!lua\n", &format!("#!lua flags={flags}\n"), 1))
}
