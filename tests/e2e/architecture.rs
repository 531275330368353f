//! Imports follow the layers of core and the order of modules in a directory, and form no cycles in any
//! crate. An import is a `use`, or a path in code or in an attribute that names another module.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The layers of core, with the other modules of core that each layer may import.
const LAYERS: [(&str, &[&str]); 24] = [
    ("step", &[]),
    ("clock", &[]),
    ("connect", &[]),
    ("group_limits", &[]),
    ("metrics", &[]),
    ("nearest", &[]),
    ("traces", &[]),
    ("credentials", &[]),
    ("data_dir", &[]),
    ("redis_address", &[]),
    ("report_page", &[]),
    ("runtime", &[]),
    ("signals", &[]),
    ("webhook_hosts", &[]),
    ("config", &["credentials", "data_dir", "group_limits", "redis_address", "webhook_hosts"]),
    ("log", &["config", "metrics"]),
    ("domain", &["nearest"]),
    ("store::redis", &["domain", "metrics", "redis_address", "step"]),
    ("store::sql", &["connect", "domain", "step"]),
    (
        "engine",
        &[
            "clock",
            "config",
            "connect",
            "domain",
            "metrics",
            "redis_address",
            "step",
            "store",
            "traces",
            "webhook_hosts",
        ],
    ),
    ("doctor", &["clock", "config", "data_dir", "domain", "group_limits", "redis_address", "store"]),
    (
        "http",
        &["clock", "credentials", "domain", "engine", "metrics", "report_page", "runtime", "store", "traces"],
    ),
    ("jobs", &["clock", "domain", "engine", "metrics", "runtime", "step", "store", "traces"]),
    (
        "server",
        &["config", "doctor", "engine", "http", "jobs", "log", "metrics", "redis_address", "store", "traces"],
    ),
];
/// The modules at the top, which may import everything.
const TOP: [&str; 4] = ["", "cli", "main", "store"];

/// The crates that are checked for cycles.
const CRATES: [&str; 8] = ["shared", "rust-client", "drill", "core", "edge", "test-support", "bench", "lab"];

/// Directories of core: the maximum number of submodules, and the maximum length of an import chain.
const DIRECTORIES: [(&str, usize, usize); 2] = [("engine", 16, 5), ("store::redis", 12, 5)];

/// Driver crates, each with the only module of core that may use it.
const DRIVERS: [(&str, &str); 1] = [("sqlx", "store::sql")];

/// A crate's modules by path, such as `engine::stores`, with their source without tests.
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

    /// Returns the paths that `module` names with `crate::…`, `super::…` and `self::…`, relative to the
    /// crate's root.
    fn imports(&self, module: &str) -> BTreeSet<String> {
        let text = code(&self.0[module]);
        let used = uses(&text).into_iter().filter(|(_, re_exports)| !re_exports);
        let used = used.flat_map(|(statement, _)| expanded(&statement));
        used.chain(inline(&text)).filter_map(|path| absolute(module, &path)).collect()
    }

    /// Returns the module that defines the item at `path`, following re-exports.
    fn home(&self, path: &str) -> Option<String> {
        let mut path = path.to_owned();
        for _ in 0..4 {
            let (parent, name) = path.rsplit_once("::").unwrap_or(("", &path));
            if self.0.contains_key(&path) {
                return Some(path);
            }
            let text = self.0.get(parent)?;
            let re_exported = uses(&code(text))
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

    /// Returns the modules that each module imports from.
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

/// Returns `text` without its comments.
fn code(text: &str) -> String {
    text.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}

/// Returns whether the `use` statement that `line` begins is a re-export; `None` if `line` begins none.
fn begins_use(line: &str) -> Option<bool> {
    let line = line.trim_start();
    let starts =
        [("use ", false), ("pub use ", true), ("pub(super) use ", false), ("pub(crate) use ", false)];
    starts.into_iter().find(|(start, _)| line.starts_with(start)).map(|(_, re_exports)| re_exports)
}

/// Returns the `use` statements of a source, and whether each is a re-export.
fn uses(text: &str) -> Vec<(String, bool)> {
    let lines: Vec<_> = text.lines().collect();
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let Some(re_exports) = begins_use(line) else { continue };
        let rest = lines[at..].join(" ");
        let statement = rest.split(';').next().unwrap_or_default();
        let path = statement.split_once("use ").unwrap_or_default().1.replace(" as ", "=");
        found.push((path.split_whitespace().collect(), re_exports));
    }
    found
}

/// Returns the `crate::…`, `super::…` and `self::…` paths in code and attributes.
fn inline(text: &str) -> Vec<String> {
    let mut rest = String::new();
    let mut in_use = false;
    for line in text.lines() {
        in_use |= begins_use(line).is_some();
        if !in_use {
            rest.push_str(line);
            rest.push('\n');
        }
        in_use &= !line.contains(';');
    }
    // A visibility such as `pub(in crate::a)` is not an import.
    let rest = rest.replace("(in crate::", "(in_crate::");
    let is_of_path = |letter: char| letter.is_ascii_alphanumeric() || "_:".contains(letter);
    let words = rest.split(|letter| !is_of_path(letter));
    let paths =
        words.filter(|word| ["crate::", "super::", "self::"].iter().any(|start| word.starts_with(start)));
    paths.map(|path| path.trim_end_matches(':').to_owned()).collect()
}

/// Expands `a::{b, c::{d, e}}` to `a::b`, `a::c::d`, `a::c::e`.
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

/// Resolves a path in `module` relative to the crate's root. Returns `None` for paths of other crates.
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

/// Returns the layer that `module` belongs to.
fn layer(module: &str) -> Option<&'static str> {
    LAYERS.iter().map(|(name, _)| *name).find(|name| is_within(module, name))
}

fn is_within(module: &str, name: &str) -> bool {
    module == name || module.starts_with(&format!("{name}::"))
}

#[test]
fn imports_in_core_follow_the_layers() {
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
fn no_crate_has_an_import_cycle() {
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
                        circles.push(format!("{name}: {start} is in an import cycle, through {module}"));
                    } else if seen.insert(import.clone()) {
                        next.push(import.clone());
                    }
                }
            }
        }
    }
    assert!(circles.is_empty(), "{}", circles.join("\n"));
}

/// Returns the parts of `directory`, which are its files and subdirectories, and the parts that each imports.
fn parts<'a>(core: &'a Crate, directory: &str) -> BTreeMap<&'a str, BTreeSet<String>> {
    let part = |path: &str| {
        let inside = path.strip_prefix(directory)?.strip_prefix("::")?;
        inside.split("::").next().map(str::to_owned)
    };
    let mut found: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for module in core.0.keys() {
        let Some(of) = part(module) else { continue };
        let at = directory.len() + 2;
        let imports = found.entry(&module[at..at + of.len()]).or_default();
        let homes = core.imports(module).into_iter().filter_map(|path| core.home(&path));
        imports.extend(homes.filter_map(|home| part(&home)).filter(|home| *home != of));
    }
    found
}

/// Returns the longest extension of `chain` by imports.
fn longest(parts: &BTreeMap<&str, BTreeSet<String>>, chain: &[String]) -> Vec<String> {
    let mut found = chain.to_vec();
    for next in &parts[chain.last().unwrap().as_str()] {
        assert!(!chain.contains(next), "an import cycle: {} → {next}", chain.join(" → "));
        let chain = longest(parts, &[chain, std::slice::from_ref(next)].concat());
        if chain.len() > found.len() {
            found = chain;
        }
    }
    found
}

#[test]
fn directories_have_few_modules_and_short_import_chains() {
    let core = Crate::read("core");
    for (directory, parts_max, imports_max) in DIRECTORIES {
        let parts = parts(&core, directory);
        let chains = parts.keys().map(|part| longest(&parts, &[(*part).to_owned()]));
        let chain = chains.max_by_key(Vec::len).unwrap();
        println!("{directory}: {} parts, the longest import chain is {}", parts.len(), chain.join(" → "));
        assert!(parts.len() <= parts_max, "{directory} has {} parts: {:?}", parts.len(), parts.keys());
        assert!(
            chain.len() - 1 <= imports_max,
            "{directory}: {} imports in a row: {chain:?}",
            chain.len() - 1
        );
    }
}

#[test]
fn database_drivers_are_used_only_in_their_store() {
    let core = Crate::read("core");
    for (driver, part) in DRIVERS {
        let named = |text: &str| text.contains(&format!("{driver}::"));
        let elsewhere = core.0.iter().filter(|(module, _)| !module.starts_with(part));
        let strangers: Vec<_> =
            elsewhere.filter(|(_, text)| named(&code(text))).map(|(module, _)| module).collect();
        assert!(strangers.is_empty(), "{driver} is used outside of {part}: {strangers:?}");
    }
}

#[test]
fn an_inline_path_counts_as_an_import() {
    let text = "use super::a;\npub(crate) use self::b::{\n    C,\n};\n// super::comment\n#[is(super::d::E)]\n\
                fn f(_: &crate::g::H) { self::i::j() }\npub(in crate::k) fn l() {}\n";
    assert_eq!(inline(&code(text)), ["super::d::E", "crate::g::H", "self::i::j"]);
}
