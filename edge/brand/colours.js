// The claim page's palettes: which colours a brand may set, and whether texts in these colours are readable.

/** The colours of a brand file, with their custom properties in page.css. */
export const PROPERTIES = {
	background: "ground",
	card: "card",
	paper: "paper",
	text: "ink",
	muted: "soft",
	line: "line",
	accent: "accent",
	on_accent: "on",
	warning: "warn",
};

// WCAG 2.2, level AA: 1.4.3 for texts, 1.4.11 for the outline of the focus and the edge of the button.
const TEXT = 4.5, EDGE = 3;
const PAIRS = [
	...["background", "card", "paper"].flatMap((ground) => [["text", ground, TEXT], ["muted", ground, TEXT]]),
	["warning", "background", TEXT],
	["warning", "card", TEXT],
	["accent", "card", TEXT],
	["on_accent", "accent", TEXT],
	["accent", "background", EDGE],
	["accent", "paper", EDGE],
];

const FORM = /^#([0-9a-f]{3}|[0-9a-f]{6})$/i;
export const isColour = (text) => FORM.test(text);

function luminance(colour) {
	const digits = colour.length === 4 ? [...colour.slice(1)].map((digit) => digit + digit) : colour.slice(1).match(/../g);
	const [red, green, blue] = digits.map((pair) => {
		const part = Number.parseInt(pair, 16) / 255;
		return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
	});
	return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

/** Returns the contrast of two colours, from 1 to 21. */
export function contrast(one, other) {
	const [dark, bright] = [one, other].map(luminance).sort((a, b) => a - b);
	return (bright + 0.05) / (dark + 0.05);
}

/** Returns the pairs of a complete palette that are unreadable: `{ name, ground, found, needed }`. */
export function unreadable(palette) {
	return PAIRS.map(([name, ground, needed]) => ({ name, ground, needed, found: contrast(palette[name], palette[ground]) }))
		.filter(({ found, needed }) => found < needed);
}

/** Returns the palettes of page.css, `{ light, dark }`, by the names of a brand file. */
export function palettesOf(css) {
	const [light, dark] = [...css.matchAll(/:root \{([^}]*)\}/g)].map(([, rule]) =>
		Object.fromEntries(Object.entries(PROPERTIES).map(([name, property]) => [name, new RegExp(`--${property}: (#\\w+)`).exec(rule)[1]])),
	);
	return { light, dark };
}
