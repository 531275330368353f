// Creates, edits and copies a campaign in a dialog. Core's errors are shown at their fields.

import { announce } from "./actions.js";
import { problemText, read, send } from "./calls.js";
import { browserZone, change, changedFields, creation, FIELDS, hasLimits, newTexts, PASSES, textsOf, textsOfCopy } from "./fields.js";
import { $, element, fill, show, whenClosed, words } from "./display.js";

const HINTS = ["id", "starts_at", "ends_at", "time_zone", "limits.total", "limits.per_user_per_day", "hold_seconds", "pass", "codes"];
// The field of an error that names none.
const FIELD_OF_CODE = { campaign_exists: "id", codes_missing: "limits.total" };

let shown; // the dialog's form: { verb, id, version, before, token, onUnauthorized, isBusy, problem }

const idOf = (name) => `edit-${name.replace(".", "-")}`;
const input = (name) => $(idOf(name));

// Opens the form to "create" a campaign, or to "edit" or "clone" `campaign`. `caller` is { token, onUnauthorized };
// `onUnauthorized` is called if the token is no longer valid.
export async function openForm(verb, campaign, caller) {
	const form = { verb, id: campaign?.id, ...caller, isBusy: true, problem: "" };
	shown = form;
	fillIn(newTexts());
	showForm();
	$("edit").showModal();
	if (campaign) await readCampaign(form);
	else form.before = textsIn();
	form.isBusy = false;
	if (shown !== form) return;
	showForm();
	input(verb === "edit" ? "name" : "id").focus();
}

export function closeForm() {
	if ($("edit").open) $("edit").close();
}

// Reads the campaign into the fields. On failure the dialog shows the problem.
async function readCampaign(form) {
	form.problem = "readingCampaign";
	if (shown === form) showForm();
	const found = await read(`/admin/v1/campaigns/${form.id}`, "application/json", "json", form);
	form.problem = found ? "" : "noCampaignRead";
	if (!found || shown !== form) return null;
	fillIn(form.verb === "edit" ? textsOf(found) : textsOfCopy(found, Date.now()));
	Object.assign(form, { version: found.version, before: textsIn() });
	return found;
}

function fillIn(texts) {
	for (const { name, kind } of FIELDS) {
		if (kind === "check") input(name).checked = Boolean(texts[name]);
		else input(name).value = texts[name];
	}
}

// Returns the texts in the fields.
const textsIn = () => Object.fromEntries(FIELDS.map(({ name, kind }) => [name, kind === "check" ? (input(name).checked ? "1" : "") : input(name).value.trim()]));

// Writes the form's texts; also called after a change of language.
export function showForm() {
	if (!shown) return;
	const said = words(), { verb, id, before, isBusy, problem } = shown;
	show("edit-title", fill(said[`${verb}Title`], { id }));
	show("edit-send", isBusy && before ? said.sending : said[`${verb}Send`]);
	show("edit-problem", said[problem] ?? problem);
	$("edit-send").disabled = isBusy || !before;
	for (const { name, isFixed } of FIELDS) {
		show(`${idOf(name)}-label`, said.fields[name]);
		input(name).disabled = isBusy || (verb === "edit" && Boolean(isFixed));
	}
	for (const name of HINTS) show(`${idOf(name)}-hint`, fill((verb === "edit" && said.editHints[name]) || said.hints[name], { zone: browserZone() }));
	for (const option of input("pass").options) show(option, said.passes[option.value]);
	input("pass.until").closest(".field").hidden = input("pass").value !== "until";
}

const isHidden = (name) => input(name).closest(".field").hidden;

function showProblem(name, text) {
	show(`${idOf(name)}-problem`, text);
	input(name).ariaInvalid = text ? "true" : null;
}

// Checks what core cannot: a time of which a part is missing counts as no time.
function incompleteTimes() {
	const wrong = FIELDS.filter(({ name, kind }) => kind === "time" && !isHidden(name) && input(name).validity.badInput);
	for (const { name } of wrong) showProblem(name, words().incompleteTime);
	return wrong.map(({ name }) => name);
}

// Core accepts a campaign without limits, which is nearly always a mistake.
function missingLimits(texts) {
	if (hasLimits(texts)) return [];
	showProblem("limits.total", words().noLimit);
	return ["limits.total"];
}

async function submit() {
	const form = shown, after = textsIn();
	for (const { name } of FIELDS) showProblem(name, "");
	form.problem = "";
	const isEdit = form.verb === "edit";
	const [wrong] = [...incompleteTimes(), ...(isEdit ? [] : missingLimits(after))];
	if (wrong) return input(wrong).focus();
	if (isEdit && !changedFields(form.before, after).length) return closeForm();
	form.isBusy = true;
	showForm();
	const body = isEdit ? change(form.before, after, form.version) : creation(after);
	const outcome = await send(isEdit ? "PATCH" : "POST", `/admin/v1/campaigns${isEdit ? `/${form.id}` : ""}`, body, form);
	await conclude(form, after, outcome);
}

async function conclude(form, after, outcome) {
	const { reply, answer } = outcome;
	if (reply?.status === 401) return form.onUnauthorized();
	if (reply?.ok) return finish(form, after);
	if (shown !== form) return announce(fill(words().problemOf, { name: after.name, problem: problemText(outcome) }));
	if (answer?.code === "version_conflict") return mergeChanges(form, after);
	showOutcome(form, outcome);
}

function finish(form, { name }) {
	if (shown === form) closeForm();
	announce(fill(words()[`${form.verb}Done`], { name }));
}

// Shows why core refused: at a field if there is one, otherwise under the form.
function showOutcome(form, outcome) {
	const { answer } = outcome, field = fieldOf(answer);
	form.isBusy = false;
	if (!field) form.problem = problemText(outcome);
	showForm();
	if (!field) return;
	showProblem(field, answer.detail.replace(`${answer.field}: `, ""));
	input(field).focus();
}

// Returns the field of an error: of a member inside of a field, that field.
function fieldOf(answer) {
	const named = answer?.field ?? FIELD_OF_CODE[answer?.code];
	return named && [named, named.split(".")[0]].find((name) => FIELDS.some((field) => field.name === name));
}

// The campaign has changed since it was read: keeps the caller's own changes, and takes over all others.
async function mergeChanges(form, after) {
	const mine = changedFields(form.before, after);
	const found = await readCampaign(form);
	form.isBusy = false;
	if (!found) return shown === form && showForm();
	const merged = { ...form.before, ...Object.fromEntries(mine.map((name) => [name, after[name]])) };
	// The conflict is with this very change if its response was lost.
	if (!changedFields(form.before, merged).length) return finish(form, after);
	fillIn(merged);
	form.problem = "changedMeanwhile";
	showForm();
}

function build({ name, kind }) {
	const id = idOf(name);
	const made = kind === "pass" ? element("select", { id }, ...PASSES.map((value) => element("option", { value }))) : element("input", { id, autocomplete: "off", autocapitalize: "off", spellcheck: false });
	if (kind === "time") Object.assign(made, { type: "datetime-local", step: 1 });
	if (kind === "number") made.inputMode = "numeric";
	if (kind === "check") made.type = "checkbox";
	if (kind === "zone") made.setAttribute("list", "edit-zones");
	const hint = element("small", { id: `${id}-hint` }), problem = element("p", { id: `${id}-problem`, className: "problem" });
	made.setAttribute("aria-describedby", `${problem.id} ${hint.id}`);
	return element("div", { className: `field ${kind}` }, element("label", { id: `${id}-label`, htmlFor: id }), made, problem, hint);
}

$("edit-fields").append(...FIELDS.map(build));
$("edit-zones").append(...(Intl.supportedValuesOf?.("timeZone") ?? []).map((value) => element("option", { value })));
input("pass").onchange = showForm;
input("codes").onchange = () => {
	if (input("codes").checked) input("limits.total").value ||= "0";
};
$("edit-form").onsubmit = (event) => {
	event.preventDefault();
	if (!shown.isBusy) submit();
};
$("edit-cancel").onclick = closeForm;
whenClosed("edit", () => {
	shown = null;
	for (const { name } of FIELDS) showProblem(name, "");
});
