// The codes of a campaign in a dialog: counts them, and adds a file of codes. The page does not read the file. It drops
// the file once core has added or rejected it, or when the dialog is closed.

import { announceOutcome } from "./actions.js";
import { isRejected, problemText, read, sendFile } from "./calls.js";
import { hasRole } from "./roles.js";
import { $, fill, show, whenClosed, words } from "./display.js";

// Core's limit is checked here: core may close the connection of a larger file before the browser reads the response.
const FILE_BYTES_MAX = 256 * 1024 * 1024;
const COUNT_MS = 2000;

let shown; // the dialog's codes: { campaign, role, token, onUnauthorized, counts, problem, isSending, outcomeText }

// Opens the codes of `campaign`; only an admin may add some. `caller` is { token, onUnauthorized }; `onUnauthorized` is
// called if the token is no longer valid.
export function openCodes(campaign, role, caller) {
	shown = { campaign, role, ...caller, counts: null, problem: "countingCodes", isSending: false, outcomeText: () => "" };
	$("codes-form").reset();
	showCodes();
	$("codes").showModal();
	keepCounting(shown);
}

export function closeCodes() {
	if ($("codes").open) $("codes").close();
}

// Counts again and again while the tab is visible: claims get their codes a moment after the codes are added.
async function keepCounting(dialog) {
	while (shown === dialog) {
		const counts = await read(pathOf(dialog), "application/json", "json", dialog);
		Object.assign(dialog, counts ? { counts, problem: "" } : { problem: "noCodesCounted" });
		showCodes();
		await new Promise((done) => setTimeout(done, COUNT_MS));
		if (document.hidden) await new Promise((done) => document.addEventListener("visibilitychange", done, { once: true }));
	}
}

const pathOf = ({ campaign }) => `/admin/v1/campaigns/${campaign.id}/codes`;

// Writes the dialog's texts; also called after a change of language.
export function showCodes() {
	if (!shown) return;
	const said = words(), { campaign, role, counts, problem, isSending, outcomeText } = shown;
	const isAdmin = hasRole(role, "admin");
	show("codes-title", fill(said.codesOf, campaign));
	show("codes-counts", problem ? said[problem] : fill(said.codesCounted, valuesOf(counts)));
	show("codes-role", isAdmin ? "" : said.codesNeed);
	$("codes-form").hidden = !isAdmin;
	show("codes-send", isSending ? said.sending : said.addCodes);
	$("codes-send").disabled = $("codes-file").disabled = isSending;
	show("codes-problem", outcomeText());
}

// While claims are without codes, more numbers are assigned than there are codes.
function valuesOf({ added, assigned, claims_pending }) {
	const given = Math.min(added, assigned);
	return { added, given, left: added - given, claims_pending };
}

async function addFile() {
	const dialog = shown, [file] = $("codes-file").files;
	const isTooLarge = file?.size > FILE_BYTES_MAX;
	if (!file || isTooLarge) return showOutcome(dialog, () => (isTooLarge ? words().fileTooLarge : words().fileMissing));
	dialog.isSending = true;
	showOutcome(dialog, () => words().sendingCodes);
	const outcome = await sendFile(pathOf(dialog), file, dialog);
	dialog.isSending = false;
	conclude(dialog, outcome);
}

// Shows the outcome: in the dialog if it is still open, otherwise as a notice.
function conclude(dialog, outcome) {
	const { reply, answer } = outcome;
	if (reply?.status === 401) return dialog.onUnauthorized();
	const text = () => (reply?.ok ? fill(words().codesAdded, answer) : problemText(outcome));
	if (shown !== dialog) return announceOutcome(fill(words().problemOf, { name: dialog.campaign.name, problem: text() }));
	// While the outcome is unknown, the file stays chosen: core adds none of its codes twice.
	if (reply?.ok || isRejected(reply)) $("codes-form").reset();
	showOutcome(dialog, text);
}

function showOutcome(dialog, outcomeText) {
	dialog.outcomeText = outcomeText;
	showCodes();
	if (!hasMovedOn()) $("codes-file").focus();
}

// Returns whether the user has focused anything but the form. While a file is sent, the form is disabled and loses the focus.
function hasMovedOn() {
	const focused = document.activeElement;
	return focused !== document.body && focused !== $("codes") && !$("codes-form").contains(focused);
}

$("codes-form").onsubmit = (event) => {
	event.preventDefault();
	if (!shown.isSending) addFile();
};
$("codes-close").onclick = closeCodes;
whenClosed("codes", () => {
	shown = null;
	$("codes-form").reset();
});
