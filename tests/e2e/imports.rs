//! Imports run one way through the layers of core, and no crate has files that import each other in a circle.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Each part of core, and what it may import of core.
const LAYERS: [(&str, &[&str]); 17] = [
    ("step", &[]),
    ("clock", &[]),
    ("metrics", &[]),
    ("traces", &[]),
    ("credentials", &[]),
    ("data_dir", &[]),
    ("redis_address", &[]),
    ("webhook_hosts", &[]),
    ("config", &["credentials", "data_dir", "redis_address", "webhook_hosts"]),
    ("domain", &[]),
    ("store::redis", &["domain", "metrics", "redis_address", "step"]),
    ("store::sql", &["domain", "step"]),
    (
        "engine",
        &[
            "clock",
            "config",
            "domain",
            "metrics",
            "redis_address",
            "step",
            "store",
            "traces",
            "webhook_hosts",
        ],
    ),
    ("doctor", &["clock", "config", "data_dir", "redis_address", "store"]),
    ("http", &["clock", "credentials", "domain", "engine", "metrics", "store", "traces"]),
    ("jobs", &["clock", "domain", "engine", "metrics", "step", "store", "traces"]),
    (
        "server",
        &["config", "doctor", "engine", "http", "jobs", "metrics", "redis_address", "store", "traces"],
    ),
];
/// The command line, at the top, may import all of it.
const TOP: [&str; 4] = ["", "cli", "main", "store"];

/// The crates whose files are looked at.
const CRATES: [&str; 6] = ["shared", "rust-client", "drill", "core", "edge", "test-support"];

/// A crate's modules by path, such as `engine::sync`, each with its source but for its tests.
struct Crate(BTreeMap<String, String>);

impl Crate {
    fn read(name: &str) -> Self {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join(name).join("src");
        let mut modules = BTreeMap::new();
        for file in files(&source) {
            let path = file.strip_prefix(&source).unwrap().with_extension("");
            let mut parts: Vec<_> = path.iter().map(|part| part.to_str().unwrap()).collect();
            parts.pop_if(|last| ["lib", "mod"].contains(last));
            let text = fs::read_to_string(&file).unwrap();
            let text = text.split("#[cfg(test)]").next().unwrap().to_owned();
            modules.insert(parts.join("::"), text);
        }
        Self(modules)
    }

    /// Whatever each module names by a path: `crate::…`, `super::…` and `self::…`, as paths from the crate's root.
    fn imports(&self, module: &str) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        for (statement, re_exports) in paths(&self.0[module]) {
            if !re_exports {
                found.extend(expanded(&statement).into_iter().filter_map(|path| absolute(module, &path)));
            }
        }
        found
    }

    /// The module in which what `path` names is defined, where the crate has one: through the re-exports of its parents.
    fn home(&self, path: &str) -> Option<String> {
        let mut path = path.to_owned();
        for _ in 0..4 {
            let (parent, name) = path.rsplit_once("::").unwrap_or(("", &path));
            if self.0.contains_key(&path) {
                return Some(path);
            }
            let text = self.0.get(parent)?;
            let re_exported = paths(text)
                .into_iter()
                .filter(|(_, re_exports)| *re_exports)
                .flat_map(|(statement, _)| expanded(&statement))
                .find(|path| path.rsplit("::").next() == Some(name));
            // `pub use child::Name`, without `self::`.
            let of_child = |path: &str| format!("{parent}::{path}").trim_start_matches("::").to_owned();
            match re_exported.map(|path| absolute(parent, &path).unwrap_or_else(|| of_child(&path))) {
                Some(next) if next != path => path = next,
                _ => return Some(parent.to_owned()),
            }
        }
        None
    }

    /// Which modules each module imports something of.
    fn graph(&self) -> BTreeMap<&str, BTreeSet<String>> {
        let of = |module: &str| {
            let homes = self.imports(module).into_iter().filter_map(|path| self.home(&path));
            homes.filter(|home| home != module && self.0.contains_key(home)).collect()
        };
        self.0.keys().map(|module| (module.as_str(), of(module))).collect()
    }
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let nested = entries.map(|path| if path.is_dir() { files(&path) } else { vec![path] });
    nested.flatten().filter(|path| path.extension().is_some_and(|end| end == "rs")).collect()
}

/// The `use` statements of a source without their ends, and whether they re-export.
fn paths(text: &str) -> Vec<(String, bool)> {
    let code: Vec<_> = text.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
    let starts = |line: &str| {
        ["use ", "pub use ", "pub(super) use "].iter().any(|start| line.trim_start().starts_with(start))
    };
    let mut found = Vec::new();
    for (at, line) in code.iter().enumerate().filter(|(_, line)| starts(line)) {
        let rest = code[at..].join(" ");
        let statement = rest.split(';').next().unwrap_or_default();
        let path: String = statement
            .split_once("use ")
            .unwrap_or_default()
            .1
            .replace(" as ", "=")
            .split_whitespace()
            .collect();
        found.push((path, line.trim_start().starts_with("pub use ")));
    }
    found
}

/// `a::{b, c::{d, e}}` as `a::b`, `a::c::d`, `a::c::e`.
fn expanded(path: &str) -> Vec<String> {
    let Some((before, group)) = path.split_once('{') else {
        return vec![path.split('=').next().unwrap_or_default().to_owned()];
    };
    let group = group.strip_suffix('}').unwrap_or(group);
    let (mut items, mut depth, mut item) = (Vec::new(), 0, String::new());
    for letter in group.chars() {
        match letter {
            ',' if depth == 0 => items.push(std::mem::take(&mut item)),
            _ => {
                depth += i32::from(letter == '{') - i32::from(letter == '}');
                item.push(letter);
            }
        }
    }
    items.push(item);
    let items = items.into_iter().filter(|item| !item.is_empty());
    items.flat_map(|item| expanded(&format!("{before}{item}"))).collect()
}

/// A path as seen from `module`, from the crate's root; `None` for what another crate has.
fn absolute(module: &str, path: &str) -> Option<String> {
    let mut parts: Vec<&str> = module.split("::").filter(|part| !part.is_empty() && *part != "lib").collect();
    let mut words: Vec<&str> = path.split("::").filter(|word| *word != "self" || path == "self").collect();
    match path.split("::").next()? {
        "crate" => {
            parts.clear();
            words.remove(0);
        }
        "super" => {
            while words.first() == Some(&"super") {
                parts.pop();
                words.remove(0);
            }
        }
        "self" => {}
        _ => return None,
    }
    parts.extend(words);
    Some(parts.join("::"))
}

/// The layer that a module belongs to.
fn layer(module: &str) -> Option<&'static str> {
    LAYERS.iter().map(|(name, _)| *name).find(|name| is_within(module, name))
}

fn is_within(module: &str, name: &str) -> bool {
    module == name || module.starts_with(&format!("{name}::"))
}

#[test]
fn cores_imports_run_one_way() {
    let core = Crate::read("core");
    let mut wrong = Vec::new();
    for module in core.0.keys() {
        let Some(layer) = layer(module) else {
            assert!(
                TOP.contains(&module.as_str()) || is_within(module, "cli"),
                "core's {module} belongs to no layer"
            );
            continue;
        };
        let (_, allowed) = LAYERS.iter().find(|(name, _)| *name == layer).unwrap();
        for path in core.imports(module) {
            if !is_within(&path, layer) && !allowed.iter().any(|name| is_within(&path, name)) {
                wrong.push(format!("{module} imports {path}"));
            }
        }
    }
    assert!(core.0.len() > 50, "core was not found: {} files", core.0.len());
    assert!(wrong.is_empty(), "against the layers:\n{}", wrong.join("\n"));
}

#[test]
fn no_crate_has_a_circle_of_files() {
    let mut circles = Vec::new();
    for name in CRATES {
        let files = Crate::read(name);
        let graph = files.graph();
        let imports: usize = graph.values().map(BTreeSet::len).sum();
        assert!(imports >= 10, "{name}: only {imports} imports were found");
        for start in graph.keys() {
            let (mut seen, mut next) = (BTreeSet::new(), vec![(*start).to_owned()]);
            while let Some(module) = next.pop() {
                for import in &graph[module.as_str()] {
                    if import == start {
                        circles.push(format!("{name}: {start} imports what leads back to it, by {module}"));
                    } else if seen.insert(import.clone()) {
                        next.push(import.clone());
                    }
                }
            }
        }
    }
    assert!(circles.is_empty(), "{}", circles.join("\n"));
}
