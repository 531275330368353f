// The language, and how numbers and times are written in it.

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

// Writes a text, unless it stands there already: what is selected or read out stays so.
export function show(target, text) {
	const element = target.nodeType ? target : $(target);
	if (element.textContent !== text) element.textContent = text;
}

// The texts that never change but for the language.
export function showFixedTexts() {
	document.documentElement.lang = words().tag;
	$("lang").lang = lang === "en" ? "zh-CN" : "en";
	for (const element of document.querySelectorAll("[data-text]")) show(element, words()[element.dataset.text]);
	for (const element of document.querySelectorAll("[data-placeholder]")) element.placeholder = words()[element.dataset.placeholder];
}

export const number = (value, digits = 0) => (value ?? null) === null ? "–" : value.toLocaleString(words().tag, { maximumFractionDigits: digits });

// A rate: small ones with a digit behind the point.
export const rate = (value) => number(value, value > 0 && value < 10 ? 1 : 0);

export const clock = (time) => new Date(time).toLocaleTimeString(words().tag, { hour12: false });

const isToday = (time) => new Date(time).toDateString() === new Date().toDateString();
export const moment = (time) => isToday(time) ? clock(time) : new Date(time).toLocaleString(words().tag, { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", hour12: false });

export function age(ms) {
	const [amount, unit] = ms < 999.5 ? [ms, "millisecond"] : ms < 90_000 ? [ms / 1000, "second"] : ms < 5_400_000 ? [ms / 60_000, "minute"] : [ms / 3_600_000, "hour"];
	return new Intl.NumberFormat(words().tag, { style: "unit", unit, unitDisplay: "short", maximumFractionDigits: amount < 10 && ms > 1000 ? 1 : 0 }).format(amount);
}

// Parts between "|" without a value go.
export function fill(template, values) {
	const known = (part) => [...part.matchAll(/{(\w+)}/g)].every(([, name]) => (values[name] ?? null) !== null);
	const value = (_, name) => typeof values[name] === "number" ? number(values[name]) : values[name];
	return template.split("|").filter(known).join("").replace(/{(\w+)}/g, value);
}

// An element of `children`, texts or elements, with these properties.
export function element(tag, properties = {}, ...children) {
	const made = Object.assign(document.createElement(tag), properties);
	made.append(...children);
	return made;
}
