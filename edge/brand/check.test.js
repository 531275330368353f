import assert from "node:assert/strict";
import { execFileSync, spawnSync } from "node:child_process";
import { randomBytes } from "node:crypto";
import { cpSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";

import { languages } from "../assets/messages.js";
import { checkBrands } from "./check.js";
import { contrast, palettesOf, unreadable } from "./colours.js";

const root = fileURLToPath(new URL("../..", import.meta.url));
const palettes = palettesOf(readFileSync(path.join(root, "edge/assets/page.css"), "utf8"));
const SVG = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 8 8"><path d="M0 0h8v8z"/></svg>';

function check(files) {
	const bytes = Object.entries(files).map(([file, content]) => [file, Buffer.from(typeof content === "object" && !Buffer.isBuffer(content) ? JSON.stringify(content) : content)]);
	return checkBrands(new Map(bytes), { languages, palettes });
}

// Returns the mistakes of a general brand with these members, without the name of the file.
function mistakesOf(members) {
	return check({ "brand.json": { name: "Shop", ...members }, "brand/logo.svg": SVG }).mistakes.map((line) => {
		assert.ok(line.startsWith("edge/assets/brand.json: "), line);
		return line.slice("edge/assets/brand.json: ".length);
	});
}

function assertWrong(members, ...expected) {
	assert.deepEqual(mistakesOf(members), expected);
}

test("without files there is no brand", () => {
	assert.deepEqual(check({}), { mistakes: [], brands: [], listed: [], logos: [] });
});

test("the page's own colours are readable", () => {
	assert.deepEqual([unreadable(palettes.light), unreadable(palettes.dark)], [[], []]);
	assert.equal(contrast("#000", "#ffffff"), 21);
	assert.equal(contrast("#777777", "#fff").toFixed(2), "4.48"); // the published example of a grey that is just too light
});

test("a campaign's brand overrides the general one, member by member", () => {
	const { mistakes, brands, logos } = check({
		"brand.json": {
			name: { en: "Shop", zh: "小店" },
			logo: "shop.svg",
			colours: { light: { accent: "#1d4ed8" }, dark: { accent: "#93c5fd" } },
			support: "https://shop.example/help",
			terms: "https://shop.example/terms",
			checkout: "https://shop.example/pay/{claim_id}",
			texts: { en: { idle: "Tap once.", button: { open: "Get it" } } },
		},
		"brand/spring.json": {
			name: "Spring",
			colours: { light: { on_accent: "#fff" }, dark: { on_accent: "#000" } },
			terms: { en: "http://127.0.0.1/en", zh: "http://[::1]:8080/zh" },
			checkout: { en: "https://spring.example?claim={claim_id}", zh: "https://spring.example/zh#{claim_id}" },
			texts: { en: { button: { sending: "One moment…" } }, zh: { again: "重试" } },
		},
		"brand/shop.svg": SVG,
	});
	assert.deepEqual([mistakes, logos], [[], ["shop.svg"]]);
	const { "": general, spring } = Object.fromEntries(brands);
	const links = { support: "https://shop.example/help", terms: "https://shop.example/terms", checkout: "https://shop.example/pay/{claim_id}" };
	assert.deepEqual(general, {
		logo: "/brand/shop.svg",
		colours: { light: { "--accent": "#1d4ed8" }, dark: { "--accent": "#93c5fd" } },
		words: {
			en: { idle: "Tap once.", button: { open: "Get it" }, brand: "Shop", links },
			zh: { brand: "小店", links },
		},
	});
	assert.equal(spring.logo, "/brand/shop.svg");
	assert.deepEqual(spring.colours.light, { "--accent": "#1d4ed8", "--on": "#fff" });
	assert.deepEqual(spring.words, {
		en: { idle: "Tap once.", button: { open: "Get it", sending: "One moment…" }, brand: "Spring", links: { ...links, terms: "http://127.0.0.1/en", checkout: "https://spring.example/?claim={claim_id}" } },
		zh: { again: "重试", brand: "Spring", links: { ...links, terms: "http://[::1]:8080/zh", checkout: "https://spring.example/zh#{claim_id}" } },
	});
});

test("links that are not https are rejected", () => {
	const why = "is no allowed link; use https://HOST/PATH without a user name, or http:// for this machine.";
	for (const link of ["javascript:alert(1)", "java\nscript:alert(1)", " javascript:alert(1)", "http://shop.example/", "http://127.0.0.1.shop.example/", "data:text/html,x", "//shop.example/", "/terms", "https://", "https://shop@evil.example/", "https://:x@evil.example/", "", 5, null, ["https://a.example"]]) {
		assertWrong({ terms: link }, `terms: ${JSON.stringify(link)} ${why}`);
	}
	assertWrong({ support: { en: "javascript:1", zh: "https://a.example" } }, `support.en: "javascript:1" ${why}`);
	assertWrong({ support: { en: "https://a.example" } }, "support.zh: is missing; add it, or use one string for all languages.");
	assertWrong({ terms: `https://a.example/${"x".repeat(2048)}` }, `terms: "https://a.example/${"x".repeat(41)}… ${why}`);
	for (const link of ["https://a.example", "http://localhost:8080/", "http://127.0.0.1/", "http://127.1/", "http://[::1]/"]) assertWrong({ terms: link });
});

test("a link to a checkout must name the claim, and nothing else", () => {
	const link = "is no allowed link; use https://HOST/PATH without a user name, or http:// for this machine.";
	for (const checkout of ["javascript:alert('{claim_id}')", "data:text/html,{claim_id}", "http://shop.example/{claim_id}", "https://{claim_id}@evil.example/", "https://shop.example:{claim_id}/", "/{claim_id}", "{claim_id}", 5, null]) {
		assertWrong({ checkout }, `checkout: ${JSON.stringify(checkout)} ${link}`);
	}
	const why = "names no claim; write {claim_id} into the path or query, as in https://shop.example/checkout/{claim_id}.";
	for (const checkout of ["https://shop.example/pay", "https://shop.example/claim_id", "https://{claim_id}.example/", "https://%7Bclaim_id%7D.example/{claim_id}"]) {
		assertWrong({ checkout }, `checkout: ${JSON.stringify(checkout)} ${why}`);
	}
	assertWrong({ checkout: "https://shop.example/{user_id}/{claim_id}" }, "checkout: {user_id} is no value of this link; use {claim_id}.");
	assertWrong({ checkout: { en: "https://shop.example/{claim_id}", zh: "javascript:1" } }, `checkout.zh: "javascript:1" ${link}`);
	for (const checkout of ["https://shop.example/{claim_id}", "https://shop.example/?claim={claim_id}&again={claim_id}", "http://127.0.0.1:3000/checkout/{claim_id}"]) assertWrong({ checkout });
});

test("the file of a campaign may list the campaign", () => {
	const files = { "brand.json": { name: "Shop" }, "brand/b.json": { listed: true }, "brand/a.json": { listed: true }, "brand/c.json": { listed: false }, "brand/d.json": {} };
	const { mistakes, listed } = check(files);
	assert.deepEqual([mistakes, listed], [[], ["b", "a"]]);
	assertWrong({ listed: true }, "listed: belongs to one campaign; write it into brand/CAMPAIGN-ID.json.");
	for (const value of ["true", 1, null, []]) assertWrong({ listed: value }, `listed: ${JSON.stringify(value)} is no answer; use true to list the campaign, or false.`);
	const drill = "brand/drill-20261123220507-Ab-_efgh.json";
	assert.deepEqual(check({ [drill]: { name: "Drill", listed: false } }).mistakes, []);
	assert.deepEqual(check({ [drill]: { name: "Drill", listed: true } }).mistakes, [`edge/assets/${drill}: listed: is true for a drill, but drills are never listed; remove the member.`]);
	assert.deepEqual(check({ "brand/drill-bits.json": { name: "Tools", listed: true } }).listed, ["drill-bits"]);
	const many = Object.fromEntries(Array.from({ length: 13 }, (_, n) => [`brand/c${n}.json`, { name: "Shop", listed: true }]));
	assert.deepEqual(check(many).mistakes, ["edge/assets/brand/: 13 campaigns are listed; list at most 12."]);
});

test("unreadable colours are rejected with their contrast", () => {
	const both = (colours) => ({ colours: { light: colours, dark: colours } });
	assertWrong({ colours: { light: { text: "#999" }, dark: { text: "#fff" } } },
		"colours.light.text: #999 on background #e4e9e5 has a contrast of 2.3; choose colours with at least 4.5.",
		"colours.light.text: #999 on card #fcfdfb has a contrast of 2.8; choose colours with at least 4.5.",
		"colours.light.text: #999 on paper #f2f6f2 has a contrast of 2.6; choose colours with at least 4.5.",
	);
	assertWrong({ colours: { light: { accent: "#ffd700", on_accent: "#000000" }, dark: { accent: "#ffd700", on_accent: "#000" } } },
		"colours.light.accent: #ffd700 on card #fcfdfb has a contrast of 1.4; choose colours with at least 4.5.",
		"colours.light.accent: #ffd700 on background #e4e9e5 has a contrast of 1.1; choose colours with at least 3.",
		"colours.light.accent: #ffd700 on paper #f2f6f2 has a contrast of 1.3; choose colours with at least 3.",
	);
	for (const colour of ["red", "#12345", "#12345678", "rgb(0,0,0)", "#000;}*{display:none", "url(https://evil.example)", 0, null]) {
		assertWrong(both({ line: colour }), ...["light", "dark"].map((scheme) => `colours.${scheme}.line: ${JSON.stringify(colour)} is no colour; use #rrggbb.`));
	}
	assertWrong({ colours: { light: { line: "#000" } } }, "colours.dark.line: is missing; colours.light has line, so set it here too.");
	// A campaign's colours are read on the general ones.
	const { mistakes } = check({
		"brand.json": { name: "Shop", ...both({ card: "#000", background: "#000", paper: "#000", text: "#fff", muted: "#fff", accent: "#fff", on_accent: "#000", warning: "#fff" }) },
		"brand/spring.json": both({ warning: "#333" }),
	});
	assert.deepEqual(mistakes, ["light", "dark"].flatMap((scheme) => ["background", "card"].map((ground) =>
		`edge/assets/brand/spring.json: colours.${scheme}.warning: #333 on ${ground} #000 has a contrast of 1.7; choose colours with at least 4.5.`)));
});

test("the interval of the polls has limits, and a campaign may have its own", () => {
	const { brands } = check({ "brand.json": { name: "Shop", refresh_seconds: 60 }, "brand/spring.json": { refresh_seconds: 15 }, "brand/other.json": {} });
	assert.deepEqual(brands.map(([id, { refreshMs }]) => [id, refreshMs]), [["", 60000], ["spring", 15000], ["other", 60000]]);
	for (const value of [14, 301, 60.5, "60", null]) assertWrong({ refresh_seconds: value }, `refresh_seconds: ${JSON.stringify(value)} is no number of seconds; use 15 to 300.`);
	for (const value of [15, 300]) assertWrong({ refresh_seconds: value });
});

test("unknown members are rejected at each level", () => {
	const members = "name, logo, colours, support, terms, checkout, listed, texts, refresh_seconds";
	assertWrong({ colors: {} }, `colors: is unknown; use ${members}.`);
	assertWrong(JSON.parse('{ "__proto__": {}, "constructor": 1 }'), `__proto__: is unknown; use ${members}.`, `constructor: is unknown; use ${members}.`);
	assertWrong({ colours: { grey: {} } }, "colours.grey: is unknown; use light, dark.");
	assertWrong({ colours: { light: { button: "#000" } } }, "colours.light.button: is unknown; use background, card, paper, text, muted, line, accent, on_accent, warning.");
	assertWrong({ texts: { fr: {} } }, "texts.fr: is unknown; use en, zh.");
	assertWrong({ name: { en: "a", zh: "b", fr: "c" } }, "name.fr: is unknown; use en, zh.");
	for (const key of ["grantd", "tag", "brand", "links", "constructor", "button.close"]) {
		const [first, second] = key.split(".");
		assertWrong({ texts: { en: { [first]: second ? { [second]: "x" } : "x" } } }, `texts.en.${key}: is no text of the page; edge/assets/messages.js lists the texts.`);
	}
	assertWrong({ texts: { en: JSON.parse('{ "__proto__": "x" }') } }, "texts.en.__proto__: is no text of the page; edge/assets/messages.js lists the texts.");
});

test("wrong types are rejected", () => {
	for (const value of [null, 1, [], "x", true]) {
		const text = JSON.stringify(value);
		assert.deepEqual(check({ "brand.json": text, "brand/spring.json": {} }).mistakes, [`edge/assets/brand.json: ${text} is no object; use {…}.`]);
		assertWrong({ colours: value }, `colours: ${text} is no object; use {…}.`);
		assertWrong({ colours: { dark: value } }, `colours.dark: ${text} is no object; use {…}.`);
		assertWrong({ texts: value }, `texts: ${text} is no object; use {…}.`);
		assertWrong({ texts: { zh: value } }, `texts.zh: ${text} is no object; use {…}.`);
		assertWrong({ texts: { en: { button: value } } }, `texts.en.button: ${text} is no object; use {…}.`);
		if (value !== "x") assertWrong({ texts: { en: { idle: value } } }, `texts.en.idle: ${text} is no text; use a string.`);
		assertWrong({ texts: { en: { granted: value } } }, `texts.en.granted: ${text} has another form; use a list of 2 texts, as in edge/assets/messages.js.`);
	}
	assertWrong({ name: 5 }, "name: 5 is no text; use a string.");
	const { mistakes } = check({ "brand.json": "{ name: 1 }" });
	assert.match(mistakes.join("\n"), /^edge\/assets\/brand\.json: is not JSON; correct it: .*position 2.*$/);
	assert.deepEqual(check({ "brand/spring.json": {} }).mistakes, ["edge/assets/brand/spring.json: name: is missing; write the name at the top of the page."]);
});

test("texts that the page cannot show are rejected", () => {
	const en = (texts) => ({ texts: { en: texts } });
	assertWrong(en({ idle: "x".repeat(301) }), "texts.en.idle: has 301 characters; use at most 300.");
	assertWrong({ name: "x".repeat(61) }, "name: has 61 characters; use at most 60.");
	assertWrong(en({ button: { open: " " } }), "texts.en.button.open: is empty; write a text or remove the member.");
	for (const html of ["<b>now</b>", "<script>alert(1)</script>", "x<img src=x onerror=alert(1)>", "</p>", "<!-- -->"]) {
		const why = "looks like HTML, which the page shows as it is written; remove the tags.";
		if (html === "<!-- -->") assertWrong(en({ idle: html }));
		else assertWrong(en({ idle: html }), `texts.en.idle: ${JSON.stringify(html)} ${why}`);
	}
	assertWrong(en({ idle: "I <3 it, a < b" }));
	for (const character of ["\0", "\n", "\u202e", "\u2066"]) {
		const idle = `a${character}b`;
		assertWrong(en({ idle }), `texts.en.idle: ${JSON.stringify(idle)} has a control character; remove it.`);
	}
	assertWrong(en({ again: "Again| in {minutes} min" }), "texts.en.again: {minutes} is no value of this text; use {seconds}.");
	assertWrong(en({ granted: ["Yours, {user}", "x"] }), "texts.en.granted[0]: {user} is no value of this text; use none.");
	assertWrong(en({ again: "Again in {seconds} s" }), 'texts.en.again: would be empty without its values; keep a part without a value, as in "Try again| in {seconds} s".');
	assertWrong(en({ granted: ["Yours", "Since {claimed_at}."], opensIn: "Doors open in" }));
});

test("every text of the page may be overridden by itself", () => {
	const texts = Object.fromEntries(Object.entries(languages).map(([language, { tag, zones, brand, links, ...words }]) => [language, { ...words, leftLabel: "Left" }]));
	assertWrong({ texts });
});

test("logos are SVG or PNG files without scripts", () => {
	const none = "is no picture; use the name of an SVG or PNG file in edge/assets/brand/ (logo.svg).";
	for (const logo of ["other.svg", "../page.js", "https://evil.example/x.svg", 1, null]) assertWrong({ logo }, `logo: ${JSON.stringify(logo)} ${none}`);
	const wrong = (name, content, why) => assert.deepEqual(check({ [`brand/${name}`]: content }).mistakes, why ? [`edge/assets/brand/${name}: ${why}`] : []);
	const active = (found) => `contains ${JSON.stringify(found)}; use a picture without scripts and links.`;
	wrong("a.svg", SVG);
	wrong("a.svg", SVG.replace("<path", '<script>alert(1)</script><path'), active("<script"));
	wrong("a.svg", SVG.replace("<path", '<path onload="x"'), active("onload="));
	wrong("a.svg", SVG.replace("<path", '<foreignObject/><path'), active("<foreignObject"));
	wrong("a.svg", `<!DOCTYPE svg [<!ENTITY a "b">]>${SVG}`, active("<!DOCTYPE"));
	for (const link of ['href="https://evil.example"', "xlink:href='//evil.example'", "href = x"]) wrong("a.svg", SVG.replace("<path", `<use ${link}/><path`), active(/href\s*=\s*["']?/.exec(link)[0].trim()));
	wrong("a.svg", SVG.replace("<path", '<use href="#b"/><image href="data:image/png;base64,AA=="/><path'));
	wrong("a.svg", "PNG", "is no SVG file; export it again.");
	wrong("a.svg", `${SVG}${" ".repeat(8000)}`, `has ${SVG.length + 8000} bytes; use at most 8000.`);
	wrong("a.png", Buffer.from("89504e470d0a1a0a00", "hex"));
	wrong("a.png", "<svg", "is no PNG file; export it again.");
	for (const name of ["a.gif", "a b.svg", "spring sale.json", "notes.txt", ".svg", `${"x".repeat(65)}.json`]) wrong(name, "", "is no brand file; use CAMPAIGN-ID.json, or NAME.svg or NAME.png for a logo.");
});

// Runs the build on a copy of the page with these brand files.
function build(files) {
	const directory = mkdtempSync(path.join(tmpdir(), "brand-"));
	try {
		cpSync(path.join(root, "edge/assets"), path.join(directory, "assets"), { recursive: true, dereference: true });
		mkdirSync(path.join(directory, "assets/brand"), { recursive: true });
		for (const [file, content] of Object.entries(files)) writeFileSync(path.join(directory, "assets", file), content);
		const { status, stderr } = spawnSync(process.execPath, ["scripts/build-brand.mjs", directory], { cwd: root, encoding: "utf8" });
		const script = status === 0 && path.join(directory, "assets/brand.js");
		if (script) execFileSync(process.execPath, ["--check", script]);
		return { status, stderr, script: script && readFileSync(script, "utf8") };
	} finally {
		rmSync(directory, { recursive: true });
	}
}

test("the build names the file, and writes a script that names no brand without one", () => {
	const { status, stderr } = build({ "brand/spring.json": '{ "name": "Spring", "terms": "javascript:alert(1)" }' });
	assert.deepEqual([status, stderr], [1, 'edge/assets/brand/spring.json: terms: "javascript:alert(1)" is no allowed link; use https://HOST/PATH without a user name, or http:// for this machine.\n']);
	assert.match(build({}).script, /^\/\/ Generated by [^\n]*\n$/);
	assert.match(build({ "brand/__proto__.json": '{ "name": "Any id" }' }).script, /\["__proto__",\{/);
});

test("the build rejects brands that make the page too large", () => {
	const texts = { en: { idle: randomBytes(150).toString("hex") } };
	const brands = Object.fromEntries(Array.from({ length: 60 }, (_, n) => [`brand/c${n}.json`, JSON.stringify({ name: `C${n}`, texts: { en: { idle: `${n}${randomBytes(140).toString("hex")}` } } })]));
	const { status, stderr } = build({ "brand.json": JSON.stringify({ name: "Shop", texts }), ...brands });
	assert.equal(status, 1);
	assert.match(stderr, /^edge\/assets\/brand\/: the page would have \d{5} bytes, compressed; at most 30000 are allowed\. Use smaller logos, fewer texts or fewer brands\.\n$/);
});
