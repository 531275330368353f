// Types of <claimgate-button>.

import type { ClaimgateClient, ClaimgateClientOptions, ClaimgateError, ClaimResult } from "./claimgate.js";

/** A button that claims. Attributes: `campaign`, `token`, `quantity`, `lang`. */
export class ClaimgateButton extends HTMLElement {
	/**
	 * The user's token, or a function that returns it; null if the user is not signed in. Replaces the attribute. Set it
	 * again after the user has signed in or out.
	 */
	token?: ClaimgateClientOptions["token"];
	/** The user's pass, or a function that returns it, for a campaign that requires one. */
	pass?: NonNullable<Parameters<ClaimgateClient["claim"]>[1]>["pass"];
	/** The campaign's id. */
	campaign: string | null;
	/** Number of units of a claim. */
	quantity: number;
	/** The edge's address. Default: where the script comes from. */
	base: string;
	/** Sends a claim, as a click on the button does. Resolves when the outcome is shown. */
	claim(): Promise<void>;
}

declare global {
	interface HTMLElementTagNameMap {
		"claimgate-button": ClaimgateButton;
	}
	interface HTMLElementEventMap {
		/** A claim is granted or held. */
		"claimgate-claim": CustomEvent<ClaimResult>;
		/** A claim was denied, is no longer granted or held, or its outcome is unknown. */
		"claimgate-error": CustomEvent<{ error: ClaimgateError }>;
	}
}
