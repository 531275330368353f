import static java.util.stream.Collectors.joining;

import java.io.IOException;
import java.lang.reflect.RecordComponent;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileAlreadyExistsException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.SecureRandom;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * Claims through core as a back end does, with Java 17 or later and no library.
 *
 * <pre>CLAIMGATE_URL=http://127.0.0.1:8080 CLAIMGATE_TOKEN=... java Claimgate.java CAMPAIGN USER [QUANTITY]</pre>
 *
 * Prints the outcome as one line of JSON. If it is unknown, run it again: the claim counts once.
 */
public final class Claimgate {
    private static final Duration TRY = milliseconds("CLAIMGATE_TRY_MS", 6000);
    private static final Duration DEADLINE = milliseconds("CLAIMGATE_DEADLINE_MS", 20000);
    private static final long BACKOFF_MS = 200, BACKOFF_MS_MAX = 2000;
    private static final Pattern ID = Pattern.compile("[A-Za-z0-9_-]{1,64}");
    /** Core looks up the key before it applies these rules: after such a denial there is no claim with the key. */
    private static final Set<String> DECIDED = Set.of("not_started", "paused", "ended", "sold_out", "user_limit_reached",
            "user_daily_limit_reached", "quantity_out_of_range");
    /** The request was not processed, and a retry cannot help. */
    private static final Set<String> FINAL = Set.of("not_configured", "user_ids_differ");

    record Request(String campaign_id, String user_id, long quantity, String idempotency_key) { }

    /** The status is granted, held, returned, expired or revoked. */
    record Claim(String id, String status, long quantity, long sequence, String expires_at) { }

    /**
     * A problem of claimgate (RFC 9457), or one of this program: network, unexpected_answer, claim_pending. The code is
     * a string, because newer versions may add codes. The status is 0 without a response.
     */
    record Problem(String code, int status, String title, String detail, String limit, Long remaining) {
        static Problem own(String code, int status, String detail) {
            return new Problem(code, status, null, detail, null, null);
        }

        boolean retryHelps() {
            return !FINAL.contains(code) && (status < 400 || status == 408 || status == 429 || status >= 500);
        }

        /** Whether the try may have made a claim although its response says otherwise, or is missing. */
        boolean mayBeClaimed() {
            return retryHelps() && status != 429 && !code.equals("overloaded");
        }
    }

    sealed interface Outcome { }

    record Claimed(Claim claim, boolean replayed) implements Outcome { }

    record Refused(Problem problem) implements Outcome { }

    record Unknown(Problem problem) implements Outcome { }

    /** The response to one try: a claim, or a problem and its Retry-After. */
    private record Answer(Claimed claimed, Problem problem, long retryAfterMs) { }

    private final HttpClient http = HttpClient.newHttpClient();
    private final URI uri;
    private final String token;

    Claimgate(String url, String token) {
        this.uri = URI.create(url + "/internal/v1/claims");
        this.token = token;
    }

    private Answer send(Request request, boolean isFirst) throws InterruptedException {
        HttpRequest.Builder call = HttpRequest.newBuilder(uri).version(HttpClient.Version.HTTP_1_1);
        call.header("Authorization", "Bearer " + token).header("Content-Type", "application/json");
        if (isFirst) { // only a first try may be rejected from a cache
            call.header("Claimgate-Attempt", "1");
        }
        call.POST(BodyPublishers.ofString(Json.write(request)));
        CompletableFuture<HttpResponse<String>> sent = http.sendAsync(call.build(), BodyHandlers.ofString(StandardCharsets.UTF_8));
        HttpResponse<String> answer;
        try {
            answer = sent.get(TRY.toMillis(), TimeUnit.MILLISECONDS); // the request's own timeout excludes the response's body
        } catch (ExecutionException | TimeoutException lost) {
            sent.cancel(true);
            return new Answer(null, Problem.own("network", 0, String.valueOf(lost.getMessage())), 0);
        }
        int status = answer.statusCode();
        String after = answer.headers().firstValue("Retry-After").filter(value -> value.matches("[0-9]{1,9}")).orElse("0");
        long retryAfterMs = 1000 * Long.parseLong(after);
        try {
            Map<?, ?> body = Json.read(answer.body());
            if (status < 300) {
                Map<?, ?> claim = (Map<?, ?>) body.get("claim");
                boolean replayed = answer.headers().firstValue("Idempotent-Replayed").filter("true"::equals).isPresent();
                return new Answer(new Claimed(new Claim((String) claim.get("id"), (String) claim.get("status"),
                        (Long) claim.get("quantity"), (Long) claim.get("sequence"), (String) claim.get("expires_at")), replayed), null, 0);
            }
            Problem problem = new Problem(body.get("code").toString(), status, (String) body.get("title"),
                    (String) body.get("detail"), (String) body.get("limit"), (Long) body.get("remaining"));
            return new Answer(null, problem, retryAfterMs);
        } catch (RuntimeException page) { // a proxy's page
            return new Answer(null, Problem.own("unexpected_answer", status, "not from claimgate"), retryAfterMs);
        }
    }

    /** Claims, and retries with the same key while a retry can help. Only the first try of a new key is marked. */
    Outcome claim(Request request, boolean isNew) throws InterruptedException {
        long end = System.nanoTime() + DEADLINE.toNanos(), backoffMs = BACKOFF_MS;
        boolean mayBeClaimed = !isNew;
        for (boolean isFirst = isNew;; isFirst = false) {
            Answer answer = send(request, isFirst);
            if (answer.claimed() != null) {
                return answer.claimed();
            }
            Problem problem = answer.problem();
            mayBeClaimed |= problem.mayBeClaimed();
            long pauseMs = answer.retryAfterMs() + ThreadLocalRandom.current().nextLong(backoffMs / 2, backoffMs);
            if (!problem.retryHelps() || System.nanoTime() + pauseMs * 1_000_000 > end) {
                return mayBeClaimed && !DECIDED.contains(problem.code()) ? new Unknown(problem) : new Refused(problem);
            }
            Thread.sleep(pauseMs);
            backoffMs = Math.min(2 * backoffMs, BACKOFF_MS_MAX);
        }
    }

    /** A stored request, and whether it is new. */
    private record Stored(Request request, boolean isNew) { }

    /**
     * Keeps the request in a file before its first try. A link never replaces a request that is stored already. A shop
     * keeps the request with its order.
     */
    private static Stored store(Path path, String campaign, String user, long quantity) throws IOException {
        byte[] random = new byte[16];
        new SecureRandom().nextBytes(random);
        String key = Base64.getUrlEncoder().withoutPadding().encodeToString(random);
        Request request = new Request(campaign, user, quantity, key);
        Path unlinked = Files.writeString(path.resolveSibling(path.getFileName() + "." + key), Json.write(request));
        try {
            Files.createLink(path, unlinked);
            return new Stored(request, true);
        } catch (FileAlreadyExistsException pending) {
            Map<?, ?> old = Json.read(Files.readString(path));
            return new Stored(new Request(campaign, user, (Long) old.get("quantity"), (String) old.get("idempotency_key")), false);
        } finally {
            Files.delete(unlinked);
        }
    }

    public static void main(String[] words) throws Exception {
        if (words.length < 2 || !ID.matcher(words[0]).matches() || !ID.matcher(words[1]).matches()) {
            System.err.println("usage: Claimgate.java CAMPAIGN USER [QUANTITY]; ids are 1 to 64 characters of A-Z, a-z, 0-9, '_' and '-'");
            System.exit(2);
        }
        long quantity = words.length < 3 ? 1 : Long.parseLong(words[2]);
        Path path = Path.of(System.getenv().getOrDefault("CLAIMGATE_KEYS", "."), words[0] + "." + words[1] + ".json");
        Stored stored = store(path, words[0], words[1], quantity);
        Claimgate core = new Claimgate(System.getenv("CLAIMGATE_URL"), System.getenv("CLAIMGATE_TOKEN"));
        Outcome outcome = stored.request().quantity() == quantity ? core.claim(stored.request(), stored.isNew())
                : new Unknown(Problem.own("claim_pending", 0, "of quantity " + stored.request().quantity()));
        System.out.write((Json.write(outcome) + "\n").getBytes(StandardCharsets.UTF_8));
        System.out.flush();
        if (!(outcome instanceof Unknown)) { // the outcome is shown: after a crash before this line, the same claim is retried
            Files.deleteIfExists(path);
        }
    }

    private static Duration milliseconds(String variable, long standard) {
        String set = System.getenv(variable);
        return Duration.ofMillis(set == null ? standard : Long.parseLong(set));
    }

    /** Reads JSON, and writes records as JSON. Use the JSON library of your project instead. */
    private static final class Json {
        private static final Pattern WORD = Pattern.compile("[-+.0-9A-Za-z]+");
        private final String text;
        private int at;

        private Json(String text) {
            this.text = text;
        }

        static Map<?, ?> read(String text) {
            Json json = new Json(text);
            Map<?, ?> members = (Map<?, ?>) json.value();
            json.expect(!json.taken('\0') && json.at == text.length());
            return members;
        }

        private Object value() {
            if (taken('{')) {
                Map<String, Object> members = new HashMap<>();
                for (boolean more = !taken('}'); more; more = hasNext('}')) {
                    expect(taken('"'));
                    String name = string();
                    expect(taken(':'));
                    members.put(name, value());
                }
                return members;
            }
            if (taken('[')) {
                List<Object> items = new ArrayList<>();
                for (boolean more = !taken(']'); more; more = hasNext(']')) {
                    items.add(value());
                }
                return items;
            }
            if (taken('"')) {
                return string();
            }
            Matcher word = WORD.matcher(text).region(at, text.length());
            expect(word.lookingAt());
            at = word.end();
            return switch (word.group()) {
                case "null" -> null;
                case "true", "false" -> Boolean.valueOf(word.group());
                default -> word.group().matches("-?[0-9]+") ? (Object) Long.valueOf(word.group()) : Double.valueOf(word.group());
            };
        }

        private String string() {
            StringBuilder string = new StringBuilder();
            for (char next = text.charAt(at++); next != '"'; next = text.charAt(at++)) {
                if (next == '\\') {
                    next = text.charAt(at++);
                    int escape = "nrtbf".indexOf(next);
                    next = next == 'u' ? (char) Integer.parseInt(text.substring(at, at += 4), 16) : escape < 0 ? next : "\n\r\t\b\f".charAt(escape);
                }
                string.append(next);
            }
            return string.toString();
        }

        private boolean hasNext(char end) {
            return taken(',') || !expect(taken(end));
        }

        private boolean taken(char expected) {
            while (at < text.length() && " \n\r\t".indexOf(text.charAt(at)) >= 0) {
                at++;
            }
            boolean isThere = at < text.length() && text.charAt(at) == expected;
            at += isThere ? 1 : 0;
            return isThere;
        }

        private boolean expect(boolean isThere) {
            if (!isThere) {
                throw new IllegalArgumentException("not JSON at position " + at);
            }
            return true;
        }

        static String write(Object value) {
            if (value == null || value instanceof Number || value instanceof Boolean) {
                return String.valueOf(value);
            }
            if (!(value instanceof Record)) {
                String escaped = value.toString().replace("\\", "\\\\").replace("\"", "\\\"");
                return '"' + escaped.chars().mapToObj(c -> c < ' ' ? String.format("\\u%04x", c) : Character.toString(c)).collect(joining()) + '"';
            }
            List<String> members = new ArrayList<>();
            if (value instanceof Outcome) {
                members.add("\"outcome\":" + write(value.getClass().getSimpleName().toLowerCase(Locale.ROOT)));
            }
            for (RecordComponent member : value.getClass().getRecordComponents()) {
                try {
                    members.add(write(member.getName()) + ":" + write(member.getAccessor().invoke(value)));
                } catch (ReflectiveOperationException impossible) {
                    throw new IllegalStateException(impossible);
                }
            }
            return "{" + String.join(",", members) + "}";
        }
    }
}
