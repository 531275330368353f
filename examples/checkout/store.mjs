// The shop's state, in one file for each name. Use your database instead: files survive a crash of the program, but not
// the loss of the machine.

import { randomBytes } from "node:crypto";
import { linkSync, mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { setting } from "./calls.mjs";

const ORDERS = setting("ORDERS", "orders");
mkdirSync(ORDERS, { recursive: true });

const fileOf = (name) => `${ORDERS}/${name}.json`;

/** Returns the stored value, or null. */
export function stored(name) {
	try {
		return JSON.parse(readFileSync(fileOf(name), "utf8"));
	} catch (error) {
		if (error.code !== "ENOENT") throw error;
		return null;
	}
}

/** Stores the value unless the name has a value already. Returns the stored value. */
export function storeOnce(name, value) {
	const unlinked = `${fileOf(name)}.${randomBytes(8).toString("hex")}`;
	writeFileSync(unlinked, JSON.stringify(value));
	try {
		linkSync(unlinked, fileOf(name)); // never replaces a file
	} catch (error) {
		if (error.code !== "EEXIST") throw error;
	} finally {
		rmSync(unlinked);
	}
	return stored(name) ?? storeOnce(name, value); // null: removed in between
}

/**
 * Removes the value only if it still has this key: another process may have stored a new one. In a database, this is one
 * statement. With files it is two steps, so two processes must not share the directory.
 */
export function remove(name, key) {
	if (stored(name)?.key === key) rmSync(fileOf(name), { force: true });
}
