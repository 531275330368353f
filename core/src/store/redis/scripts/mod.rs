//! The scripts of `lua/`, compiled in, and the means to call them. `replies` parses the scripts' replies.

pub mod calls;
pub mod keys;
pub mod layout_number;
pub mod replies;
pub mod state;

use std::sync::LazyLock;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, ErrorKind, RedisError, ServerErrorKind, ToRedisArgs, Value};

/// A script that Redis runs once it is loaded: either an unnamed script, called by its hash, or a function.
#[derive(Debug)]
pub struct Script {
    /// The command that runs the script.
    run_with: &'static str,
    /// The script's name in that command.
    name: String,
    /// The command that loads the script: `SCRIPT LOAD` or `FUNCTION LOAD`.
    load_with: &'static str,
    text: String,
}

impl Script {
    /// Creates an unnamed script.
    fn new(text: String) -> Self {
        Self { run_with: "EVALSHA", name: hash(&text), load_with: "SCRIPT", text }
    }

    /// Creates a function in a separate library, whose prelude runs once instead of in each call. The name
    /// contains the text's hash, so that cores of different versions never call each other's function.
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
        Self { run_with: "FCALL", name, load_with: "FUNCTION", text }
    }

    /// Returns the script's name in Redis: the hash of the text, or the name of the function.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Begins a call on `keys`, without arguments.
    pub fn call(&'static self, keys: &[&str]) -> ScriptCall {
        let mut command = redis::cmd(self.run_with);
        command.arg(&self.name).arg(keys.len()).arg(keys);
        ScriptCall { script: self, command }
    }

    /// Loads the script into the server of `connection`. Succeeds if another core has just loaded it.
    ///
    /// # Errors
    /// Among others, a server that is out of memory refuses a function.
    pub async fn load(&self, connection: &mut MultiplexedConnection) -> Result<(), RedisError> {
        match redis::cmd(self.load_with).arg("LOAD").arg(&self.text).query_async::<Value>(connection).await {
            Err(error) if error.detail().is_some_and(|why| why.ends_with("already exists")) => Ok(()),
            loaded => loaded.map(drop),
        }
    }
}

/// Returns whether a script did not run because the server does not have it (any longer).
pub fn is_missing(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
        || error.detail() == Some("Function not found")
}

/// All commands that the scripts run.
const COMMANDS: [&str; 22] = [
    "DEL",
    "EXISTS",
    "GET",
    "HGET",
    "HINCRBY",
    "HMGET",
    "HSET",
    "HSETNX",
    "INCR",
    "PEXPIRE",
    "PTTL",
    "SET",
    "TIME",
    "UNLINK",
    "XADD",
    "XDEL",
    "XGROUP CREATE",
    "XRANGE",
    "ZADD",
    "ZRANGE",
    "ZREM",
    "ZSCORE",
];

/// Returns the commands with which core loads and runs its scripts, each in a form that changes no data. The last one
/// also checks the commands inside the scripts.
pub fn script_commands() -> [Cmd; 4] {
    let [mut load_function, mut call, mut load] = ["FUNCTION", "FCALL", "SCRIPT"].map(redis::cmd);
    // The text is not a library, and no function has the name.
    load_function.arg("LOAD").arg("");
    call.arg("claimgate_none").arg(0);
    load.arg("LOAD").arg(&RIGHTS.text);
    let mut check = RIGHTS.call(&[]);
    check.arg(keys::RIGHTS).arg(&COMMANDS[..]);
    [load_function, call, load, check.command]
}

/// Returns whether the server does not run a command for core, directly or in a script: its user may not, or the server
/// does not have the command.
pub fn is_denied(error: &RedisError) -> bool {
    // The messages of Redis 7.0, and of later versions and Valkey.
    const IN_SCRIPTS: [&str; 2] = ["The user executing the script", "ACL failure in script"];
    let is_denial =
        |why: &str| why.starts_with("unknown ") || IN_SCRIPTS.iter().any(|text| why.starts_with(text));
    error.code() == Some("NOPERM") || error.detail().is_some_and(is_denial)
}

/// Returns the SHA-1 of a text, by which Redis identifies a script.
fn hash(text: &str) -> String {
    redis::Script::new(text).get_hash().to_owned()
}

/// Maximum number of times that a call loads its script, which may be deleted again before it runs.
const LOADS_MAX: usize = 5;

/// A call of a script.
#[derive(Debug)]
pub struct ScriptCall {
    script: &'static Script,
    command: Cmd,
}

impl ScriptCall {
    /// Appends one or more arguments.
    pub fn arg(&mut self, argument: impl ToRedisArgs) -> &mut Self {
        self.command.arg(argument);
        self
    }

    /// Runs the script; loads it first if the server does not have it.
    ///
    /// # Errors
    /// The script may have run, unless the error is a reply of the server.
    pub async fn send(&self, connection: &mut MultiplexedConnection) -> Result<Value, RedisError> {
        for _ in 0..LOADS_MAX {
            match self.command.query_async(connection).await {
                Err(error) if is_missing(&error) => self.script.load(connection).await?,
                reply => return reply,
            }
        }
        self.command.query_async(connection).await
    }
}

macro_rules! script {
    ($(#[$doc:meta])* $name:ident, $($file:literal),+) => {
        $(#[$doc])*
        pub static $name: LazyLock<Script> =
            LazyLock::new(|| Script::new(concat!($(include_str!(concat!("../../../../../lua/", $file))),+).to_owned()));
    };
}

/// Decides a list of claims. This script is a function, since running the prelude would add a tenth to a call
/// of one claim. The other scripts are not functions: a server that is out of memory refuses functions, and
/// some scripts free memory.
pub static CLAIM: LazyLock<Script> = LazyLock::new(|| {
    Script::function(
        include_str!("../../../../../lua/prelude.lua"),
        include_str!("../../../../../lua/claim.lua"),
    )
});
script! {
    /// Confirms, returns or extends a claim.
    TRANSITION, "prelude.lua", "transition.lua"
}
/// Stops every decision until the campaign has been reloaded.
pub static SUSPEND: LazyLock<Script> =
    LazyLock::new(|| with_flags("allow-oom", include_str!("../../../../../lua/suspend.lua")));
script! {
    /// Loads a campaign from SQL.
    LOAD, "prelude.lua", "load.lua"
}
script! {
    /// Removes a suspended campaign's keys.
    DROP, "drop.lua"
}
script! {
    /// Moves a malformed outbox entry to the dead letters.
    DEAD_LETTER, "dead_letter.lua"
}
script! {
    /// Writes the entry that replicas have to confirm.
    BARRIER, "barrier.lua"
}
script! {
    /// Records the layout of the keys, or keeps the recorded one.
    KEEP_LAYOUT, "keep_layout.lua"
}
script! {
    /// Acquires, renews or releases a lease.
    LEASE, "lease.lua"
}
script! {
    /// Checks the rights of core's user.
    RIGHTS, "rights.lua"
}
script! {
    /// Applies a version of a campaign's rules.
    SET_RULES, "prelude.lua", "set_rules.lua"
}
/// Reads a claim and the campaign's counters.
pub static READ: LazyLock<Script> =
    LazyLock::new(|| with_flags(READ_FLAGS, include_str!("../../../../../lua/read.lua")));
/// Reads a user's record in a campaign.
pub static USER: LazyLock<Script> =
    LazyLock::new(|| with_flags(READ_FLAGS, include_str!("../../../../../lua/user.lua")));
/// Checks whether a campaign is sold out.
pub static SOLD_OUT: LazyLock<Script> =
    LazyLock::new(|| with_flags(READ_FLAGS, include_str!("../../../../../lua/sold_out.lua")));
/// Reads the codes of claims.
pub static READ_CODES: LazyLock<Script> =
    LazyLock::new(|| with_flags(READ_FLAGS, include_str!("../../../../../lua/read_codes.lua")));
/// Stores the codes of claims.
pub static GIVE_CODES: LazyLock<Script> =
    LazyLock::new(|| with_flags("allow-oom", include_str!("../../../../../lua/give_codes.lua")));
/// Removes relayed entries from the outbox.
pub static ACK: LazyLock<Script> =
    LazyLock::new(|| with_flags("allow-oom", include_str!("../../../../../lua/ack.lua")));

/// The flags of a script that writes nothing. Redis runs such a script even when out of memory. This is
/// necessary: the relay, which frees memory, starts only once a script has found the campaign ready.
const READ_FLAGS: &str = "no-writes";

/// Creates a script with the prelude and with `flags`.
fn with_flags(flags: &str, text: &str) -> Script {
    let text = [include_str!("../../../../../lua/prelude.lua"), text].concat();
    Script::new(text.replacen("#!lua\n", &format!("#!lua flags={flags}\n"), 1))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    use super::*;

    #[test]
    fn the_rights_of_all_commands_in_scripts_are_checked() {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../lua");
        let files = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
        let scripts = files.filter(|file| file.extension().is_some_and(|extension| extension == "lua"));
        let texts: Vec<_> = scripts.map(|file| fs::read_to_string(file).unwrap()).collect();
        let calls = texts.iter().flat_map(|text| text.split("redis.call('").skip(1));
        let run: BTreeSet<_> = calls.filter_map(|call| call.split('\'').next()).collect();
        let checked: BTreeSet<_> = COMMANDS.iter().filter_map(|command| command.split(' ').next()).collect();
        assert_eq!(run, checked);
    }
}
