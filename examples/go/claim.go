// Claims through core as a back end does, with Go 1.19 or later and its standard library.
//
//	CLAIMGATE_URL=http://127.0.0.1:8080 CLAIMGATE_TOKEN=... go run claim.go CAMPAIGN USER [QUANTITY]
//
// Prints the outcome as one line of JSON. If it is unknown, run it again: the claim counts once.
package main

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	mathrand "math/rand"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"time"
)

const (
	backoffMin = 200 * time.Millisecond
	backoffMax = 2 * time.Second
)

var (
	tryLimit = milliseconds("CLAIMGATE_TRY_MS", 6000)
	deadline = milliseconds("CLAIMGATE_DEADLINE_MS", 20000)
	id       = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)
	// Core looks up the key before it applies these rules: after such a denial there is no claim with the key.
	decided = map[string]bool{"not_started": true, "paused": true, "ended": true, "sold_out": true,
		"user_limit_reached": true, "user_daily_limit_reached": true, "quantity_out_of_range": true}
	// The request was not processed, and a retry cannot help.
	final = map[string]bool{"not_configured": true, "user_ids_differ": true}
)

type Request struct {
	CampaignID     string `json:"campaign_id"`
	UserID         string `json:"user_id"`
	Quantity       int64  `json:"quantity"`
	IdempotencyKey string `json:"idempotency_key"`
}

type Claim struct {
	ID        string     `json:"id"`
	Status    string     `json:"status"` // granted, held, returned, expired or revoked
	Quantity  int64      `json:"quantity"`
	Sequence  int64      `json:"sequence"`
	ExpiresAt *time.Time `json:"expires_at"`
}

// Problem is a problem of claimgate (RFC 9457), or one of this program: network, unexpected_answer, claim_pending.
type Problem struct {
	Code      string `json:"code"`   // a string, because newer versions may add codes
	Status    int    `json:"status"` // 0 without a response
	Title     string `json:"title"`
	Detail    string `json:"detail"`
	Limit     string `json:"limit,omitempty"` // the limit that denied the claim
	Remaining *int64 `json:"remaining,omitempty"`

	retryAfter time.Duration
}

func (p *Problem) retryHelps() bool {
	return !final[p.Code] && (p.Status < 400 || p.Status == 408 || p.Status == 429 || p.Status >= 500)
}

// mayBeClaimed reports whether the try may have made a claim although its response says otherwise, or is missing.
func (p *Problem) mayBeClaimed() bool {
	return p.retryHelps() && p.Status != 429 && p.Code != "overloaded"
}

type Outcome struct {
	Outcome  string   `json:"outcome"` // claimed, refused or unknown
	Claim    *Claim   `json:"claim,omitempty"`
	Replayed bool     `json:"replayed"` // whether an earlier try had made the claim
	Problem  *Problem `json:"problem,omitempty"`
}

// Core is core's internal API.
type Core struct {
	url, token string
	http       http.Client
}

// send sends a claim once.
func (c *Core) send(request Request, isFirst bool) (*Claim, bool, *Problem) {
	body, _ := json.Marshal(request)
	call, err := http.NewRequest("POST", c.url+"/internal/v1/claims", bytes.NewReader(body))
	if err != nil {
		return nil, false, &Problem{Code: "network", Detail: err.Error()}
	}
	call.Header.Set("Authorization", "Bearer "+c.token)
	call.Header.Set("Content-Type", "application/json")
	if isFirst { // only a first try may be rejected from a cache
		call.Header.Set("Claimgate-Attempt", "1")
	}
	answer, err := c.http.Do(call)
	if err != nil {
		return nil, false, &Problem{Code: "network", Detail: err.Error()}
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return nil, false, &Problem{Code: "network", Detail: err.Error()}
	}
	var reply struct{ Claim *Claim }
	if answer.StatusCode < 300 && json.Unmarshal(text, &reply) == nil && reply.Claim != nil {
		return reply.Claim, answer.Header.Get("Idempotent-Replayed") == "true", nil
	}
	problem := &Problem{}
	if json.Unmarshal(text, problem) != nil || problem.Code == "" { // a proxy's page
		problem = &Problem{Code: "unexpected_answer"}
	}
	problem.Status = answer.StatusCode
	if seconds, err := strconv.ParseUint(answer.Header.Get("Retry-After"), 10, 30); err == nil {
		problem.retryAfter = time.Duration(seconds) * time.Second
	}
	return nil, false, problem
}

// claim claims, and retries with the same key while a retry can help. Only the first try of a new key is marked.
func (c *Core) claim(request Request, isNew bool) Outcome {
	end, backoff, mayBeClaimed := time.Now().Add(deadline), backoffMin, !isNew
	for isFirst := isNew; ; isFirst = false {
		claim, replayed, problem := c.send(request, isFirst)
		if problem == nil {
			return Outcome{Outcome: "claimed", Claim: claim, Replayed: replayed}
		}
		mayBeClaimed = mayBeClaimed || problem.mayBeClaimed()
		pause := problem.retryAfter + backoff/2 + time.Duration(mathrand.Int63n(int64(backoff/2)))
		if !problem.retryHelps() || time.Now().Add(pause).After(end) {
			if mayBeClaimed && !decided[problem.Code] {
				return Outcome{Outcome: "unknown", Problem: problem}
			}
			return Outcome{Outcome: "refused", Problem: problem}
		}
		time.Sleep(pause)
		if backoff *= 2; backoff > backoffMax {
			backoff = backoffMax
		}
	}
}

// store keeps the request in a file before its first try, and returns the stored request and whether it is new. A link
// never replaces a request that is stored already. A shop keeps the request with its order.
func store(path string, request Request) (Request, bool, error) {
	random := make([]byte, 16)
	if _, err := rand.Read(random); err != nil {
		return request, false, err
	}
	request.IdempotencyKey = base64.RawURLEncoding.EncodeToString(random)
	text, _ := json.Marshal(request)
	unlinked := path + "." + request.IdempotencyKey
	if err := os.WriteFile(unlinked, text, 0o600); err != nil {
		return request, false, err
	}
	defer os.Remove(unlinked)
	err := os.Link(unlinked, path)
	if !errors.Is(err, fs.ErrExist) {
		return request, true, err
	}
	if text, err = os.ReadFile(path); err == nil {
		err = json.Unmarshal(text, &request)
	}
	return request, false, err
}

func milliseconds(variable string, standard int64) time.Duration {
	if set, err := strconv.ParseInt(os.Getenv(variable), 10, 64); err == nil {
		standard = set
	}
	return time.Duration(standard) * time.Millisecond
}

func run(words []string) error {
	quantity := int64(1)
	if len(words) == 3 {
		quantity, _ = strconv.ParseInt(words[2], 10, 64)
	}
	if len(words) < 2 || !id.MatchString(words[0]) || !id.MatchString(words[1]) || quantity < 1 {
		return errors.New("usage: claim CAMPAIGN USER [QUANTITY]; ids are 1 to 64 characters of A-Z, a-z, 0-9, '_' and '-'")
	}
	path := filepath.Join(os.Getenv("CLAIMGATE_KEYS"), words[0]+"."+words[1]+".json")
	request, isNew, err := store(path, Request{CampaignID: words[0], UserID: words[1], Quantity: quantity})
	if err != nil {
		return err
	}
	core := Core{url: os.Getenv("CLAIMGATE_URL"), token: os.Getenv("CLAIMGATE_TOKEN"), http: http.Client{Timeout: tryLimit}}
	// A redirect would turn the POST into a GET.
	core.http.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	outcome := Outcome{Outcome: "unknown", Problem: &Problem{Code: "claim_pending", Detail: fmt.Sprintf("of quantity %d", request.Quantity)}}
	if request.Quantity == quantity {
		outcome = core.claim(request, isNew)
	}
	if err := json.NewEncoder(os.Stdout).Encode(outcome); err != nil {
		return err
	}
	if outcome.Outcome != "unknown" { // the outcome is shown: after a crash before this line, the same claim is retried
		return os.Remove(path)
	}
	return nil
}

func main() {
	mathrand.Seed(time.Now().UnixNano())
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
}
