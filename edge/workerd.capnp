# The edge in plain workerd (`make up-workerd`, docs/deployment.md): one process with one socket, which the Worker serves
# directly. All files are embedded, so a running edge reads no files.
#
#   workerd serve edge/workerd.capnp --socket-addr http=127.0.0.1:8787 --external-addr core=127.0.0.1:8080
#
# For two cores, set CORES=2 in the environment and add --external-addr core-2=10.0.0.2:8080; up to eight are possible.
#
# Settings and secrets are environment variables, listed in docs/configuration.md. An unset variable is null, which the
# Worker treats as unset. Some variables have defaults here.

using Workerd = import "/workerd/workerd.capnp";

const config :Workerd.Config = (
  services = [
    (name = "edge", worker = .edge),
    (name = "assets", worker = .assets),
    # Global fetch cannot reach private addresses, where core is.
    (name = "core", external = (address = "127.0.0.1:8080", http = ())),
    # CORES sets how many of these are used. Each one used needs an address from --external-addr.
    (name = "core-2", external = (address = "unix:/no-external-addr-for-core-2", http = ())),
    (name = "core-3", external = (address = "unix:/no-external-addr-for-core-3", http = ())),
    (name = "core-4", external = (address = "unix:/no-external-addr-for-core-4", http = ())),
    (name = "core-5", external = (address = "unix:/no-external-addr-for-core-5", http = ())),
    (name = "core-6", external = (address = "unix:/no-external-addr-for-core-6", http = ())),
    (name = "core-7", external = (address = "unix:/no-external-addr-for-core-7", http = ())),
    (name = "core-8", external = (address = "unix:/no-external-addr-for-core-8", http = ())),
    # Used if OTLP_URL is set. Needs the collector's address, such as --external-addr collector=127.0.0.1:4318.
    (name = "collector", external = (address = "127.0.0.1:4318", http = ())),
    # For the key set of the tokens' issuer, and for Turnstile: public addresses, with the machine's certificate authorities.
    # Addresses of this machine are reached only if USER_JWT_JWKS_URL, USER_JWT_ISS or TURNSTILE_URL names one.
    (name = "network", network = (allow = ["public"], tlsOptions = (trustBrowserCas = true))),
    (name = "loopback", network = (allow = ["127.0.0.0/8", "::1/128"], tlsOptions = (trustBrowserCas = true))),
  ],
  sockets = [(name = "http", address = "127.0.0.1:8787", http = (), service = "edge")],
  extensions = .extensions,
);

# Wrappers for bindings below.
const extensions :List(Workerd.Extension) = [(modules = [
  (name = "claimgate:rate-limit", internal = true, esModule = embed "workerd/rate_limit.js"),
  (name = "claimgate:default-value", internal = true, esModule = embed "workerd/default_value.js"),
])];

# Must equal the date in wrangler.toml.
const compatibilityDate :Text = "2026-09-01";

const edge :Workerd.Worker = (
  compatibilityDate = .compatibilityDate,
  modules = [
    (name = "index.js", esModule = embed "build/index.js"),
    (name = "index_bg.wasm", wasm = embed "build/index_bg.wasm"),
  ],
  # The Worker calls only the cores, the trace collector, the page's files, the source of the users' keys and Turnstile.
  globalOutbound = "core",
  bindings = [
    (name = "CORE", service = "core"),
    (name = "CORE_2", service = "core-2"),
    (name = "CORE_3", service = "core-3"),
    (name = "CORE_4", service = "core-4"),
    (name = "CORE_5", service = "core-5"),
    (name = "CORE_6", service = "core-6"),
    (name = "CORE_7", service = "core-7"),
    (name = "CORE_8", service = "core-8"),
    (name = "CORES", fromEnvironment = "CORES"),
    (name = "OTLP", service = "collector"),
    (name = "OTLP_URL", fromEnvironment = "OTLP_URL"),
    (name = "TRACE_RATIO", fromEnvironment = "TRACE_RATIO"),
    (name = "ASSETS", service = "assets"),
    (name = "EDGE_KEY", fromEnvironment = "EDGE_KEY"),
    (name = "NETWORK", service = "network"),
    (name = "LOOPBACK", service = "loopback"),
    (name = "USER_JWT_KEY", fromEnvironment = "USER_JWT_KEY"),
    (name = "USER_JWT_JWKS", fromEnvironment = "USER_JWT_JWKS"),
    (name = "USER_JWT_JWKS_URL", fromEnvironment = "USER_JWT_JWKS_URL"),
    (name = "USER_JWT_ALG", fromEnvironment = "USER_JWT_ALG"),
    (name = "USER_JWT_ISS", fromEnvironment = "USER_JWT_ISS"),
    (name = "USER_JWT_AUD", fromEnvironment = "USER_JWT_AUD"),
    (name = "USER_JWT_REQUIRE", fromEnvironment = "USER_JWT_REQUIRE"),
    (name = "USER_JWT_LEEWAY_S", fromEnvironment = "USER_JWT_LEEWAY_S"),
    (name = "USER_JWT_HEADER", fromEnvironment = "USER_JWT_HEADER"),
    (name = "USER_ID_CLAIM", fromEnvironment = "USER_ID_CLAIM"),
    (name = "USER_ID_FORM", fromEnvironment = "USER_ID_FORM"),
    (name = "USER_ID_KEY", fromEnvironment = "USER_ID_KEY"),
    (name = "PASS_KEYS", fromEnvironment = "PASS_KEYS"),
    (name = "OIDC_CLIENT_ID", fromEnvironment = "OIDC_CLIENT_ID"),
    (name = "OIDC_SCOPE", fromEnvironment = "OIDC_SCOPE"),
    (name = "OIDC_AUDIENCE", fromEnvironment = "OIDC_AUDIENCE"),
    (name = "SIGN_IN_URL", fromEnvironment = "SIGN_IN_URL"),
    (name = "CHALLENGE", fromEnvironment = "CHALLENGE"),
    (name = "PASS_SIGNING_KEY", fromEnvironment = "PASS_SIGNING_KEY"),
    (name = "PASS_SECONDS", fromEnvironment = "PASS_SECONDS"),
    (name = "CHALLENGE_SECONDS", fromEnvironment = "CHALLENGE_SECONDS"),
    (name = "CHALLENGE_ON_FAILURE", fromEnvironment = "CHALLENGE_ON_FAILURE"),
    (name = "ALTCHA_ATTEMPTS", fromEnvironment = "ALTCHA_ATTEMPTS"),
    (name = "TURNSTILE_SECRET", fromEnvironment = "TURNSTILE_SECRET"),
    (name = "TURNSTILE_SITE_KEY", fromEnvironment = "TURNSTILE_SITE_KEY"),
    (name = "TURNSTILE_HOSTNAMES", fromEnvironment = "TURNSTILE_HOSTNAMES"),
    (name = "TURNSTILE_URL", fromEnvironment = "TURNSTILE_URL"),
    (name = "CORS_ORIGINS", fromEnvironment = "CORS_ORIGINS"),
    (name = "DEMO", fromEnvironment = "DEMO"),
    (name = "DEFAULT_CAMPAIGN", fromEnvironment = "DEFAULT_CAMPAIGN"),
    (name = "RATE_PERIOD_S", fromEnvironment = "RATE_PERIOD_S"),
    (name = "RATE_ON_FAILURE", fromEnvironment = "RATE_ON_FAILURE"),
    # Cloudflare sends the address in a header that clients cannot set. Here any client could set it, so the default is peer.
    (name = "CLIENT_ADDRESS", wrapped = (
      moduleName = "claimgate:default-value",
      innerBindings = [
        (name = "value", fromEnvironment = "CLIENT_ADDRESS"),
        (name = "default", text = "peer"),
      ],
    )),
    (name = "RATE_PER_ADDRESS", wrapped = (
      moduleName = "claimgate:rate-limit",
      innerBindings = [
        (name = "name", text = "RATE_PER_ADDRESS_LIMIT"),
        (name = "limit", fromEnvironment = "RATE_PER_ADDRESS_LIMIT"),
        (name = "limitDefault", text = "60"),
        (name = "period", fromEnvironment = "RATE_PERIOD_S"),
        (name = "periodDefault", text = "10"),
      ],
    )),
    (name = "RATE_PER_USER", wrapped = (
      moduleName = "claimgate:rate-limit",
      innerBindings = [
        (name = "name", text = "RATE_PER_USER_LIMIT"),
        (name = "limit", fromEnvironment = "RATE_PER_USER_LIMIT"),
        (name = "limitDefault", text = "20"),
        (name = "period", fromEnvironment = "RATE_PERIOD_S"),
        (name = "periodDefault", text = "10"),
      ],
    )),
  ],
);

# The claim page. Lists every file in edge/assets by its path. "_headers" contains the response headers, and
# "generated" the brands' logos and the list of campaigns by path, as base64 (scripts/build-brand.mjs).
const assets :Workerd.Worker = (
  compatibilityDate = .compatibilityDate,
  modules = [(name = "assets.js", esModule = embed "workerd/assets.js")],
  globalOutbound = "core",
  bindings = [
    (name = "/index.html", text = embed "assets/index.html"),
    (name = "/page.js", text = embed "assets/page.js"),
    (name = "/brand.js", text = embed "assets/brand.js"),
    (name = "/page.css", text = embed "assets/page.css"),
    (name = "/messages.js", text = embed "assets/messages.js"),
    (name = "/storage.js", text = embed "assets/storage.js"),
    (name = "/display.js", text = embed "assets/display.js"),
    (name = "/client/claimgate.js", text = embed "assets/client/claimgate.js"),
    (name = "/client/button.js", text = embed "assets/client/button.js"),
    (name = "/sign-in/index.html", text = embed "assets/sign-in/index.html"),
    (name = "/sign-in/sign-in.js", text = embed "assets/sign-in/sign-in.js"),
    (name = "/sign-in/oauth4webapi.js", text = embed "assets/sign-in/oauth4webapi.js"),
    (name = "/campaigns/campaigns.js", text = embed "assets/campaigns/campaigns.js"),
    (name = "/pass/pass.js", text = embed "assets/pass/pass.js"),
    (name = "/pass/altcha.js", text = embed "assets/pass/altcha.js"),
    (name = "/pass/altcha-pbkdf2.js", text = embed "assets/pass/altcha-pbkdf2.js"),
    (name = "/pass/turnstile.js", text = embed "assets/pass/turnstile.js"),
    (name = "/favicon.svg", text = embed "assets/favicon.svg"),
    (name = "_headers", text = embed "assets/_headers"),
    (name = "generated", json = embed "build/generated.json"),
  ],
);
