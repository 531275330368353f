#!/usr/bin/env node
// Whether the documents name only what exists: links and anchors, paths, make targets, commands and flags, variables, tests,
// metrics, routes, and what lua/README.md and docs/redis-layout.md say of the scripts. And the reverse: metrics, variables, routes,
// problem codes and scripts that their page does not name.
//
//   node scripts/check-docs.mjs     prints a line for each mistake and exits with 1 when there are any
import { existsSync, readFileSync, readdirSync, statSync } from "node:fs";
import path from "node:path";
import { fileURLToPath } from "node:url";

const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), "..");
process.chdir(root);

/** Directories that are built or brought, not kept. */
const SKIPPED = new Set([".git", "node_modules", "target", "data", "build", ".wrangler"]);
/** The most lines a document may have. */
const LINES_MAX = { "README.md": 150, "README.zh-CN.md": 150, "ARCHITECTURE.md": 200 };
/** A bare name with one of these endings is a file of the tree. */
const FILE_NAME = /^[\w.-]+\.(rs|lua|mjs|js|sh|toml|yml|yaml|md|sql|capnp|c|html|css)$/;
/** Where variables of the environment are read. */
const VARIABLE_SOURCES = ["core/src", "scripts", "test-support/src"];

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

// --- taking a document apart ------------------------------------------------------------------------------------

/** Lines with their numbers, each told whether it stands in a fence, and in a fence of which language. */
function linesOf(text) {
  let fence = null;
  return text.split("\n").map((line, index) => {
    const mark = line.match(/^\s*```(\S*)/);
    if (mark) {
      fence = fence === null ? mark[1] : null;
      return { number: index + 1, line: "", fence: "mark" };
    }
    return { number: index + 1, line, fence };
  });
}

/** What stands in backticks, also over the end of a line, and each line of a fence of shell commands. */
function codeOf(text) {
  const lines = linesOf(text);
  const shell = lines.filter(({ fence }) => fence === "sh").map(({ number, line }) => ({ number, code: line.trim(), isShell: true }));
  const prose = lines.map(({ line, fence }) => (fence === null ? line : "")).join("\n");
  const spans = [...prose.matchAll(/`((?:[^`\n]|\n(?!\s*\n))+)`/g)].map((match) => ({
    number: prose.slice(0, match.index).split("\n").length,
    code: match[1].replace(/\s*\n\s*/g, " "),
    isShell: false,
  }));
  return [...spans, ...shell];
}

/** The anchors of a document's headings, as GitHub makes them. */
function anchorsOf(text) {
  const seen = new Map();
  return new Set(linesOf(text).filter(({ fence }) => fence === null).flatMap(({ line }) => {
    const heading = line.match(/^#{1,6}\s+(.*?)\s*#*$/);
    if (!heading) return [];
    const words = heading[1].replace(/\[([^\]]*)\]\([^)]*\)/g, "$1").replace(/`/g, "").toLowerCase();
    const slug = words.replace(/[^\p{L}\p{N}\s_-]/gu, "").replace(/\s/g, "-");
    const count = seen.get(slug) ?? 0;
    seen.set(slug, count + 1);
    return [count === 0 ? slug : `${slug}-${count}`];
  }));
}

// --- links ------------------------------------------------------------------------------------------------------

function checkLinks(file, text) {
  for (const { number, line, fence } of linesOf(text)) {
    if (fence !== null) continue;
    for (const [, target] of line.replace(/`[^`]*`/g, "").matchAll(/\]\(([^)\s]+)\)/g)) {
      if (/^[a-z]+:/.test(target)) continue;
      const [place, anchor] = target.split("#");
      const linked = place === "" ? file : path.join(path.dirname(file), decodeURI(place));
      if (!existsSync(linked)) mistake(file, number, `link to ${target}: no such file`);
      else if (anchor && !anchorsOf(read(linked)).has(anchor)) mistake(file, number, `link to ${target}: no such heading`);
    }
  }
}

// --- paths ------------------------------------------------------------------------------------------------------

/** `a/{b,c}.rs` names two. */
function expanded(text) {
  const braces = text.match(/^([^{}]*)\{([^{}]*)\}(.*)$/);
  if (!braces) return [text];
  return braces[2].split(",").flatMap((part) => expanded(`${braces[1]}${part.trim()}${braces[3]}`));
}

function isThere(file, name) {
  if (!name.includes("*")) return existsSync(name) || existsSync(path.join(path.dirname(file), name));
  const pattern = new RegExp(`^${name.split("*").map((part) => part.replace(/[.+?^${}()|[\]\\]/g, "\\$&")).join("[^/]*")}$`);
  return files.some((one) => pattern.test(one));
}

function checkPath(file, number, word) {
  for (const name of expanded(word.replace(/[.,;:]+$/, ""))) {
    const [first] = name.split("/");
    if (name.includes("/")) {
      const isOurs = topLevel.has(first) && !SKIPPED.has(first);
      const isBeside = existsSync(path.join(path.dirname(file), first)) && !SKIPPED.has(first) && FILE_NAME.test(path.basename(name));
      if ((isOurs || isBeside) && !isThere(file, name)) mistake(file, number, `${name}: no such file`);
    } else if (FILE_NAME.test(name) && !names.has(name)) {
      mistake(file, number, `${name}: no file of this name`);
    }
  }
}

/** A path, or `path: word`, whose word has to stand in the file. */
function checkPaths(file, number, code, isShell) {
  if (isShell) {
    for (const word of code.split(/[\s"'()=]+/)) if (word.includes("/")) checkPath(file, number, word);
    return;
  }
  const [, name, , word] = code.match(/^([^\s:]+)(:\s+(\S+))?$/) ?? [];
  if (!name || /^[/~$<-]|:\/\//.test(name)) return;
  checkPath(file, number, name);
  if (word && existsSync(name) && statSync(name).isFile() && !read(name).includes(word)) {
    mistake(file, number, `${name}: '${word}' does not stand in it`);
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

/** Bodies of `struct X { … }` or `enum X { … }` in the command line's source, by name. */
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

function flagsOf(struct, seen = new Set()) {
  if (seen.has(struct) || !structs.has(struct)) return new Set();
  seen.add(struct);
  const flags = new Set();
  const fields = /#\[(arg|command)\(((?:[^()]|\((?:[^()]|\([^()]*\))*\))*)\)\]\s*(?:pub(?:\([^)]*\))?\s+)?(\w+):\s*([\w:<>]+)/g;
  for (const [, kind, options, field, type] of structs.get(struct).matchAll(fields)) {
    if (kind === "command" && /\bflatten\b/.test(options)) for (const flag of flagsOf(type, seen)) flags.add(flag);
    const long = options.match(/\blong\b(?:\s*=\s*"([^"]+)")?/);
    if (kind === "arg" && long) flags.add(long[1] ?? kebab(field));
  }
  return flags;
}

/** Subcommands of an enum: name → what it holds. */
function variantsOf(name) {
  const variants = new Map();
  for (const [, variant, held] of (enums.get(name) ?? "").matchAll(/^\s*([A-Z]\w*)(?:\((?:Box<)?(\w+)>?\))?,/gm)) {
    variants.set(kebab(variant), held);
  }
  return variants;
}

const commands = variantsOf("Command");

function checkCommand(file, number, code) {
  for (const [, rest] of code.matchAll(/(?:^|target\/release\/|[;&|(]\s*)claimgate((?:\s+[^\s|;&)]+)+)/g)) {
    let words = rest.trim().split(/\s+/);
    if (words[0] === "…" || words[0].startsWith("<")) continue;
    let held = null, said = "claimgate";
    if (/^[a-z]/.test(words[0])) {
      for (let known = commands; known && words.length > 0 && /^[a-z-]+$/.test(words[0]); ) {
        const [word] = words;
        said += ` ${word}`;
        if (!known.has(word)) return mistake(file, number, `${said}: no such command`);
        held = known.get(word);
        words = words.slice(1);
        known = enums.has(held) ? variantsOf(held) : null;
      }
    }
    const flags = new Set([...(held ? flagsOf(held) : []), "help", "version"]);
    for (const word of words) {
      const flag = word.match(/^--([a-z][a-z-]*)/)?.[1];
      if (flag && !flags.has(flag)) mistake(file, number, `${said} --${flag}: no such flag`);
    }
  }
}

const serveFlags = flagsOf(commands.get("serve"));
const allFlags = new Set([...structs.keys()].flatMap((struct) => [...flagsOf(struct)]).concat("help", "version"));

/** A flag in backticks by itself, in the documents about claimgate's own command line. */
function checkLoneFlag(file, number, code) {
  const flag = code.match(/^--([a-z][a-z-]*)$/)?.[1];
  if (!flag || !/^(README\S*|docs\/(operations|configuration|guarantees|api)\.md)$/.test(file)) return;
  const known = file === "docs/configuration.md" ? serveFlags : allFlags;
  if (!known.has(flag)) mistake(file, number, `--${flag}: no such flag`);
}

// --- tests ------------------------------------------------------------------------------------------------------

/** Test binaries: name → full names of what a filter may mean, `module::function`. */
function testBinaries() {
  const found = new Map();
  for (const [, name, file] of read("tests/Cargo.toml").matchAll(/\[\[test\]\]\s+name = "([^"]+)"\s+path = "([^"]+)"/g)) {
    const main = path.join("tests", file);
    const directory = path.basename(main) === "main.rs" ? path.dirname(main) : main.replace(/\.rs$/, "");
    const full = [];
    for (const source of files.filter((one) => one === main || (one.startsWith(`${directory}/`) && one.endsWith(".rs")))) {
      const inside = path.relative(directory, source).replace(/\.rs$/, "").replace(/\/mod$/, "").replaceAll("/", "::");
      const before = source === main ? "" : `${inside}::`;
      for (const [, fn] of read(source).matchAll(/\bfn (\w+)/g)) full.push(`${before}${fn}`);
    }
    found.set(name, full);
  }
  return found;
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

/** `module::test` and `binary::module::test` in backticks, and `crate::path` of a module. */
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

// --- names that the code has in one place -----------------------------------------------------------------------

const quoted = (source, pattern) => new Set([...source.matchAll(pattern)].map(([, name]) => name));
const metricNames = quoted(read("core/src/metrics.rs"), /"(claimgate_\w+)"/g);
const variableNames = quoted(VARIABLE_SOURCES.map((directory) => readAll([directory], "")).join("\n"), /\b(CLAIMGATE_[A-Z0-9_]+)\b/g);
const configured = quoted(read("core/src/config.rs"), /"(CLAIMGATE_[A-Z0-9_]+)"/g);
const problemCodes = quoted(read("shared/src/problem.rs"), /^\s*\w+ = "([a-z_]+)", \d{3}/gm);

function checkNames(file, text) {
  for (const { number, line } of linesOf(text)) {
    // A module's path, as RUST_LOG takes it, is no metric.
    for (const [, metric] of line.matchAll(/\b(claimgate_[a-z_]+)\b(?!::)/g)) {
      if (!metricNames.has(metric.replace(/_(count|sum|bucket)$/, ""))) mistake(file, number, `${metric}: no such metric`);
    }
    for (const [, variable] of line.matchAll(/\b(CLAIMGATE_[A-Z0-9_]+)\b/g)) {
      if (!variableNames.has(variable)) mistake(file, number, `${variable}: no such variable`);
    }
  }
}

/** What the code has and its page must name. */
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

/** Calls of core in backticks are routes of core's, and docs/api.md has each of them. */
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

/** The edge's settings are read by the Worker, by workerd's configuration or named in wrangler.toml. */
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

/** Each script is in the table of lua/README.md, with replies that it has; fields and keys of the layout are spelt as in the code. */
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
  const [said, written] = [texts.get(layout)?.match(/Layout (\d+)/)?.[1], prelude.match(/^local LAYOUT = '(\d+)'/m)?.[1]];
  if (said !== written) mistake(layout, 1, `layout ${said}, but lua/prelude.lua has ${written}`);
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
    checkLoneFlag(file, number, code);
    if (!isShell) checkTestName(file, number, code);
  }
}
checkComplete();
checkEdgeSettings();
checkScripts();

for (const line of mistakes) console.error(line);
console.log(`${documents.length} documents, ${mistakes.length} mistakes`);
process.exit(mistakes.length === 0 ? 0 : 1);
