// Shows Cloudflare's Turnstile widget in `box` and returns its token. The widget asks the visitor only if it has to.

let loading; // the widget's script, loaded once

function loadScript(src) {
	loading ??= new Promise((done, fail) => {
		const script = Object.assign(document.createElement("script"), { src, onload: done });
		script.onerror = () => {
			script.remove();
			loading = null;
			fail(new Error("the script of Turnstile was not loaded"));
		};
		document.head.append(script);
	});
	return loading;
}

export async function solve({ script, site_key, action }, box, language) {
	await loadScript(script);
	const { turnstile } = window;
	let widget;
	try {
		return await new Promise((done, fail) => {
			const failed = (code) => {
				fail(new Error(`Turnstile failed: ${code}`));
				return true; // the error is handled
			};
			widget = turnstile.render(box, {
				sitekey: site_key,
				action,
				language,
				appearance: "interaction-only",
				callback: done,
				"error-callback": failed,
				"unsupported-callback": failed,
			});
		});
	} finally {
		if (widget) turnstile.remove(widget);
	}
}
