// A campaign's claims in a dialog: finds a winner by user, status or claim id, and saves the claims of a user or status
// as CSV.

import { read, save } from "./calls.js";
import { $, element, fill, moment, number, show, words } from "./display.js";

const PAGE = 50;
const STATUSES = ["granted", "held", "returned", "expired", "revoked"];

let shown; // the dialog's claims: { campaign, token, onUnauthorized, search, text, found, cursor, problem }

// Opens the claims of `campaign`, with their codes for an admin; calls `onUnauthorized` if the token is no longer
// valid.
export function openClaims(campaign, role, token, onUnauthorized) {
	shown = { campaign, token, onUnauthorized, found: [], cursor: null, problem: "" };
	$("claims-form").reset();
	$("claims-with-codes").hidden = !campaign.codes || role !== "admin";
	$("claims").showModal();
	find();
}

export function closeClaims() {
	if ($("claims").open) $("claims").close();
}

function showClaims() {
	const said = words(), { campaign, found, cursor, problem } = shown;
	show("claims-title", fill(said.claimsOf, campaign));
	[...$("claims-status").options].forEach((option, at) => { show(option, at ? said.statuses[option.value] : said.anyStatus); });
	show("claims-problem", problem ? said[problem] : found.length || cursor ? "" : said.noClaims);
	$("claims-more").hidden = !cursor;
	$("claims-table").hidden = !found.length;
	$("claims-codes-head").hidden = !$("claims-codes").checked;
	$("claims-rows").replaceChildren(...found.map(rowOf));
}

function rowOf({ sequence, user_id, id, quantity, status, claimed_at, codes = [] }) {
	const cell = (...children) => element("td", {}, ...children);
	const user = element("th", { scope: "row" }, user_id, element("small", {}, element("code", { textContent: id })));
	return element("tr", {}, cell(number(sequence)), user, cell(number(quantity)), cell(words().statuses[status] ?? status), cell(moment(claimed_at)),
		cell(...codes.map((code) => element("code", { textContent: code }))));
}

// Returns the search as a path of the API. A claim id contains its user: campaign.user.digest.
function pathOf(text, more) {
	const wanted = { user_id: text.split(".")[1] ?? text, status: $("claims-status").value, codes: $("claims-codes").checked, ...more };
	return `/admin/v1/campaigns/${shown.campaign.id}/claims?${new URLSearchParams(Object.entries(wanted).filter(([, value]) => value))}`;
}

async function find(cursor = null) {
	const dialog = shown;
	const search = {};
	if (!cursor) Object.assign(dialog, { found: [], text: $("claims-text").value.trim() });
	Object.assign(dialog, { search, cursor: null, problem: "readingClaims" });
	showClaims();
	const { text } = dialog;
	const isId = /^[\w.-]*$/.test(text); // otherwise it is neither a user nor a claim, and core would refuse the search
	const page = isId ? await read(pathOf(text, { limit: PAGE, cursor }), "application/json", "json", dialog) : { items: [], next_cursor: null };
	if (shown !== dialog || dialog.search !== search) return;
	dialog.found.push(...(page?.items ?? []).filter(({ id }) => !text.includes(".") || id === text));
	Object.assign(dialog, page ? { cursor: page.next_cursor, problem: "" } : { cursor, problem: "noClaimsRead" });
	showClaims();
}

async function saveFound() {
	const dialog = shown;
	const file = await read(pathOf(dialog.text), "text/csv", "blob", dialog);
	if (file) save(file, `${dialog.campaign.id}-claims.csv`);
	dialog.problem = file ? "" : "noClaimsRead";
	if (shown === dialog) showClaims();
}

$("claims-status").append(...["", ...STATUSES].map((value) => element("option", { value })));
$("claims-form").onsubmit = (event) => {
	event.preventDefault();
	find();
};
$("claims-status").onchange = $("claims-codes").onchange = () => find();
$("claims-more").onclick = () => find(shown.cursor);
$("claims-csv").onclick = saveFound;
$("claims-close").onclick = closeClaims;
$("claims").onclose = () => { shown = null; };
