// Parts that are folded on a narrow screen until they are opened. On a wide screen they are always open.

const narrow = matchMedia("(max-width: 47.99rem)");

// Folds or opens a `details` element whose first child is its `summary`.
export function fold(part) {
	part.open = !narrow.matches;
	part.firstElementChild.tabIndex = narrow.matches ? 0 : -1;
}

export function foldAll() {
	for (const part of document.querySelectorAll(".fold")) fold(part);
}
narrow.onchange = foldAll;
