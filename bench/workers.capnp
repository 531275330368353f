# Claimgate's Worker as it ships and a bare one in one process, for the benchmark. Addresses come with the command line.
using Workerd = import "/workerd/workerd.capnp";
using Edge = import "../edge/workerd.capnp";

const config :Workerd.Config = (
  services = [
    (name = "edge", worker = Edge.edge),
    (name = "assets", worker = Edge.assets),
    (name = "bare", worker = .bare),
    (name = "core", external = (http = ())),
    # The Worker is bound to more than the one core that it is told of.
    (name = "core-2", worker = .bare),
    (name = "core-3", worker = .bare),
    (name = "core-4", worker = .bare),
    (name = "core-5", worker = .bare),
    (name = "core-6", worker = .bare),
    (name = "core-7", worker = .bare),
    (name = "core-8", worker = .bare),
    # And to a collector of traces, of which it is not told.
    (name = "collector", worker = .bare),
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
