// Checks the brand files of the claim page and merges them. docs/own-page.md describes the files for operators.

import { PROPERTIES, isColour, unreadable } from "./colours.js";

const NAME_CHARS_MAX = 60, TEXT_CHARS_MAX = 300, URL_CHARS_MAX = 2048, LOGO_BYTES_MAX = 8000, QUOTED_CHARS_MAX = 60;
/** The list reads all campaigns together, and the edge limits how often an address may read. */
const LISTED_MAX = 12;
const REFRESH_S_MIN = 15, REFRESH_S_MAX = 300;
const CAMPAIGN_ID = /^[A-Za-z0-9_-]{1,64}$/;
const LOGO_NAME = /^[A-Za-z0-9_-]{1,64}\.(svg|png)$/;
/** The file of a campaign that `claimgate drill` made, whose id contains the time. */
const DRILL = /^brand\/drill-\d{14}-/;
const PNG = Buffer.from([0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a]);
// The browser runs no script of a picture, but shows the file if its URL is opened.
const ACTIVE_SVG = /<\s*(script|foreignobject|!doctype|!entity)|\son\w+\s*=|javascript:|href\s*=\s*["']?\s*(?!["'#\s]|data:image\/)/i;
const MEMBERS = ["name", "logo", "colours", "support", "terms", "checkout", "listed", "texts", "refresh_seconds"];
/** The value in the link to the checkout that the page fills in. */
const CLAIM_ID = "{claim_id}";
/** Members of a language in messages.js that are not texts, or that have a member of the brand. */
const NO_TEXTS = ["tag", "zones", "brand", "links"];
// Control characters, and those that reverse the direction of the text around them.
// biome-ignore lint/suspicious/noControlCharactersInRegex: finds them
const INVISIBLE = /[\0-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]/;

const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);
const isLoopback = (host) => host === "localhost" || host === "[::1]" || /^127(\.\d+){3}$/.test(host);
const valuesIn = (template) => [...template.matchAll(/{(\w+)}/g)].map(([value]) => value);
const hasFixedPart = (template) => template.split("|").some((part) => part && !valuesIn(part).length);

function quoted(value) {
	const text = JSON.stringify(value);
	return text.length > QUOTED_CHARS_MAX ? `${text.slice(0, QUOTED_CHARS_MAX)}…` : text;
}

/** One brand file. Collects the valid members, and a line for each mistake. */
class BrandFile {
	constructor(file, languages, logos) {
		Object.assign(this, { file, languages, logos, mistakes: [], brand: {} });
	}

	wrong(member, why) {
		this.mistakes.push(`edge/assets/${this.file}: ${member ? `${member}: ` : ""}${why}`);
	}

	parse(bytes) {
		let members;
		try {
			members = JSON.parse(bytes);
		} catch (error) {
			return this.wrong("", `is not JSON; correct it: ${error.message}`);
		}
		this.isRead = this.isObject("", members);
		if (!this.isRead) return;
		this.eachKnown("", members, MEMBERS, (name, value) => this[name](value));
	}

	name(value) {
		this.brand.name = this.perLanguage("name", value, (member, name) => this.text(member, name, NAME_CHARS_MAX));
	}

	logo(value) {
		if (!this.logos.includes(value)) {
			const known = this.logos.join(", ") || "none so far";
			return this.wrong("logo", `${quoted(value)} is no picture; use the name of an SVG or PNG file in edge/assets/brand/ (${known}).`);
		}
		this.brand.logo = value;
	}

	support(value) {
		this.brand.support = this.perLanguage("support", value, this.link);
	}

	terms(value) {
		this.brand.terms = this.perLanguage("terms", value, this.link);
	}

	checkout(value) {
		this.brand.checkout = this.perLanguage("checkout", value, this.checkoutLink);
	}

	/** Returns the link with {@link CLAIM_ID} as it is written: URLs encode its braces in the path. */
	checkoutLink = (member, value) => {
		const href = this.link(member, value);
		if (!href) return;
		const values = valuesIn(value);
		const unknown = values.find((name) => name !== CLAIM_ID);
		if (unknown) return this.wrong(member, `${unknown} is no value of this link; use ${CLAIM_ID}.`);
		// No claim may choose the host.
		if (values.length && !valuesIn(URL.parse(href).host).length) return href.replaceAll(encodeURIComponent(CLAIM_ID), CLAIM_ID);
		this.wrong(member, `${quoted(value)} names no claim; write ${CLAIM_ID} into the path or query, as in https://shop.example/checkout/${CLAIM_ID}.`);
	};

	listed(value) {
		if (typeof value !== "boolean") return this.wrong("listed", `${quoted(value)} is no answer; use true to list the campaign, or false.`);
		if (this.file === "brand.json") return this.wrong("listed", "belongs to one campaign; write it into brand/CAMPAIGN-ID.json.");
		if (value && DRILL.test(this.file)) return this.wrong("listed", "is true for a drill, but drills are never listed; remove the member.");
		this.brand.listed = value;
	}

	link = (member, value) => {
		const url = typeof value === "string" && value.length <= URL_CHARS_MAX ? URL.parse(value) : null;
		const isSafe = url && (url.protocol === "https:" || (url.protocol === "http:" && isLoopback(url.hostname)));
		if (isSafe && !url.username && !url.password) return url.href;
		this.wrong(member, `${quoted(value)} is no allowed link; use https://HOST/PATH without a user name, or http:// for this machine.`);
	};

	colours(value) {
		this.brand.colours = { light: {}, dark: {} };
		if (!this.isObject("colours", value)) return;
		this.eachKnown("colours", value, ["light", "dark"], (scheme, palette) => {
			const member = `colours.${scheme}`;
			if (!this.isObject(member, palette)) return;
			this.eachKnown(member, palette, Object.keys(PROPERTIES), (name, colour) => {
				if (isColour(colour)) this.brand.colours[scheme][name] = colour;
				else this.wrong(`${member}.${name}`, `${quoted(colour)} is no colour; use #rrggbb.`);
			});
		});
	}

	texts(value) {
		this.brand.texts = {};
		if (!this.isObject("texts", value)) return;
		this.eachKnown("texts", value, Object.keys(this.languages), (language, texts) => {
			const known = Object.entries(this.languages[language]).filter(([key]) => !NO_TEXTS.includes(key));
			this.likeOriginal(`texts.${language}`, texts, Object.fromEntries(known));
			this.brand.texts[language] = texts;
		});
	}

	refresh_seconds(value) {
		if (Number.isInteger(value) && value >= REFRESH_S_MIN && value <= REFRESH_S_MAX) this.brand.refresh_seconds = value;
		else this.wrong("refresh_seconds", `${quoted(value)} is no number of seconds; use ${REFRESH_S_MIN} to ${REFRESH_S_MAX}.`);
	}

	/** Checks that `value` has the form of the original in messages.js: a text, a list of texts, or texts by key. */
	likeOriginal(member, value, original) {
		if (typeof original === "string") return this.template(member, value, original);
		if (Array.isArray(original)) {
			if (Array.isArray(value) && value.length === original.length) value.forEach((text, at) => { this.template(`${member}[${at}]`, text, original[at]); });
			else this.wrong(member, `${quoted(value)} has another form; use a list of ${original.length} texts, as in edge/assets/messages.js.`);
			return;
		}
		if (!this.isObject(member, value)) return;
		for (const [key, text] of Object.entries(value)) {
			if (Object.hasOwn(original, key)) this.likeOriginal(`${member}.${key}`, text, original[key]);
			else this.wrong(`${member}.${key}`, "is no text of the page; edge/assets/messages.js lists the texts.");
		}
	}

	template(member, value, original) {
		if (this.text(member, value, TEXT_CHARS_MAX) === undefined) return;
		const known = valuesIn(original);
		const unknown = valuesIn(value).find((name) => !known.includes(name));
		if (unknown) this.wrong(member, `${unknown} is no value of this text; use ${known.join(", ") || "none"}.`);
		// The page drops the parts between "|" whose value is missing.
		else if (hasFixedPart(original) && !hasFixedPart(value)) this.wrong(member, `would be empty without its values; keep a part without a value, as in ${quoted(original)}.`);
	}

	/** Returns a text that the page can show; `undefined` if it is wrong. */
	text(member, value, charsMax) {
		const why =
			typeof value !== "string" ? `${quoted(value)} is no text; use a string.`
			: !value.trim() ? "is empty; write a text or remove the member."
			: value.length > charsMax ? `has ${value.length} characters; use at most ${charsMax}.`
			: INVISIBLE.test(value) ? `${quoted(value)} has a control character; remove it.`
			: /<[/!]?[a-z]/i.test(value) ? `${quoted(value)} looks like HTML, which the page shows as it is written; remove the tags.`
			: null;
		if (!why) return value;
		this.wrong(member, why);
	}

	/** Checks a value for all languages, or one for each. Returns the values by language. */
	perLanguage(member, value, check) {
		const languages = Object.keys(this.languages);
		if (!isObject(value)) {
			const checked = check(member, value);
			return Object.fromEntries(languages.map((language) => [language, checked]));
		}
		const values = {};
		this.eachKnown(member, value, languages, (language, one) => { values[language] = check(`${member}.${language}`, one); });
		for (const language of languages.filter((language) => !Object.hasOwn(value, language))) this.wrong(`${member}.${language}`, "is missing; add it, or use one string for all languages.");
		return values;
	}

	isObject(member, value) {
		if (isObject(value)) return true;
		this.wrong(member, `${quoted(value)} is no object; use {…}.`);
	}

	eachKnown(member, object, known, check) {
		for (const [name, value] of Object.entries(object)) {
			if (known.includes(name)) check(name, value);
			else this.wrong(member ? `${member}.${name}` : name, `is unknown; use ${known.join(", ")}.`);
		}
	}

	/** Checks what depends on the general brand: the name, and the palettes, with the page's own colours. */
	checkMerged({ name, colours }, palettes) {
		if (!name) this.wrong("name", "is missing; write the name at the top of the page.");
		if (!this.brand.colours) return;
		for (const [scheme, other] of [["light", "dark"], ["dark", "light"]]) {
			for (const missing of Object.keys(colours[scheme]).filter((name) => !colours[other][name])) this.wrong(`colours.${other}.${missing}`, `is missing; colours.${scheme} has ${missing}, so set it here too.`);
			const palette = { ...palettes[scheme], ...colours[scheme] };
			for (const { name, ground, found, needed } of unreadable(palette)) {
				this.wrong(`colours.${scheme}.${name}`, `${palette[name]} on ${ground} ${palette[ground]} has a contrast of ${found.toFixed(1)}; choose colours with at least ${needed}.`);
			}
		}
	}
}

function logoMistake(bytes, name) {
	if (bytes.length > LOGO_BYTES_MAX) return `has ${bytes.length} bytes; use at most ${LOGO_BYTES_MAX}.`;
	if (name.endsWith(".png")) return bytes.subarray(0, PNG.length).equals(PNG) ? null : "is no PNG file; export it again.";
	const svg = bytes.toString();
	if (!/<svg[\s>]/.test(svg)) return "is no SVG file; export it again.";
	const active = ACTIVE_SVG.exec(svg);
	return active && `contains ${quoted(active[0].trim())}; use a picture without scripts and links.`;
}

function merge(general, own) {
	const merged = { ...general };
	for (const [key, value] of Object.entries(own)) merged[key] = isObject(value) && isObject(general?.[key]) ? merge(general[key], value) : value;
	return merged;
}

/** Returns the brand as the page reads it (edge/brand/apply.js, messages.js, page.js). */
function forPage({ name, logo, colours, support, terms, checkout, texts, refresh_seconds }, languages) {
	const properties = (palette = {}) => Object.fromEntries(Object.entries(palette).map(([name, colour]) => [`--${PROPERTIES[name]}`, colour]));
	const words = (language) => ({ ...texts?.[language], brand: name[language], links: { support: support?.[language], terms: terms?.[language], checkout: checkout?.[language] } });
	return {
		logo: logo && `/brand/${logo}`,
		colours: { light: properties(colours?.light), dark: properties(colours?.dark) },
		words: Object.fromEntries(Object.keys(languages).map((language) => [language, words(language)])),
		...(refresh_seconds && { refreshMs: 1000 * refresh_seconds }),
	};
}

/**
 * Checks the brand files. `files` has the content of `brand.json` and the files in `brand/`, by path in edge/assets;
 * `languages` and `palettes` are the page's own. Returns the brands by campaign id ("" for all other campaigns), the
 * ids of the listed campaigns, the names of the logos, and a line for each mistake.
 */
export function checkBrands(files, { languages, palettes }) {
	const mistakes = [];
	const logos = [], campaigns = [];
	for (const [file, bytes] of files) {
		if (file === "brand.json") continue;
		const name = file.slice("brand/".length);
		if (LOGO_NAME.test(name)) {
			logos.push(name);
			const why = logoMistake(bytes, name);
			if (why) mistakes.push(`edge/assets/${file}: ${why}`);
		} else if (name.endsWith(".json") && CAMPAIGN_ID.test(name.slice(0, -5))) campaigns.push(name.slice(0, -5));
		else mistakes.push(`edge/assets/${file}: is no brand file; use CAMPAIGN-ID.json, or NAME.svg or NAME.png for a logo.`);
	}
	const read = (file) => {
		const brandFile = new BrandFile(file, languages, logos);
		brandFile.parse(files.get(file).toString());
		return brandFile;
	};
	const general = files.has("brand.json") ? read("brand.json") : null;
	const all = [...(general ? [["", general]] : []), ...campaigns.map((id) => [id, read(`brand/${id}.json`)])];
	const brands = all.map(([id, file]) => {
		const merged = merge(general?.brand ?? {}, file.brand);
		if (all.every(([, one]) => one.isRead)) file.checkMerged(merged, palettes);
		mistakes.push(...file.mistakes);
		return [id, merged];
	});
	const listed = brands.filter(([, brand]) => brand.listed).map(([id]) => id);
	if (listed.length > LISTED_MAX) mistakes.push(`edge/assets/brand/: ${listed.length} campaigns are listed; list at most ${LISTED_MAX}.`);
	if (mistakes.length) return { mistakes, brands: [], listed: [], logos: [] };
	return { mistakes, brands: brands.map(([id, brand]) => [id, forPage(brand, languages)]), listed, logos };
}
