// Values that the pages keep in the browser. The token is stored per tab; the demo's guest, the last claim and whether
// the visitor signed out are shared by all tabs.

export function load(name, box = "localStorage") {
	try { return JSON.parse(window[box][`claimgate:${name}`]); } catch {}
}

export function save(name, value, box = "localStorage") {
	try { window[box][`claimgate:${name}`] = JSON.stringify(value); } catch { /* storage unavailable */ }
}
