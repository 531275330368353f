// A campaign's claims in a dialog: finds a winner by user, status or claim id, returns a claim, and saves the claims of a
// user or status as CSV.

import { announce, ask } from "./actions.js";
import { read, save } from "./calls.js";
import { hasRole } from "./roles.js";
import { $, element, fill, moment, number, show, whenClosed, words } from "./display.js";

const PAGE = 50;
const STATUSES = ["granted", "held", "returned", "expired", "revoked"], TAKING_UNITS = ["granted", "held"];

let shown; // the dialog's claims: { campaign, role, token, onUnauthorized, search, text, found, cursor, problem, notice }

// Opens the claims of `campaign`, with their codes for an admin; calls `onUnauthorized` if the token is no longer
// valid.
export function openClaims(campaign, role, token, onUnauthorized) {
	shown = { campaign, role, token, onUnauthorized, found: [], cursor: null, problem: "", notice: "" };
	$("claims-form").reset();
	$("claims-with-codes").hidden = !campaign.codes || role !== "admin";
	$("claims").showModal();
	find();
}

export function closeClaims() {
	if ($("claims").open) $("claims").close();
}

function showClaims() {
	const said = words(), { campaign, role, found, cursor, problem, notice } = shown;
	show("claims-title", fill(said.claimsOf, campaign));
	show("claims-role", hasRole(role, "operator") ? "" : said.returnNeeds);
	[...$("claims-status").options].forEach((option, at) => { show(option, at ? said.statuses[option.value] : said.anyStatus); });
	show("claims-problem", problem ? said[problem] : notice || (found.length || cursor ? "" : said.noClaims));
	$("claims-more").hidden = !cursor;
	$("claims-table").hidden = !found.length;
	$("claims-codes-head").hidden = !$("claims-codes").checked;
	$("claims-rows").replaceChildren(...found.map(rowOf));
}

function rowOf(claim) {
	const said = words(), { sequence, user_id, id, quantity, status, claimed_at, codes = [] } = claim;
	const cell = (label, ...children) => {
		const made = element("td", { role: "cell" }, ...children);
		made.dataset.label = said[label];
		return made;
	};
	const user = element("th", { scope: "row", role: "rowheader" }, user_id, element("small", {}, element("code", { textContent: id })));
	return element("tr", { role: "row" }, cell("claimNumber", number(sequence)), user, cell("quantity", number(quantity)), cell("status", said.statuses[status] ?? status, ...returnButton(claim)),
		cell("claimedAt", moment(claimed_at)), cell("codes", ...codes.map((code) => element("code", { textContent: code }))));
}

// Returns the button that returns `claim`, in a list; none if its units are not taken, or the role does not allow it.
function returnButton(claim) {
	if (!TAKING_UNITS.includes(claim.status) || !hasRole(shown.role, "operator")) return [];
	const label = words().return;
	const button = element("button", { type: "button", className: "link return", textContent: label, ariaLabel: fill(words().ofCampaign, { verb: label, name: claim.user_id }) });
	button.onclick = () => askReturn(claim);
	return [" ", button];
}

function askReturn(claim) {
	const dialog = shown;
	const onDone = ({ claim: { status } }, notice) => {
		claim.status = status; // SQL has it a moment later
		dialog.notice = notice;
		if (shown !== dialog) return announce(notice);
		showClaims();
		$("claims-body").focus(); // the button is gone
	};
	ask("return", { campaign: dialog.campaign, claim, onDone }, { token: dialog.token, onUnauthorized: dialog.onUnauthorized });
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
	Object.assign(dialog, { search, cursor: null, problem: "readingClaims", notice: "" });
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
whenClosed("claims", () => { shown = null; });
