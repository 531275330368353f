#!/usr/bin/env node
// Collects the pages of the book for mdBook, and checks the links in the book that mdBook wrote.
//
//   node scripts/book.mjs collect     copies the pages of docs/SUMMARY.md to target/book-src, with links that work in the book
//   node scripts/book.mjs check       prints a line for each broken link in target/book and exits with 1 if there are any
//
// A page or picture keeps its path, so links between pages stay as they are. Two kinds of links change: mdBook needs
// index.md for README.md, and a link to a file that is no page becomes the file's path.
import { existsSync, mkdirSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import path from "node:path";
import { fileURLToPath } from "node:url";

process.chdir(path.resolve(path.dirname(fileURLToPath(import.meta.url)), ".."));

const SUMMARY = "docs/SUMMARY.md";
const SOURCE = "target/book-src";
const BOOK = "target/book";

/** A code span, or a link: the mark of a picture, its text and target. */
const LINK = /`(?:[^`\n]|\n(?!\s*\n))+`|(!?)\[((?:[^[\]`]|`[^`]*`)*)\]\(([^)\s]+)\)/g;
const isExternal = (target) => /^[a-z][a-z+.-]*:/i.test(target);

// --- collecting -------------------------------------------------------------------------------------------------

const read = (file) => readFileSync(file, "utf8");
const inBook = (page) => page.replace(/README\.md$/, "index.md");

/** Returns the file or directory of the tree to which `target` in `file` leads, and the target's anchor with its `#`. */
function resolved(file, target) {
  const [, linked, anchor] = target.match(/^([^#]*)(#.*)?$/);
  return [path.join(path.dirname(file), decodeURI(linked)), anchor ?? ""];
}

/**
 * Returns the links of a page of the tree as they are in the book, and adds its pictures to `pictures`. `from` is the
 * page's directory in the book.
 */
function rewritten(file, from, pages, pictures, text) {
  const link = (all, mark, words, target) => {
    if (!target || isExternal(target) || target.startsWith("#")) return all;
    const [linked, anchor] = resolved(file, target);
    if (mark) {
      pictures.add(linked);
      return `![${words}](${path.relative(from, linked)})`;
    }
    const page = [linked, path.join(linked, "README.md")].find((one) => pages.has(one));
    if (page) return `[${words}](${path.relative(from, inBook(page))}${anchor})`;
    return /\s/.test(words) ? `${words} (\`${linked}\`)` : `\`${linked}\``;
  };
  // Every second part is a fenced block.
  const parts = text.split(/(^ *```[^\n]*\n[\s\S]*?^ *```$)/m);
  return parts.map((part, index) => (index % 2 === 1 ? part : part.replace(LINK, link))).join("");
}

function collect() {
  const summary = read(SUMMARY);
  const pages = new Set([...summary.matchAll(LINK)].filter(([, , , target]) => target).map(([, , , target]) => resolved(SUMMARY, target)[0]));
  const pictures = new Set();
  const write = (file, content) => {
    mkdirSync(path.dirname(path.join(SOURCE, file)), { recursive: true });
    writeFileSync(path.join(SOURCE, file), content);
  };
  rmSync(SOURCE, { recursive: true, force: true });
  write("SUMMARY.md", rewritten(SUMMARY, ".", pages, pictures, summary));
  for (const page of pages) write(inBook(page), rewritten(page, path.dirname(page), pages, pictures, read(page)));
  for (const picture of pictures) write(picture, readFileSync(picture));
  console.log(`${pages.size} pages`);
}

// --- checking ---------------------------------------------------------------------------------------------------

/** Returns the values of an attribute of these tags. Tags in code are escaped, so only real tags match. */
function attributes(html, tags, names) {
  const values = html.matchAll(new RegExp(`<(?:${tags})\\b[^>]*?\\s(?:${names})="([^"]*)"`, "g"));
  return [...values].map(([, value]) => value.replaceAll("&amp;", "&"));
}

function check() {
  const files = readdirSync(BOOK, { recursive: true });
  const pages = new Map(files.filter((file) => file.endsWith(".html")).map((file) => [file, read(path.join(BOOK, file))]));
  const ids = new Map([...pages].map(([file, html]) => [file, new Set(attributes(html, "[a-z][a-z0-9]*", "id"))]));
  const broken = [];
  let count = 0;
  for (const [file, html] of pages) {
    for (const target of attributes(html, "a|link|script|img|iframe", "href|src")) {
      if (isExternal(target) || target.startsWith("//")) continue;
      count += 1;
      const [, linked, anchor] = decodeURI(target).match(/^([^#?]*)[^#]*#?(.*)$/);
      const page = linked === "" ? file : path.join(path.dirname(file), linked);
      if (!existsSync(path.join(BOOK, page))) broken.push(`${file}: link to ${target}: no such file`);
      else if (anchor && !ids.get(page)?.has(anchor)) broken.push(`${file}: link to ${target}: no such heading`);
    }
  }
  if (!files.some((file) => /searchindex.*\.js$/.test(file))) broken.push("there is no search index: mdBook was built without search");
  if (count === 0) broken.push("no link was found: adapt scripts/book.mjs");
  for (const line of broken) console.error(line);
  console.log(`${pages.size} pages of HTML, ${count} links, ${broken.length} broken`);
  process.exit(broken.length === 0 ? 0 : 1);
}

const commands = { collect, check };
const command = commands[process.argv[2]];
if (!command) {
  console.error("usage: scripts/book.mjs collect | check");
  process.exit(2);
}
command();
