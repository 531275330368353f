# The edge, with a Worker in place of the network: the Worker publishes KEY_SET, and logs what the edge asks Cloudflare's
# cache for.
using Workerd = import "/workerd/workerd.capnp";
using Edge = import "../../../edge/workerd.capnp";

const config :Workerd.Config = (
  services = [
    (name = "edge", worker = Edge.edge),
    (name = "assets", worker = Edge.assets),
    (name = "core", external = (http = ())),
    (name = "network", worker = .issuer),
    # The edge also needs the services that it does not use here.
    (name = "core-2", worker = .issuer),
    (name = "core-3", worker = .issuer),
    (name = "core-4", worker = .issuer),
    (name = "core-5", worker = .issuer),
    (name = "core-6", worker = .issuer),
    (name = "core-7", worker = .issuer),
    (name = "core-8", worker = .issuer),
    (name = "collector", worker = .issuer),
    (name = "loopback", worker = .issuer),
  ],
  sockets = [(name = "http", http = (), service = "edge")],
  extensions = Edge.extensions,
);

const issuer :Workerd.Worker = (
  compatibilityDate = Edge.compatibilityDate,
  modules = [(name = "location.js", esModule = embed "location.js")],
  bindings = [(name = "KEY_SET", fromEnvironment = "KEY_SET")],
);
