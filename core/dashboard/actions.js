// Pause, resume, add, end: asked again in a dialog, then sent as any admin's call.

import { $, fill, show, words } from "./texts.js";

const TIMEOUT_MS = 6000, DONE_MS = 10000;

let asked; // what the dialog asks: { verb, campaign, key, token, refused }
let sending = false, doneTimer;

// Asks whether to `verb` the campaign; `refused` is called when the token is none any more.
export function ask(verb, campaign, token, refused) {
	asked = { verb, campaign, key: crypto.randomUUID().replaceAll("-", ""), token, refused };
	sending = false;
	$("ask-input").value = "";
	show("ask-problem", "");
	$("ask-input").inputMode = verb === "add" ? "numeric" : "text";
	showQuestion();
	$("ask").showModal();
	if (!$("ask-field").hidden) $("ask-input").focus();
	else $("ask-cancel").focus();
}

export function closeQuestion() {
	if ($("ask").open) $("ask").close();
}

// The question's words; also after a change of the language.
export function showQuestion() {
	if (!asked) return;
	const { verb, campaign } = asked;
	const values = { ...campaign, total: campaign.limits.total };
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
	return verb === "add" && !/^[-−+]?[1-9]\d*$/.test(text) ? words().wholeNumber : "";
}

async function send() {
	const { verb, campaign, key } = asked;
	const text = $("ask-input").value.trim();
	const problem = problemOfInput(asked, text);
	show("ask-problem", problem);
	if (problem) return $("ask-input").focus();
	sending = true;
	showQuestion();
	const body = verb === "add" ? JSON.stringify({ units: Number(text.replace("−", "-")), idempotency_key: key }) : undefined;
	const { reply, answer } = await call(`/admin/v1/campaigns/${campaign.id}/${verb}`, body);
	sending = false;
	showQuestion();
	if (reply?.ok) done(verb, answer);
	else if (reply?.status === 401) asked.refused();
	else show("ask-problem", reply ? words().problems[answer.code] ?? fill(words().refusedAs, { detail: answer.detail ?? reply.status }) : words().inDoubt);
}

async function call(path, body) {
	const headers = { Authorization: `Bearer ${asked.token}`, ...(body && { "Content-Type": "application/json" }) };
	try {
		const reply = await fetch(path, { method: "POST", headers, body, signal: AbortSignal.timeout(TIMEOUT_MS) });
		return { reply, answer: await reply.json() };
	} catch {
		return {};
	}
}

function done(verb, campaign) {
	$("ask").close();
	show("done", fill(words()[`${verb}Done`], { ...campaign, total: campaign.limits.total }));
	clearTimeout(doneTimer);
	doneTimer = setTimeout(() => show("done", ""), DONE_MS);
}

$("ask-form").onsubmit = (event) => {
	event.preventDefault();
	if (!sending) send();
};
$("ask-cancel").onclick = closeQuestion;
$("ask").onclose = () => { asked = null; };
