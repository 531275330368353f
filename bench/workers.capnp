# claimgate's Worker as shipped and a bare one in one process, for the benchmark. Addresses come from the command line.
using Workerd = import "/workerd/workerd.capnp";
using Edge = import "../edge/workerd.capnp";

const config :Workerd.Config = (
  services = [
    (name = "edge", worker = Edge.edge),
    (name = "assets", worker = Edge.assets),
    (name = "bare", worker = .bare),
    (name = "core", external = (http = ())),
    # The Worker also needs bindings for the cores that it does not use.
    (name = "core-2", worker = .bare),
    (name = "core-3", worker = .bare),
    (name = "core-4", worker = .bare),
    (name = "core-5", worker = .bare),
    (name = "core-6", worker = .bare),
    (name = "core-7", worker = .bare),
    (name = "core-8", worker = .bare),
    # It also needs a binding for the unused trace collector.
    (name = "collector", worker = .bare),
    # It also needs bindings for the networks of an issuer's keys, which it does not use either.
    (name = "network", worker = .bare),
    (name = "loopback", worker = .bare),
  ],
  sockets = [
    (name = "edge", http = (), service = "edge"),
    (name = "bare", http = (), service = "bare"),
  ],
  extensions = Edge.extensions,
);

const bare :Workerd.Worker = (
  compatibilityDate = Edge.compatibilityDate,
  modules = [
    (name = "index.js", esModule = embed "bare-edge/build/index.js"),
    (name = "index_bg.wasm", wasm = embed "bare-edge/build/index_bg.wasm"),
  ],
  bindings = [(name = "CORE", service = "core")],
);
