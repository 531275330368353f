//! Limits of the machine and of control groups, as systemd, Docker and Kubernetes set them.

use std::fs;
use std::path::{Path, PathBuf};

/// The memory limit of core and of the Redis that it starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryLimit {
    /// The limit in bytes.
    pub bytes: u64,
    /// `/proc/meminfo` for the machine's memory, otherwise the file of a control group.
    pub file: PathBuf,
}

impl MemoryLimit {
    /// Reads the lowest limit: of the machine, of this process's control group, or of a group above it. `None` if nothing
    /// can be read.
    pub fn read() -> Option<Self> {
        Self::read_under(Path::new("/"))
    }

    /// Reads the files of the machine whose root directory is `root`.
    fn read_under(root: &Path) -> Option<Self> {
        let groups = group_limits(root, &MEMORY).into_iter().map(|(bytes, file)| Self { bytes, file });
        machine(root).into_iter().chain(groups).min_by_key(|limit| limit.bytes)
    }
}

/// The limit on the processes and threads of core's control group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessLimit {
    /// The maximum number of processes and threads.
    pub max: u64,
    /// The number that the group has now.
    pub used: u64,
    /// The file of the limit.
    pub file: PathBuf,
}

impl ProcessLimit {
    /// Reads the limit that allows the fewest further processes: of this process's control group, or of a group above it.
    /// `None` without a limit.
    pub fn read() -> Option<Self> {
        Self::read_under(Path::new("/"))
    }

    fn read_under(root: &Path) -> Option<Self> {
        let limits = group_limits(root, &PROCESSES).into_iter().filter_map(|(max, file)| {
            let used = number_in(root, &file.with_file_name("pids.current"))?;
            Some(Self { max, used, file })
        });
        limits.min_by_key(Self::left)
    }

    /// Returns the number of further processes and threads that the group may have.
    pub fn left(&self) -> u64 {
        self.max.saturating_sub(self.used)
    }
}

fn machine(root: &Path) -> Option<MemoryLimit> {
    let info = fs::read_to_string(root.join("proc/meminfo")).ok()?;
    let kib = info.lines().find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix("kB"))?;
    Some(MemoryLimit { bytes: kib.trim().parse::<u64>().ok()? * 1024, file: "/proc/meminfo".into() })
}

/// A controller of control groups, and the files of its limit in versions 1 and 2.
struct Controller {
    name: &'static str,
    version_1: &'static str,
    version_2: &'static str,
}

const MEMORY: Controller =
    Controller { name: "memory", version_1: "memory.limit_in_bytes", version_2: "memory.max" };
const PROCESSES: Controller = Controller { name: "pids", version_1: "pids.max", version_2: "pids.max" };

/// Returns the limits of this process's control groups and of all groups above them, with their files, in both versions of
/// cgroups.
fn group_limits(root: &Path, controller: &Controller) -> Vec<(u64, PathBuf)> {
    let read = |file: &str| fs::read_to_string(root.join(file)).unwrap_or_default();
    let (groups, mounts) = (read("proc/self/cgroup"), read("proc/self/mountinfo"));
    let hierarchies = mounts.lines().filter_map(|line| Hierarchy::of_mount(line, controller));
    hierarchies.flat_map(|hierarchy| hierarchy.limits(root, &groups, controller)).collect()
}

/// A mounted hierarchy of control groups that may have the limits of a controller.
#[derive(Debug)]
struct Hierarchy<'a> {
    /// The group that is visible at `mount`: in a container without a cgroup namespace, the container's.
    top: &'a Path,
    mount: &'a Path,
    is_version_2: bool,
}

impl<'a> Hierarchy<'a> {
    /// Parses a line of `/proc/self/mountinfo` (`proc_pid_mountinfo(5)`).
    fn of_mount(line: &'a str, controller: &Controller) -> Option<Self> {
        let (mount, file_system) = line.split_once(" - ")?;
        let mut mount = mount.split(' ').skip(3).map(Path::new);
        let mut file_system = file_system.split(' ');
        let is_version_2 = match file_system.next()? {
            "cgroup2" => true,
            "cgroup" if file_system.nth(1)?.split(',').any(|option| option == controller.name) => false,
            _ => return None,
        };
        Some(Self { top: mount.next()?, mount: mount.next()?, is_version_2 })
    }

    /// Returns the limits of this process's group and those above it. `groups` is `/proc/self/cgroup` (`cgroups(7)`).
    fn limits(&self, root: &Path, groups: &str, controller: &Controller) -> Vec<(u64, PathBuf)> {
        let group = groups.lines().find_map(|line| {
            let mut parts = line.splitn(3, ':').skip(1);
            let controllers = parts.next()?;
            let is_this = if self.is_version_2 {
                controllers.is_empty()
            } else {
                controllers.split(',').any(|name| name == controller.name)
            };
            parts.next().filter(|_| is_this).map(Path::new)
        });
        // A group outside the mount is not visible; what is visible belongs to the container.
        let group = group.and_then(|group| group.strip_prefix(self.top).ok()).unwrap_or(Path::new(""));
        let name = if self.is_version_2 { controller.version_2 } else { controller.version_1 };
        let files = group.ancestors().map(|group| self.mount.join(group).join(name));
        files.filter_map(|file| Some((number_in(root, &file)?, file))).collect()
    }
}

/// Returns the number in `file`; `None` without one: "max", or a file that does not exist.
fn number_in(root: &Path, file: &Path) -> Option<u64> {
    let text = fs::read_to_string(root.join(file.strip_prefix("/").ok()?)).ok()?;
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MACHINE: (&str, &str) = ("proc/meminfo", "MemTotal:       24576 kB\nMemFree:        1 kB\n");
    const VERSION_2: &str =
        "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";
    const VERSION_1: &str = "33 32 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n\
                             36 32 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
    const MIB: u64 = 1 << 20;

    /// Creates a machine with 24 MiB of memory and the given /proc and /sys files.
    fn machine_with(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (name, text) in files.iter().chain([&MACHINE]) {
            let file = root.path().join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }
        root
    }

    /// Returns the memory limit of such a machine.
    fn limit(files: &[(&str, &str)]) -> (u64, String) {
        let root = machine_with(files);
        let limit = MemoryLimit::read_under(root.path()).unwrap();
        (limit.bytes, limit.file.to_str().unwrap().to_owned())
    }

    fn found(bytes: u64, file: &str) -> (u64, String) {
        (bytes, file.to_owned())
    }

    #[test]
    fn without_cgroup_limits_the_limit_is_the_machines_memory() {
        assert_eq!(limit(&[]), found(24 * MIB, "/proc/meminfo"));
        let unlimited = [
            ("proc/self/cgroup", "0::/user.slice\n"),
            ("proc/self/mountinfo", VERSION_2),
            ("sys/fs/cgroup/user.slice/memory.max", "max\n"),
        ];
        assert_eq!(limit(&unlimited), found(24 * MIB, "/proc/meminfo"));
    }

    #[test]
    fn a_units_limit_and_those_above_it_count() {
        let unit = "/sys/fs/cgroup/system.slice/claimgate.service/memory.max";
        let (name, slice) = (&unit[1..], "sys/fs/cgroup/system.slice/memory.max");
        let groups = [
            ("proc/self/cgroup", "0::/system.slice/claimgate.service\n"),
            ("proc/self/mountinfo", VERSION_2),
            (name, "8388608\n"),
        ];
        assert_eq!(limit(&groups), found(8 * MIB, unit));
        let above = [&groups[..], &[(slice, "4194304\n")]].concat();
        assert_eq!(limit(&above), found(4 * MIB, "/sys/fs/cgroup/system.slice/memory.max"));
    }

    #[test]
    fn version_1_has_a_hierarchy_for_memory() {
        let groups = [
            ("proc/self/cgroup", "4:cpu,cpuacct:/other\n9:memory:/system.slice/claimgate.service\n0::/\n"),
            ("proc/self/mountinfo", VERSION_1),
            ("sys/fs/cgroup/cpu/other/memory.limit_in_bytes", "1\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("sys/fs/cgroup/memory/system.slice/claimgate.service/memory.limit_in_bytes", "8388608\n"),
        ];
        let file = "/sys/fs/cgroup/memory/system.slice/claimgate.service/memory.limit_in_bytes";
        assert_eq!(limit(&groups), found(8 * MIB, file));
    }

    #[test]
    fn a_container_sees_its_own_group_at_the_mount() {
        let mount = "36 32 0:32 /docker/c0ffee /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n";
        for group in ["9:memory:/docker/c0ffee\n", "9:memory:/\n"] {
            let files = [
                ("proc/self/cgroup", group),
                ("proc/self/mountinfo", mount),
                ("sys/fs/cgroup/memory/memory.limit_in_bytes", "8388608\n"),
            ];
            assert_eq!(
                limit(&files),
                found(8 * MIB, "/sys/fs/cgroup/memory/memory.limit_in_bytes"),
                "{group}"
            );
        }
    }

    #[test]
    fn the_limit_with_the_fewest_processes_left_counts() {
        let files = [
            ("proc/self/cgroup", "8:pids:/slice/unit\n4:memory:/slice\n"),
            ("proc/self/mountinfo", "33 32 0:29 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n"),
            ("sys/fs/cgroup/pids/slice/unit/pids.max", "100\n"),
            ("sys/fs/cgroup/pids/slice/unit/pids.current", "40\n"),
            ("sys/fs/cgroup/pids/slice/pids.max", "1000\n"),
            ("sys/fs/cgroup/pids/slice/pids.current", "970\n"),
        ];
        let limit = ProcessLimit::read_under(machine_with(&files).path()).unwrap();
        assert_eq!((limit.max, limit.used, limit.left()), (1000, 970, 30));
        assert_eq!(limit.file, Path::new("/sys/fs/cgroup/pids/slice/pids.max"));
        let unlimited = [files[0], files[1], ("sys/fs/cgroup/pids/slice/unit/pids.max", "max\n")];
        assert_eq!(ProcessLimit::read_under(machine_with(&unlimited).path()), None);
    }
}
