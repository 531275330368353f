// A rate limiter with the face of Cloudflare's, for a workerd of one's own: a token bucket for every key, in the memory
// of one process. An internal module, wrapped around what edge/workerd.capnp gives it; node's own test runner runs it too.

const keysMax = 100_000;
const limitMax = 1_000_000;
const periodMax = 3_600;

// workers-rs knows the binding by the name of its class.
export class Ratelimit {
    #limit;
    #periodMs;
    #now;
    #keysMax;
    // What a key has taken is one number: when its bucket will be full again. Full buckets need not be remembered, so
    // two generations do: what was last asked for before the younger one began is dropped when that one gets old.
    #young = new Map();
    #old = new Map();
    #youngSince = -Infinity;

    // A `limit` of 0 is none.
    constructor(limit, periodS, { now = Date.now, keys = keysMax } = {}) {
        this.#limit = limit;
        this.#periodMs = periodS * 1000;
        this.#now = now;
        this.#keysMax = keys;
    }

    async limit({ key }) {
        if (this.#limit === 0) return { success: true };
        const now = this.#now();
        this.#forget(now);
        const full = this.#fullAt(String(key), now);
        const taken = full + this.#periodMs / this.#limit;
        // Half a millisecond: whole tokens, whatever their sum lost in rounding.
        const success = taken <= now + this.#periodMs + 0.5;
        this.#young.set(String(key), success ? taken : full);
        return { success };
    }

    // How many keys are remembered.
    get size() {
        return this.#young.size + this.#old.size;
    }

    // A clock that was set back must not keep a bucket empty for longer than a period.
    #fullAt(key, now) {
        const remembered = this.#young.get(key) ?? this.#old.get(key) ?? now;
        return Math.min(Math.max(remembered, now), now + this.#periodMs);
    }

    #forget(now) {
        const age = now - this.#youngSince;
        const isOld = age < 0 || age >= this.#periodMs;
        // Too many keys at once: those unseen for longest start anew before their time.
        if (!isOld && this.#young.size < this.#keysMax / 2) return;
        this.#old = this.#young;
        this.#young = new Map();
        this.#youngSince = now;
    }
}

// A number as the environment has it. What is wrong must not pass for "no limit": the Worker does not start with it.
function whole(name, text, min, max) {
    const number = Number(text);
    if (/^\d{1,9}$/.test(text) && number >= min && number <= max) return number;
    throw new Error(`${name} must be ${min} to ${max}, but is ${JSON.stringify(text)}`);
}

export default function ({ name, limit, limitDefault, period, periodDefault }) {
    return new Ratelimit(
        whole(name, limit || limitDefault, 0, limitMax),
        whole("RATE_PERIOD_S", period || periodDefault, 1, periodMax),
    );
}
