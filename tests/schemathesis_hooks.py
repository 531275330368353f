"""Rules for test values that JSON Schema cannot express, and a custom check (see schemathesis.toml)."""

import base64
import hashlib
import os
import re
import time
import zlib

import schemathesis
from hypothesis import strategies as st

# Time zones of the IANA database.
TIME_ZONES = ["UTC", "Asia/Shanghai", "America/New_York", "Pacific/Apia", "Europe/Berlin", "Etc/GMT+12"]
schemathesis.openapi.format("time-zone", st.sampled_from(TIME_ZONES))

# CSV files of past claims to import.
ROWS = st.lists(st.from_regex(r"[A-Za-z0-9_-]{1,64},[1-9]", fullmatch=True), max_size=3)
FILES = ROWS.map(lambda rows: "\n".join(["user_id,quantity", *rows]).encode())
schemathesis.openapi.media_type("text/csv", FILES)

# Fixtures created by tests/e2e/openapi.rs. Most calls use them, because random ids do not exist.
CAMPAIGN, PAUSED, WITH_CODES, USERS, KEY = "demo", "paused", "coded", ["anna", "bert"], "k"
# The only permitted webhook receiver.
RECEIVER = os.environ.get("RECEIVER", "http://127.0.0.1:1")

# Maximum retries of a call, one per second.
TRIES = 20

ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


def claim_id(user):
    """Returns the id of `user`'s claim with `KEY`, derived as in shared/src/ids.rs."""
    fields = [CAMPAIGN.encode(), user.encode(), KEY.encode()]
    digest = hashlib.sha256(b"".join(len(field).to_bytes(4, "big") + field for field in fields)).digest()
    return f"{CAMPAIGN}.{user}.{base64.urlsafe_b64encode(digest[:16]).decode().rstrip('=')}"


def known(name, value, operation_id):
    """Replaces three of four well-formed ids by existing ids."""
    number = zlib.crc32(repr(value).encode())
    if not isinstance(value, str) or number % 4 == 0:
        return value
    if name in ("id", "campaign_id") and ID.fullmatch(value) and operation_id not in ("endCampaign", "createCampaign"):
        return {"importClaims": PAUSED, "addCodes": WITH_CODES, "countCodes": WITH_CODES}.get(operation_id, CAMPAIGN)
    if name == "user_id" and ID.fullmatch(value):
        return USERS[number % 2]
    if name == "claim_id" and value.count(".") == 2:
        return claim_id(USERS[number % 2])
    return value


@schemathesis.hook
def before_add_examples(context, examples):
    for case in examples:
        map_case(context, case)


@schemathesis.hook
def map_case(context, case):
    operation_id = case.operation.definition.raw["operationId"]
    if case.path_parameters and "/webhooks/" not in case.operation.path:
        case.path_parameters = {
            name: known(name, value, operation_id) for name, value in case.path_parameters.items()
        }
    if operation_id == "addCodes" and isinstance(case.body, bytes):
        # Each line is a code, and no code is in a file twice.
        case.body = b"\n".join(dict.fromkeys(case.body.replace(b",", b"-").split(b"\n")))
    if isinstance(case.body, dict):
        body = case.body = {name: known(name, value, operation_id) for name, value in case.body.items()}
        if re.match("https?://", str(body.get("url"))):
            body["url"] = RECEIVER
        if not is_window(body.get("starts_at"), body.get("ends_at")):
            body["ends_at"] = None
        if operation_id == "createCampaign" and body.get("codes") is True:
            body["limits"] = limits_with_codes(body.get("limits", {}))
    return case


def limits_with_codes(limits):
    """Gives the limits of a campaign with codes a total, and at most 1,000 units per claim."""
    if not isinstance(limits, dict):
        return limits
    limits = dict(limits)
    if limits.get("total") is None:
        limits["total"] = 0
    # 2000.0 is an integer too.
    if isinstance(limits.get("per_claim"), (int, float)):
        limits["per_claim"] = min(limits["per_claim"], 1000)
    return limits


def is_window(starts_at, ends_at):
    """Returns whether the window ends at least two years after its start, so that it is valid with any UTC offsets."""
    if not re.match("[0-9]{4}-", str(ends_at)):
        return True
    # A campaign without a start opens now.
    start = starts_at if re.match("[0-9]{4}-", str(starts_at)) else time.strftime("%Y")
    return int(start[:4]) + 2 <= int(ends_at[:4])


@schemathesis.hook
def filter_failure(context, failure, case, response):
    """Retries a call that got a 503, as callers must (docs/api.md, Problems). It fails only if all retries get a 503."""
    for _ in range(TRIES if response.status_code == 503 else 0):
        time.sleep(1)
        if case.call().status_code != 503:
            return False
    return True


@schemathesis.check
def problem_code_conformance(ctx, response, case):
    """Checks that a problem's code is documented for the call and the status."""
    documented = case.operation.definition.raw["responses"].get(str(response.status_code), {})
    if "x-codes" in documented:
        code = response.json()["code"]
        assert code in documented["x-codes"], f"{code} is not among {documented['x-codes']}"
