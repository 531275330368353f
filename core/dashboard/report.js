// The report on a campaign's demand: core's page in a dialog, and as files to save.

import { read, save } from "./calls.js";
import { $, element, fill, show, whenClosed, words } from "./display.js";

const FILES = { html: "text/html", csv: "text/csv", json: "application/json" };

let shown; // the dialog's report: { campaign, token, onUnauthorized, problem }

// Opens the report on `campaign`; calls `onUnauthorized` if the token is no longer valid.
export async function openReport(campaign, token, onUnauthorized) {
	const opened = { campaign, token, onUnauthorized, problem: "reading" };
	shown = opened;
	$("report-body").replaceChildren();
	showReport();
	$("report").showModal();
	const page = await fetchReport(opened, "html", "text");
	if (shown !== opened) return;
	if (page) showPage(page);
	showReport();
}

export function closeReport() {
	if ($("report").open) $("report").close();
}

// Writes the dialog's texts; also called after a change of language.
export function showReport() {
	if (!shown) return;
	show("report-title", fill(words().reportOf, shown.campaign));
	show("report-problem", shown.problem ? words()[shown.problem] : "");
}

// Fetches the report in the format `kind`, a key of FILES. On failure returns null, and the dialog shows the problem.
async function fetchReport(report, kind, as) {
	const body = await read(`/admin/v1/campaigns/${report.campaign.id}/report`, FILES[kind], as, report);
	report.problem = body === null ? "noReport" : "";
	return body;
}

// A shadow root keeps the page's style apart from the dashboard's.
function showPage(html) {
	const [inline, text] = html.match(/<style>(.*?)<\/style>/s); // the policy forbids it, even in a parsed document
	const page = new DOMParser().parseFromString(html.replace(inline, ""), "text/html");
	const style = new CSSStyleSheet();
	style.replaceSync(text);
	const host = element("div");
	const root = host.attachShadow({ mode: "open" });
	root.adoptedStyleSheets = [style];
	root.append(document.adoptNode(page.querySelector("main")));
	$("report-body").replaceChildren(host);
}

async function saveReport(kind) {
	const report = shown;
	const file = await fetchReport(report, kind, "blob");
	if (file) save(file, `${report.campaign.id}.${kind}`);
	showReport();
}

for (const kind of Object.keys(FILES)) $(`report-${kind}`).onclick = () => saveReport(kind);
$("report-close").onclick = closeReport;
whenClosed("report", () => { shown = null; });
