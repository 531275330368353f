// The language, formats of numbers and times in it, and how texts are displayed.

import { languages } from "./messages.js";

const query = new URLSearchParams(location.search);
let lang = [query.get("lang"), ...navigator.languages].map((tag) => tag?.slice(0, 2)).find((tag) => languages[tag]) ?? "en";

export const $ = (id) => document.getElementById(id);
export const words = () => languages[lang];

export function switchLanguage() {
	lang = lang === "en" ? "zh" : "en";
	query.set("lang", lang);
	history.replaceState(null, "", `?${query}`);
}

// Sets an element's text only if it differs, so that a selection or a screen reader is not disturbed.
export function show(target, text) {
	const element = target.nodeType ? target : $(target);
	if (element.textContent !== text) element.textContent = text;
}

// Calls `handler` when a dialog is closed. The event comes later than the close: by then, the dialog may be open again.
export function whenClosed(id, handler) {
	$(id).onclose = () => { if (!$(id).open) handler(); };
}

// Sets the texts that depend only on the language.
export function showFixedTexts() {
	document.documentElement.lang = words().tag;
	$("lang").lang = lang === "en" ? "zh-CN" : "en";
	for (const element of document.querySelectorAll("[data-text]")) show(element, words()[element.dataset.text]);
	for (const element of document.querySelectorAll("[data-placeholder]")) element.placeholder = words()[element.dataset.placeholder];
}

export const number = (value, digits = 0) => (value ?? null) === null ? "–" : value.toLocaleString(words().tag, { maximumFractionDigits: digits });

// Formats a rate; small rates have one decimal.
export const rate = (value) => number(value, value > 0 && value < 10 ? 1 : 0);

export const clock = (time) => new Date(time).toLocaleTimeString(words().tag, { hour12: false });

const isToday = (time) => new Date(time).toDateString() === new Date().toDateString();
// Formats a time set by a person, to the minute.
export const minute = (time) => new Date(time).toLocaleString(words().tag, { ...(isToday(time) ? {} : { month: "short", day: "numeric" }), hour: "2-digit", minute: "2-digit", hour12: false });
// Formats a time such that different times have different texts.
export const exact = (time) => new Date(time).toLocaleString(words().tag, { year: "numeric", month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", second: "2-digit", ...(new Date(time).getMilliseconds() && { fractionalSecondDigits: 3 }), hour12: false });
export const moment = (time) => isToday(time) ? clock(time) : new Date(time).toLocaleString(words().tag, { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", hour12: false });

export function age(ms) {
	const [amount, unit] = ms < 999.5 ? [ms, "millisecond"] : ms < 90_000 ? [ms / 1000, "second"] : ms < 5_400_000 ? [ms / 60_000, "minute"] : [ms / 3_600_000, "hour"];
	return new Intl.NumberFormat(words().tag, { style: "unit", unit, unitDisplay: "short", maximumFractionDigits: amount < 10 && ms > 1000 ? 1 : 0 }).format(amount);
}

// Fills in the values of {name}. Parts separated by "|" are left out if one of their values is missing.
export function fill(template, values) {
	const known = (part) => [...part.matchAll(/{(\w+)}/g)].every(([, name]) => (values[name] ?? null) !== null);
	const value = (_, name) => typeof values[name] === "number" ? number(values[name]) : values[name];
	return template.split("|").filter(known).join("").replace(/{(\w+)}/g, value);
}

// Creates an element with these properties and `children`, texts or elements.
export function element(tag, properties = {}, ...children) {
	const made = Object.assign(document.createElement(tag), properties);
	made.append(...children);
	return made;
}
