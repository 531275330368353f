/**
 * Applies the brand of the URL's campaign. Runs in the head of the page, before the first paint: the build writes this
 * function, the brands, a `Map` by campaign id, and the ids of the listed campaigns into edge/assets/brand.js.
 * messages.js reads `claimgateBrand`.
 */
export function applyBrand(brands, listed) {
	window.claimgateListed = listed;
	let campaign = new URLSearchParams(location.search).get("campaign");
	try {
		// The page that signs in has the brand of the page that opened it in this tab.
		if (location.pathname === "/sign-in/") campaign = sessionStorage["claimgate:brand"];
		else sessionStorage["claimgate:brand"] = campaign;
	} catch { /* storage unavailable */ }
	const brand = brands.get(campaign) ?? brands.get("");
	if (!brand) return;
	window.claimgateBrand = brand;
	const root = document.documentElement;
	const dark = matchMedia("(prefers-color-scheme: dark)");
	const paint = () => {
		for (const [property, colour] of Object.entries(brand.colours[dark.matches ? "dark" : "light"])) root.style.setProperty(property, colour);
	};
	paint();
	dark.onchange = paint;
	if (brand.logo) document.querySelector("link[rel=icon]").href = brand.logo;
	// Hides the header's name and logo until display.js has set them.
	root.dataset.brand = "loading";
	document.title = "";
}
