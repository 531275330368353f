//! Processes that end with the test: on drop, on panic, and when the test process itself is killed.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::{LazyLock, Mutex, mpsc};
use std::time::{Duration, Instant};

pub use rustix::process::Signal;
use rustix::process::{Pid, kill_process, kill_process_group};

use crate::events::declare_fault;
use crate::stalls;
use crate::time_limits::limit;

type Order = (Command, mpsc::Sender<std::io::Result<Child>>);

/// The thread that starts all child processes. The kernel kills a child when the *thread* that started it
/// ends (`PR_SET_PDEATHSIG`), and test threads are short-lived.
static STARTER: LazyLock<Mutex<mpsc::Sender<Order>>> = LazyLock::new(|| {
    let (orders, inbox) = mpsc::channel::<Order>();
    std::thread::spawn(move || {
        for (mut command, reply) in inbox {
            let _ = reply.send(command.spawn());
        }
    });
    Mutex::new(orders)
});

/// The dynamic linker's variable, which `scripts/slow.sh` sets for every process that a test starts.
pub const PRELOAD: &str = "LD_PRELOAD";

/// Variables that exempt a server from the slow disk: for tests of another fault, because two concurrent faults
/// may exceed the guarantees (docs/guarantees.md).
pub fn fast_disk() -> [(&'static str, PathBuf); 1] {
    [(PRELOAD, PathBuf::new())]
}

/// A running process, killed when dropped.
#[derive(Debug)]
pub struct Process {
    child: Child,
}

/// Creates a command that ends with the test process and has a clean environment.
///
/// Background jobs of a shell ignore SIGINT and SIGQUIT, and their children inherit that. The tests of Ctrl-C
/// must also work there.
pub fn command(program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--", "env", "--default-signal=INT,QUIT"]).arg(program).env_clear();
    for name in ["PATH", PRELOAD] {
        if let Some(value) = std::env::var_os(name) {
            command.env(name, value);
        }
    }
    command
}

/// Returns the words before a command that give it `hosts` as its `/etc/hosts`. Needs root.
pub fn with_hosts(hosts: &Path) -> [String; 6] {
    let bind = "mount --bind \"$0\" /etc/hosts && exec \"$@\"";
    ["unshare", "--mount", "sh", "-c", bind, &hosts.display().to_string()].map(str::to_owned)
}

impl Process {
    /// Starts `command`, which must come from [`command`].
    pub fn start(command: Command) -> Self {
        stalls::watch();
        let (reply, child) = mpsc::channel();
        let name = format!("{command:?}");
        STARTER.lock().expect("the starter").send((command, reply)).expect("the starter runs");
        let child = child.recv().expect("the starter answers");
        Self { child: child.unwrap_or_else(|error| panic!("cannot start {name}: {error}")) }
    }

    /// Returns the process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends `signal`.
    pub fn signal(&self, signal: Signal) {
        signal_pid(self.pid(), signal);
    }

    /// Sends SIGKILL, as a fault of the test, and waits until the process is gone.
    pub fn kill(&mut self) {
        declare_fault();
        self.end();
    }

    fn end(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Returns the exit status; `None` while it runs.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("a child can be waited for")
    }

    /// Waits until the process ends; fails the test after `limit(within)`.
    pub async fn wait(&mut self, within: Duration) -> ExitStatus {
        let within = limit(within);
        let started = Instant::now();
        loop {
            if let Some(status) = self.ended() {
                return status;
            }
            assert!(started.elapsed() < within, "process {} still runs after {within:?}", self.pid());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}

/// Sends `signal`, as a fault of the test, to the process `pid` if it still exists.
pub fn signal_pid(pid: u32, signal: Signal) {
    declare_fault();
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).expect("a process id");
    let _ = kill_process(pid, signal);
}

/// Sends `signal` to several processes.
pub fn signal_pids(pids: &[u32], signal: Signal) {
    for pid in pids {
        signal_pid(*pid, signal);
    }
}

/// Sends `signal` to the process group led by `pid`, as a terminal does.
pub fn signal_group(pid: u32, signal: Signal) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).expect("a process id");
    kill_process_group(pid, signal).expect("a process group");
}

/// Returns the processor time that a process has used so far, in milliseconds; the kernel counts in
/// hundredths of a second.
pub fn cpu_ms(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("the process runs");
    // The state follows the name, which may contain anything; utime and stime are the 12th and 13th field
    // after it.
    let fields: Vec<&str> = stat.rsplit(')').next().expect("fields").split_whitespace().collect();
    let ticks = |at: usize| fields[at].parse::<u64>().expect("a number of ticks");
    (ticks(11) + ticks(12)) * 10
}

/// Returns whether a process runs: it exists and is not a zombie.
pub fn runs(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.lines().any(|line| line.starts_with("State:") && !line.contains('Z') && !line.contains('X'))
}

/// Returns the running child processes of `parent`.
pub fn children_of(parent: u32) -> Vec<u32> {
    let tasks = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = tasks.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| parent_of(*pid) == Some(parent)).collect()
}

fn parent_of(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()
}

/// Returns the loopback address of this test process.
pub fn own_loopback() -> IpAddr {
    let [_, high, middle, low] = std::process::id().to_be_bytes();
    IpAddr::V4(Ipv4Addr::new(127, 1 + (high & 0x7f), middle, low))
}

/// Returns an address on which no process listens. Every test process uses its own loopback address, so that
/// neither outgoing connections nor another test run can take the port.
pub fn free_address() -> SocketAddr {
    static GIVEN: Mutex<Vec<u16>> = Mutex::new(Vec::new());
    let ip = own_loopback();
    loop {
        let probe = TcpListener::bind((ip, 0)).expect("a free port");
        let address = probe.local_addr().expect("its address");
        let mut given = GIVEN.lock().expect("the ports given");
        if !given.contains(&address.port()) {
            given.push(address.port());
            return address;
        }
    }
}
