#!/usr/bin/env bash
# Finds tests of the gate that could fail only because the machine is slow. Each limit of a wait must be SOON,
# promised(…), or at least 20 s. No window, hold or token begins or ends some seconds from now. The exception
# is a test of tests/soak.txt, on a line with a comment "real time". A time whose end fails no test has a comment
# "Not a limit" on the line above. A campaign with a small limit per day is in zone_far_from_midnight(), as campaign()
# creates it, unless a comment on the line says that the test passes "on any day". First checks itself with lines that
# must be found.
set -euo pipefail
cd "$(dirname "$0")/.."

check() { # FILE…
    awk '
        # Returns the shortest time in the text, in seconds; 1000 if there is none.
        function seconds(text,   number, unit, shortest) {
            shortest = 1000
            while (match(text, /from_(secs|millis)(_f64)?\([0-9_.]+\)/)) {
                number = substr(text, RSTART, RLENGTH)
                text = substr(text, RSTART + RLENGTH)
                unit = number ~ /millis/ ? 0.001 : 1
                sub(/^.*\(/, "", number)
                gsub(/_|\)/, "", number)
                if (number * unit < shortest) shortest = number * unit
            }
            return shortest
        }
        # Returns whether the constant, of this file or of another one that exports it, is below 20 s.
        function is_short(name) {
            if ((FILENAME, name) in value) return value[FILENAME, name] < 20
            return name in exported && exported[name] < 20
        }
        # Returns whether the text has a constant below 20 s whose name matches.
        function has_short(text, names,   words, at) {
            for (at = split(text, words, /[^A-Z_0-9]+/); at > 0; at--) {
                if (words[at] ~ names && is_short(words[at])) return 1
            }
            return 0
        }
        # Returns whether the number at the beginning of the text, in milliseconds or in `unit`, is below 20 s.
        function is_short_number(text, unit) {
            if (text ~ /^[0-9_]+ \* SECOND/) unit = 1000
            sub(/[^0-9_.].*/, "", text)
            gsub(/_/, "", text)
            return text * unit < 20000
        }
        # Returns whether only the soak runs the test of this line.
        function is_in_soak(   module, binary) {
            module = FILENAME
            sub(/^tests\//, "", module)
            binary = module
            sub(/\/.*/, "", binary)
            sub(/^[^\/]*\//, "", module)
            sub(/(\/mod)?\.rs$/, "", module)
            gsub(/\//, "::", module)
            return (binary " " module "::" test) in soak
        }
        function count(text, what) { return gsub(what, "", text) }
        function fail(what) { printf "%s:%d: %s: %s\n", FILENAME, FNR, what, $0; wrong = 1 }

        BEGIN { waits = "(^|[ .(:])(eventually|until_[a-z_]+|(recv_)?timeout|wait|relayed)[(]" }
        FILENAME == "tests/soak.txt" { soak[$1 " " $2] = 1; next }
        FNR == 1 { in_tests = FILENAME ~ /(^|\/)(tests?|test-support)\/|\/tests\.rs$|\.test\.js$/; whole = exempt = 0 }
        /^mod tests \{/ { in_tests = 1 }
        !in_tests { next }
        # The first pass reads the constants.
        /^ *(pub(\([a-z]+\))? )?const [A-Z_0-9]+: Duration =/ {
            name = $0
            sub(/^.*const /, "", name)
            sub(/:.*/, "", name)
            value[FILENAME, name] = seconds($0)
            if (/pub/) exported[name] = seconds($0)
            next
        }
        pass == 1 { next }
        /\/\/ Not a limit: / { exempt = FNR + 1 }
        /^ *(pub )?(async )?fn / { test = $0; sub(/^.*fn /, "", test); sub(/[^a-z0-9_].*/, "", test); daily = 0 }
        # An assertion may span some lines, and so may the arguments of a call before its closure.
        /assert!\(/ || $0 ~ waits "$" { whole = 1; line = ""; lines = 0 }
        whole {
            line = line $0
            if (count(line, "[(]") > count(line, "[)]") && !/\{$/ && ++lines < 6) next
            $0 = line
            whole = 0
        }
        /real time/ && is_in_soak() { next }

        # Limits per day, and the time zones of the function that has them. Unit tests have no servers.
        FILENAME !~ /(^|\/)src\// && !/on any day/ {
            if (/per_user_per_day"?: (Some\()?[1-9][0-9]?[^0-9_]|"limits": limits\(\)/) daily = 1
            if (/"limits": \{.*"per_user_per_day": [1-9][0-9]?[^0-9_]/ && !/patch\(/ ||
                /"--per-user-per-day", "[1-9][0-9]?"/ && !/zone_far_from_midnight/ ||
                daily && (/\["time_zone"\] = json!\("/ || /"time_zone": "[A-Z].*"limits"/)) {
                fail("a day may end while the test runs")
                next
            }
        }

        # Times from now, below 100 s, or below the 60,000 ms of a lease. Unit tests have no servers.
        FILENAME !~ /(^|\/)src\// && (/from_now\([1-9][0-9]?( \+ [0-9]+)?\)/ ||
        !/assert!/ && /now_ms\(\) \+ ([0-9][0-9]?[0-9]?|[1-5]?[0-9]_?[0-9][0-9][0-9])([^0-9_]|$)/ ||
        /hold_seconds["\]]*[ :=]*(json!\()?[1-9][0-9]?([^0-9_]|$)/ || /--hold-seconds", "[1-9][0-9]?"/ ||
        /_hold(s|ing)\(.*, [1-9][0-9]?(\)|,)/ || /const HOLD_[A-Z_]*: .* = [1-9][0-9]?;/) {
            fail("begins or ends while the test runs")
            next
        }
        # By default, a token is accepted for 5 s after its end.
        /"exp".*now.* (- [0-4]|\+ [1-9][0-9]?)[^0-9_]/ || /"--ttl", "[1-9][0-9]?"/ {
            fail("a token ends while the test runs")
            next
        }

        # Not limits that fail a test. A client has its own, and `while let` repeats until one elapses.
        /^ *(use|while let) / || /assert!\(.*\.is_err\(\)/ || /\.timeout\(/ || FNR == exempt { next }
        { gsub(/promised\(([^()]|\(([^()]|\([^()]*\))*\))*\)|SOON \+ [^,]*/, "SOON") }
        /\.contains\(&(took|waited|[a-z_.()]*(elapsed|as_(secs|millis)(_f64)?)\(\))\)/ ||
        /deadlineMs: 1?[0-9]?[0-9]?[0-9]?[0-9]([^0-9_]|$)/ ||
        $1 ~ /assert!\(/ && $2 ~ /^>=?$/ && (seconds($1) < 20 || has_short($1, "^[A-Z]")) {
            fail("a limit below 20 s")
            next
        }
        $0 ~ waits || /(assert!\(|holds\(|let is_|while ).* <=? / || /if .*(elapsed\(\)|took|waited) >=? / {
            limit = $0
            if (/ [<>]=? /) sub(/^.* [<>]=? /, "", limit)
            gsub(/"[^"]*"/, "", limit)
            if (seconds(limit) < 20 || has_short(limit, "^[A-Z]")) { fail("a limit below 20 s"); next }
        }
        /(now_ms\(\)|elapsed\(\)|_ms|took|waited|performance\.now\(\)).* <=? [0-9]/ ||
        /if .*(elapsed\(\)|took|waited).* >=? [0-9]/ {
            limit = $0
            sub(/^.* [<>]=? /, "", limit)
            if (is_short_number(limit, /as_secs(_f64)?\(\) [<>]=? / ? 1000 : 1)) { fail("a limit below 20 s"); next }
        }
        # A constant whose name says that it is a limit, and which is neither a lower bound nor a pause.
        / >=? |sleep\(|[sS]low\(|pool_idle_timeout\(|checked_sub\(/ { next }
        has_short($0, "_(MAX|WITHIN)$") { fail("a limit below 20 s") }
        END { exit wrong }
    ' tests/soak.txt pass=1 "$@" pass=2 "$@"
}

# Checks that each statement of the input is found, at its last line.
check_itself() {
    local directory bad
    directory=$(mktemp -d)
    bad=$directory/tests/bad.rs
    mkdir "$directory/tests"
    cat >"$bad"
    check "$bad" >"$directory/found" || true
    grep -nvE '^(pub.* )?const .* Duration|\($|^    .*,$' "$bad" | cut -d: -f1 >"$directory/expected"
    cut -d: -f2 "$directory/found" | diff "$directory/expected" - && rm -r "$directory"
}

check_itself <<'BAD' || { echo "check-waits: does not find the lines above, or finds others"; exit 1; }
const REPORT_MAX: Duration = Duration::from_secs(5);
pub(super) const POLL_MAX: Duration = Duration::from_secs(5);
const HOLD_S: i64 = 4;
const HOLD_SHORT: i64 = 4;
eventually(Duration::from_secs(5), || async { condition }).await;
eventually(REPORT_MAX, || async { condition }).await;
eventually(
    Duration::from_secs(5), || async { condition }).await;
until_returned(
    &redis,
    "held",
    Duration::from_secs(5));
eventually(POLL_MAX, || async { condition }).await;
let found = receiver.recv_timeout(Duration::from_secs(5)).unwrap();
if timeout(Duration::from_secs(2), poll).await.is_err() { panic!(); }
while began.elapsed() < Duration::from_secs(5) { poll().await; }
let reply = until_status(Duration::from_secs(19), &[200], call).await;
assert!(process.wait(Duration::from_millis(19_999)).await.success());
redis.relayed("demo", Duration::from_secs(8)).await;
timeout(Duration::from_secs(1), poll).await.expect("an answer");
assert!(began.elapsed() < Duration::from_millis(1_500), "{:?}", began.elapsed());
assert!(
    took.as_secs() >= 4 && took <= REPORT_MAX, "{took:?}");
assert!(took.as_secs() < 6);
assert!(REPORT_MAX > took);
assert!((claimed_at_ms - now_ms()).abs() < 10 * SECOND);
assert!((2..4).contains(&took.as_secs()));
assert!((2.0..4.0).contains(&took.as_secs_f64()));
assert!((REPORT_MIN..REPORT_MAX).contains(&took));
assert!(took < Duration::from_secs(5), "not {SOON:?}");
assert!(took < promised(SOON).min(Duration::from_secs(5)));
holds(sent_at.elapsed() < Duration::from_secs(2), || reply.text())
let is_fast = took < Duration::from_secs(1);
if began.elapsed() > Duration::from_secs(5) { panic!(); }
if began.elapsed().as_secs() > 5 { panic!(); }
all_granted(&core, REPORT_MAX).await;
body["starts_at"] = json!(from_now(2));
body["ends_at"] = json!(from_now(30)); // real time: but the soak has no such test
body["starts_at"] = json!(from_now(2 + 1));
let expires_at = Timestamp::from_ms(now_ms() + 2_000).unwrap();
body["hold_seconds"] = json!(2);
core.patch("demo", json!({"hold_seconds": 1})).await;
create_holding(&core, "held", 3).await;
run(&["campaign", "update", "demo", "--hold-seconds", "5"]).await;
run(&["pass", "--user", "ann", "--ttl", "5"]).await;
payload["exp"] = json!(now_ms() / 1000 - 2);
("ends", with("exp", json!(now_s + 3))),
let mut body = campaign("demo", json!({"per_user_per_day": 1})); body["time_zone"] = json!("UTC");
let body = json!({"id": "demo", "time_zone": "Asia/Shanghai", "limits": limits()});
let body = json!({"id": "demo", "limits": {"total": 10, "per_user_per_day": 2}});
run(&["campaign", "create", "demo", "--per-user-per-day", "1"]).await;
const client = new ClaimgateClient({ deadlineMs: 1500 });
assert.ok(performance.now() - startedAt < 1700, "the deadline holds");
BAD

mapfile -t files < <(git ls-files '*.rs' 'client/test/*.js' 'edge/*.test.js' ':!bench' ':!lab')
check "${files[@]}"
