// The clients and the controls: the command of each, which of claimgate's doors it uses, and how it is built.

import { spawnSync } from "node:child_process";
import { mkdirSync } from "node:fs";
import path from "node:path";
import { fileURLToPath } from "node:url";

const here = path.dirname(fileURLToPath(import.meta.url));
const root = path.resolve(here, "../..");
const built = path.join(root, "target/conformance");
const example = (file) => path.join(root, "examples", file);
const rust = path.resolve(root, process.env.CARGO_TARGET_DIR ?? "target", "debug/examples/claim");
// With the features of the whole workspace, or all would be compiled again.
const cargo = ["cargo", "build", "--quiet", "--workspace", "--example", "claim"];

/** `door`: edge or core. `needs`: the program without which the client is skipped. */
export const CLIENTS = {
	javascript: { door: "edge", command: [process.execPath, path.join(here, "javascript.js")] },
	rust: { door: "core", needs: "cargo", build: cargo, command: [rust, "core"] },
	"rust-edge": { door: "edge", needs: "cargo", build: cargo, command: [rust, "edge"] },
	java: {
		door: "core",
		needs: "javac",
		build: ["javac", "-Xlint:all", "-Werror", "-d", path.join(built, "java"), example("java/Claimgate.java")],
		command: ["java", "-XX:TieredStopAtLevel=1", "-classpath", path.join(built, "java"), "Claimgate"],
	},
	go: { door: "core", needs: "go", build: ["go", "build", "-o", path.join(built, "go"), example("go/claim.go")], command: [path.join(built, "go")] },
	python: { door: "core", needs: "python3", command: ["python3", example("python/claim.py")] },
	php: { door: "core", needs: "php", extension: "curl", command: ["php", example("php/claim.php")] },
};

const control = (defect, cases, reason) => ({ door: "core", command: [process.execPath, path.join(here, "control.js"), defect], cases, reason });

/** Clients with one defect each: the names of the cases that must find it, and what they then say. */
export const CONTROLS = {
	none: control("none"),
	"marks-a-retry": control("marks-a-retry", /lost answer|rate_limited/, /Claimgate-Attempt is 1 instead of absent$/),
	"forgets-its-key": control("forgets-its-key", /lost answer|killed/, /the key is not A, the key of an earlier request$|Claimgate-Attempt is 1 instead of absent$/),
	"retries-a-409": control("retries-a-409", /409/, /request 2 arrived after the last expected one$/),
	"ignores-retry-after": control("ignores-retry-after", /after Retry-After$/, /arrived after \d+ ms instead of at least \d+ ms$/),
};

/** Builds the client. Returns why it cannot run, or null. */
export function notReady({ needs, extension, build }) {
	const runs = (program, ...words) => spawnSync("sh", ["-c", 'command -v "$0" && "$@"', program, ...words], { encoding: "utf8" });
	if (needs && runs(needs, "true").status !== 0) return `${needs} is not installed`;
	if (extension && !runs(needs, needs, "-m").stdout.split("\n").includes(extension)) return `${needs}-${extension} is not installed`;
	if (!build) return null;
	mkdirSync(built, { recursive: true });
	const [program, ...words] = build;
	const { status } = spawnSync(program, words, { cwd: root, stdio: ["ignore", "inherit", "inherit"] });
	if (status !== 0) throw new Error(`${build.join(" ")} failed`);
	return null;
}
