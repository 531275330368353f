#!/usr/bin/env python3
"""Claims through core as a back end does, with Python 3.8 or later and its standard library.

    CLAIMGATE_URL=http://127.0.0.1:8080 CLAIMGATE_TOKEN=... python3 claim.py CAMPAIGN USER [QUANTITY]

Prints the outcome as one line of JSON. If it is unknown, run it again: the claim counts once.
"""
import contextlib
import dataclasses
import http.client
import json
import os
import random
import re
import secrets
import sys
import time
import urllib.parse
from typing import Optional

TRY_S = int(os.environ.get("CLAIMGATE_TRY_MS", "6000")) / 1000
DEADLINE_S = int(os.environ.get("CLAIMGATE_DEADLINE_MS", "20000")) / 1000
BACKOFF_S, BACKOFF_S_MAX = 0.2, 2.0
ID = re.compile(r"[A-Za-z0-9_-]{1,64}")

# Core looks up the key before it applies these rules: after such a denial there is no claim with the key.
DECIDED = {"not_started", "paused", "ended", "sold_out", "user_limit_reached", "user_daily_limit_reached",
           "quantity_out_of_range"}
# The request was not processed, and a retry cannot help.
FINAL = {"not_configured", "user_ids_differ"}


@dataclasses.dataclass
class Claim:
    id: str
    status: str  # granted, held, returned, expired or revoked
    quantity: int
    sequence: int
    expires_at: Optional[str] = None


@dataclasses.dataclass
class Problem:
    """A problem of claimgate (RFC 9457), or one of this program: network, unexpected_answer, claim_pending."""
    code: str  # a string, because newer versions may add codes
    status: int = 0  # 0 without a response
    title: str = ""
    detail: str = ""
    limit: Optional[str] = None  # the limit that denied the claim
    remaining: Optional[int] = None

    def retry_helps(self) -> bool:
        return self.code not in FINAL and (self.status < 400 or self.status in (408, 429) or self.status >= 500)

    def may_be_claimed(self) -> bool:
        """Whether the try may have made a claim although its response says otherwise, or is missing."""
        return self.retry_helps() and self.status != 429 and self.code != "overloaded"


@dataclasses.dataclass
class Outcome:
    outcome: str  # claimed, refused or unknown
    claim: Optional[Claim] = None
    replayed: bool = False  # whether an earlier try had made the claim
    problem: Optional[Problem] = None


def typed(kind, members):
    """Builds a dataclass from the members of JSON that it knows: newer versions may add members."""
    return kind(**{field.name: members[field.name] for field in dataclasses.fields(kind) if field.name in members})


class Keys:
    """The requests whose outcome is unknown, one file for each campaign and user. A shop keeps them with its orders."""

    def __init__(self, directory):
        self.directory = directory

    def path(self, request):
        if not all(ID.fullmatch(request[name]) for name in ("campaign_id", "user_id")):
            raise ValueError("campaign and user: must be 1 to 64 characters of A-Z, a-z, 0-9, '_' and '-'")
        return os.path.join(self.directory, f"{request['campaign_id']}.{request['user_id']}.json")

    def store(self, request):
        """Returns the stored request, and whether it is new. A link never replaces a request that is stored already."""
        path, new = self.path(request), {**request, "idempotency_key": secrets.token_urlsafe(16)}
        unlinked = f"{path}.{new['idempotency_key']}"
        with open(unlinked, "w", encoding="utf-8") as file:
            json.dump(new, file)
        try:
            os.link(unlinked, path)
            return new, True
        except FileExistsError:
            with open(path, encoding="utf-8") as file:
                return json.load(file), False
        finally:
            os.unlink(unlinked)

    def remove(self, request):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path(request))


class Core:
    def __init__(self, url, token):
        self.url, self.token = urllib.parse.urlsplit(url), token

    def send(self, request, is_first):
        """Sends a claim once. Returns the claim and whether it is a replay, or the problem and its Retry-After in seconds."""
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        if is_first:  # only a first try may be rejected from a cache
            headers["Claimgate-Attempt"] = "1"
        kind = http.client.HTTPSConnection if self.url.scheme == "https" else http.client.HTTPConnection
        connection = kind(self.url.hostname, self.url.port, timeout=TRY_S)
        try:
            connection.request("POST", "/internal/v1/claims", json.dumps(request), headers)
            answer = connection.getresponse()
            body = answer.read()
        except (OSError, http.client.HTTPException) as error:
            return Problem("network", detail=str(error)), 0
        finally:
            connection.close()
        try:
            members = json.loads(body)
            if answer.status < 300:
                return typed(Claim, members["claim"]), answer.getheader("Idempotent-Replayed") == "true"
            problem = typed(Problem, {**members, "status": answer.status})
        except (ValueError, KeyError, TypeError):  # a proxy's page
            problem = Problem("unexpected_answer", answer.status)
        after = answer.getheader("Retry-After") or ""
        return problem, int(after) if re.fullmatch(r"[0-9]{1,9}", after) else 0

    def claim(self, request, is_new):
        """Claims, and retries with the same key while a retry can help. Only the first try of a new key is marked."""
        deadline, backoff_s, is_first, may_be_claimed = time.monotonic() + DEADLINE_S, BACKOFF_S, is_new, not is_new
        while True:
            answer, more = self.send(request, is_first)
            if isinstance(answer, Claim):
                return Outcome("claimed", claim=answer, replayed=more)
            is_first = False
            may_be_claimed = may_be_claimed or answer.may_be_claimed()
            pause_s = more + backoff_s * random.uniform(0.5, 1)
            if not answer.retry_helps() or time.monotonic() + pause_s > deadline:
                is_unknown = may_be_claimed and answer.code not in DECIDED
                return Outcome("unknown" if is_unknown else "refused", problem=answer)
            time.sleep(pause_s)
            backoff_s = min(2 * backoff_s, BACKOFF_S_MAX)


def main(campaign, user, quantity="1"):
    core = Core(os.environ["CLAIMGATE_URL"], os.environ["CLAIMGATE_TOKEN"])
    keys = Keys(os.environ.get("CLAIMGATE_KEYS", "."))
    request, is_new = keys.store({"campaign_id": campaign, "user_id": user, "quantity": int(quantity)})
    if request["quantity"] == int(quantity):
        outcome = core.claim(request, is_new)
    else:
        outcome = Outcome("unknown", problem=Problem("claim_pending", detail=f"of quantity {request['quantity']}"))
    print(json.dumps(dataclasses.asdict(outcome)), flush=True)
    if outcome.outcome != "unknown":  # the outcome is shown: after a crash before this line, the same claim is retried
        keys.remove(request)


if __name__ == "__main__":
    main(*sys.argv[1:])
