// Solves ALTCHA's proof of work with ALTCHA's own solver, altcha-pbkdf2.js, in several workers.

const WORKERS_MAX = 4, SOLVE_MS_MAX = 300000;

// Leaves one processor to the page.
const workerCount = () => Math.max(1, Math.min(WORKERS_MAX, (navigator.hardwareConcurrency ?? 2) - 1));

export async function solve(challenge) {
	const workers = Array.from({ length: workerCount() }, () => new Worker("/pass/altcha-pbkdf2.js"));
	const work = (worker, at) => new Promise((done, fail) => {
		worker.onerror = fail;
		worker.onmessage = ({ data }) => (data?.derivedKey ? done(data) : fail(data?.error ?? new Error("no solution in time")));
		worker.postMessage({ type: "work", challenge, counterStart: at, counterStep: workers.length, timeout: SOLVE_MS_MAX });
	});
	try {
		const solution = await Promise.race(workers.map(work));
		return btoa(JSON.stringify({ challenge, solution })); // ALTCHA's form of a payload
	} finally {
		for (const worker of workers) worker.terminate();
	}
}
