<?php
// Claims through core as a back end does, with PHP 8.1 or later and its extension curl.
//
//     CLAIMGATE_URL=http://127.0.0.1:8080 CLAIMGATE_TOKEN=... php claim.php CAMPAIGN USER [QUANTITY]
//
// Prints the outcome as one line of JSON. If it is unknown, run it again: the claim counts once.
declare(strict_types=1);

const BACKOFF_S = 0.2, BACKOFF_S_MAX = 2.0;
// Core looks up the key before it applies these rules: after such a denial there is no claim with the key.
const DECIDED = ['not_started', 'paused', 'ended', 'sold_out', 'user_limit_reached', 'user_daily_limit_reached', 'quantity_out_of_range'];
// The request was not processed, and a retry cannot help.
const NOT_RETRIED = ['not_configured', 'user_ids_differ'];

final class Claim
{
    public function __construct(
        public readonly string $id,
        public readonly string $status, // granted, held, returned, expired or revoked
        public readonly int $quantity,
        public readonly int $sequence,
        public readonly ?string $expires_at = null,
    ) {
    }
}

/** A problem of claimgate (RFC 9457), or one of this program: network, unexpected_answer, claim_pending. */
final class Problem
{
    public function __construct(
        public readonly string $code, // a string, because newer versions may add codes
        public readonly int $status = 0, // 0 without a response
        public readonly string $title = '',
        public readonly string $detail = '',
        public readonly ?string $limit = null, // the limit that denied the claim
        public readonly ?int $remaining = null,
    ) {
    }

    public function retryHelps(): bool
    {
        $isTransient = $this->status < 400 || in_array($this->status, [408, 429]) || $this->status >= 500;
        return $isTransient && !in_array($this->code, NOT_RETRIED);
    }

    /** Whether the try may have made a claim although its response says otherwise, or is missing. */
    public function mayBeClaimed(): bool
    {
        return $this->retryHelps() && $this->status !== 429 && $this->code !== 'overloaded';
    }
}

final class Outcome
{
    public function __construct(
        public readonly string $outcome, // claimed, refused or unknown
        public readonly ?Claim $claim = null,
        public readonly bool $replayed = false, // whether an earlier try had made the claim
        public readonly ?Problem $problem = null,
    ) {
    }
}

/** Builds an object from the members of JSON that its constructor knows: newer versions may add members. */
function typed(string $class, mixed $members): object
{
    $parameters = (new ReflectionMethod($class, '__construct'))->getParameters();
    $known = array_flip(array_map(fn ($parameter) => $parameter->name, $parameters));
    return new $class(...array_intersect_key((array) $members, $known));
}

final class Core
{
    public function __construct(private string $url, private string $token, private int $tryMs, private int $deadlineMs)
    {
    }

    /** Sends a claim once. Returns the claim and whether it is a replay, or the problem and its Retry-After in seconds. */
    private function send(array $request, bool $isFirst): array
    {
        $headers = ["Authorization: Bearer $this->token", 'Content-Type: application/json'];
        if ($isFirst) { // only a first try may be rejected from a cache
            $headers[] = 'Claimgate-Attempt: 1';
        }
        $received = [];
        $call = curl_init("$this->url/internal/v1/claims");
        curl_setopt_array($call, [
            CURLOPT_POSTFIELDS => json_encode($request),
            CURLOPT_HTTPHEADER => $headers,
            CURLOPT_RETURNTRANSFER => true,
            CURLOPT_TIMEOUT_MS => $this->tryMs,
            CURLOPT_HEADERFUNCTION => function ($call, string $line) use (&$received): int {
                [$name, $value] = explode(':', $line, 2) + [1 => ''];
                $received[strtolower($name)] = trim($value);
                return strlen($line);
            },
        ]);
        $text = curl_exec($call);
        if ($text === false) {
            return [new Problem('network', detail: curl_error($call)), 0];
        }
        $status = curl_getinfo($call, CURLINFO_RESPONSE_CODE);
        try {
            $body = json_decode($text, true, flags: JSON_THROW_ON_ERROR);
            if ($status < 300) {
                return [typed(Claim::class, $body['claim'] ?? null), ($received['idempotent-replayed'] ?? '') === 'true'];
            }
            $problem = typed(Problem::class, ['status' => $status] + (array) $body);
        } catch (JsonException | TypeError) { // a proxy's page
            $problem = new Problem('unexpected_answer', $status);
        }
        $after = $received['retry-after'] ?? '';
        return [$problem, preg_match('/^\d{1,9}$/D', $after) ? (int) $after : 0];
    }

    /** Claims, and retries with the same key while a retry can help. Only the first try of a new key is marked. */
    public function claim(array $request, bool $isNew): Outcome
    {
        $deadline = hrtime(true) / 1e9 + $this->deadlineMs / 1000;
        [$backoff, $isFirst, $mayBeClaimed] = [BACKOFF_S, $isNew, !$isNew];
        while (true) {
            [$answer, $more] = $this->send($request, $isFirst);
            if ($answer instanceof Claim) {
                return new Outcome('claimed', claim: $answer, replayed: $more);
            }
            $isFirst = false;
            $mayBeClaimed = $mayBeClaimed || $answer->mayBeClaimed();
            $pause = $more + $backoff * random_int(50, 100) / 100;
            if (!$answer->retryHelps() || hrtime(true) / 1e9 + $pause > $deadline) {
                $isUnknown = $mayBeClaimed && !in_array($answer->code, DECIDED);
                return new Outcome($isUnknown ? 'unknown' : 'refused', problem: $answer);
            }
            usleep((int) ($pause * 1e6));
            $backoff = min(2 * $backoff, BACKOFF_S_MAX);
        }
    }
}

/**
 * Keeps the request in a file before its first try. Returns the stored request, and whether it is new. A link never
 * replaces a request that is stored already. A shop keeps the request with its order.
 */
function store(string $path, array $request): array
{
    $request['idempotency_key'] = rtrim(strtr(base64_encode(random_bytes(16)), '+/', '-_'), '=');
    $unlinked = "$path.{$request['idempotency_key']}";
    if (file_put_contents($unlinked, json_encode($request)) === false) {
        throw new RuntimeException("$unlinked: cannot be written");
    }
    $isNew = @link($unlinked, $path);
    unlink($unlinked);
    return [$isNew ? $request : json_decode(file_get_contents($path), true, flags: JSON_THROW_ON_ERROR), $isNew];
}

[, $campaign, $user, $quantity] = $argv + [1 => '', '', '1'];
foreach ([$campaign, $user] as $id) {
    if (!preg_match('/^[A-Za-z0-9_-]{1,64}$/D', $id)) {
        fwrite(STDERR, "usage: claim.php CAMPAIGN USER [QUANTITY]; ids are 1 to 64 characters of A-Z, a-z, 0-9, '_' and '-'\n");
        exit(2);
    }
}
$path = (getenv('CLAIMGATE_KEYS') ?: '.') . "/$campaign.$user.json";
[$request, $isNew] = store($path, ['campaign_id' => $campaign, 'user_id' => $user, 'quantity' => (int) $quantity]);
$tryMs = (int) (getenv('CLAIMGATE_TRY_MS') ?: 6000);
$deadlineMs = (int) (getenv('CLAIMGATE_DEADLINE_MS') ?: 20000);
$core = new Core(getenv('CLAIMGATE_URL'), getenv('CLAIMGATE_TOKEN'), $tryMs, $deadlineMs);
$outcome = $request['quantity'] === (int) $quantity
    ? $core->claim($request, $isNew)
    : new Outcome('unknown', problem: new Problem('claim_pending', detail: "of quantity {$request['quantity']}"));
echo json_encode($outcome, JSON_UNESCAPED_UNICODE | JSON_UNESCAPED_SLASHES), "\n";
if ($outcome->outcome !== 'unknown') { // the outcome is shown: after a crash before this line, the same claim is retried
    unlink($path);
}
