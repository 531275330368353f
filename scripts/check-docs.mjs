#!/usr/bin/env node
// Checks that the documents name only existing things: links and anchors, paths, make targets, commands and flags,
// variables, tests, metrics, routes, and statements of lua/README.md and docs/redis-layout.md about the scripts. Also
// checks that the documents name all metrics, variables, routes, problem codes and scripts, that docs/SUMMARY.md lists
// all documents, and that tests run by name exist. tests/README.md must list the promised times with the tests that
// measure them.
//
//   node scripts/check-docs.mjs     prints a line for each mistake and exits with 1 if there are any
import { existsSync, readFileSync, readdirSync, statSync } from "node:fs";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { anchorsOf, codeOf, headingsOf, linesOf, sectionOf } from "./markdown.mjs";

const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), "..");
process.chdir(root);

/** Directories that are generated or downloaded. */
const SKIPPED = new Set([".git", "node_modules", "target", "data", "build", ".wrangler"]);
/** Files that an operator adds to a checkout. */
const OPERATORS_FILES = /^edge\/assets\/brand(\.json$|\/)/;
/** Maximum numbers of lines of documents. */
const LINES_MAX = { "README.md": 150, "README.zh-CN.md": 150, "ARCHITECTURE.md": 200 };
/** A bare name with one of these endings must be a file of the tree. */
const FILE_NAME = /^[\w.-]+\.(rs|lua|mjs|js|sh|toml|yml|yaml|md|sql|capnp|c|html|css)$/;
/** Directories whose code reads environment variables. */
const VARIABLE_SOURCES = ["client/conformance", "core/src", "examples", "scripts", "test-support/src"];

const files = listFiles(".");
const names = new Set(files.map((file) => path.basename(file)));
const topLevel = new Set(files.map((file) => file.split("/")).filter((parts) => parts.length > 1).map(([top]) => top));
const documents = files.filter((file) => file.endsWith(".md"));
const texts = new Map(documents.map((file) => [file, read(file)]));
const mistakes = [];

function listFiles(directory) {
  return readdirSync(directory, { withFileTypes: true }).flatMap((entry) => {
    const file = path.join(directory, entry.name);
    if (entry.isDirectory()) return SKIPPED.has(entry.name) ? [] : listFiles(file);
    return [file];
  });
}

function read(file) {
  return existsSync(file) ? readFileSync(file, "utf8") : "";
}

function readAll(under, ending) {
  return files.filter((file) => under.some((directory) => file === directory || file.startsWith(`${directory}/`)))
    .filter((file) => file.endsWith(ending)).map(read).join("\n");
}

function mistake(file, line, text) {
  mistakes.push(`${file}:${line}: ${text}`);
}

// --- links ------------------------------------------------------------------------------------------------------

function checkLinks(file, text) {
  for (const { number, line, fence } of linesOf(text)) {
    if (fence !== null) continue;
    for (const [, target] of line.replace(/`[^`]*`/g, "").matchAll(/\]\(([^)\s]+)\)/g)) {
      if (/^[a-z]+:/.test(target)) continue;
      const [linkedFile, anchor] = target.split("#");
      const linked = linkedFile === "" ? file : path.join(path.dirname(file), decodeURI(linkedFile));
      if (!existsSync(linked)) mistake(file, number, `link to ${target}: no such file`);
      else if (anchor && !anchorsOf(read(linked)).has(anchor)) mistake(file, number, `link to ${target}: no such heading`);
    }
  }
}

/** Checks that the book's table of contents lists each document once: otherwise no reader of the book finds the document. */
function checkSummary() {
  const file = "docs/SUMMARY.md";
  const listed = [...(texts.get(file) ?? "").matchAll(/\]\(([^)]+)\)/g)].map(([, target]) => path.join(path.dirname(file), target));
  for (const document of documents.filter((one) => one !== file)) {
    const count = listed.filter((one) => one === document).length;
    if (count !== 1) mistake(file, 1, `${document} is listed ${count} times; list each document once`);
  }
}

// --- paths ------------------------------------------------------------------------------------------------------

/** Expands `a/{b,c}.rs` into two names. */
function expanded(text) {
  const braces = text.match(/^([^{}]*)\{([^{}]*)\}(.*)$/);
  if (!braces) return [text];
  return braces[2].split(",").flatMap((part) => expanded(`${braces[1]}${part.trim()}${braces[3]}`));
}

function fileExists(file, name) {
  if (!name.includes("*")) return existsSync(name) || existsSync(path.join(path.dirname(file), name));
  const pattern = new RegExp(`^${name.split("*").map((part) => part.replace(/[.+?^${}()|[\]\\]/g, "\\$&")).join("[^/]*")}$`);
  return files.some((one) => pattern.test(one));
}

function checkPath(file, number, word) {
  for (const name of expanded(word.replace(/[.,;:]+$/, ""))) {
    const [first] = name.split("/");
    if (OPERATORS_FILES.test(name)) continue;
    if (name.includes("/")) {
      const isInTree = topLevel.has(first) && !SKIPPED.has(first);
      const isSibling = existsSync(path.join(path.dirname(file), first)) && !SKIPPED.has(first) && FILE_NAME.test(path.basename(name));
      if ((isInTree || isSibling) && !fileExists(file, name)) mistake(file, number, `${name}: no such file`);
    } else if (FILE_NAME.test(name) && !names.has(name)) {
      mistake(file, number, `${name}: no file of this name`);
    }
  }
}

/** Checks a path, or `path: word`: the file must contain the word. */
function checkPaths(file, number, code, isShell) {
  if (isShell) {
    for (const word of code.split(/[\s"'()=]+/)) if (word.includes("/")) checkPath(file, number, word);
    return;
  }
  const [, name, , word] = code.match(/^([^\s:]+)(:\s+(\S+))?$/) ?? [];
  if (!name || /^[/~$<-]|:\/\//.test(name)) return;
  checkPath(file, number, name);
  if (word && existsSync(name) && statSync(name).isFile() && !read(name).includes(word)) {
    mistake(file, number, `${name}: does not contain '${word}'`);
  }
}

// --- commands ---------------------------------------------------------------------------------------------------

const makeTargets = new Set([...read("Makefile").matchAll(/^([a-z][a-z -]*):/gm)].flatMap(([, all]) => all.split(" ")));

function checkMake(file, number, code) {
  for (const [, words] of code.matchAll(/(?:^|[\s;&])make((?:\s+[a-z][a-z-]*)+)/g)) {
    const target = words.trim().split(/\s+/)[0];
    if (!makeTargets.has(target)) mistake(file, number, `make ${target}: no such target`);
  }
}

const kebab = (name) => name.replace(/([a-z0-9])([A-Z])/g, "$1-$2").replaceAll("_", "-").toLowerCase();

/** Returns the bodies of `struct X { … }` or `enum X { … }` in the command line's source, by name. */
function bodies(source, kind) {
  const found = new Map();
  for (const match of source.matchAll(new RegExp(`\\b${kind} (\\w+)[^{;(]*\\{`, "g"))) {
    const start = match.index + match[0].length;
    let depth = 1, end = start;
    for (; depth > 0 && end < source.length; end += 1) depth += { "{": 1, "}": -1 }[source[end]] ?? 0;
    found.set(match[1], source.slice(start, end - 1));
  }
  return found;
}

const commandSource = readAll(["core/src/cli", "core/src/config.rs", "core/src/config"], ".rs").replace(/^\s*\/\/.*$/gm, "");
const structs = bodies(commandSource, "struct");
const enums = bodies(commandSource, "enum");

/** Returns the flags of a struct or enum and of the types it contains: a command's flags may follow its subcommand. */
function flagsOf(name, seen = new Set()) {
  const body = structs.get(name) ?? enums.get(name);
  if (seen.has(name) || !body) return new Set();
  seen.add(name);
  const flags = new Set();
  const fields = /#\[(arg|command)\(((?:[^()]|\((?:[^()]|\([^()]*\))*\))*)\)\]\s*(?:pub(?:\([^)]*\))?\s+)?(\w+):\s*([\w:<>]+)/g;
  for (const [, kind, options, field, type] of body.matchAll(fields)) {
    if (kind === "command" && /\b(flatten|subcommand)\b/.test(options)) for (const flag of flagsOf(type, seen)) flags.add(flag);
    const long = options.match(/\blong\b(?:\s*=\s*"([^"]+)")?/);
    if (kind === "arg" && long) flags.add(long[1] ?? kebab(field));
  }
  return flags;
}

/** Returns the subcommands of an enum: name → type of its arguments. */
function variantsOf(name) {
  const variants = new Map();
  for (const [, variant, type] of (enums.get(name) ?? "").matchAll(/^\s*([A-Z]\w*)(?:\((?:Box<)?(\w+)>?\))?,/gm)) {
    variants.set(kebab(variant), type);
  }
  return variants;
}

const commands = variantsOf("Command");

function checkCommand(file, number, code) {
  for (const [, rest] of code.matchAll(/(?:^|target\/release\/|[;&|(]\s*)claimgate((?:\s+[^\s|;&)]+)+)/g)) {
    let words = rest.trim().split(/\s+/);
    if (words[0] === "…" || words[0].startsWith("<")) continue;
    let argumentsType = null, command = "claimgate";
    if (/^[a-z]/.test(words[0])) {
      for (let known = commands; known && words.length > 0 && /^[a-z-]+$/.test(words[0]); ) {
        const [word] = words;
        command += ` ${word}`;
        if (!known.has(word)) return mistake(file, number, `${command}: no such command`);
        argumentsType = known.get(word);
        words = words.slice(1);
        known = enums.has(argumentsType) ? variantsOf(argumentsType) : null;
      }
    }
    const flags = new Set([...(argumentsType ? flagsOf(argumentsType) : []), "help", "version"]);
    for (const word of words) {
      const flag = word.match(/^--([a-z][a-z-]*)/)?.[1];
      if (flag && !flags.has(flag)) mistake(file, number, `${command} --${flag}: no such flag`);
    }
  }
}

const serveFlags = flagsOf(commands.get("serve"));
const allFlags = new Set([...structs.keys()].flatMap((struct) => [...flagsOf(struct)]).concat("help", "version"));

/** Checks a single flag in backticks, in documents about claimgate's own command line. */
function checkSingleFlag(file, number, code) {
  const flag = code.match(/^--([a-z][a-z-]*)$/)?.[1];
  if (!flag || !/^(README\S*|docs\/(operations|configuration|guarantees|api)\.md)$/.test(file)) return;
  const known = file === "docs/configuration.md" ? serveFlags : allFlags;
  if (!known.has(flag)) mistake(file, number, `--${flag}: no such flag`);
}

// --- tests ------------------------------------------------------------------------------------------------------

/** Returns the full names of the functions in the crate of `main`: `module::function`. */
function functionsOf(main) {
  const directory = ["main.rs", "lib.rs"].includes(path.basename(main)) ? path.dirname(main) : main.replace(/\.rs$/, "");
  const full = [];
  for (const source of files.filter((one) => one === main || (one.startsWith(`${directory}/`) && one.endsWith(".rs")))) {
    const module = path.relative(directory, source).replace(/\.rs$/, "").replace(/\/mod$/, "").replaceAll("/", "::");
    const prefix = source === main ? "" : `${module}::`;
    // The second form is a test declared by a macro, such as in tests/interleavings/regressions.rs.
    for (const [, fn, declared] of read(source).matchAll(/\bfn (\w+)|^ {4}(\w+):$/gm)) full.push(`${prefix}${fn ?? declared}`);
  }
  return full;
}

/** Returns the test binaries: name → full test names that a filter may match. */
function testBinaries() {
  const declared = read("tests/Cargo.toml").matchAll(/\[\[test\]\]\s+name = "([^"]+)"\s+path = "([^"]+)"/g);
  return new Map([...declared].map(([, name, file]) => [name, functionsOf(path.join("tests", file))]));
}

const tests = testBinaries();
const packages = new Set(files.filter((file) => path.basename(file) === "Cargo.toml").flatMap((file) => read(file).match(/^\[package\]\s+name = "([^"]+)"/)?.[1] ?? []));

function checkCargoTest(file, number, code) {
  const found = code.match(/cargo test(.*)$/);
  if (!found) return;
  const words = found[1].trim().split(/\s+/).filter((word) => word !== "");
  const at = (flag) => (words.includes(flag) ? words[words.indexOf(flag) + 1] : null);
  if (at("-p") && !packages.has(at("-p"))) mistake(file, number, `cargo test -p ${at("-p")}: no such package`);
  const binary = at("--test");
  if (!binary) return;
  if (!tests.has(binary)) return void mistake(file, number, `cargo test --test ${binary}: no such test binary`);
  const filters = words.filter((word, index) => /^\w/.test(word) && !["-p", "--test"].includes(words[index - 1]));
  for (const filter of filters) {
    if (!tests.get(binary).some((name) => name.includes(filter))) mistake(file, number, `--test ${binary} ${filter}: no such test`);
  }
}

/** Checks `module::test` and `binary::module::test` in backticks, and `crate::path` of a module. */
function checkTestName(file, number, code) {
  if (!/^[a-z_0-9]+(::[a-z_0-9]+)+$/.test(code)) return;
  const [first, ...rest] = code.split("::");
  const starts = (name, wanted) => name === wanted || name.startsWith(`${wanted}::`);
  const isTest = [...tests.values()].flat().some((name) => starts(name, code)) ||
    (tests.get(first) ?? []).some((name) => starts(name, rest.join("::")));
  const inCrate = code.replaceAll("::", "/");
  const isModule = ["core/src", "edge/src", "shared/src"].some((src) =>
    [`${src}/${inCrate}.rs`, `${src}/${inCrate}/mod.rs`].some((source) => existsSync(source)));
  if (!isTest && !isModule) mistake(file, number, `${code}: no such test or module`);
}

/** Checks that the tests named by scripts exist: full names in tests/other-topologies.txt, substrings in tests/mutants/defects.sh. */
function checkTestLists() {
  const units = functionsOf("core/src/lib.rs").map((name) => name.replace(/::(\w+)$/, "::tests::$1"));
  const lines = (file) => read(file).split("\n").map((line, index) => [line, index + 1]);
  for (const [line, number] of lines("tests/other-topologies.txt")) {
    const [, binary, name] = line.match(/^\w+ \w+ (\w+) (\S+)$/) ?? [];
    if (binary && !tests.get(binary)?.includes(name)) mistake("tests/other-topologies.txt", number, `${binary} ${name}: no such test`);
  }
  for (const [line, number] of lines("tests/mutants/defects.sh")) {
    const [, binary, filter] = line.match(/^ {4}(\w+) ([\w:]+)$/) ?? [];
    const known = binary === "units" ? units : tests.get(binary);
    if (binary && !known?.some((name) => name.includes(filter))) mistake("tests/mutants/defects.sh", number, `${binary} ${filter}: no such test`);
  }
}

// --- promised times ---------------------------------------------------------------------------------------------

const PROMISES = "tests/README.md";

/** Returns the modules of tests that measure promised times, named as in tests/README.md. */
function measuringModules() {
  return ["e2e", "faults"].flatMap((binary) => files
    .filter((file) => file.startsWith(`tests/${binary}/`) && file.endsWith(".rs") && read(file).includes("promised("))
    .map((file) => (binary === "faults" ? "faults::" : "") + file.slice(`tests/${binary}/`.length, -".rs".length).replaceAll("/", "::")));
}

/** Checks one row: each linked section contains the time, each test exists, and a test of the part `promises` measures. */
function checkPromise(number, [, said, links, measured, part], modules) {
  // "5 s" is not in "15 s", "2.5 s" or "5 seconds".
  const contains = (section, time) => new RegExp(`(?<![\\d.])${time.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")}(?!\\w)`).test(section);
  for (const [, target] of links.matchAll(/\]\(([^)]+)\)/g)) {
    const [file, anchor] = path.join(path.dirname(PROMISES), target).split("#");
    if (!existsSync(file)) continue; // reported with all other links
    const section = sectionOf(read(file), anchor ?? "").replace(/\s+/g, " ");
    if (said !== "–" && !said.split(" / ").some((time) => contains(section, time))) mistake(PROMISES, number, `${target} does not say '${said}'`);
  }
  const names = [...measured.matchAll(/`([a-z_0-9]+(?:::[a-z_0-9]+)*)`/g)].map(([, name]) => name);
  for (const name of names) {
    const [binary, test] = name.startsWith("faults::") ? ["faults", name.slice("faults::".length)] : ["e2e", name];
    const exists = tests.get(binary).some((one) => one === test || one.startsWith(`${test}::`));
    const measures = modules.some((module) => name === module || name.startsWith(`${module}::`));
    if (!exists) mistake(PROMISES, number, `${name}: no such test`);
    else if (part === "promises" && !measures) mistake(PROMISES, number, `${name}: its module has no promised(…)`);
  }
  const soakParts = quoted(read("scripts/soak.sh"), /^ {4}([a-z-]+) +\^/gm);
  const isKnown = soakParts.has(part) || ["make test", "make check"].includes(part) ||
    existsSync(`bench/src/groups/${part.match(/^bench ([a-z_]+)$/)?.[1]}.rs`);
  if (!isKnown) mistake(PROMISES, number, `${part}: no part of make soak or group of make bench`);
  return names;
}

/** A promise that something happens within a time. */
const WITHIN = /\b(?:within|at most|up to|after) (?:about )?(?:[\d.]+|an?|two|three|some) ?(?:m?s|seconds?|minutes?|min)\b/;
/** Documents without promises: measured figures, decisions, a translation, and the table itself. */
const NO_PROMISES = /^(docs\/(performance|decisions\/.*|.*\.zh-CN)|bench\/.*|lab\/.*|tests\/.*|CHANGELOG|CONTRIBUTING)\.md$/;

/** Checks that the table links each section in which something happens within a time. */
function checkWithin(rows) {
  const linked = new Set(rows.flatMap(({ cells }) =>
    [...cells[2].matchAll(/\]\(([^)]+)\)/g)].map(([, target]) => path.join(path.dirname(PROMISES), target))));
  for (const [file, text] of texts) {
    if (NO_PROMISES.test(file)) continue;
    for (const { number, anchor } of headingsOf(text)) {
      const [found] = sectionOf(text, anchor).replace(/\s+/g, " ").match(WITHIN) ?? [];
      if (found && !linked.has(`${file}#${anchor}`)) mistake(file, number, `'${found}' is not in the table of promised times (${PROMISES})`);
    }
  }
}

/** Checks the table of promised times, and that the table names each module of tests that measures one. */
function checkPromises() {
  const { number: first } = headingsOf(texts.get(PROMISES)).find(({ anchor }) => anchor === "promised-times") ?? { number: 0 };
  const rows = linesOf(sectionOf(texts.get(PROMISES), "promised-times"))
    .filter(({ line }) => /^\| (?!promise )/.test(line))
    .map(({ number, line }) => ({ number: first + number, cells: line.slice(1, -1).split("|").map((cell) => cell.trim()) }));
  if (rows.length === 0) mistake(PROMISES, 1, "no table of promised times");
  checkWithin(rows);
  const modules = measuringModules();
  for (const { number, cells } of rows) if (cells.length !== 5) mistake(PROMISES, number, `${cells.length} cells, not 5`);
  const named = rows.filter(({ cells }) => cells.length === 5).flatMap(({ number, cells }) => checkPromise(number, cells, modules));
  for (const module of modules) {
    if (!named.some((name) => name === module || name.startsWith(`${module}::`))) {
      mistake(PROMISES, first, `${module} measures a promised time that the table does not name`);
    }
  }
}

// --- names that the code defines in one place -------------------------------------------------------------------

const quoted = (source, pattern) => new Set([...source.matchAll(pattern)].map(([, name]) => name));
const metricNames = quoted(read("core/src/metrics.rs"), /"(claimgate_\w+)"/g);
const variableNames = quoted(VARIABLE_SOURCES.map((directory) => readAll([directory], "")).join("\n"), /\b(CLAIMGATE_[A-Z0-9_]+)\b/g);
const configured = quoted(read("core/src/config.rs"), /"(CLAIMGATE_[A-Z0-9_]+)"/g);
const problemCodes = quoted(read("shared/src/problem.rs"), /^\s*\w+ = "([a-z_]+)", \d{3}/gm);

function checkNames(file, text) {
  for (const { number, line } of linesOf(text)) {
    // A module's path, as in RUST_LOG, is not a metric.
    for (const [, metric] of line.matchAll(/\b(claimgate_[a-z_]+)\b(?!::)/g)) {
      if (!metricNames.has(metric.replace(/_(count|sum|bucket)$/, ""))) mistake(file, number, `${metric}: no such metric`);
    }
    for (const [, variable] of line.matchAll(/\b(CLAIMGATE_[A-Z0-9_]+)\b/g)) {
      if (!variableNames.has(variable)) mistake(file, number, `${variable}: no such variable`);
    }
  }
}

/** Checks that the reference pages list every metric, command, variable, flag and problem code in the code. */
function checkComplete() {
  const complete = [
    ["docs/operations.md", metricNames, "metric"],
    ["docs/operations.md", new Set([...commands.keys()].map((name) => `claimgate ${name}`)), "command"],
    ["docs/configuration.md", configured, "variable"],
    ["docs/configuration.md", new Set([...serveFlags].map((flag) => `--${flag}`)), "flag"],
    ["docs/api.md", problemCodes, "problem code"],
  ];
  for (const [file, wanted, what] of complete) {
    if (wanted.size === 0) mistake(file, 1, `no ${what} was found in the code: adapt scripts/check-docs.mjs`);
    for (const name of wanted) {
      if (!new RegExp(`(?<![\\w-])${name}(?![\\w-])`).test(texts.get(file) ?? "")) mistake(file, 1, `${name}: this ${what} is not documented here`);
    }
  }
}

/** Checks that calls of core in backticks exist, and that docs/api.md lists every route. */
const routes = quoted(readAll(["core/src/http"], ".rs"), /"(\/(?:(?:internal|admin)\/v1\/[^"?\s]*|metrics|openapi\.json|livez|readyz))"/g);
const CALL = /`(?:GET|POST|PATCH|PUT|DELETE) (\/[^`?\s]*)`/g;

function checkCalls(file, text) {
  for (const { number, line } of linesOf(text)) {
    for (const [, call] of line.matchAll(CALL)) {
      if (/^\/(internal|admin)\//.test(call) && !routes.has(call)) mistake(file, number, `${call}: no such route`);
    }
  }
  if (file !== "docs/api.md") return;
  const documented = quoted(text, CALL);
  for (const route of routes) if (!documented.has(route)) mistake(file, 1, `${route}: this route is not documented here`);
}

/** Checks the edge's settings: the Worker or workerd's configuration reads them, or wrangler.toml names them. */
function checkEdgeSettings() {
  const file = "docs/configuration.md";
  const source = readAll(["edge/src", "edge/workerd", "edge/workerd.capnp", "wrangler.toml"], "");
  let isEdge = false;
  for (const { number, line } of linesOf(texts.get(file) ?? "")) {
    if (line.startsWith("## ")) isEdge = line === "## Edge";
    const cell = isEdge ? line.match(/^\| ([^|]*) \|/)?.[1] ?? "" : "";
    for (const [, name] of cell.matchAll(/`([A-Z_]+)`/g)) {
      if (!new RegExp(`\\b${name}\\b`).test(source)) mistake(file, number, `${name}: the edge has no such setting`);
    }
  }
}

/**
 * Checks that lua/README.md describes each script and names only replies that it sends, and that each key and field of
 * docs/redis-layout.md exists in the code.
 */
function checkScripts() {
  const prelude = read("lua/prelude.lua");
  for (const { number, line } of linesOf(texts.get("lua/README.md") ?? "")) {
    const script = line.match(/^\| `(\w+\.lua)` \|/)?.[1];
    if (!script) continue;
    const source = read(`lua/${script}`) + prelude;
    for (const [, reply] of line.matchAll(/\{'(\w+)'/g)) {
      if (!source.includes(`'${reply}'`)) mistake("lua/README.md", number, `${script} does not reply '${reply}'`);
    }
  }
  for (const file of files.filter((one) => /^lua\/\w+\.lua$/.test(one))) {
    if (!texts.get("lua/README.md")?.includes(path.basename(file))) mistake("lua/README.md", 1, `${file} is not described`);
  }
  const layout = "docs/redis-layout.md";
  const keys = readAll(["core/src"], ".rs");
  const scripts = readAll(["lua"], ".lua") + keys;
  let section = "";
  for (const { number, line } of linesOf(texts.get(layout) ?? "")) {
    section = line.match(/^## (.*)/)?.[1] ?? section;
    const cell = line.match(/^\| ([^|]*) \|/)?.[1] ?? "";
    for (const [, name] of cell.matchAll(/`([^`]+)`/g)) {
      const key = name.match(/^cg:(?:\{ID\}:)?([a-z_]+)/)?.[1];
      if (section === "Keys" && key && !new RegExp(`cg:[^"]*${key}|"${key}"|:${key}\\b`).test(keys)) mistake(layout, number, `${name}: no such key in core/src`);
      if (/hash|entries/.test(section) && !scripts.includes(`'${name}'`) && !scripts.includes(`"${name}"`)) mistake(layout, number, `${name}: no such field in lua/`);
    }
  }
  const [documented, actual] = [texts.get(layout)?.match(/Layout (\d+)/)?.[1], prelude.match(/^local LAYOUT = '(\d+)'/m)?.[1]];
  if (documented !== actual) mistake(layout, 1, `layout ${documented}, but lua/prelude.lua has ${actual}`);
}

// --- the run ----------------------------------------------------------------------------------------------------

for (const [file, text] of texts) {
  const lines = text.split("\n").length - 1;
  if (lines > (LINES_MAX[file] ?? Infinity)) mistake(file, lines, `${lines} lines, at most ${LINES_MAX[file]}`);
  checkLinks(file, text);
  checkNames(file, text);
  checkCalls(file, text);
  for (const { number, code, isShell } of codeOf(text)) {
    checkPaths(file, number, code, isShell);
    checkMake(file, number, code);
    checkCommand(file, number, code);
    checkCargoTest(file, number, code);
    checkSingleFlag(file, number, code);
    if (!isShell) checkTestName(file, number, code);
  }
}
checkTestLists();
checkSummary();
checkPromises();
checkComplete();
checkEdgeSettings();
checkScripts();

for (const line of mistakes) console.error(line);
console.log(`${documents.length} documents, ${mistakes.length} mistakes`);
process.exit(mistakes.length === 0 ? 0 : 1);
