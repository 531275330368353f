# The edge in plain workerd: `make up-workerd`, and docs/deployment.md. One process, one socket, the Worker directly behind
# it. All files are embedded, so that a running edge reads none.
#
#   workerd serve edge/workerd.capnp --socket-addr http=127.0.0.1:8787 --external-addr core=127.0.0.1:8080
#
# Several cores: with CORES=2 in the environment also --external-addr core-2=10.0.0.2:8080, and so on up to eight.
#
# Settings and secrets come from the environment (docs/configuration.md lists them). What is unset is null, which the Worker takes
# for unset, but for what has a default here.

using Workerd = import "/workerd/workerd.capnp";

const config :Workerd.Config = (
  services = [
    (name = "edge", worker = .edge),
    (name = "assets", worker = .assets),
    # Global fetch may not reach private addresses, which is where core is.
    (name = "core", external = (address = "127.0.0.1:8080", http = ())),
    # Used as far as CORES says; each needs an address by --external-addr then.
    (name = "core-2", external = (address = "unix:/no-external-addr-for-core-2", http = ())),
    (name = "core-3", external = (address = "unix:/no-external-addr-for-core-3", http = ())),
    (name = "core-4", external = (address = "unix:/no-external-addr-for-core-4", http = ())),
    (name = "core-5", external = (address = "unix:/no-external-addr-for-core-5", http = ())),
    (name = "core-6", external = (address = "unix:/no-external-addr-for-core-6", http = ())),
    (name = "core-7", external = (address = "unix:/no-external-addr-for-core-7", http = ())),
    (name = "core-8", external = (address = "unix:/no-external-addr-for-core-8", http = ())),
    # Used when OTLP_URL is set; it needs the collector's address by --external-addr collector=127.0.0.1:4318 then.
    (name = "collector", external = (address = "127.0.0.1:4318", http = ())),
  ],
  sockets = [(name = "http", address = "127.0.0.1:8787", http = (), service = "edge")],
  extensions = .extensions,
);

# Wrappers of bindings below.
const extensions :List(Workerd.Extension) = [(modules = [
  (name = "claimgate:rate-limit", internal = true, esModule = embed "workerd/rate_limit.js"),
  (name = "claimgate:default-value", internal = true, esModule = embed "workerd/default_value.js"),
])];

# The same as wrangler.toml's.
const compatibilityDate :Text = "2026-09-01";

const edge :Workerd.Worker = (
  compatibilityDate = .compatibilityDate,
  modules = [
    (name = "index.js", esModule = embed "build/index.js"),
    (name = "index_bg.wasm", wasm = embed "build/index_bg.wasm"),
  ],
  # The Worker calls the cores, a collector of traces and the page's files, nothing else.
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
    (name = "USER_JWT_KEY", fromEnvironment = "USER_JWT_KEY"),
    (name = "USER_JWT_ALG", fromEnvironment = "USER_JWT_ALG"),
    (name = "USER_JWT_ISS", fromEnvironment = "USER_JWT_ISS"),
    (name = "USER_JWT_AUD", fromEnvironment = "USER_JWT_AUD"),
    (name = "CORS_ORIGINS", fromEnvironment = "CORS_ORIGINS"),
    (name = "DEMO", fromEnvironment = "DEMO"),
    (name = "RATE_PERIOD_S", fromEnvironment = "RATE_PERIOD_S"),
    (name = "RATE_ON_FAILURE", fromEnvironment = "RATE_ON_FAILURE"),
    # On Cloudflare a header that clients cannot set holds the address. Here any client could set it.
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

# The claim page. Every file of edge/assets is listed, by its path; "_headers" holds their response headers.
const assets :Workerd.Worker = (
  compatibilityDate = .compatibilityDate,
  modules = [(name = "assets.js", esModule = embed "workerd/assets.js")],
  globalOutbound = "core",
  bindings = [
    (name = "/index.html", text = embed "assets/index.html"),
    (name = "/page.js", text = embed "assets/page.js"),
    (name = "/page.css", text = embed "assets/page.css"),
    (name = "/messages.js", text = embed "assets/messages.js"),
    (name = "/claimgate.js", text = embed "assets/claimgate.js"),
    (name = "/favicon.svg", text = embed "assets/favicon.svg"),
    (name = "_headers", text = embed "assets/_headers"),
  ],
);
