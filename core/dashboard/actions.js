// Pause, resume, add, end, return: confirmed in a dialog, then sent as ordinary admin API requests.

import { problemText, send } from "./calls.js";
import { $, element, fill, show, whenClosed, words } from "./display.js";

const DONE_MS = 10000;

let asked; // the dialog's question: { verb, campaign, claim, token, onUnauthorized, onDone, sending }
let doneTimer;

// Additions with an unknown outcome, by campaign: { units, idempotency_key }. A retry uses the same key, even after a
// reload.
const PENDING_KEY = "claimgate:additions-in-doubt";
const pending = new Map(storedPending());

function storedPending() {
	try { return JSON.parse(sessionStorage.getItem(PENDING_KEY)) ?? []; } catch { return []; }
}
function storePending() {
	try { pending.size ? sessionStorage.setItem(PENDING_KEY, JSON.stringify([...pending])) : sessionStorage.removeItem(PENDING_KEY); } catch { /* storage is not allowed: they stay in memory */ }
}

// Browsers have `randomUUID` only over HTTPS, and `getRandomValues` always.
const randomKey = () => Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");

// Returns the addition of `units` to the campaign: the pending one if it has the same number of units,
// otherwise a new one.
function additionOf(id, units) {
	const previous = pending.get(id);
	const addition = previous?.units === units ? previous : { units, idempotency_key: randomKey() };
	pending.set(id, addition);
	storePending();
	return addition;
}

const DECIDED = /^(quantity_out_of_range|campaign_ended|campaign_not_found|invalid_request|idempotency_key_reused)$/;

// Removes the addition once its outcome is known.
function settle(id, addition, { reply, answer }) {
	if (pending.get(id) !== addition || !(reply?.ok || DECIDED.test(answer?.code))) return;
	pending.delete(id);
	storePending();
}

// Asks whether to `verb` the campaign, or its `claim`. `caller` is { token, onUnauthorized }; `onUnauthorized` is called
// if the token is no longer valid. Once it is done, `onDone(answer, text)` is called, by default to show the text as a
// notice.
export function ask(verb, { campaign, claim, onDone = (_, text) => announce(text) }, caller) {
	asked = { verb, campaign, claim, onDone, ...caller, sending: false };
	const previous = verb === "add" ? pending.get(campaign.id) : null;
	$("ask-input").value = previous ? String(previous.units) : "";
	show("ask-problem", previous ? words().inDoubt : "");
	$("ask-input").inputMode = verb === "add" ? "numeric" : "text";
	showQuestion();
	$("ask").showModal();
	if (!$("ask-field").hidden) $("ask-input").focus();
	else $("ask-cancel").focus();
}

export function closeQuestion() {
	if ($("ask").open) $("ask").close();
}

const valuesOf = ({ campaign, claim }, answer = {}) => ({ ...campaign, ...claim, ...answer, total: (answer.limits ?? campaign.limits).total });

// Writes the question's texts; also called after a change of language.
export function showQuestion() {
	if (!asked) return;
	const { verb, sending } = asked;
	const values = valuesOf(asked);
	show("ask-title", fill(words()[`${verb}Title`], values));
	show("ask-text", fill(words()[`${verb}Text`], values));
	const label = words()[`${verb}Label`];
	$("ask-field").hidden = !label;
	show("ask-label", label ? fill(label, values) : "");
	show("ask-send", sending ? words().sending : words()[verb]);
	$("ask-send").disabled = sending;
	$("ask").dataset.verb = verb;
}

function problemOfInput({ verb, campaign }, text) {
	if (verb === "end" && text !== campaign.id) return words().idDiffers;
	if (verb === "return" && !text) return words().reasonMissing;
	return verb === "add" && !/^[-−+]?[1-9]\d*$/.test(text) ? words().wholeNumber : "";
}

async function submit() {
	const question = asked;
	const { verb, campaign } = question;
	const text = $("ask-input").value.trim();
	const problem = problemOfInput(question, text);
	show("ask-problem", problem);
	if (problem) return $("ask-input").focus();
	question.sending = true;
	showQuestion();
	const body = bodyOf(question, text);
	const outcome = await send("POST", pathOf(question), body, question);
	if (verb === "add") settle(campaign.id, body, outcome);
	question.sending = false;
	showQuestion();
	conclude(question, outcome);
}

function bodyOf({ verb, campaign }, text) {
	if (verb === "add") return additionOf(campaign.id, Number(text.replace("−", "-")));
	return verb === "return" ? { reason: text } : undefined;
}

// Shows the outcome: in the dialog if it still shows this question, otherwise as a notice.
function conclude(question, outcome) {
	const { verb, campaign, onUnauthorized } = question, { reply, answer } = outcome;
	const isShown = asked === question;
	if (reply?.status === 401) return onUnauthorized();
	if (reply?.ok) {
		if (isShown) closeQuestion();
		const status = words().statuses[answer.claim?.status];
		return question.onDone(answer, fill(words()[`${verb}Done`], { ...valuesOf(question, answer), status }));
	}
	const problem = problemText(outcome);
	if (isShown) show("ask-problem", problem);
	else announce(fill(words().problemOf, { name: campaign.name, problem }));
}

const pathOf = ({ verb, campaign, claim }) => `/admin/v1/${claim ? `claims/${claim.id}` : `campaigns/${campaign.id}`}/${verb}`;

// Shows a notice for a while.
export function announce(text) {
	show("done", text);
	clearTimeout(doneTimer);
	doneTimer = setTimeout(() => show("done", ""), DONE_MS);
}

// Shows a notice until it is closed: the outcome of a call that may have taken minutes.
export function announceOutcome(text) {
	const close = element("button", { type: "button" }, words().close);
	close.dataset.text = "close";
	const notice = element("p", {}, element("span", {}, text), close);
	close.onclick = () => {
		notice.remove();
		$("board").focus();
	};
	$("outcomes").append(notice);
}

export function closeOutcomes() {
	$("outcomes").replaceChildren();
}

$("ask-form").onsubmit = (event) => {
	event.preventDefault();
	if (!asked.sending) submit();
};
$("ask-cancel").onclick = closeQuestion;
whenClosed("ask", () => { asked = null; });
